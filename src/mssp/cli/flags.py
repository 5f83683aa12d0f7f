"""Kinds of flags, which hold what they say, and the flags that all commands share that train: data, length, device,
store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from mssp._constraints import positive_int
from mssp._environment import device_text
from mssp.ladders.tuned import Tuned, data_with_tuned_multipliers, multipliers_for
from mssp.planning import setting
from mssp.planning.plans import Plan
from mssp.planning.setting import READOUTS, REGIMES

if TYPE_CHECKING:
    from mssp.data.dataset import Dataset
    from mssp.store.runs import Store
    from mssp.sweep.execution import Backend, Job
    from mssp.sweep.metrics import Metric
    from mssp.sweep.transfer import Contender


def _optional(metavar: str, read: Callable[[str], Any], what: str) -> PrimitiveConstructorSpec[Any]:
    def parse(words: list[str]) -> Any:
        try:
            return read(words[0])
        except ValueError:
            raise ValueError(f"must be {what}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=parse,
        is_instance=lambda value: value is None or isinstance(value, int | float),
        str_from_instance=lambda value: ["" if value is None else str(value)],
    )


def _two_numbers(words: list[str]) -> tuple[float, float]:
    try:
        first, second = (float(word) for word in words)
    except ValueError:
        raise ValueError(f"must be two numbers, got {' '.join(words)!r}") from None
    return first, second


def _some_words(words: list[str]) -> tuple[str, ...]:
    if not words:
        raise ValueError("takes a number or ROLE=NUMBER, got nothing")
    return tuple(words)


_BETAS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=2,
    metavar="B1 B2",
    instance_from_str=_two_numbers,
    is_instance=lambda value: value is None or isinstance(value, tuple),
    str_from_instance=lambda value: [str(number) for number in value or ("", "")],
)
_WORD: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME",
    instance_from_str=lambda words: words[0],
    is_instance=lambda value: value is None or isinstance(value, str),
    str_from_instance=lambda value: [value or ""],
)
_WORDS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs="*",
    metavar="",
    instance_from_str=_some_words,
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=list,
)
_QUIET = tyro.conf.arg(help_behavior_hint="")
Size = Annotated[int | None, _optional("INT", int, "a positive whole number"), _QUIET]
Number = Annotated[float | None, _optional("NUMBER", float, "a number"), _QUIET]
Betas = Annotated[tuple[float, float] | None, _BETAS, _QUIET]
Name = Annotated[str | None, _WORD, _QUIET]
Regime = Annotated[str | None, _WORD, tyro.conf.arg(metavar="I|II|III", help_behavior_hint="")]
Path = Annotated[str | None, _WORD, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
# One flag takes several words, and the flag may be repeated: a tuple for each time it was given.
_Words = Annotated[tuple[str, ...], _WORDS]
ByRole = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="X|ROLE=X [...]", help_behavior_hint=""),
]
ByRoleOnly = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="ROLE=X [...]", help_behavior_hint=""),
]
ByRegime = Annotated[
    tuple[_Words, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="REGIME=X [...]", help_behavior_hint=""),
]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [...]", help_behavior_hint="")]
Sizes = Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT [...]", help_behavior_hint="")]
Numbers = Annotated[tuple[float, ...], tyro.conf.arg(metavar="NUMBER [...]", help_behavior_hint="")]


def by_role(flag: str, given: Sequence[Sequence[str]], everywhere: str) -> dict[str, float]:
    """``0.02 router=0.1`` as a mapping; a bare number goes under ``everywhere``."""
    found: dict[str, float] = {}
    for word in (word for words in given for word in words):
        role, equals, text = word.rpartition("=")
        key = role if equals else everywhere
        if key in found:
            raise ValueError(f"{flag} says {key} twice")
        try:
            found[key] = float(text)
        except ValueError:
            raise ValueError(f"{flag} takes a number or ROLE=NUMBER, got {word!r}") from None
    return found


def plan_in(file: str) -> Plan:
    """The plan in a file that ``mssp plan --json`` wrote."""
    try:
        return Plan.from_json(FilePath(file).read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def by_regime(flag: str, given: Sequence[Sequence[str]]) -> dict[setting.Regime, float]:
    """``III=1024`` as a mapping."""
    words = [word for several in given for word in several]
    try:
        found = by_role(flag, given, everywhere="")
    except ValueError:
        found = {"": 0.0}
    known = {regime.name: regime for regime in REGIMES}
    if not set(found) <= set(known):
        raise ValueError(f"{flag} takes REGIME=NUMBER with one of {', '.join(known)}, got {' '.join(words)!r}")
    return {known[word]: number for word, number in found.items()}


def regime_of(word: str | None) -> setting.Regime:
    """The regime of a command that needs one."""
    if word is None or word not in map(str, REGIMES):
        raise ValueError(f"unknown --regime {word!r}: use one of {', '.join(map(str, REGIMES))}")
    return setting.regime_named(word)


def readout_of(word: str | None) -> str:
    if word not in READOUTS:
        raise ValueError(f"unknown --readout {word!r}: use one of {', '.join(READOUTS)}")
    return word


_TOP = 5
# Learning rates to look around where none was tuned: of all ones, and of a plain model.
_ONES = 0.01
_PLAIN_BY_GRADIENTS, _PLAIN_BY_MOMENTS = 1.0, 0.005


@dataclass
class RunFlags:
    data: Name = "clusters"
    """clusters (the default) or spectra, both embedded, tinyimagenet, cifar10, an .npz file or a folder of images"""
    steps: Size = 1000
    """training steps of a run, in a single pass (default 1000)"""
    batch: Size = 50
    """examples per step (default 50)"""
    validation: Size = None
    """validation examples to use (default: all)"""
    active: Size = None
    """experts per input where there are eight, growing with their number (default: all)"""
    readout: Name = "zero"
    """how the readout starts: zero (default), mup (std 1/N) or scheme"""
    store: Path = "runs.sqlite"
    """where runs are kept: a killed command goes on from there (default runs.sqlite)"""
    device: Name = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:1"""
    precision: Name = "float32"
    """of matrix products: float32 (default), or tf32, about twice as fast on GPUs"""
    backend: Name = "local"
    """local (this process), or ray (tasks on a Ray cluster, one that is started if there is none)"""
    json: bool = False
    """print JSON"""
    plot: Path = None
    """write a figure: .html, or .svg, .pdf, .png"""
    export: Path = None
    """write all runs as a table: .csv, .parquet, .json or .jsonl"""

    def job(self, *, keep_curves: bool, steps: int | None = None) -> Job:
        from mssp.data import load
        from mssp.ladders.mlp import MLPLadder
        from mssp.replicas import Schedule
        from mssp.replicas.lockstep import PRECISIONS
        from mssp.sweep.execution import Job

        if self.precision not in PRECISIONS:
            raise ValueError(f"unknown --precision {self.precision!r}: use one of {', '.join(PRECISIONS)}")
        schedule = Schedule(
            steps or positive_int("--steps", self.steps or 0),
            positive_int("--batch", self.batch or 0),
            validation=self.validation,
        )
        return Job(load(self.data or "clusters"), schedule, MLPLadder, self.precision or "", keep_curves)

    def runner(self) -> Backend:
        from mssp._environment import pick_device
        from mssp.sweep.execution import Local

        if self.backend == "local":
            return Local(pick_device(self.device or "auto"))
        if self.backend == "ray":
            from mssp.sweep.on_ray import Ray

            return Ray(self.device or "auto")
        raise ValueError(f"unknown --backend {self.backend!r}: use local or ray")

    def check_files(self, *more_figures: str | None) -> None:
        """Refuse names that could not be written to, before anything is trained."""
        if self.export is not None:
            from mssp.store import table

            table.check_target(self.export)
        for figure in (self.plot, *more_figures):
            if figure is not None:
                from mssp.report import saving

                saving.check_target(figure)

    def check_metric(self, name: str, data: Dataset) -> Metric:
        from mssp.sweep.metrics import METRICS

        if name not in METRICS:
            raise ValueError(f"unknown --metric {name!r}: use one of {', '.join(METRICS)}")
        if name.endswith("top5") and data.classes <= _TOP:
            other = name.replace("top5", "accuracy")
            raise ValueError(
                f"top-5 is always right with the {data.classes} classes of {data.name}: use --metric {other}"
            )
        return METRICS[name]

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """The store; whoever stops a command is told that nothing is lost."""
        from mssp.store.runs import Store

        path = self.store or "runs.sqlite"
        with Store(path, device=device_text(self.device or "auto")) as store:
            try:
                yield store
            except KeyboardInterrupt:
                print(f"mssp: stopped: what is finished is in {path}, the same command goes on", file=sys.stderr)
                raise


def multipliers(
    asked: Sequence[str], data: str, contender: Contender, *, narrowest: int | None = None, for_any: bool = False
) -> Tuned:
    """``tuned`` for this data, ``ones``, ``plain``, another data set's, or those in a plan file for this setting.

    Args:
        narrowest: the width at which a plain model is the same for all schemes; None where there is no such thing.
        for_any: take a plan file of another setting too, as a place to start from.
    """
    wanted = contender.setting
    if list(asked) == ["ones"]:
        return Tuned(_ONES)
    if list(asked) == ["plain"]:
        if narrowest is None:
            raise ValueError("--multipliers plain is one model of the smallest of several widths: here there is none")
        lr = _PLAIN_BY_GRADIENTS if wanted.optimizer.follows_gradients else _PLAIN_BY_MOMENTS
        return Tuned(lr, base_width=narrowest)
    if len(asked) == 1 and asked[0] in ("tuned", *data_with_tuned_multipliers()):
        return multipliers_for(data if asked[0] == "tuned" else asked[0], wanted, contender.active)
    plans = {file: _plan_in(file) for file in asked}
    for file, plan in plans.items():
        routes_alike = plan.target.active / plan.target.experts == (contender.active or 8) / 8
        if for_any or (replace(plan.setting, as_printed=False) == wanted and routes_alike):
            try:
                return Tuned.of(plan)
            except ValueError as error:
                raise ValueError(f"{file}: {error}") from None
    held = [f"{file} is for Regime {plan.regime}, {plan.scheme}, {plan.optimizer}" for file, plan in plans.items()]
    raise ValueError(f"--multipliers has none for {contender}: {'; '.join(held)}")


def _plan_in(file: str) -> Plan:
    if not FilePath(file).exists():
        known = ", ".join(("tuned", "ones", "plain", *data_with_tuned_multipliers()))
        raise ValueError(f"--multipliers {file!r} is no file, and none of {known}")
    return plan_in(file)
