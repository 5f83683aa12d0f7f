"""Reads what a report shows: run stores, results in JSON files, logs of runs, recognised by what is in them.

runs.sqlite                      mssp sweep, mssp tune
check.json                       mssp check --json
limit.json                       mssp dmft --json
transfer.json                    mssp sweep --json
plan.json, parameters.json       mssp plan --json, mssp plan --by-name --json
run.jsonl, or its folder         mssp train
sizes.jsonl                      mssp.monitor
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mssp._constraints import collection, one_of, optional, takes, whole
from mssp._documents import one_line, parsed
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import heading
from mssp.dmft import document as limit_file
from mssp.dmft.document import Overlay
from mssp.hf.named_plan import plan_of
from mssp.planning.plans import Plan
from mssp.planning.setting import II, SGD, Setting
from mssp.store.runs import FINISHED, STATUSES, Run, Store
from mssp.sweep import grids, transfer_text
from mssp.sweep.execution import naming
from mssp.sweep.metrics import METRICS, Metric
from mssp.sweep.transfer import Contender, Score, Transfer, metric_of, score_of
from mssp.sweep.transfer_text import RecordedSweep
from mssp.sweep.trial import Trial
from mssp.train.logged_run import LoggedRun, logged_run
from mssp.train.run_log import RUN

_SWEEP, _TUNE = "sweep ", "tune "  # prefixes of the names of studies
_LOG = ".jsonl"
_TOP5, _ACCURACY = "train_top5", "train_accuracy"


@dataclass(frozen=True)
class Multiplied(Contender):
    """A contender with its multipliers in words, for a study that runs the same setting with other ones too."""

    multipliers: str = ""

    @property
    def details(self) -> str:
        return " · ".join(filter(None, (super().details, self.multipliers)))


@dataclass(frozen=True)
class Swept:
    """One setting of a sweep.

    Args:
        plain: whether its runs grow from a plain model, without any multiplier.
    """

    contender: Contender
    outcome: Transfer
    base_width: int | None
    plain: bool


@dataclass(frozen=True)
class Sweep:
    """A study of learning rates: its data, its settings, and the number of runs in each state (``counts``).

    Args:
        unchecked: how many finished runs have no checksum, since an older version kept them.
    """

    experiment: str
    data: str
    swept: Sequence[Swept]
    counts: Mapping[str, int]
    unchecked: int = 0


@dataclass(frozen=True)
class Search:
    """The runs of a study of multipliers in one setting at one width, with their scores, and the best of them."""

    experiment: str
    data: str
    steps: int
    contender: Contender
    metric: Metric
    best: Trial
    score: float
    tried: Sequence[tuple[Trial, float]]

    def is_first_look_of(self, other: Search) -> bool:
        """Whether this is a shorter training of the same models, with which the other search began."""
        same = (self.data, self.contender, self.best.width) == (other.data, other.contender, other.best.width)
        return same and self.steps < other.steps


@dataclass(frozen=True)
class Checked:
    """A check, with the data, the routing and the base width that its file names."""

    check: Check
    data: str = ""
    active: int | None = None
    base_width: int | None = None

    @property
    def name(self) -> str:
        """As ``MSSP · Regime II · SGD``, with everything that is not as usual."""
        return " · ".join(filter(None, (heading(self.check), self.details)))

    @property
    def details(self) -> str:
        """What is not as usual and not part of the check's own heading; mostly empty."""
        active = "" if self.active is None else f"{self.active} of 8 active"
        depth = "over depth" if self.check.axis == "depth" else ""
        return " · ".join(filter(None, (active, depth)))

    def is_of(self, swept: Swept, data: str) -> bool:
        """Whether the check is of the same models as one setting of a sweep."""
        check, contender = self.check, swept.contender
        return (
            (check.setting, self.active, check.axis) == (contender.setting, contender.active, "width")
            and self.data == data
            and self.base_width == swept.base_width
        )


@dataclass(frozen=True)
class NamedPlan:
    """A plan, with the table of a model's parameters if the file has one."""

    name: str
    plan: Plan
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    factors: Sequence[str] = ()


@dataclass
class Contents:
    """Everything that a report shows."""

    sources: list[str] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    checks: list[Checked] = field(default_factory=list)
    limits: list[Overlay] = field(default_factory=list)
    recorded: list[RecordedSweep] = field(default_factory=list)
    plans: list[NamedPlan] = field(default_factory=list)
    runs: dict[str, LoggedRun] = field(default_factory=dict)  # by their names
    environments: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)  # by what was made there

    @property
    def is_empty(self) -> bool:
        evidence = (self.sweeps, self.searches, self.checks, self.limits, self.recorded, self.plans, self.runs)
        return not any(evidence)


@takes(paths=collection, metric=optional(one_of(METRICS)))
def read(paths: Iterable[Path], metric: str | Metric | None = None) -> Contents:
    """The contents of stores, files and folders of runs; ValueError names a file that is none of them.

    Args:
        metric: the metric that sweeps are judged by. By default it is top-5 training accuracy, or accuracy if the data
            have so few classes that all top-5 accuracies are 1.
    """
    judged_by = optional(one_of(METRICS))("metric", metric)
    contents = Contents()
    given = list(paths)
    paths = [path / RUN if (path / RUN).is_file() else path for path in given]
    names = [_name(path, asked) for path, asked in zip(paths, given, strict=True)]
    for number, path in enumerate(paths):
        if path.resolve() in (other.resolve() for other in paths[:number]):
            raise ValueError(f"{given[number]} is named twice")
        name = str(given[number]) if names.count(names[number]) > 1 else names[number]
        contents.sources.append(name)
        if path.is_dir():
            raise ValueError(f"{path} is a folder without {RUN}: name the run store or the files in it")
        if not path.exists():
            raise ValueError(f"{path}: there is no such file")
        if path.suffix == _LOG:
            _read_run(path, name, contents)
            continue
        try:
            if path.suffix == ".json":
                _read_document(path, contents)
            else:
                _read_store(path, contents, judged_by)
        except ValueError as error:
            message = str(error)
            raise ValueError(message if str(path.absolute()) in message else f"{path}: {message}") from None
    return contents


def _name(path: Path, asked: Path) -> str:
    """The name of a file, or of a run's folder, whose log is always called the same."""
    return path.absolute().parent.name if path.name == RUN else asked.name


# -- logs of runs ------------------------------------------------------------------------------------------------------


def _read_run(path: Path, name: str, contents: Contents) -> None:
    run = contents.runs[name] = logged_run(path)
    for start in run.starts:
        onwards = f", from step {start['step']}" if start["step"] else ""
        contents.environments.append((f"{name}{onwards}", start))


# -- run stores --------------------------------------------------------------------------------------------------------


def _read_store(path: Path, contents: Contents, metric: Metric | None) -> None:
    with Store(path, read_only=True) as store:
        for name in store.studies():
            study = store.open_study(name)
            contents.environments += [(name, environment) for environment in study.environments()]
            data = str(study.settings.get("data", ""))
            with naming(study):
                steps = whole("steps", study.settings.get("steps", 0))
                if name.startswith(_SWEEP):
                    sweep = sweep_of(name.removeprefix(_SWEEP), data, study.each_run(), metric, study.unchecked())
                    contents.sweeps += [sweep] if sum(sweep.counts.values()) else []
                elif name.startswith(_TUNE):
                    contents.searches += _searches(name.removeprefix(_TUNE), data, study.each_run(), steps)
    searches = contents.searches
    contents.searches = [each for each in searches if not any(each.is_first_look_of(other) for other in searches)]


def sweep_of(
    experiment: str, data: str, runs: Iterable[Run], metric: Metric | None = None, unchecked: int = 0
) -> Sweep:
    """The sweep that the runs of a study are; runs of one setting with other multipliers count as another setting.

    Args:
        metric: the metric to judge by; None for the default.
        unchecked: how many of the runs have no checksum.
    """
    candidates = [METRICS[_TOP5], METRICS[_ACCURACY]] if metric is None else [metric]
    scores: dict[tuple[Contender, str], list[list[Score]]] = {}
    bases: dict[tuple[Contender, str], int | None] = {}
    counts = dict.fromkeys(STATUSES, 0)
    for run in runs:
        counts[run.status] += 1
        trial = Trial.of(run)
        group = Contender.of(trial), _multipliers(trial)
        bases[group] = trial.base_width
        if run.status in FINISHED:
            by_metric = scores.setdefault(group, [[] for _ in candidates])
            for candidate, found in zip(candidates, by_metric, strict=True):
                found.append(score_of(run, trial, candidate))
    chosen = 0 if metric is not None else _default_metric([by_metric[0] for by_metric in scores.values()])
    swept = []
    for (contender, multipliers), base in bases.items():
        if (contender, multipliers) not in scores:
            continue  # none of its runs is finished
        alone = sum(other == contender for other, _ in bases) == 1
        plain = base is not None and multipliers == _multipliers(replace(_WITHOUT_MULTIPLIERS, base_width=base))
        named = Multiplied(contender.setting, contender.active, "" if alone else multipliers)
        swept.append(Swept(named, Transfer(candidates[chosen], scores[contender, multipliers][chosen]), base, plain))
    return Sweep(experiment, data, swept, counts, unchecked)


_WITHOUT_MULTIPLIERS = Trial(Setting(regime=II, optimizer=SGD), 16, 0, 1.0)


def _multipliers(trial: Trial) -> str:
    """The multipliers of a trial in words, without those that are 1."""
    values = {**grids.point_of(trial), "aggregation": trial.aggregation_mult}
    others = [f"{name} {value:g}" for name, value in values.items() if value != 1]
    start = [] if trial.base_width is None else [f"plain from N = {trial.base_width}"]
    return ", ".join([*start, *others]) or "all multipliers 1"


def _default_metric(top5: Iterable[Sequence[Score]]) -> int:
    """0 for top-5; 1, for accuracy, where the data have so few classes that all top-5 accuracies are 1."""
    finite = [score.value for scores in top5 for score in scores if math.isfinite(score.value)]
    return int(bool(finite) and min(finite) == 1.0)


def _searches(experiment: str, data: str, runs: Iterable[Run], steps: int) -> list[Search]:
    metric = METRICS["validation_top5"]
    groups: dict[tuple[Contender, int], list[tuple[Trial, float]]] = {}
    for run in runs:
        trial = Trial.of(run)
        if run.status in FINISHED:
            score = metric_of(run, metric.name) if run.diverged_at is None else math.nan
            groups.setdefault((Contender.of(trial), trial.width), []).append((trial, score))
    searches = []
    for (contender, _), tried in groups.items():
        finite = [(trial, score) for trial, score in tried if math.isfinite(score)]
        # A search over learning rates alone has nothing to show over multipliers.
        if finite and len({tuple(grids.point_of(trial).items()) for trial, _ in tried}) > 1:
            best, score = max(finite, key=lambda each: each[1])
            searches.append(Search(experiment, data, steps, contender, metric, best, score, tried))
    return searches


# -- files of JSON -----------------------------------------------------------------------------------------------------


def _read_document(path: Path, contents: Contents) -> None:
    document = parsed(path.read_bytes())
    if not isinstance(document, dict):
        raise ValueError(_FOREIGN)
    reader = next((read for key, read in _READERS.items() if key in document), None)
    if reader is None:
        raise ValueError(_FOREIGN)
    try:
        reader(path, document, contents)
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
    if "made_with" in document:
        contents.environments.append((path.name, document["made_with"]))


def _read_check(path: Path, document: Mapping[str, Any], contents: Contents) -> None:
    check, data = Check.from_json(document), document.get("data", "")
    contents.checks.append(Checked(check, data, document.get("active"), document.get("base_width")))


def _read_limit(path: Path, document: Mapping[str, Any], contents: Contents) -> None:
    contents.limits.append(limit_file.read(document))


def _read_transfer(path: Path, document: Mapping[str, Any], contents: Contents) -> None:
    contents.recorded.append(transfer_text.read(document))


def _read_plan(path: Path, document: Mapping[str, Any], contents: Contents) -> None:
    contents.plans.append(NamedPlan(path.stem, Plan.from_json(json.dumps(document))))


def _read_parameters(path: Path, document: Mapping[str, Any], contents: Contents) -> None:
    plan, table = plan_of(document), document["parameters"]
    contents.plans.append(NamedPlan(path.stem, plan, table["header"], table["rows"], document["factors"]))


# The reader of each kind of result, by the key that only this kind has.
_READERS: dict[str, Callable[[Path, Mapping[str, Any], Contents], None]] = {
    "quantities": _read_check,
    "overlay": _read_limit,
    "settings": _read_transfer,
    "parameters": _read_parameters,
    "roles": _read_plan,
}
_FOREIGN = "it is no result that a report shows: those of mssp sweep, check, dmft and plan, with --json, are"
