"""What is held: every case by its name, as data where it can be, and the functions that look.

A name is ``file/what``; what was seen is kept in ``observed/file.json``. Nothing here imports a module of the library
beyond its root, ``mssp.nn``, ``mssp.hf`` and the command line, so that modules may move.
"""

from __future__ import annotations

import csv
import difflib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import mssp
from tests.golden.comparing import MASK, without_times
from tests.golden.figures import drawn_figures
from tests.golden.mistakes import MISTAKES
from tests.golden.models import MODELS, shortened
from tests.golden.observing import AVERAGED, DRAWN, EXACT, PLANNED, TRAINED, Case, command, observe, written
from tests.golden.shapes import OF_A_REGIME, OPTIONS, STEPS, in_words, planned, step

__all__ = [
    "CASES",
    "FILES",
    "file_of",
    "forget",
    "kept",
    "kept_names",
    "kept_or_none",
    "make_store",
    "observe",
    "path_of",
]

_OBSERVED = Path(__file__).parent / "observed"
_STORE = _OBSERVED / "store.sqlite"
# Files of goldens whose lines are long: an entry of these stands in one.
FILES = {
    "plans": 4000, "options": 4000, "rules": 200, "mistakes": 160, "explain": 150, "exports": 160, "weights": 400,
    "check": 2000, "charts": 500, "help": 118, "texts": 160, "documents": 400, "sweep": 400, "dmft": 2000, "tune": 400,
    "store": 400,
}  # fmt: skip

_ROLES = (
    "embedding", "norm", "qk_norm", "hidden", "bias", "router", "router_bias", "expert_in", "expert_in_bias",
    "expert_out", "expert_out_bias", "shared_gate", "final_norm", "readout",
)  # fmt: skip
_REGIMES = ("I", "II", "III")
_SCHEMES = ("mssp", "mup", "mup-heuristic", "sp", "ntp", "jiang")
_OPTIMIZERS = ("sgd", "adam", "adamw")
_COMMANDS = (
    "demo", "proxy", "plan", "explain", "claims", "export", "check", "tune", "sweep", "train", "generate",
    "dmft", "data", "report", "dispatch",
)  # fmt: skip


def path_of(file: str) -> Path:
    return _OBSERVED / f"{file}.json"


def file_of(name: str) -> str:
    return name.partition("/")[0]


def kept_names() -> set[str]:
    """The names of all goldens."""
    return {name for file in FILES for name in _entries(file)}


def kept(name: str) -> Any:
    """What was seen when the golden was recorded."""
    return _entries(file_of(name))[name]


def forget() -> None:
    """Read goldens anew, after they were written."""
    _entries.cache_clear()


def kept_or_none(name: str) -> Any:
    return _entries(file_of(name)).get(name)


@cache
def _entries(file: str) -> dict[str, Any]:
    path = path_of(file)
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


# -- plans -------------------------------------------------------------------------------------------------------------


def _plan(name: str, **options: Any) -> Any:
    """One plan in short, or why there is none."""
    try:
        made = planned(name, **options)
    except ValueError as error:
        return {"refused": str(error)}
    factors = {
        which: [made.multiplier(which), made.multiplier(which, relative=True)]
        for which in ("aggregation", "residual", "tied_readout")
    }
    roles = {}
    for role, each in made.roles.items():
        words = [word for word, holds in (("tied", each.shared == 1), ("zero", each.zero)) if holds]
        scaled = [] if each.grad_scale == 1 else [each.grad_scale]
        numbers = [each.init_std, each.lr, each.eps, each.weight_decay, *scaled]
        roles[role] = [*numbers, " ".join([each.source, *words])]
    return {
        "hash": made.hash,
        "regime": made.regime,
        "settings": _digest(_settings(json.loads(made.json()))),
        "warnings": list(made.warnings),
        **factors,
        "roles": roles,
    }


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    """What a plan's document says exactly: all but the numbers it computes."""
    computed = ("roles", "aggregation", "residual")
    exact = {
        role: {key: value for key, value in each.items() if not isinstance(value, float)}
        for role, each in document["roles"].items()
    }
    return {**{key: value for key, value in document.items() if key not in computed}, "roles": exact}


def _digest(document: Any) -> str:
    return sha256(json.dumps(document).encode()).hexdigest()[:16]


def _plans(scheme: str, optimizer: str, regime: str | None) -> Any:
    names = STEPS if regime is None else OF_A_REGIME[regime]
    return {name: _plan(name, scheme=scheme, optimizer=optimizer, regime=regime) for name in names}


def _optioned(options: dict[str, Any]) -> Any:
    found = {}
    steps = [("growing as II", "II"), ("deeper", "III"), ("alone", "I")]
    for (name, regime), optimizer in product(steps, ("sgd", "adamw")):
        found[f"{name}, {optimizer}"] = _plan(name, regime=regime, optimizer=optimizer, **options)
    if "lr_mult" not in options:  # a scheme with a readout of its own
        found["top-k, mup"] = _plan("top-k", scheme="mup", **options)
    return found


def _rules(scheme: str) -> Any:
    found = {}
    for optimizer, regime, as_printed in product(_OPTIMIZERS, (*_REGIMES, None), (False, True)):
        name = f"{optimizer}, {regime}{', as printed' if as_printed else ''}"
        try:
            found[name] = {role: _rule(role, scheme, regime, optimizer, as_printed) for role in _ROLES}
        except ValueError as error:
            found[name] = {"refused": str(error)}
    return found


def _rule(role: str, scheme: str, regime: str | None, optimizer: str, as_printed: bool) -> str:
    rule = mssp.rule(role, scheme, regime, optimizer, as_printed)
    tied = ", tied" if rule.shared == 1 else ""
    return f"{rule.init_std}; {rule.lr}; {rule.eps}; {rule.source}{tied}"


def _texts(name: str, **options: Any) -> Any:
    made = planned(name, **options)
    assert mssp.Plan.from_json(made.json()) == made
    return {"text": str(made).splitlines(), "markdown": made.markdown().splitlines()}


def _differing() -> Any:
    first = planned("growing as III", weight_decay=0.1, lr_mult={"router": 2.0})
    others = {
        "itself": first,
        "another lr": planned("growing as III", weight_decay=0.1, lr=1e-3, lr_mult={"router": 2.0}),
        "another scheme": planned("growing as III", weight_decay=0.1, scheme="mup"),
        "another target": planned("deeper", weight_decay=0.1, lr_mult={"router": 2.0}),
        "sgd": planned("growing as III", optimizer="sgd"),
        "no base": mssp.plan(first.target, lr=4e-3, regime="III"),
    }
    found = {name: first.diff(other) for name, other in others.items()}
    return {name: {"text": str(each).splitlines(), "any": bool(each)} for name, each in found.items()}


def _extended() -> Any:
    found = {}
    settings: dict[str, dict[str, Any]] = {
        "II by muP": {"scheme": "mup", "regime": "II"},
        "with a recipe": {"recipe": mssp.Recipe(batch=8, steps=100), "weight_decay": 0.1},
        "by std": {"init_std": 0.02, "readout": "mup", "grad_scale": True},
    }
    for name, options in settings.items():
        carried = planned("growing as III", **options).extend(STEPS["deeper"][0], mssp.Recipe(batch=16))
        found[name] = {"json": json.loads(carried.json()), "text": str(carried).splitlines()}
    return found


def _resolved() -> Any:
    infos = [
        mssp.ParamInfo("hidden", fan_in=1024, fan_out=1024, name="usual"),
        mssp.ParamInfo("hidden", fan_in=4096, fan_out=1024, name="ffn"),
        mssp.ParamInfo("hidden", fan_in=1024, fan_out=256, base_fan_out=256, name="fewer heads"),
        mssp.ParamInfo("hidden", fan_in=24, fan_out=1024, base_fan_in=24, name="low rank"),
        mssp.ParamInfo("expert_in", fan_in=1024, fan_out=512, expert_axis=0, experts=32, name="expert_in"),
        mssp.ParamInfo("expert_out", fan_in=512, fan_out=1024, expert_axis=0, experts=32, name="expert_out"),
        mssp.ParamInfo("readout", fan_in=1024, fan_out=100, name="readout"),
        mssp.ParamInfo("norm", fan_out=1024, name="norm"),
    ]
    found: dict[str, Any] = {}
    for optimizer, base in product(_OPTIMIZERS, (True, False)):
        target, small = STEPS["growing as III"]
        made = mssp.plan(target, small if base else None, regime="III", optimizer=optimizer, lr=4e-3)
        values = made.resolve(infos)
        found[f"{optimizer}, {'a base' if base else 'no base'}"] = {
            name: [each.init_std, each.lr, each.eps, each.weight_decay, each.source] for name, each in values.items()
        }
    try:
        planned("growing as III").resolve([mssp.ParamInfo("router", fan_in=1024, fan_out=31, name="off")])
    except ValueError as error:
        found["refused"] = str(error)
    return found


def _explained(role: str) -> Any:
    lines = {
        "all": "", "I": "--regime I", "II": "--regime II", "III": "--regime III", "JSON": "--json",
        "Markdown": "--markdown --regime II", "mup": "--scheme mup", "mup-heuristic": "--scheme mup-heuristic",
        "sp": "--scheme sp", "ntp": "--scheme ntp", "jiang": "--scheme jiang",
    }  # fmt: skip
    return {name: command(f"explain {role} {flags}").lines for name, flags in lines.items()}


# -- the command line --------------------------------------------------------------------------------------------------


_SMALL_CONFIG = {
    "model_type": "olmoe", "vocab_size": 128, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LARGE_CONFIG = {
    **_SMALL_CONFIG, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 4,
}  # fmt: skip
_PLAN_FILES = {
    "plan.json": f"{step('growing as III')} --lr 4e-3 --weight-decay 0.1",
    "I.json": f"{step('growing as I')} --lr 4e-3 --scheme mup --readout scheme",
    "II.json": f"{step('growing as II')} --lr 4e-3 --optimizer adam --init-std 0.02 --lr-mult router=2",
    "III.json": f"{step('growing as III')} --lr 4e-3 --weight-decay 0.1 --recipe.betas 0.9 0.95",
    "top-k.json": f"{step('top-k')} --lr 4e-3 --scheme mup --aggregation-mult 2 --readout mup",
    "jiang.json": f"{step('growing as III')} --lr 4e-3 --scheme jiang",
    "sgd.json": f"{step('growing as II')} --lr 0.4 --optimizer sgd",
    "scaled.json": f"{step('growing as II')} --lr 4e-3 --grad-scale",
    "alone.json": f"{step('alone')} --lr 4e-3 --regime I",
    "limit.json": (
        "--target.width 16 --target.expert-width 2 --target.experts 8 --target.active 8 --target.depth 1 "
        "--target.inputs 5 --regime II --scheme mup --readout mup --optimizer sgd --lr 0.4 --lr-mult router=2"
    ),
}


def _plan_file(name: str) -> str:
    return written(f"plan {_PLAN_FILES[name]} --json", name)


def _configs() -> None:
    for name, config in {
        "small.json": _SMALL_CONFIG,
        "large.json": _LARGE_CONFIG,
        "half.json": {"hidden_size": 3},
        "unnamed.json": {name: size for name, size in _LARGE_CONFIG.items() if name != "model_type"},
        "unheard.json": {**_LARGE_CONFIG, "model_type": "unheard-of"},
    }.items():
        Path(name).write_text(json.dumps(config), encoding="utf-8")


def _wrong_file(name: str) -> None:
    """One of the files that mistakes are made with."""
    import numpy as np

    path, plan = Path(name), "plan.json"
    inputs = np.arange(800, dtype=np.float32).reshape(200, 4) % 7
    splits: dict[str, Any] = {
        f"{part}_{what}": values
        for part in ("train", "validation")
        for what, values in (("inputs", inputs), ("targets", np.arange(200) % 4))
    }
    texts = {"other.json": "{}", "broken.json": "[" * 50_000, "cut.json": '{"a": ', "words.txt": "ten years of work"}
    edits: dict[str, dict[str, Any]] = {"edited.json": {"lr": 5e-3}, "newer.json": {"version": 99}}
    versions = {"foreign.sqlite": (1, 1), "newer.sqlite": (0x4D535350, 99)}
    if name in _PLAN_FILES:
        _plan_file(name)
    elif name in texts:
        path.write_text(texts[name], encoding="utf-8")
    elif name in edits:
        made = json.loads(Path(_plan_file(plan)).read_text(encoding="utf-8"))
        path.write_text(json.dumps(made | edits[name]), encoding="utf-8")
    elif name in versions:
        with closing(sqlite3.connect(name)) as database:
            database.executescript("PRAGMA application_id = {}; PRAGMA user_version = {}".format(*versions[name]))
    elif name == "few.npz":
        np.savez(name, **splits)
    elif name == "cut.npz":
        np.savez("whole.npz", **splits)
        path.write_bytes(Path("whole.npz").read_bytes()[:100])
    elif name == "binary.json":
        path.write_bytes(b"\x80\x81")
    elif name == "empty.sqlite":
        path.touch()


def _mistake(line: str) -> Any:
    _configs()
    for word in line.split():
        _wrong_file(word)
    before = set(_files())
    said = command(line)
    return {**said.lines, "left": sorted(set(_files()) - before)}


def _files() -> list[str]:
    return [str(path) for path in Path().rglob("*")]


def _help(name: str) -> Any:
    return command(f"{name} --help").lines


def _exported(host: str, plan: str, flags: str) -> Any:
    """What an export writes: whole for Regime III, and for others the lines that differ from that."""
    found = command(f"export {host} --plan {_plan_file(plan)} {flags}")
    if (plan, flags) == ("III.json", "") or found.code:
        return found.lines
    whole = command(f"export {host} --plan {_plan_file('III.json')}")
    other = difflib.unified_diff(whole.out.splitlines(), found.out.splitlines(), lineterm="", n=0)
    new = [line for line in list(other)[2:] if not line.startswith("-")]  # what was there, the whole one holds
    return {"code": found.code, "beside III": new, "err": found.err.splitlines()}


def _exported_file(host: str) -> Any:
    printed = command(f"export {host} --plan {_plan_file('II.json')}")
    said = command(f"export {host} --plan II.json --output planned.py")
    return {**said.lines, "as printed": Path("planned.py").read_text(encoding="utf-8") == printed.out}


def _document(line: str, *files: str) -> Any:
    _configs()
    for file in files:
        _plan_file(file)
    return command(line).document


def _lines(line: str, *files: str) -> Any:
    _configs()
    for file in files:
        _plan_file(file)
    return command(line).lines


_PLAN_LINES = {
    "sizes": f"plan {step('growing as III')} --lr 4e-3 --weight-decay 0.1",
    "no base": f"plan {step('alone, dense inputs')} --lr 0.1 --regime II --optimizer sgd --scheme mup",
    "every flag": (
        f"plan {step('growing as III')} --lr 4e-3 --scheme mup --optimizer adam --regime III --eps 1e-6 "
        "--init-std 0.02 router=0.1 --init-mult 0.5 --lr-mult router=2 --lr-mult expert_out=0.25 --aggregation-mult 8 "
        "--readout mup --grad-scale --recipe.betas 0.9 0.95 --recipe.batch 512 --recipe.steps 10 --recipe.warmup 2 "
        "--tuned-with.batch 64"
    ),
    "as printed": f"plan {step('growing as II')} --lr 4e-3 --optimizer sgd --as-printed",
    "warnings": f"plan {step('another share')} --lr 1 --regime III --init-std router=2",
    "configs": "plan --target-config large.json --base-config small.json --lr 4e-3 --weight-decay 0.1",
    "a config alone": "plan --target-config large.json --lr 4e-3 --regime II --scheme mup --init-std 0.02",
    "a config without a name": "plan --target-config unnamed.json --base-config small.json --lr 4e-3",
    "extended": f"plan --extend plan.json {in_words('target', STEPS['deeper'][0])} --recipe.batch 8",
    "extended to a config": "plan --extend top-k.json --target-config large.json",
}


# -- what is trained ---------------------------------------------------------------------------------------------------


_CHECKS = {
    "I, mssp, sgd": "--regime I",
    "II, mssp, sgd": "--regime II",
    "III, mssp, adam": "--regime III --optimizer adam",
    "II, mup, adamw": "--scheme mup --optimizer adamw --multipliers ones",
    "III, mup-heuristic, sgd": "--regime III --scheme mup-heuristic --multipliers ones --lr 10",
    "II, sp, sgd": "--scheme sp --multipliers ones --lr 10",
    "II, ntp, sgd": "--scheme ntp --multipliers ones --lr 100",
    "III, jiang, adam": "--regime III --scheme jiang --optimizer adam --multipliers ones",
    "plain": "--scheme mup --multipliers plain --data spectra",
    "depths": "--depths 1 2 --widths 32 --lr 10",
    "depths as printed": "--depths 1 2 --widths 32 --lr 10 --as-printed",
    "numerics": "--numerics --multipliers ones --lr 10",
    "half active": "--widths 32 64 --active 4 --multipliers ones --lr 10",
    "readout of muP": "--readout mup --multipliers ones --lr 10 --require-stable",
    "diverging": "--lr 1e30",
}
_CHECK = "check --steps 2 --seeds 2 --batch 16 --device cpu"
_TWO_WIDTHS = "--widths 16 32"


def _check_line(flags: str) -> str:
    return f"{_CHECK} {'' if '--widths' in flags else _TWO_WIDTHS} {flags}"


def _checked(flags: str, *, whole: bool = False) -> Any:
    found = command(f"{_check_line(flags)} --json").document
    return found if whole or "json" not in found else {**found, "json": shortened(found["json"])}


_SHORT = "--device cpu --steps 6 --batch 10 --validation 50 --data spectra"
_SWEEPS = {
    "two schemes": "--widths 16 32 --lrs 0.2 0.4 0.8 --multipliers ones --seeds 2 --metric train_loss",
    "plain, four schemes": (
        "--widths 16 32 --lr-points 2 --multipliers plain --seeds 2 --metric validation_loss --scheme mup mssp sp ntp"
    ),
    "regimes, adam": (
        "--regime I III --largest III=16 --widths 16 32 --lr-points 2 --multipliers ones --seeds 1 --scheme mssp "
        "--optimizer adam adamw --metric train_accuracy"
    ),
    "top-k": "--widths 32 64 --active 4 --readout mup --lr-points 3 --lr-ratio 4 --multipliers ones --seeds 2",
    "diverging": "--widths 16 32 --lrs 0.1 1e30 --multipliers ones --seeds 2 --scheme mssp --metric train_loss",
}
_TINYIMAGENETS = "--widths 32 64 --lr-points 2 --multipliers tinyimagenet --seeds 1 --metric train_loss"


def _swept(flags: str) -> Any:
    found = command(f"sweep {_SHORT} {flags} --json --export runs.json").document
    return {**found, "runs": json.loads(Path("runs.json").read_text(encoding="utf-8"))}


def _swept_text() -> Any:
    line = f"sweep {_SHORT} {_SWEEPS['two schemes']}"
    first = command(f"{line} --export runs.csv --export runs.csv")
    again = command(f"{line} --markdown")
    return {"text": first.lines, "markdown": again.lines, "table": _table(Path("runs.csv"))}


_TUNE = f"tune {_SHORT} --width 32 --metric validation_loss"
_TUNES = {
    "grid": "--points 2 --broad-points 1 --lr-points 3 --rounds 1 --confirm 2",
    "random, adam": "--optimizer adam --method random --budget 12 --lr-points 3 --confirm 0 --regime III",
    "pruned": "--method random --budget 8 --lr-points 2 --confirm 1 --early-stop --steps 16 --aggregation-mult 2",
}


def _tuned(flags: str) -> Any:
    found = command(f"{_TUNE} {flags} --json").document
    return {**found, "plan": json.loads(Path("tuned.json").read_text(encoding="utf-8"))}


def _tuned_text() -> Any:
    said = command(f"{_TUNE} {_TUNES['grid']} --export runs.csv")
    said = type(said)(said.code, without_times(said.out), said.err)
    return {**said.lines, "table": _table(Path("runs.csv"))[:6]}


_DMFT = "dmft --inputs 2 --steps 3 --samples 400 --solves 2 --device cpu"
_DMFTS = {
    "I": "--regime I --test-inputs 1",
    "II": "--regime II --seed 3",
    "III": "--regime III --gate softmax --activation gelu",
    "mup": "--scheme mup --rates router=2 --stds embedding=1.5",
    "top-k": "--active 4 --width 32 --lr 0.1",
    "trivial": "--scheme mup --readout zero",
    "compared": "--compare 8 16 --seeds 4",
    "converging": "--scheme mup --compare 8 16 --seeds 12 --test-inputs 1",
    "a plan's": "--plan limit.json --compare 8 16 --seeds 4",
}


def _limit(line: str, *files: str) -> Any:
    found = _document(line, *files)
    if (
        "json" in found and found["json"]["regime"] != "I"
    ):  # the router's mean is zero there, and its relative error one of rounding
        found["json"]["relative_error"]["router_mean"] = MASK
    return found


# -- charts ------------------------------------------------------------------------------------------------------------


def _table(path: Path) -> list[list[Any]]:
    """A CSV file, with its numbers as numbers."""
    header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    return [header, *([_cell(name, cell) for name, cell in zip(header, row, strict=True)] for row in rows)]


def _cell(name: str, text: str) -> Any:
    if name == "seconds":
        return MASK
    try:
        return float(text)
    except ValueError:
        return text


def _reported() -> Any:
    """A report of everything there is, and the numbers behind its figures."""
    _configs()
    command(f"sweep {_SHORT} {_SWEEPS['two schemes']}")
    command(f"{_TUNE} {_TUNES['grid']} --store tuning.sqlite")
    files = [
        "runs.sqlite",
        "tuning.sqlite",
        written(f"{_check_line('--regime II')} --json", "check.json"),
        written(
            f"{_check_line('--scheme mup --widths 32 64 --active 4 --multipliers ones --lr 10')} --json", "mup.json"
        ),
        written(f"{_DMFT} {_DMFTS['compared']} --json", "limit.json"),
        written(f"sweep {_SHORT} {_SWEEPS['plain, four schemes']} --store other.sqlite --json", "sweep.json"),
        written(f"{_PLAN_LINES['configs']} --json --by-name", "named.json"),
        _plan_file("sgd.json"),
    ]
    return _report(" ".join(files))


def _report(arguments: str) -> Any:
    with drawn_figures():
        said = command(f"report {arguments} -o page.html --figures figures")
    folder = Path("figures")
    return {
        **said.lines,
        "files": sorted(path.name for path in folder.iterdir()),
        "words": {path.stem: _words(path) for path in sorted(folder.glob("*.svg"))},
        "numbers": {path.stem: _table(path) for path in sorted(folder.glob("*.csv"))},
        "page": _page(Path("page.html").read_text(encoding="utf-8")),
    }


def _words(path: Path) -> list[str]:
    """A figure's title and description."""
    return re.findall(r"<(?:title|desc)>(.*?)</", path.read_text(encoding="utf-8"), re.DOTALL)


def _page(html: str) -> list[str]:
    """The sentences of a page: headings, paragraphs, bullets and captions."""
    html = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", html, flags=re.DOTALL)
    html = re.sub(r"\d{4}-\d\d-\d\d(T[\d:+]+)?", "DATE", html)
    html, _, _ = html.partition('id="environment"')  # the versions of everything stand there
    found = re.findall(r"<(h\d|p|li|caption)\b[^>]*>(.*?)</\1>", html, re.DOTALL)
    sentences = [" ".join(re.sub(r"<[^>]+>", " ", inner).split()) for _, inner in found]
    return [sentence.replace(mssp.__version__, "VERSION") for sentence in sentences if sentence]


def _plotted(line: str, *flags: str, file: str | None = None) -> Any:
    """The traces of figures that a command draws."""
    if file is not None:
        _plan_file(file)
    names = [f"{flag.strip('-')}.svg" for flag in flags]
    with drawn_figures() as figures:
        said = command(f"{line} {' '.join(f'{flag} {name}' for flag, name in zip(flags, names, strict=True))}")
    words = {name: _words(Path(name)) for name in names}
    return {"code": said.code, "err": said.err.splitlines(), "words": words, "figures": figures}


# -- a store that was written before -----------------------------------------------------------------------------------


_STORED = f"sweep {_SHORT} --lrs 0.2 0.4 0.8 --multipliers ones --metric train_loss --store store.sqlite"
_STORED_WIDTHS, _STORED_SEEDS = "--widths 16 32", "--seeds 2"


def make_store() -> None:
    """Write the store that later versions resume."""

    def make() -> None:
        command(f"{_STORED} {_STORED_WIDTHS} {_STORED_SEEDS}")
        with closing(sqlite3.connect("store.sqlite", isolation_level=None)) as database:
            database.execute("UPDATE owner SET host = 'elsewhere', pid = 1, started = '1', token = 'long gone'")
            database.execute("UPDATE owner SET heartbeat = 1700000000, environment = '{}'")
            database.execute("UPDATE run SET seconds = 0.125")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("VACUUM")
        shutil.copyfile("store.sqlite", _STORE)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        observe(Case(make), Path(folder).resolve())


def _rows(path: str) -> dict[str, Any]:
    """Every finished run of a store by its key, with all that is kept of it."""
    runs = (
        "SELECT run.id, run.key, run.chunk, run.parameters, run.spec, run.diverged_at, run.seconds FROM run "
        "JOIN chunk ON chunk.study = run.study AND chunk.number = run.chunk WHERE chunk.status = 'done'"
    )
    with closing(sqlite3.connect(path)) as database:
        found = {}
        for number, key, *rest in database.execute(runs).fetchall():
            metrics, curves = (
                database.execute(f"SELECT name, {what} FROM {table} WHERE run = ? ORDER BY name", (number,)).fetchall()
                for table, what in (("metric", "value"), ("curve", "points"))
            )
            found[key] = (number, *rest, metrics, curves)
    return found


def _resumed(flags: str, change: Callable[[sqlite3.Connection], None] | None = None) -> Any:
    shutil.copyfile(_STORE, "store.sqlite")
    if change is not None:
        with closing(sqlite3.connect("store.sqlite")) as database:
            change(database)
            database.commit()
    before = _rows("store.sqlite")
    found = command(f"{_STORED} {flags} --json").document
    after = _rows("store.sqlite")
    return {
        **found,
        "runs before and after": [len(before), len(after)],
        "run again": sorted(key for key in before if after.get(key) != before[key]),
        "new": {key: dict(row[-2]) for key, row in after.items() if key not in before},
    }


def _take_back(database: sqlite3.Connection, *, held: bool) -> None:
    """The first chunk, as if whoever was at it had been killed, or had never begun."""
    of_the_chunk = "run IN (SELECT id FROM run WHERE chunk = 0)"
    for table in ("metric", "curve"):
        database.execute(f"DELETE FROM {table} WHERE {of_the_chunk}")
    database.execute("UPDATE run SET seconds = NULL WHERE chunk = 0")
    (owner,) = database.execute("SELECT min(id) FROM owner").fetchone()
    status = ("running", owner) if held else ("pending", None)
    database.execute("UPDATE chunk SET status = ?, owner = ? WHERE number = 0", status)


def _stored_report() -> Any:
    shutil.copyfile(_STORE, "store.sqlite")
    before = Path("store.sqlite").read_bytes()
    found = _report("store.sqlite")
    return {**found, "store is untouched": Path("store.sqlite").read_bytes() == before}


# -- all of them -------------------------------------------------------------------------------------------------------


def _cases() -> Iterator[tuple[str, Case]]:
    yield from _cases_of_plans()
    yield from _cases_of_commands()
    yield from _cases_of_training()
    for name, look in MODELS.items():
        yield f"weights/{name}", Case(look, TRAINED if name.startswith("check") else DRAWN)


def _cases_of_plans() -> Iterator[tuple[str, Case]]:
    for scheme, optimizer, regime in product(_SCHEMES, _OPTIMIZERS, (*_REGIMES, None)):
        if (optimizer, regime) == ("adam", None):
            continue  # but for decay, what adamw has
        name = f"plans/{scheme}, {optimizer}, {regime or 'inferred'}"
        yield name, Case(partial(_plans, scheme, optimizer, regime), PLANNED)
    for name, options in OPTIONS.items():
        yield f"options/{name}", Case(partial(_optioned, options), PLANNED)
    for scheme in _SCHEMES:
        yield f"rules/{scheme}", Case(partial(_rules, scheme), EXACT)
    shown: dict[str, dict[str, Any]] = {
        "growing as III": {"weight_decay": 0.1},
        "growing as II": {"scheme": "mup", "optimizer": "sgd", "regime": "II"},
        "deeper": {"grad_scale": True, "init_std": {"all": 0.02}, "lr_mult": {"router": 3.0}},
        "alone, dense inputs": {"scheme": "sp", "readout": "scheme"},
        "another share": {"regime": "III", "scheme": "jiang", "recipe": mssp.Recipe(batch=8)},
    }
    for name, options in shown.items():
        yield f"texts/plan: {name}", Case(partial(_texts, name, **options), EXACT)
    yield "texts/what differs", Case(_differing, EXACT)
    yield "documents/extended", Case(_extended, PLANNED)
    yield "documents/resolved", Case(_resolved, PLANNED)
    for role in _ROLES:
        yield f"explain/{role}", Case(partial(_explained, role), EXACT)


def _cases_of_commands() -> Iterator[tuple[str, Case]]:
    yield "help/mssp", Case(partial(_help, ""), EXACT)
    yield "help/version", Case(lambda: command("--version").lines, EXACT)
    for name in _COMMANDS:
        yield f"help/{name}", Case(partial(_help, name), EXACT)
    for lines in MISTAKES.values():
        for line in lines:
            yield f"mistakes/mssp {line}".rstrip(), Case(partial(_mistake, line), EXACT)
    for name, line in _PLAN_LINES.items():
        files = ("plan.json", "top-k.json")
        yield f"documents/plan: {name}", Case(partial(_document, f"{line} --json", *files), PLANNED)
        yield f"texts/mssp plan: {name}", Case(partial(_lines, line, *files), EXACT)
        yield f"texts/mssp plan --markdown: {name}", Case(partial(_lines, f"{line} --markdown", *files), EXACT)
    for name in ("configs", "a config alone", "extended to a config"):
        line = f"{_PLAN_LINES[name]} --json --by-name"
        yield f"documents/plan --by-name: {name}", Case(partial(_document, line, "top-k.json"), PLANNED)
    for host in ("torchtitan", "megatron", "olmo-core", "nanogpt"):
        for plan in ("III.json", "I.json", "II.json", "top-k.json", "alone.json", "sgd.json", "scaled.json"):
            name = f"exports/{host}, {plan.removesuffix('.json')}"
            yield name, Case(partial(_exported, host, plan, ""), EXACT)
        sides = "--target.ffn-width 4096 --base.ffn-width 1024 --target.q-rank 96 --target.shared-width 2048"
        more = " --qk-norm head" if host == "olmo-core" else ""
        yield f"exports/{host}, sides", Case(partial(_exported, host, "III.json", sides + more), EXACT)
        yield f"exports/{host}, to a file", Case(partial(_exported_file, host), EXACT)


def _cases_of_training() -> Iterator[tuple[str, Case]]:
    for name, flags in _CHECKS.items():
        yield f"check/{name}", Case(partial(_checked, flags, whole=name == "II, mssp, sgd"), TRAINED)
    texts = {
        "text": "",
        "text of everything": "--all --numerics --multipliers ones --lr 10",
        "text of depths": _CHECKS["depths"],
    }
    for name, flags in texts.items():
        yield f"check/{name}", Case(partial(_lines, _check_line(flags)), TRAINED)
    for name, flags in _SWEEPS.items():
        yield f"sweep/{name}", Case(partial(_swept, flags), AVERAGED)
    yield "sweep/tinyimagenet's multipliers", Case(partial(_swept, _TINYIMAGENETS), AVERAGED)
    yield "sweep/text", Case(_swept_text, AVERAGED)
    for name, flags in _TUNES.items():
        yield f"tune/{name}", Case(partial(_tuned, flags), AVERAGED)
    yield "tune/text", Case(_tuned_text, AVERAGED)
    for name, flags in _DMFTS.items():
        files = ("limit.json",) if "limit.json" in flags else ()
        yield f"dmft/{name}", Case(partial(_limit, f"{_DMFT} {flags} --json", *files), AVERAGED)
    yield "dmft/text", Case(partial(_lines, f"{_DMFT} {_DMFTS['compared']}"), AVERAGED)
    yield "charts/report", Case(_reported, TRAINED)
    yield (
        "charts/check",
        Case(partial(_plotted, _check_line(""), "--plot", "--plot-sizes", "--plot-evaluation"), TRAINED),
    )
    yield (
        "charts/check of depths",
        Case(partial(_plotted, _check_line(_CHECKS["depths"]), "--plot", "--plot-sizes"), TRAINED),
    )
    sweep = f"sweep {_SHORT} {_SWEEPS['two schemes']}"
    yield "charts/sweep", Case(partial(_plotted, sweep, "--plot", "--plot-scaling"), TRAINED)
    yield "charts/tune", Case(partial(_plotted, f"{_TUNE} {_TUNES['grid']}", "--plot"), TRAINED)
    yield "charts/dmft", Case(partial(_plotted, f"{_DMFT} {_DMFTS['compared']}", "--plot"), TRAINED)
    for name, flags in {
        "the same again": f"{_STORED_WIDTHS} {_STORED_SEEDS}",
        "one more seed": f"{_STORED_WIDTHS} --seeds 3",
        "one more width": f"{_STORED_WIDTHS} 64 {_STORED_SEEDS}",
        "another metric": f"{_STORED_WIDTHS} {_STORED_SEEDS} --metric validation_accuracy",
    }.items():
        yield f"store/{name}", Case(partial(_resumed, flags), AVERAGED)
    half = f"{_STORED_WIDTHS} {_STORED_SEEDS}"
    yield "store/half done", Case(partial(_resumed, half, partial(_take_back, held=False)), AVERAGED)
    yield "store/left by the dead", Case(partial(_resumed, half, partial(_take_back, held=True)), AVERAGED)
    yield "store/report", Case(_stored_report, TRAINED)
    other = f"{_STORED} --steps 7 {half}"
    yield "store/other steps", Case(lambda: _other_study(other), AVERAGED)


def _other_study(line: str) -> Any:
    """Runs of another length stand beside the old ones."""
    shutil.copyfile(_STORE, "store.sqlite")
    before = _rows("store.sqlite")
    found = command(f"{line} --json").document
    after = _rows("store.sqlite")
    return {**found, "old runs": len(before), "all runs": len(after)}


CASES: dict[str, Case] = dict(_cases())
assert {file_of(name) for name in CASES} == set(FILES)
