"""Plan files, as `mssp export`, `mssp plan --extend`, `mssp sweep --multipliers` and `mssp report` read them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import mssp
from mssp.ladders.mlp import family
from mssp.planning.plan_file import _LATER_SETTINGS, _SETTINGS
from mssp.planning.recipe import without_plan_warnings
from tests.fuzz.arrays import write_sound
from tests.fuzz.cases import Case, Kind, Outcome
from tests.fuzz.mutations import OF_BYTES, OF_DOCUMENTS, Step, drawn, file_after, steps_of_document

_TUNED = ["--scheme", "mssp", "--optimizer", "sgd", "--regime", "II"]
_TINY = ["--widths", "16", "--steps", "2", "--batch", "10", "--seeds", "1", "--lr-points", "1", "--device", "cpu"]
_SHAPE = {"width": 128, "expert-width": 16, "experts": 16, "active": 4, "depth": 2}
_HOSTS = ("torchtitan", "megatron", "olmo-core", "nanogpt")
_EXTREMES = (1e-300, 5e-324, 1e-30, 0.1, 1.0, 3, 1e30, 1e300, 1.7e308)


@cache
def _sound() -> Mapping[str, Any]:
    """Plans of several settings, and one such as `mssp tune` writes."""
    target, base = mssp.Shape(128, 64, 16, 8, 4), mssp.Shape(64, 32, 8, 4, 2)
    with without_plan_warnings():
        made = {
            "tuned": mssp.plan(family("II", 16), regime="II", optimizer="sgd", lr=0.5, lr_mult={"router": 2.0}),
            "adamw": mssp.plan(target, base, regime="III", lr=4e-3, weight_decay=0.1, init_std=0.02, eps=1e-9),
            "adam": mssp.plan(
                target, regime="I", optimizer="adam", lr=1e-3, grad_scale=True, lr_mult={"expert_out": 0.25},
                init_mult=0.5, recipe=mssp.Recipe(betas=(0.9, 0.95), batch=50), readout="mup",
            ),
            "mup": mssp.plan(target, base, regime="II", scheme="mup", optimizer="sgd", lr=0.1, as_printed=True),
        }  # fmt: skip
    return {name: json.loads(plan.json()) for name, plan in made.items()}


def _resealed(_: Random, document: Any) -> Any:
    """The document with the hash of its settings, whatever these are: other checks have to notice what is wrong."""
    return {**document, "hash": _hash(document)} if isinstance(document, dict) else document


def _hash(document: Mapping[str, Any]) -> str:
    names = (*_SETTINGS, *(name for name in _LATER_SETTINGS if name in document))
    canonical = json.dumps({name: document.get(name) for name in (*names, "version")}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _extreme(random: Random, document: Any) -> Any:
    """The sound file of another plan: one of its numbers is as small or as large as numbers are, if a plan takes it."""
    plan = mssp.Plan.from_json(json.dumps(document))
    settings = {
        name: getattr(plan, name)
        for name in ("scheme", "optimizer", "regime", "base", "lr", "readout", "lr_mult", "init_mult", "init_std")
    } | ({} if plan.eps is None else {"eps": plan.eps, "weight_decay": plan.weight_decay})
    name = random.choice(("lr", "eps", "weight_decay", "lr_mult", "init_mult", "init_std", "target"))
    number, target = random.choice(_EXTREMES), plan.target
    if name == "target":
        target = mssp.Shape(
            2 ** random.randrange(52), 2 ** random.randrange(52), 2**50, 2 ** random.randrange(50), 2**40
        )
    elif name in settings:
        settings[name] = {random.choice(["router", "hidden", "norm"]): number} if name.endswith("_mult") else number
    try:
        with without_plan_warnings():
            return json.loads(mssp.plan(target, **settings).json())
    except ValueError:
        return document


_MUTATIONS = {**OF_DOCUMENTS, "extreme": _extreme, "resealed": _resealed}


def _draw(random: Random) -> list[Step]:
    first = drawn(random, ["extreme"], [1]) if random.random() < 0.25 else []
    if first and random.random() < 0.5:
        return first
    last = drawn(random, ["resealed"], [1]) if random.random() < 0.3 else []
    return [*first, *sorted([*steps_of_document(random), *last], key=lambda step: step.name in OF_BYTES)]


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    document = _sound()[random.choice(sorted(_sound()))]
    (folder / "plan.json").write_bytes(file_after(document, steps, _MUTATIONS))
    words = random.choices((_exported, _extended, _reported, _swept), (4, 4, 1, 1))[0](random, folder)
    writes = {"export": ["out.py"], "sweep": ["runs.sqlite*"], "report": ["report.html"]}.get(words[0], [])
    return Case(words, partial(_read, folder / "plan.json"), _finite, writes)


def _exported(random: Random, _: Path) -> list[str]:
    output = ["-o", "out.py"] if random.random() < 0.5 else []
    return ["export", random.choice(_HOSTS), "--plan", "plan.json", *output]


def _extended(random: Random, _: Path) -> list[str]:
    sizes = [word for key, size in _SHAPE.items() for word in (f"--target.{key}", str(size))]
    return ["plan", "--extend", "plan.json", *sizes, *random.choice(([], ["--json"], ["--markdown"]))]


def _reported(_: Random, folder: Path) -> list[str]:
    return ["report", "plan.json"]


def _swept(_: Random, folder: Path) -> list[str]:
    write_sound(folder / "data.npz")
    return ["sweep", "--data", "data.npz", "--multipliers", "plan.json", *_TUNED, *_TINY]


def _finite(outcome: Outcome) -> None:
    """What is printed holds numbers alone: no number of a plan is NaN or beyond all numbers."""
    for word in ("nan", "NaN", "inf", "Infinity"):
        assert word not in outcome.out.replace(",", " ").split(), outcome.out


def _read(path: Path) -> None:
    """An accepted file is of the plan that its settings say, and every number of it follows from them."""
    content = path.read_bytes()
    plan = mssp.Plan.from_json(content)
    document = json.loads(content)
    assert plan.hash == document["hash"] == _hash(document)
    again = mssp.Plan.from_json(plan.json())
    assert again == plan
    assert again.json() == plan.json()
    for role, values in plan.roles.items():
        for name, value in values.json().items():
            if isinstance(value, float):
                assert math.isfinite(value), (role, name)
                assert math.isclose(value, document["roles"][role][name], rel_tol=1e-9), (role, name)


KIND = Kind("plans", _draw, _make)
