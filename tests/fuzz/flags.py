"""Command lines of every command of `mssp`: flags that are nonsense, huge, tiny, repeated, missing or misspelt.

A sound line is tiny: what it computes takes well below a second. No mutation asks for much that a machine can do:
whole numbers are at most ten, or beyond what any machine does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, get_type_hints

import mssp
from mssp._environment import __version__
from mssp.cli import demo
from mssp.cli.commands import COMMANDS
from mssp.cli.flags import Switch, flags_of
from mssp.planning.configs import read_config
from mssp.planning.explanation import explain
from mssp.planning.recipe import without_plan_warnings
from mssp.report.contents import read
from tests.fuzz.arrays import write_sound
from tests.fuzz.cases import Case, Kind, Outcome
from tests.fuzz.configs import sound as sound_configs
from tests.fuzz.mutations import Step, after, drawn
from tests.fuzz.results import is_page
from tests.report.test_result_files import of_kind


@dataclass(frozen=True)
class Flag:
    """A flag with its words. ``joined`` ones are written as one word with ``=``; a flag without a name stands alone."""

    name: str
    words: tuple[str, ...] = ()
    joined: bool = False

    @property
    def written(self) -> list[str]:
        if self.joined and self.words:
            return [f"{self.name}={self.words[0]}", *self.words[1:]]
        return [*([self.name] if self.name else []), *self.words]


@dataclass(frozen=True)
class Line:
    """A command line. One that is ``garbled`` has words that are no flags: nothing is known of what it means."""

    command: str
    flags: tuple[Flag, ...]
    garbled: bool = False

    @property
    def words(self) -> list[str]:
        return [self.command, *(word for flag in self.flags for word in flag.written)]

    def said(self, name: str) -> list[tuple[str, ...]]:
        """The words of every flag of this name."""
        return [flag.words for flag in self.flags if flag.name == name]

    def has(self, name: str) -> bool:
        return bool(self.said(name))


_DATA = "--data data.npz --steps 2 --batch 10 --device cpu"
_SIZES = "--target.width 64 --target.expert-width 8 --target.experts 16 --target.active 16 --target.depth 2"
_BASE = "--base.width 32 --base.expert-width 8 --base.experts 8 --base.active 8 --base.depth 2"
_STORED = f"{_DATA} --store runs.sqlite"
_SWEEP = f"sweep {_STORED} --widths 16 32 --seeds 1 --lrs 0.5 --scheme mssp --multipliers ones"
_TUNE = f"tune {_STORED} --width 16 --method random --budget 2 --points 1 --broad-points 1 --lr-points 1 --confirm 0"
_DMFT = "dmft --inputs 1 --steps 1 --samples 60 --solves 2 --device cpu --seeds 1"
_CHECK = f"check {_DATA} --widths 16 32 --seeds 1 --multipliers ones"
# Sound lines, each as often as it stands here.
_SOUND = (
    *[f"plan {_SIZES} --regime II --lr 0.1 {how}" for how in ("--json", "--json", "--markdown", "--grad-scale")],
    *[f"plan {_SIZES} {_BASE} --lr 0.1 --weight-decay 0.1 --tuned-with.batch 5 {how}" for how in ("--json", "--json")],
    f"plan {_SIZES} --lr 0.1 --regime III --optimizer sgd --init-mult 0.5 --lr-mult hidden=2 router=0.5 --json",
    f"plan {_SIZES} --lr 0.1 --regime I --optimizer adam --init-std 0.02 router=0.1 --eps 1e-7 --json",
    f"plan {_SIZES} --extend plan.json --recipe.betas 0.9 0.95 --recipe.steps 9 --json",
    "plan --base-config small.json --target-config large.json --lr 0.1 --regime III --json",
    "proxy large.json --width 32", "proxy large.json --width 32 --rungs 2 --depth 1 --output small",
    "explain router", "explain expert_out --regime II --json", "explain readout --scheme sp --markdown",
    "export nanogpt --plan plan.json", "export olmo-core --plan plan.json --qk-norm head --output out.py",
    "export megatron --plan plan.json --target.ffn-width 64 --base.ffn-width 32",
    _CHECK, f"{_CHECK} --json", f"{_CHECK} --json --numerics", f"{_CHECK} --plot a.html --all --lr 0.01",
    f"check {_DATA} --depths 1 2 --widths 16 --seeds 1 --json", f"{_CHECK} --regime III --active 4 --scheme mup --json",
    _SWEEP, f"{_SWEEP} --json", f"{_SWEEP} --markdown --export runs.csv", f"{_SWEEP} --regime I III --largest III=16",
    f"{_SWEEP} --optimizer adam --plot a.html --metric validation_loss",
    _TUNE, f"{_TUNE} --json", f"{_TUNE} --early-stop --output other.json", f"{_TUNE} --optimizer adamw --plot a.html",
    _DMFT, f"{_DMFT} --json --test-inputs 1", f"{_DMFT} --compare 16 32 --json",
    f"{_DMFT} --scheme mup --rates router=2",
    f"{_DMFT} --activation gelu --gate softmax --plot a.html --seed 7",
    "report plan.json", "report plan.json check.json --title Both -o out.html",
    "demo --folder demo --widths 16 32 --steps 2 --seeds 1",
    "dispatch table.json --device cpu",
    "claims model.py:build",
    "--help", "--version", "plan --help", "sweep --help",
)  # fmt: skip
_MODEL = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))\n"
_POSITIONAL: Mapping[str, tuple[Any, ...]] = {
    "explain": ("router",), "export": ("nanogpt",), "dispatch": (Path("table.json"),),
    "claims": ("model.py:build",), "proxy": ("large.json",),
}  # fmt: skip


@cache
def constraints(command: str) -> Mapping[str, str]:
    """What the flags of a command must be, in words, by their names; those of a switch are empty."""
    made = COMMANDS[command][0](*_POSITIONAL.get(command, ()))
    hints = get_type_hints(type(made), include_extras=True)
    switches = {f"--{field.name.replace('_', '-')}": "" for field in fields(made) if hints[field.name] == Switch}
    found = {flag.name: flag.constraint.what for flag in flags_of(made) if flag.name.startswith("--")}
    return MappingProxyType(found | switches)


def _line(text: str) -> Line:
    command, *words = text.split()
    flags: list[Flag] = []
    for word in words:
        if re.match(r"-+[a-z]", word):
            flags.append(Flag(word))
        else:
            last = flags.pop() if flags else Flag("")
            flags.append(replace(last, words=(*last.words, word)))
    return Line(command, tuple(flags))


# -- words -------------------------------------------------------------------------------------------------------------

_NUMBERS = (
    "0", "-0", "1", "+2", "1_0", "٢", "-1", "0.5", "1.0", "1e0", "-3.75", "nan", "-nan", "inf", "-inf", "Infinity",
    "1e-320", "5e-324", "1e-300", "1e-100", "1e-12", "1e-7", "1e7", "1e99", "1e300", "1.7976931348623157e308", "1e400",
    "0.1e", "1e", "0x10", "½", "1,5", "9" * 400, "9" * 5000, "-" + "9" * 400, "1/2", "1 ", " 1",
)  # fmt: skip
# No machine has so much of anything: what is counted so has to be refused, or takes no longer for it.
_HOPELESS = (str(10**12), str(2**53), str(2**53 + 1), str(2**63), str(2**64), str(10**30), f"-{2**63}", "1" * 4300)
_TEXTS = (
    "", " ", "nonsense", "None", "True", "é", "日本", "ü" * 3000, "\udcff", "a\nb", "\r", "\t", "\x1b[31m", "\u2028",
    "\u202e", "{}", "[1]", "*", "$HOME", "%s", "{0}", "<b>", "'", '"', "\\", "--", "-", "-x", "=", "=1", "router=",
    "=router=2", "@plan.json", "II ", "ii", "MSSP", "mssp,mup",
)  # fmt: skip
_PATHS = (
    "", ".", "..", "/", "no/where.json", "no/where.html", "plan.json", "data.npz", "data.npz/x.html", "x" * 300,
    "x" * 5000 + ".html", "\udcff.html", "/dev/null", "/dev/full", "/dev/zero/x", "/proc/self/nothing", "demo",
    "é.html", "new\nline.html", "small.json", "runs.sqlite",
)  # fmt: skip
_BY_ROLE = (
    "2", "router=2", "router=1e300", "router=5e-324", "router=nan", "router=0", "router=-1", "router=1e400",
    "hidden=0.5", "nobody=2", "expert_out=1e-12", "Router=2", "router=router=2", "all=2", "router=2,hidden=2",
    "routér=2", "norm=3", "embedding=1.5", "III=16", "II=16", "III=0", "IV=16", "III=1.5", "router=\u0664",
)  # fmt: skip
# Of flags that take any of many words, those that are taken.
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "a positive whole number": ("1", "2", "+2", "1_0", "٢"),
    "a whole number of at least 0": ("0", "1", "2"),
    "a whole number": ("0", "-1", "7", str(2**63), f"-{2**63}", str(10**30)),
    "a sequence, each a positive whole number": ("1", "2", "16", "32"),
    "one or more, each a positive whole number": ("16", "32", "48"),
    "a positive number, or positive numbers by role, as router=2": _BY_ROLE,
    "positive numbers by role, as router=2": _BY_ROLE,
    "widths by regime, as III=1024": _BY_ROLE,
    "two numbers of at least 0 and less than 1": ("0", "0.9", "0.999", "0.9999999999999999"),
}  # fmt: skip
# Flags whose words are drawn from these alone. What others name takes minutes, a browser, a network or a cluster, or
# is not in the folder of the case.
_LIMITED: Mapping[str, tuple[str, ...]] = {
    "--backend": ("local", "Ray", "", "rays"),
    "--data": ("data.npz", "clusters", "spectra", "nonsense", "", "plan.json", "nowhere.npz", "empty", "demo", "x.txt"),
    "--device": ("cpu", "auto", "cuda:1000", "meta", "mps", "CPU", "cpu:0", "", "cuda:-1"),
    "--figures": ("", "no/where", "plan.json", "x/y/z", "\udcff/x"),
    "--folder": ("", "no/where", "plan.json", "demo", "\udcff/x", "demo/x/y"),
    "--points": ("1", "2", "0", "-1", "nan", "", *_HOPELESS),
    "--broad-points": ("1", "2", "0", "-1", "nan", "", *_HOPELESS),
    "--plot": ("a.html", "b.HTML", "a.gif", "a", "no/where.html", "", "demo", "/dev/full", "-"),
    "--plot-sizes": ("b.html", "a.gif", "no/where.html", "", "plan.json"),
    "--plot-evaluation": ("c.html", "a.gif", "no/where.html", "", "plan.json"),
    "--plot-scaling": ("d.html", "a.gif", "no/where.html", "", "plan.json"),
    "--export": ("runs.csv", "runs.json", "runs.jsonl", "runs.CSV", "runs.xlsx", "", "no/where.csv", "-", "/dev/full"),
    "--multipliers": ("ones", "tuned", "plain", "spectra", "plan.json", "tuned.json", "nonsense", "", "data.npz"),
    "--store": ("runs.sqlite", "other.sqlite", "plan.json", "", ".", "no/where.sqlite", "/dev/null", "data.npz", "é.x"),
    "--extend": ("plan.json", "small.json", "", "nowhere", ".", "data.npz", "/dev/null", "/proc/self/nothing"),
    "--plan": ("plan.json", "sgd.json", "small.json", "", "nowhere", ".", "data.npz", "/dev/null"),
    "proxy --output": ("small", "demo", ".", "é", "", "no/where", "plan.json", "\udcff/x"),
}  # fmt: skip
_OUTPUTS = ("--output", "-o", "--store", "--export", "--plot", "--plot-sizes", "--plot-evaluation", "--plot-scaling")
# Without them a command takes more than a moment, or writes where nobody expects it.
_KEPT = ("--widths", "--width", "--method", "--budget", "--points", "--broad-points", "--lr-points", "--samples",
         "--solves", "--steps", "--folder", "--device", "--help")  # fmt: skip
_MANY = ("--widths", "--depths", "--compare", "--lrs", "--scheme", "--optimizer", "--regime", "--multipliers",
         "--init-std", "--init-mult", "--lr-mult", "--rates", "--stds", "--largest")  # fmt: skip


def _word(random: Random, command: str, name: str) -> str:
    """A word for a flag: often one that it takes, and else one that hardly any flag takes."""
    what = constraints(command).get(name, "") if command in COMMANDS else ""
    for limited in (f"{command} {name}", name):
        if limited in _LIMITED:
            return random.choice(_LIMITED[limited])
    if "file" in what or "folder" in what:
        return random.choice(_PATHS)
    if random.random() < 0.5:
        taken = re.match(r"(?:.*each )?one of (.*)", what)
        words: Sequence[str] = (
            taken[1].split(", ") if taken else _TAKEN.get(what, _NUMBERS if "number" in what else _TEXTS)
        )
        return random.choice(words)
    return random.choice(random.choice((_NUMBERS, _HOPELESS, _TEXTS)))


def _words(random: Random, command: str, name: str) -> tuple[str, ...]:
    count = random.choice((1, 1, 1, 2, 3)) if name in _MANY else 2 if name.endswith("betas") else 1
    if random.random() < 0.04:
        count = random.choice((0, 2, 30))
    return tuple(_word(random, command, name) for _ in range(count))


# -- mutations ---------------------------------------------------------------------------------------------------------


def _of_one(change: Callable[[Random, Line, Flag], Sequence[Flag]], *, garbles: bool = False) -> Callable[..., Line]:
    """A mutation that puts other flags in the place of one. The device of a measurement of minutes stays none."""

    def mutate(random: Random, line: Line) -> Line:
        if not line.flags or line.command == "dispatch":
            return line
        place = random.randrange(len(line.flags))
        others = change(random, line, line.flags[place])
        return replace(
            line, flags=(*line.flags[:place], *others, *line.flags[place + 1 :]), garbled=line.garbled or garbles
        )

    return mutate


def _value(random: Random, line: Line, flag: Flag) -> list[Flag]:
    if not flag.words:
        return [flag]
    if not flag.name and random.random() < 0.5:  # words that stand alone: a role, a host, files
        return [replace(flag, words=(*flag.words[:-1], random.choice((*_TEXTS, *_PATHS))))]
    return [replace(flag, words=_words(random, line.command, flag.name))]


def _of_values(random: Random, line: Line, flag: Flag) -> list[Flag]:
    """One of several words becomes another."""
    if not flag.words or not flag.name:
        return [flag]
    place = random.randrange(len(flag.words))
    other = _word(random, line.command, flag.name)
    return [replace(flag, words=(*flag.words[:place], other, *flag.words[place + 1 :]))]


def _without_words(random: Random, line: Line, flag: Flag) -> list[Flag]:
    return [flag if flag.name in _KEPT else replace(flag, words=())]


def _drop(random: Random, line: Line, flag: Flag) -> list[Flag]:
    return [flag] if flag.name in _KEPT else []


def _repeat(random: Random, line: Line, flag: Flag) -> list[Flag]:
    other = replace(flag, words=_words(random, line.command, flag.name)) if flag.name and flag.words else flag
    return random.choice(([flag, flag], [flag, other], [other, flag], [flag] * 30))


def _join(random: Random, line: Line, flag: Flag) -> list[Flag]:
    return [replace(flag, joined=bool(flag.name))]


def _underscores(random: Random, line: Line, flag: Flag) -> list[Flag]:
    return [replace(flag, name=re.sub(r"(?<=\w)-", "_", flag.name))]


def _misspell(random: Random, line: Line, flag: Flag) -> list[Flag]:
    name = flag.name or "--"
    place = random.randrange(len(name) + 1)
    spellings = (
        name[:-1], f"{name}s", name.upper(), f"-{name}", name[1:], f"{name[:place]}é{name[place:]}", f"--no-{name[2:]}",
        f"{name}:", f"{name[:place]} {name[place:]}", f"{name[:place]}.{name[place:]}",
        f"{name[:place]}\n{name[place:]}", name.replace("--", "—"), name[: max(place, 1)],
    )  # fmt: skip
    return [replace(flag, name=random.choice(spellings))]


def _stray(random: Random, line: Line, flag: Flag) -> list[Flag]:
    """A word that belongs to no flag, or to the one before it."""
    stray = Flag("", (random.choice((*_TEXTS, *_PATHS, "--help", "-h", "--version", "plan")),))
    return [stray, flag] if random.random() < 0.5 else [flag, stray]


def _add(random: Random, line: Line) -> Line:
    """Any flag of the command, with words that it may take."""
    if line.command not in COMMANDS or line.command == "dispatch":
        return line
    found = constraints(line.command) or {"--help": ""}
    name = random.choice(sorted(found))
    place = random.randrange(len(line.flags) + 1)
    # After the words that stand alone, so that it does not take them for its own.
    place = max(place, sum(not flag.name for flag in line.flags))
    flag = Flag(name, _words(random, line.command, name) if found[name] else ())
    return replace(line, flags=(*line.flags[:place], flag, *line.flags[place:]))


def _shuffle(random: Random, line: Line) -> Line:
    alone, named = ([flag for flag in line.flags if bool(flag.name) == has_name] for has_name in (False, True))
    return replace(line, flags=(*alone, *random.sample(named, len(named))))


def _command(random: Random, line: Line) -> Line:
    """Another command with the same flags. Those that take long by themselves are left out."""
    commands = ("plan", "explain", "export", "report", "nonsense", "", "PLAN", "-", "--", "plan\n", "é",
                "--help", "-h", "--version", "\udcff", "pla", "--lr", "plan " * 200)  # fmt: skip
    return replace(line, command=random.choice(commands), garbled=True)


_OF_LINES: Mapping[str, Callable[[Random, Line], Line]] = {
    "value": _of_one(_value),
    "of values": _of_one(_of_values),
    "without words": _of_one(_without_words),
    "drop": _of_one(_drop),
    "repeat": _of_one(_repeat),
    "join": _of_one(_join),
    "underscores": _of_one(_underscores),
    "misspell": _of_one(_misspell, garbles=True),
    "stray": _of_one(_stray, garbles=True),
    "add": _add,
    "shuffle": _shuffle,
    "command": _command,
}
_OFTEN = ("add", "add", "of values", "value", "value", "value")


def _draw(random: Random) -> list[Step]:
    names = _OFTEN if random.random() < 0.7 else sorted(_OF_LINES)
    return [step for _ in range(random.choice((1, 1, 1, 2, 3))) for step in drawn(random, [random.choice(names)], [1])]


# -- cases -------------------------------------------------------------------------------------------------------------


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    line = after(_line(random.choice(_SOUND)), steps, _OF_LINES)
    _write_files(folder)
    outputs = [words[0] for name in _OUTPUTS for words in line.said(name) if words and words[0]]
    writes = ["report.html", "tuned.json", "runs.sqlite*", "demo/*", *outputs, *(f"{name}-*" for name in outputs)]
    writes += ["config.json", "width-*", *(f"{name}/*" for name in outputs)] if line.command == "proxy" else []
    # A sweep and a search keep what they trained, also where they can say nothing of it.
    always = ["runs.sqlite*", *(f"{words[0]}*" for words in line.said("--store") if words and words[0])]
    always += [words[0] for words in line.said("--export") if words and words[0]]
    trains = line.command in ("sweep", "tune")
    return Case(
        line.words,
        oracle=partial(_right, line),
        writes=writes,
        always_writes=always if trains else (),
        has_verdict=line.command in ("check", "dmft"),
    )


def _write_files(folder: Path) -> None:
    write_sound(folder / "data.npz")
    small, large = sound_configs("olmoe")
    kept = {"samples": demo._SAMPLES, "solves": demo._SOLVES, "widths": demo._NETWORKS, "seeds": demo._SEEDS}
    by_name = {"family": demo._FAMILY, "base": demo._SMALL, "target": demo._LARGE, "updates": demo._UPDATES}
    documents = {
        **_plans(),
        "small.json": small,
        "large.json": large,
        "check.json": of_kind("check"),
        # What was measured of other devices has to be a table: this is none, so nothing is measured.
        "table.json": [],
        # Results that the demo keeps, instead of seconds for making them.
        "demo/limit.json": of_kind("limit") | {"demo": {"mssp": __version__, **kept}},
        "demo/hugging-face.json": of_kind("by name")
        | {"demo": {"mssp": __version__, **by_name}, "verified": 20, "loss": [4.0, 3.0]},
    }
    (folder / "model.py").write_text(_MODEL, encoding="utf-8")
    for name in ("demo", "empty"):
        (folder / name).mkdir()
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")


@cache
def _plans() -> Mapping[str, Any]:
    with without_plan_warnings():
        target, base = mssp.Shape(128, 64, 16, 16, 4), mssp.Shape(64, 32, 8, 8, 2)
        adamw = mssp.plan(target, base, regime="III", lr=4e-3, weight_decay=0.1)
        sgd = mssp.plan(mssp.Shape(16, 16, 1, 1, 1, inputs=8), regime="II", optimizer="sgd", lr=0.5)
    return {"plan.json": json.loads(adamw.json()), "sgd.json": json.loads(sgd.json())}


# -- oracles -----------------------------------------------------------------------------------------------------------


def _right(line: Line, outcome: Outcome) -> None:
    """What an accepted line printed and wrote is whole, and says what the same question gets in Python."""
    if line.garbled or line.command not in COMMANDS or any(flag.name in ("-h", "--help") for flag in line.flags):
        # A line that became another command's may write its answer to a file.
        assert outcome.out.strip() or line.has("--output") or line.has("-o"), "nothing is printed"
        return
    # A check prints the sizes of a model that diverged as they were measured, and says that it did.
    diverged = line.command == "check" and "training diverged" in outcome.out
    for part in () if diverged else outcome.out.replace(",", " ").split():
        assert part.lower() not in ("nan", "inf", "-inf", "infinity", "-infinity"), outcome.out
    _ORACLES.get(line.command, _nothing)(line, outcome)


def _nothing(line: Line, outcome: Outcome) -> None:
    """A command without an oracle of its own."""


def _plan(line: Line, outcome: Outcome) -> None:
    if not line.has("--json") or line.has("--target-config") or line.has("--base-config") or line.has("--by-name"):
        return
    with without_plan_warnings():
        assert json.loads(outcome.out) == json.loads(_planned(line).json())


def _planned(line: Line) -> mssp.Plan:
    """The plan of the flags, made in Python."""
    of_groups: dict[str, dict[str, Any]] = {name: {} for name in ("target", "base", "recipe", "tuned_with")}
    settings: dict[str, Any] = {}
    for flag in line.flags:
        group, dot, name = flag.name.removeprefix("--").replace("-", "_").rpartition(".")
        name = name if dot else flag.name.removeprefix("--").replace("-", "_")
        if name in ("json", "markdown"):
            continue
        if dot:
            of_groups[group][name] = _value_of(flag.words)
        elif name in ("init_std", "init_mult", "lr_mult"):
            settings.setdefault(name, {}).update(_mapping(flag.words))
        else:
            settings[name] = _value_of(flag.words) if flag.words else True
    recipe = mssp.Recipe(**of_groups["recipe"]) if of_groups["recipe"] else None
    target = mssp.Shape(**of_groups["target"])
    if "extend" in settings:
        return mssp.Plan.from_json(Path(settings["extend"]).read_bytes()).extend(target, recipe)
    tuned_with = mssp.Recipe(**of_groups["tuned_with"]) if of_groups["tuned_with"] else None
    base = mssp.Shape(**of_groups["base"]) if of_groups["base"] else None
    return mssp.plan(target, base, recipe=recipe, tuned_with=tuned_with, **settings)


def _value_of(words: Sequence[str]) -> Any:
    values = tuple(map(_number, words))
    return values[0] if len(values) == 1 else values


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def _mapping(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for word in words:
        role, _, number = word.rpartition("=")
        yield role or "all", _number(number)


def _explained(line: Line, outcome: Outcome) -> None:
    if line.has("--json"):
        role = next(word for flag in line.flags for word in flag.words if not flag.name)
        named = {name: line.said(f"--{name}")[-1][0] for name in ("regime", "scheme") if line.has(f"--{name}")}
        assert outcome.out == f"{explain(role, **named).json()}\n"


def _exported(line: Line, outcome: Outcome) -> None:
    """It is Python, printed or in its file."""
    files = [words[0] for name in ("--output", "-o") for words in line.said(name)]
    is_file = files and Path(files[-1]).is_file()
    text = Path(files[-1]).read_text(encoding="utf-8") if is_file else outcome.out
    if text or not files:
        assert "import" in text
        compile(text, "exported", "exec")


def _is_read(line: Line, outcome: Outcome) -> None:
    """What is printed as JSON is a result that the report takes, and no result has a verdict beside its exit code."""
    if not line.has("--json"):
        return
    Path("printed.json").write_text(outcome.out, encoding="utf-8")
    document = json.loads(outcome.out)
    assert not read([Path("printed.json")]).is_empty
    if line.command == "check":
        stable = document["stable"] or not line.has("--require-stable")
        assert outcome.code == (0 if document["verdict"] == "pass" and stable else 1)
    if line.command == "dmft":
        assert outcome.code == int(document.get("verdict") == "slow")


def _built(line: Line, outcome: Outcome) -> None:
    """Every config that is written is one of the family, of a model that is no larger."""
    folders = [Path(words[0]) for words in line.said("--output")[-1:] if words]
    files = [file for folder in folders for file in folder.rglob("config.json")]
    assert bool(files) == line.has("--output")
    for file in files:
        assert mssp.Shape.from_config(read_config(file)).width <= sound_configs("olmoe")[1]["hidden_size"]


def _tuned(line: Line, outcome: Outcome) -> None:
    """The plan that is written is one, of the width that was asked for."""
    outputs = line.said("--output")
    file = outputs[-1][0] if outputs and outputs[-1] else "tuned.json"
    if file == "-":
        plan = mssp.Plan.from_json(outcome.out)
    elif Path(file).is_file():
        plan = mssp.Plan.from_json(Path(file).read_bytes())
    else:
        return
    assert plan.target.width == _value_of(line.said("--width")[-1])
    if line.has("--json"):
        json.loads(outcome.out, parse_constant=_refused)


def _refused(name: str) -> float:
    raise AssertionError(f"{name} in what was printed")


def _drawn(line: Line, outcome: Outcome) -> None:
    outputs = [words[0] for name in ("--output", "-o") for words in line.said(name) if words]
    file = Path(outputs[-1]) if outputs else Path("report.html")
    if file.is_file():
        assert is_page(file.read_text(encoding="utf-8"))


_ORACLES: Mapping[str, Callable[[Line, Outcome], None]] = {
    "plan": _plan, "explain": _explained, "export": _exported, "check": _is_read, "sweep": _is_read, "dmft": _is_read,
    "tune": _tuned, "report": _drawn, "proxy": _built,
}  # fmt: skip

KIND = Kind("flags", _draw, _make)
