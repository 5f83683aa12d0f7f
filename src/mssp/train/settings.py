"""The settings of a training run: what a recipe file says, section by section, and how settings are compared.

A recipe file is TOML. Its sections are the classes below; ``[model]`` and ``[plan]`` hold the arguments of
:class:`mssp.nn.GPTConfig` and of :func:`mssp.plan`, which refuse what they do not know.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from mssp._constraints import (
    at_least,
    between,
    kind_of,
    mapping,
    one_of,
    optional,
    path,
    positive,
    positive_int,
    positive_or_zero,
    switch,
    takes,
    whole,
    word,
)
from mssp._files import file_at
from mssp.nn.router import LOSS_FORMS
from mssp.train.layouts import LAYOUTS
from mssp.train.schedule import SCHEDULES

PRECISIONS = ("auto", "float32", "bfloat16")
DEFAULT_RECIPE = "bytes"


@takes(
    tokens=word,
    sequence=positive_int,
    passes=positive_int,
    validation=positive_int,
)
@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The section ``[data]``: the text that a model is trained on.

    Args:
        tokens: a token file of ``mssp data prepare``, or ``python`` for the standard library's source as bytes.
        sequence: tokens in a sequence that are predicted.
        passes: how often the text may be read, each time in another order.
        validation: sequences of the validation part that every validation computes the loss of.
    """

    tokens: str = "python"
    sequence: int = 256
    passes: int = 1
    validation: int = 64


@takes(
    steps=positive_int,
    tokens_per_step=positive_int,
    micro_batch=optional(positive_int),
    warmup=at_least(0),
    schedule=one_of(SCHEDULES),
    final=between(0, 1),
    decay=between(0, 1),
    clip=optional(positive),
    balance=optional(positive_or_zero),
    balance_form=one_of(LOSS_FORMS),
    z=positive_or_zero,
    precision=one_of(PRECISIONS),
    compile=switch,
    checkpointing=switch,
    layout=optional(one_of(LAYOUTS)),
    seed=whole,
    validate_every=positive_int,
    save_every=positive_int,
    keep=positive_int,
)
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The section ``[training]``: how long, how large a step, and what the loss is.

    Args:
        tokens_per_step: predicted tokens that an update is computed from, over all micro-batches and processes.
        micro_batch: sequences that a process computes at once; gradients are added up over as many parts as that takes.
        warmup: steps in which the learning rate rises to its planned value.
        schedule: what it does after that: ``constant``, ``cosine``, or ``wsd`` (constant, then down in a line).
        final: the share of the planned learning rate at the last step of ``cosine`` and ``wsd``.
        decay: the share of all steps in which ``wsd`` comes down.
        clip: the largest norm of a step's gradients; None for no clipping.
        balance: the weight of the load-balancing loss of ``mssp.nn.GPT`` (0.01 unless said). A Hugging Face model has a
            coefficient of its own in its config.
        balance_form: ``mean`` over layers, 1 at uniform routing; or ``authors``, the form in the paper's experiments.
        z: the weight of the router's z-loss.
        precision: of the forward pass: ``bfloat16`` by autocast, ``float32``, or ``auto``, which is bfloat16 on GPUs.
        layout: how the model is spread over processes; None: ``ddp`` for several, ``one`` for one.
        validate_every, save_every: steps between two validations, and between two checkpoints.
        keep: checkpoints that are kept, the newest ones.
    """

    steps: int = 1000
    tokens_per_step: int = 4096
    micro_batch: int | None = None
    warmup: int = 0
    schedule: str = "cosine"
    final: float = 0.1
    decay: float = 0.2
    clip: float | None = 1.0
    balance: float | None = None
    balance_form: str = "mean"
    z: float = 0.0
    precision: str = "auto"
    compile: bool = False
    checkpointing: bool = False
    layout: str | None = None
    seed: int = 0
    validate_every: int = 100
    save_every: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        if self.warmup > self.steps:
            raise ValueError(f"warmup must be at most the {self.steps} steps of the run, got {self.warmup}")


@takes(routers_every=optional(positive_int), monitor_every=optional(positive_int))
@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """The section ``[watch]``: what is measured while the model trains.

    Args:
        routers_every: steps between two looks at the health of the routers; None for none.
        monitor_every: steps between two measurements of the sizes of all terms; None for none.
    """

    routers_every: int | None = 10
    monitor_every: int | None = None


# Entries that may differ when a run goes on: they do not change what is computed, or only its rounding.
FREE = frozenset(
    f"training.{name}"
    for name in ("micro_batch", "compile", "checkpointing", "layout", "validate_every", "save_every", "keep")
) | {"about", "watch.routers_every", "watch.monitor_every"}


@takes(
    about=word,
    model=mapping,
    plan=mapping,
    data=kind_of(DataSettings),
    training=kind_of(TrainingSettings),
    watch=kind_of(WatchSettings),
)
@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Everything that a run is: the content of a recipe file, with what flags changed.

    >>> settings = RunSettings.of({"model": {"width": 64}, "training": {"steps": 200}})
    >>> settings.training.steps, settings.data.tokens
    (200, 'python')
    >>> RunSettings.of({"training": {"step": 200}})
    Traceback (most recent call last):
        ...
    ValueError: [training] has no entry step; perhaps you meant steps

    Args:
        about: what the recipe is, in a sentence.
        model: arguments of :class:`mssp.nn.GPTConfig`, or ``config``, the path of a Hugging Face config.
        plan: arguments of :func:`mssp.plan`, with ``base`` as a table of sizes; or ``file``, a plan file.
    """

    about: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> RunSettings:
        """The settings in the mapping of a recipe file, or of :meth:`json`."""
        _refuse_unknown(document, [each.name for each in fields(cls)], "a recipe")
        sections: dict[str, Any] = {key: document[key] for key in ("about", "model", "plan") if key in document}
        for name, kind in _KINDS.items():
            entries = document.get(name, {})
            if not isinstance(entries, Mapping):
                raise ValueError(f"[{name}] must be a table of entries, as [{name}] in TOML")
            _refuse_unknown(entries, [each.name for each in fields(kind)], f"[{name}]")
            sections[name] = kind(**entries)
        return cls(**sections)

    def json(self) -> dict[str, Any]:
        """As nested mappings that JSON can hold; :meth:`of` reads them back."""
        return {
            "about": self.about,
            "model": dict(self.model),
            "plan": dict(self.plan),
            **{name: asdict(getattr(self, name)) for name in _KINDS},
        }

    @property
    def sequences_per_step(self) -> int:
        """The sequences of an update; tokens that are no whole number of them are refused."""
        tokens, sequence = self.training.tokens_per_step, self.data.sequence
        if tokens % sequence:
            raise ValueError(f"tokens_per_step must be a multiple of the sequence of {sequence} tokens, got {tokens}")
        return tokens // sequence

    def differences(self, other: RunSettings) -> list[str]:
        """What differs from other settings and may not when a run goes on, as ``entry: here, there``."""
        here, there = dict(flat(self.json())), dict(flat(other.json()))
        names = [name for name in {**here, **there} if name not in FREE]
        return [
            f"{name} is {here.get(name, 'not given')} here, {there.get(name, 'not given')} there"
            for name in names
            if here.get(name) != there.get(name)
        ]


_KINDS: dict[str, Any] = {"data": DataSettings, "training": TrainingSettings, "watch": WatchSettings}


def _refuse_unknown(entries: Mapping[str, Any], known: list[str], where: str) -> None:
    for name in entries:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"perhaps you meant {close[0]}" if close else f"it has {', '.join(known)}"
            raise ValueError(f"{where} has no entry {name}; {hint}")


def flat(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All entries of all sections by names with dots.

    >>> dict(flat({"about": "small", "training": {"steps": 600}}))
    {'about': 'small', 'training.steps': 600}
    """
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value


# -- recipe files ------------------------------------------------------------------------------------------------------


def listed_recipes() -> dict[str, str]:
    """The recipes of the package: what each is, by name."""
    texts = {}
    for file in sorted(_folder().iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            texts[file.name.removesuffix(".toml")] = tomllib.loads(file.read_text(encoding="utf-8"))["about"]
    return texts


@takes(name=path)
def read_recipe(name: str | Path) -> dict[str, Any]:
    """The mapping of a recipe file: one of the package by its name, or a file of one's own by its path."""
    known = listed_recipes()
    if str(name) in known:
        return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    if not Path(name).is_file() and not str(name).endswith(".toml"):
        close = get_close_matches(str(name), known, n=1)
        hint = f"; perhaps you meant {close[0]}" if close else ""
        raise ValueError(f"recipe must be one of {', '.join(known)}, or a .toml file, got '{name}'{hint}")
    file = file_at(name)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a recipe: {' '.join(str(error).split())}") from None


def _folder() -> Any:
    return resources.files("mssp.train") / "recipes"
