"""The search for multipliers at a small width: the paper's procedure, and cheaper ones that the paper warns about.

``grid``     the learning rate alone, then a broad grid over the init multiplier and the five learning-rate multipliers,
             then a fine grid around the best: every combination of 5 values a factor 4 apart, 15,625 runs.
``random``   random points over the same ranges, then all pairs of multipliers around the best, again and again.
``optuna``   a sampler that learns from the scores so far (TPE), in batches.

All of them choose by validation top-5 or another metric. With replicas the full grid takes minutes on one GPU, so there
is no need to skip it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mssp._constraints import (
    at_least,
    function,
    kind_of,
    more_than_one,
    one_of,
    optional,
    positive_int,
    takes,
)
from mssp.sweep import grids
from mssp.sweep.grids import MULTIPLIERS, Point, check_range, point_of, with_multipliers
from mssp.sweep.trial import Trial, check_runs

METHODS = ("grid", "random", "optuna")
_BATCH = 64  # points that the sampler suggests before it learns their scores
# The sampler repeats points, which costs nothing, so it gets up to this many times the batches of the budget.
_EXTRA_BATCHES = 4
Scores = Mapping[str, float]  # by the key of a trial; minus infinity where it diverged
Evaluate = Callable[[str, Sequence[Trial]], Scores]


@takes(
    method=one_of(METHODS),
    points=positive_int,
    ratio=more_than_one,
    broad_points=positive_int,
    broad_ratio=more_than_one,
    lr_points=positive_int,
    lr_ratio=more_than_one,
    rounds=positive_int,
    budget=optional(positive_int),
    seed=at_least(0),
)
@dataclass(frozen=True)
class Procedure:
    """The choices of a search.

    Args:
        method: one of METHODS.
        points, ratio: the number of values of each multiplier in the fine grid, and the factor between neighbours.
        broad_points, broad_ratio: the same for the broad grid, which comes before the fine one.
        lr_points, lr_ratio: the same for the learning rate, which is searched first.
        rounds: the largest number of fine grids. While the best point lies at an edge, another grid around it follows.
        budget: runs of ``random`` and ``optuna`` after the learning rate; None for as many as ``grid`` takes with one
            fine grid.
        seed: the seed of the search's own random numbers.
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

    @property
    def runs(self) -> int:
        """The budget; where none was set, the number of runs of a broad and a fine grid."""
        return self.budget or self.broad_points ** len(MULTIPLIERS) + self.points ** len(MULTIPLIERS)

    def check_runs(self, seeds: int = 1, confirming: int = 0) -> None:
        """Refuse more runs than one search may have, if every grid that may follow another one does follow it."""
        number = len(MULTIPLIERS)
        if self.method == "grid":
            points = self.broad_points**number + self.rounds * self.points**number
            made_by = (
                f"{self.broad_points}^{number} of the broad grid (--broad-points), "
                f"{self.rounds} x {self.points}^{number} of fine grids (--rounds, --points)"
            )
        else:
            points = self.runs
            made_by = f"{self.runs:,} points (--budget; without it, as many as --points and --broad-points make)"
        learning_rates = f"{self.lr_points} learning rates (--lr-points)"
        times = f", each with {seeds} seeds (--seeds), and {confirming} to confirm (--confirm)"
        check_runs((self.lr_points + points) * seeds + confirming, f"{learning_rates}, {made_by}{times}")

    def check_values(self, start: Trial) -> None:
        """Refuse grids around a start whose numbers floats would not hold, wherever the best points lie in them."""
        lr_steps, fine_steps = (self.lr_points - 1) / 2, (self.points - 1) / 2 * self.rounds
        check_range("the learning rates (--lr-points, --lr-ratio)", start.lr, lr_steps, self.lr_ratio)
        check_range("the aggregation multiplier", start.aggregation_mult, 0)
        for name, centre in point_of(start).items():
            broad = (self.broad_points - 1) / 2 * math.log10(self.broad_ratio)
            grids_of = f"the grids of {name} (--points, --ratio, --broad-points, --broad-ratio, --rounds)"
            check_range(grids_of, centre, broad + fine_steps * math.log10(self.ratio), 10)
        if self.method == "random" and (2 * self.reach + 1) ** len(MULTIPLIERS) >= 2**63:
            raise ValueError(
                f"a grid of steps of {self.ratio!r} (--ratio) over the range of the broad grid has too many points to "
                "draw from: use a larger --ratio"
            )

    @property
    def reach(self) -> int:
        """The distance from the centre to the farthest value of both grids, in steps of ``ratio``."""
        broad = (self.broad_points - 1) / 2 * math.log(self.broad_ratio, self.ratio)
        return math.ceil(broad + (self.points - 1) / 2 - 1e-9)


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Args:
        best: the trial with the best score.
        tried: every trial with its score, in order; minus infinity where it diverged.
        fine: the values of the last fine grid by multiplier; empty for searches without a fine grid.
        at_edge: the multipliers whose best value is the smallest or largest of that grid: values beyond may be better.
    """

    best: Trial
    score: float
    tried: Sequence[tuple[Trial, float]]
    fine: Mapping[str, Sequence[float]] = field(default_factory=dict)
    at_edge: Sequence[str] = ()


@takes(start=kind_of(Trial), procedure=kind_of(Procedure), evaluate=function)
def tune(start: Trial, procedure: Procedure, evaluate: Evaluate) -> Found:
    """Search from a trial at the width to tune at; ``evaluate`` trains trials and returns their scores."""
    procedure.check_runs()
    procedure.check_values(start)
    search = _Search(start, evaluate)
    rates = grids.levels(start.lr, procedure.lr_points, procedure.lr_ratio)
    # From the middle outwards: of equal scores the first counts, so the given rate stays best where nothing learns yet.
    rates.sort(key=lambda lr: abs(math.log(lr / start.lr)))
    search.try_trials("learning rate", [replace(start, lr=lr) for lr in rates])
    fine: Mapping[str, Sequence[float]] = {}
    if procedure.method == "optuna":
        _with_optuna(search, procedure)
    elif procedure.method == "random":
        _at_random(search, procedure)
    else:
        fine = _over_grids(search, procedure)
    tried = list(search.tried.values())
    return Found(search.best, search.score, tried, fine, grids.at_edge(fine, point_of(search.best)))


class _Search:
    """The trials so far with their scores, and the best of them."""

    def __init__(self, start: Trial, evaluate: Evaluate) -> None:
        self.best, self.score = start, -math.inf
        self.tried: dict[str, tuple[Trial, float]] = {}
        self._evaluate = evaluate

    def try_trials(self, stage: str, trials: Sequence[Trial]) -> None:
        scores = self._evaluate(stage, trials)
        for trial in trials:
            self.tried[trial.key] = trial, scores[trial.key]
            if scores[trial.key] > self.score:  # of equal scores the first counts
                self.best, self.score = trial, scores[trial.key]

    def try_points(self, stage: str, points: Sequence[Point]) -> None:
        if points:
            self.try_trials(stage, [with_multipliers(self.best, point) for point in points])

    def new(self, points: Sequence[Point]) -> list[Point]:
        """The points that have not been tried, without repeats."""
        return [point for point in grids.unique(points) if with_multipliers(self.best, point).key not in self.tried]


def _over_grids(search: _Search, procedure: Procedure) -> dict[str, list[float]]:
    """Try a broad grid, then fine grids around the best point until it lies inside one. Returns the last fine grid."""
    centre = point_of(search.best)
    search.try_points("broad grid", grids.all_points(grids.axes(centre, procedure.broad_points, procedure.broad_ratio)))
    for number in range(procedure.rounds):
        fine = grids.axes(point_of(search.best), procedure.points, procedure.ratio)
        search.try_points(f"fine grid {number + 1}", grids.all_points(fine))
        if not grids.at_edge(fine, point_of(search.best)):
            break
    return fine


def _at_random(search: _Search, procedure: Procedure) -> None:
    """Spend half of the budget on random points over the grids' range, then the rest on pairs around the best point.

    In a round in which all pairs have been tried, the points are random again.
    """
    whole_range = grids.axes(point_of(search.best), 2 * procedure.reach + 1, procedure.ratio)
    runs_left, number = procedure.runs, 0
    while runs_left > 0:
        number += 1
        centre = point_of(search.best)
        fine = grids.axes(centre, procedure.points, procedure.ratio)
        pairs = search.new(grids.pair_points(fine, centre)) if number > 1 else []
        # More points are drawn than have been tried, so that some are new.
        count = len(search.tried) + procedure.runs
        points = pairs or search.new(grids.random_points(whole_range, count, procedure.seed + number))
        points = points[: max(1, runs_left if number > 1 else procedure.runs // 2)]
        if not points:  # the whole range has been tried
            return
        search.try_points(f"{'pairs' if pairs else 'at random'} {number}", points)
        runs_left -= len(points)


def _with_optuna(search: _Search, procedure: Procedure) -> None:
    """Let Optuna's TPE sampler suggest points in batches, until the budget is spent."""
    try:
        import optuna
    except ImportError:
        raise ValueError("the method optuna needs Optuna: pip install 'mssp[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # With the constant liar the points of one batch differ, though no score is known in between.
    sampler = optuna.samplers.TPESampler(seed=procedure.seed, constant_liar=True, n_startup_trials=_BATCH)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    reach, centre = procedure.reach, point_of(search.best)
    runs_left = procedure.runs
    for number in range(_EXTRA_BATCHES * -(-procedure.runs // _BATCH)):
        batch = [study.ask() for _ in range(min(_BATCH, runs_left))]
        points = [
            {name: centre[name] * procedure.ratio ** trial.suggest_int(name, -reach, reach) for name in centre}
            for trial in batch
        ]
        new = search.new(points)
        search.try_points(f"batch {number + 1}", new)
        for trial, point in zip(batch, points, strict=True):
            _, score = search.tried[with_multipliers(search.best, point).key]
            study.tell(trial, max(score, 0.0))  # a run that diverged is as bad as one that gets nothing right
        runs_left -= len(new)
        if runs_left <= 0:
            return
