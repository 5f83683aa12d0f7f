"""Tune multipliers at a small width: the paper's procedure, and the cheaper ones it warns of.

``grid``     the learning rate alone, then a broad grid over the init multiplier and the five learning-rate multipliers,
             then a fine grid around the best: every combination of 5 values a factor 4 apart, 15,625 runs.
``random``   the same broad and fine ranges, at random, then all pairs of multipliers around the best, over and over.
``optuna``   a sampler that learns from what it has seen (TPE), asked and told in batches.

All choose by validation top-5, or another metric. With replicas the full grid is minutes on one GPU, so there is no
need to skip it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mssp._constraints import positive, positive_int
from mssp.sweep.grids import MULTIPLIERS, Point, at, at_edge, axes, full, levels, planes, point_of, some, unique
from mssp.sweep.trial import Trial

METHODS = ("grid", "random", "optuna")
_PATIENCE = 4  # as many batches as the budget has: a sampler repeats itself, and repetitions cost nothing
Scores = Mapping[str, float]  # by the key of a trial; minus infinity where it diverged
Evaluate = Callable[[str, Sequence[Trial]], Scores]


@dataclass(frozen=True)
class Procedure:
    """How to search.

    Args:
        method: one of METHODS.
        points, ratio: of the fine grid, for each multiplier.
        broad_points, broad_ratio: of the broad one before it.
        lr_points, lr_ratio: of the sweep of the learning rate that comes first.
        rounds: fine grids at most; the next is centred on the best of the last, and made while that lies at an edge.
        budget: runs of ``random`` and ``optuna`` after the learning rate; None for as many as ``grid`` takes with one
            fine grid.
        seed: of what is random in the search itself.
    """

    method: str = "grid"
    points: int = 5
    ratio: float = 4.0
    broad_points: int = 3
    broad_ratio: float = 64.0
    lr_points: int = 13
    lr_ratio: float = 4.0
    rounds: int = 3
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}: use one of {', '.join(METHODS)}")
        for name in ("points", "broad_points", "lr_points", "rounds"):
            positive_int(name, getattr(self, name))
        for name in ("ratio", "broad_ratio", "lr_ratio"):
            if positive(name, getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be more than 1, got {getattr(self, name)}")
        if self.budget is not None:
            positive_int("budget", self.budget)

    @property
    def runs(self) -> int:
        """What the grids take, or the budget."""
        dimensions = len(MULTIPLIERS)
        return self.budget or self.broad_points**dimensions + self.points**dimensions

    @property
    def reach(self) -> int:
        """How many steps of ``ratio`` up or down from the centre the two grids reach."""
        broad = (self.broad_points - 1) / 2 * math.log(self.broad_ratio, self.ratio)
        return math.ceil(broad + (self.points - 1) / 2 - 1e-9)


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Args:
        best: the trial with the best score.
        tried: every trial with its score, in order; minus infinity where it diverged.
        fine: the axes of the last fine grid, empty for searches without one.
        at_edge: multipliers whose best value is at the end of its axis: more may be better.
    """

    best: Trial
    score: float
    tried: Sequence[tuple[Trial, float]]
    fine: Mapping[str, Sequence[float]] = field(default_factory=dict)
    at_edge: Sequence[str] = ()


def tune(start: Trial, procedure: Procedure, evaluate: Evaluate) -> Found:
    """Search from a trial at the width to tune at; ``evaluate`` trains trials and says how they did."""
    search = _Search(start, evaluate)
    rates = levels(start.lr, procedure.lr_points, procedure.lr_ratio)
    # From the middle outwards: where nothing learns yet, the first of equals is the one that was given.
    rates.sort(key=lambda lr: abs(math.log(lr / start.lr)))
    search.ask("learning rate", [replace(start, lr=lr) for lr in rates])
    if procedure.method == "optuna":
        _with_optuna(search, procedure)
        return search.found({})
    if procedure.method == "random":
        _at_random(search, procedure)
        return search.found({})
    centre = point_of(search.best)
    search.ask_points("broad grid", full(axes(centre, procedure.broad_points, procedure.broad_ratio)))
    for number in range(procedure.rounds):
        fine = axes(point_of(search.best), procedure.points, procedure.ratio)
        search.ask_points(f"fine grid {number + 1}", full(fine))
        if not at_edge(fine, point_of(search.best)):
            break
    return search.found(fine)


class _Search:
    """What has been tried, and the best of it."""

    def __init__(self, start: Trial, evaluate: Evaluate) -> None:
        self.best, self.score = start, -math.inf
        self.tried: dict[str, tuple[Trial, float]] = {}
        self._evaluate = evaluate

    def ask(self, stage: str, trials: Sequence[Trial]) -> None:
        scores = self._evaluate(stage, trials)
        for trial in trials:
            self.tried[trial.key] = trial, scores[trial.key]
            if scores[trial.key] > self.score:  # the first of equals: results do not depend on the order of arrival
                self.best, self.score = trial, scores[trial.key]

    def ask_points(self, stage: str, points: Sequence[Point]) -> None:
        if points:
            self.ask(stage, [at(self.best, point) for point in points])

    def new(self, points: Sequence[Point]) -> list[Point]:
        """Points that have not been tried, each once."""
        return [point for point in unique(points) if at(self.best, point).key not in self.tried]

    def found(self, fine: Mapping[str, Sequence[float]]) -> Found:
        edges = at_edge(fine, point_of(self.best))
        return Found(self.best, self.score, list(self.tried.values()), fine, edges)


def _at_random(search: _Search, procedure: Procedure) -> None:
    """Half of the budget at random over everything a grid search reaches, then pairs of multipliers around the best.

    Where no pair is new, the rest is spent at random again.
    """
    everything = axes(point_of(search.best), 2 * procedure.reach + 1, procedure.ratio)
    left, number = procedure.runs, 0
    while left > 0:
        number += 1
        pairs = search.new(_pairs_around_best(search, procedure)) if number > 1 else []
        # Enough more that some are new, whatever has been tried.
        at_random = some(everything, len(search.tried) + procedure.runs, procedure.seed + number)
        count = left if number > 1 else procedure.runs // 2
        chosen = (pairs or search.new(at_random))[: max(1, min(count, left))]
        if not chosen:  # every point there is
            return
        search.ask_points(f"{'pairs' if pairs else 'at random'} {number}", chosen)
        left -= len(chosen)


def _pairs_around_best(search: _Search, procedure: Procedure) -> list[Point]:
    centre = point_of(search.best)
    return unique(planes(axes(centre, procedure.points, procedure.ratio), centre))


def _with_optuna(search: _Search, procedure: Procedure, batch: int = 64) -> None:
    try:
        import optuna
    except ImportError:
        raise ValueError("the method optuna needs Optuna: pip install 'mssp[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Constant liar: what is asked in one batch must differ, though nothing is told in between.
    sampler = optuna.samplers.TPESampler(seed=procedure.seed, constant_liar=True, n_startup_trials=batch)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    reach, centre = procedure.reach, point_of(search.best)
    left = procedure.runs
    for number in range(_PATIENCE * -(-procedure.runs // batch)):
        asked = [study.ask() for _ in range(min(batch, left))]
        points = [
            {name: centre[name] * procedure.ratio ** each.suggest_int(name, -reach, reach) for name in centre}
            for each in asked
        ]
        new = search.new(points)
        search.ask_points(f"batch {number + 1}", new)
        for each, point in zip(asked, points, strict=True):
            _, score = search.tried[at(search.best, point).key]
            study.tell(each, max(score, 0.0))  # a run that diverged is as bad as one that gets nothing right
        left -= len(new)
        if left <= 0:
            return
