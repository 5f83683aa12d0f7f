"""Learning-rate transfer: does the best learning rate stay where it is as the model grows, and is wider better?

The answers follow from a table of scores by width, learning rate and seed:

- the best learning rate of each width: the top of a parabola in log2 of the rate, fitted for each seed separately;
- its drift: the slope of log2 of the best rate over log2 of the width, in doublings per doubling;
- the regret: what a width loses when it takes the best rate of the smallest one;
- whether wider is better: Welch's tests between neighbours, and between the ends;
- the largest learning rate that is stable: no seed diverges there or below, and all of them learn.

The experiment is the paper's: learning rate × width × seed × scheme, for any regimes and optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from statistics import fmean
from typing import TypeAlias

import numpy as np

from mssp._constraints import (
    collection,
    kind_of,
    mapping,
    more_than_one,
    optional,
    positive,
    positive_int,
    several,
    takes,
)
from mssp._estimates import Estimate, mean_of, p_greater, slope_of
from mssp.ladders.tuned import Tuned
from mssp.planning.setting import Regime, Setting
from mssp.store.runs import FINISHED, Run
from mssp.sweep.grids import check_range
from mssp.sweep.metrics import Metric
from mssp.sweep.trial import Trial, check_runs

_SIGNIFICANCE = 0.05
_NEGLIGIBLE_DRIFT = 0.1  # in doublings of the learning rate per doubling of the width
_WIDEST_CLEAR_CI = 0.3  # a wider confidence interval leaves the drift unclear


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one run: NaN where it diverged. ``learned`` says whether its loss fell."""

    width: int
    lr: float
    seed: int
    value: float
    learned: bool = True


@dataclass(frozen=True)
class WidthSummary:
    """The results of one width.

    Args:
        best_lr: log2 of the best learning rate, by the parabola.
        best_grid_lr: the best learning rate of the grid.
        at_edge: whether that is the grid's smallest or largest rate, so that the true optimum may lie outside.
        best: the score at the best rate of the grid.
        transferred: the score at the rate that was best at the smallest width.
        regret: how much worse ``transferred`` is than ``best``.
        largest_stable_lr: None where no rate of the grid is stable.
        diverged: how many seeds diverged at the best rate; more than 0 only if every rate has one that diverged.
    """

    width: int
    best_lr: Estimate
    best_grid_lr: float
    at_edge: bool
    best: Estimate
    transferred: Estimate
    regret: Estimate
    largest_stable_lr: float | None
    diverged: int = 0


@dataclass(frozen=True)
class Transfer:
    """The scores of one setting, and the answers that follow from them."""

    metric: Metric
    scores: Sequence[Score]

    @property
    def seeds(self) -> int:
        return len({score.seed for score in self.scores})

    @cached_property
    def widths(self) -> list[int]:
        return sorted({score.width for score in self.scores})

    def lrs(self, width: int) -> list[float]:
        return sorted({score.lr for score in self.scores if score.width == width})

    def values(self, width: int, lr: float) -> dict[int, float]:
        """The scores by seed: larger is better, and minus infinity where the run diverged."""
        return dict(self._values[width][lr])

    def shown(self, width: int, lr: float) -> Estimate:
        """The mean over seeds with the metric's own sign; runs that diverged are left out."""
        return self._with_metric_sign(mean_of(list(self._values[width][lr].values())))

    @cached_property
    def summaries(self) -> list[WidthSummary]:
        if not self.scores:
            return []
        base_lr = self._best_grid_lr(self.widths[0])
        return [self._summary(width, base_lr) for width in self.widths]

    @cached_property
    def drift(self) -> Estimate:
        """Doublings of the best learning rate per doubling of the width."""
        if len(self.widths) < 2:
            return Estimate(math.nan, math.nan)
        log_widths = [math.log2(width) for width in self.widths]
        best_lrs = [self._best_lrs(width) for width in self.widths]
        seeds = sorted(set.intersection(*map(set, best_lrs)))
        return mean_of([slope_of(log_widths, [by_seed[seed] for by_seed in best_lrs]) for seed in seeds])

    @property
    def drift_verdict(self) -> str:
        """``stays``, ``drifts up``, ``drifts down``, or ``unclear``, for which :attr:`why_unclear` has the reason."""
        if self.why_unclear:
            return "unclear"
        if not self._drifts:
            return "stays"
        return "drifts up" if self.drift.value > 0 else "drifts down"

    @property
    def why_unclear(self) -> str:
        """Why the drift is not known; empty where it is known."""
        if math.isnan(self.drift.ci):
            return "it takes two widths and two seeds"
        edges = [summary.width for summary in self.summaries if summary.at_edge]
        if edges:
            # The true optimum may lie anywhere beyond the grid's end.
            return f"at N = {', '.join(map(str, edges))} the best lies at the end of the grid: more rates are needed"
        return "" if self._drifts or self.drift.ci <= _WIDEST_CLEAR_CI else "the seeds scatter: more of them are needed"

    @property
    def wider_is_better(self) -> str:
        """``yes``, ``no`` (some step is significantly worse) or ``stalls``, each width at its own best rate."""
        return _trend([list(self._values[width][self._best_grid_lr(width)].values()) for width in self.widths])

    @property
    def wider_is_better_transferred(self) -> str:
        """Like :attr:`wider_is_better`, with every width at the best rate of the smallest width."""
        base_lr = self._best_grid_lr(self.widths[0])
        return _trend([list(self._values_close_to(width, base_lr).values()) for width in self.widths])

    @property
    def _drifts(self) -> bool:
        return self.drift.excludes_zero and abs(self.drift.value) > _NEGLIGIBLE_DRIFT

    @cached_property
    def _values(self) -> Mapping[int, Mapping[float, Mapping[int, float]]]:
        """:meth:`values` by width and learning rate."""
        sign = 1.0 if self.metric.higher_is_better else -1.0
        table: dict[int, dict[float, dict[int, float]]] = {}
        for score in self.scores:
            value = sign * score.value if math.isfinite(score.value) else -math.inf
            table.setdefault(score.width, {}).setdefault(score.lr, {})[score.seed] = value
        return table

    def _with_metric_sign(self, estimate: Estimate) -> Estimate:
        return estimate if self.metric.higher_is_better else Estimate(-estimate.value, estimate.ci)

    def _best_grid_lr(self, width: int) -> float:
        """The learning rate with the best mean over seeds; one at which a seed diverged is worse than any other."""
        by_lr = self._values[width]
        return max(sorted(by_lr), key=lambda lr: fmean(by_lr[lr].values()))

    def _values_close_to(self, width: int, lr: float) -> Mapping[int, float]:
        """The scores by seed at a learning rate of another width's grid; empty if this width was not trained at it."""
        by_lr = self._values[width]
        return next((by_seed for own_lr, by_seed in by_lr.items() if math.isclose(own_lr, lr, rel_tol=1e-6)), {})

    def _best_lrs(self, width: int) -> dict[int, float]:
        """log2 of the best learning rate by seed, without the seeds that diverged at every rate."""
        curves: dict[int, list[tuple[float, float]]] = {}
        for lr in self.lrs(width):
            for seed, value in self._values[width][lr].items():
                curves.setdefault(seed, []).append((math.log2(lr), value))
        return {
            seed: top_of_parabola(*zip(*curve, strict=True))
            for seed, curve in sorted(curves.items())
            if any(math.isfinite(value) for _, value in curve)
        }

    def _summary(self, width: int, base_lr: float) -> WidthSummary:
        lrs, best_lr = self.lrs(width), self._best_grid_lr(width)
        best, transferred = self._values[width][best_lr], self._values_close_to(width, base_lr)
        # Seeds are paired: both rates start from the same weights and see the same batches.
        regrets = [best[seed] - transferred[seed] for seed in best if seed in transferred]
        return WidthSummary(
            width,
            mean_of(list(self._best_lrs(width).values())),
            best_lr,
            best_lr in (lrs[0], lrs[-1]) and len(lrs) > 1,
            self._with_metric_sign(mean_of(list(best.values()))),
            self._with_metric_sign(mean_of(list(transferred.values()))),
            mean_of(regrets) if all(map(math.isfinite, regrets)) else Estimate(math.inf, math.nan),
            max(takewhile(lambda lr: self._is_stable(width, lr), lrs), default=None),
            sum(not math.isfinite(value) for value in best.values()),
        )

    def _is_stable(self, width: int, lr: float) -> bool:
        runs = [score for score in self.scores if (score.width, score.lr) == (width, lr)]
        return all(run.learned and math.isfinite(run.value) for run in runs)


def _trend(scores: Sequence[list[float]]) -> str:
    """Whether wider is better, from the scores of all widths, the narrowest first."""
    steps = list(pairwise(scores))
    if not steps or min(map(len, scores)) < 2 or not all(map(math.isfinite, scores[0])):
        return "unclear"
    # There is one test for each step from a width to the next, and all tests share the level of significance.
    if any(_p_greater_or_diverged(before, after) < _SIGNIFICANCE / len(steps) for before, after in steps):
        return "no"
    return "yes" if _p_greater_or_diverged(scores[-1], scores[0]) < _SIGNIFICANCE else "stalls"


def _p_greater_or_diverged(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of "first is greater". It is 0 or 1 if a run diverged, since that is worse than any score."""
    all_finite = [all(map(math.isfinite, group)) for group in (first, second)]
    return p_greater(first, second) if all(all_finite) else float(all_finite != [True, False])


def top_of_parabola(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The top of the parabola through the best point and its neighbours; the best point itself if it lies at an edge.

    >>> round(top_of_parabola([0.0, 1.0, 2.0, 3.0], [0.0, 0.75, 1.0, 0.75]), 6)
    2.0
    >>> round(top_of_parabola([0.0, 1.0, 2.0], [0.5, 1.0, 0.75]), 3)
    1.167

    Three points and no more: beyond the best rate training breaks down, and a wider parabola would lean away from that
    cliff.
    """
    best = int(np.argmax(ys))
    if not 0 < best < len(xs) - 1 or not all(map(math.isfinite, ys[best - 1 : best + 2])):
        return xs[best]  # at the edge of the grid, or of stability
    (left, right), (before, top, after) = (xs[best] - xs[best - 1], xs[best + 1] - xs[best]), ys[best - 1 : best + 2]
    down, up = (top - before) / left, (top - after) / right  # how steeply the score falls to either side
    return xs[best] + (0.5 * (down * right - up * left) / (down + up) if down + up else 0.0)


@dataclass(frozen=True)
class RecordedTransfer:
    """The answers of a :class:`Transfer` without its scores, as a file keeps them."""

    metric: Metric
    seeds: int
    summaries: Sequence[WidthSummary]
    drift: Estimate
    drift_verdict: str
    why_unclear: str
    wider_is_better: str
    wider_is_better_transferred: str


Outcome: TypeAlias = Transfer | RecordedTransfer  # both have the same answers about one setting


@takes(setting=kind_of(Setting), active=optional(positive_int))
@dataclass(frozen=True)
class Contender:
    """The setting and the routing of models for which a learning rate is swept: one curve per width.

    >>> print(Contender(Setting.of("mssp", "II", "sgd"), active=2))
    Regime II · mssp · sgd · 2 of 8 active
    """

    setting: Setting
    active: int | None = None

    def __str__(self) -> str:
        return " · ".join(filter(None, (self.setting.brief, self.details)))

    @property
    def details(self) -> str:
        """The routing and the readout where they are unusual; mostly empty."""
        routing = "" if self.active is None else f"{self.active} of 8 active"
        return " · ".join(filter(None, (routing, self.setting.details)))

    def trial(self, width: int, seed: int, lr: float) -> Trial:
        return Trial(self.setting, width, seed, lr, active=self.active)

    @classmethod
    def of(cls, trial: Trial) -> Contender:
        return cls(trial.setting, trial.active)


@takes(points=positive_int, ratio=more_than_one, given=several(positive))
@dataclass(frozen=True)
class LearningRates:
    """Learning rates to sweep: a factor apart around a setting's tuned rate, or a given list for all settings.

    >>> LearningRates(points=4, ratio=2.0).around(0.1)
    [0.05, 0.1, 0.2, 0.4]
    """

    points: int = 8
    ratio: float = 2.0
    given: tuple[float, ...] = ()

    def around(self, tuned: float) -> list[float]:
        self.check(tuned)
        below = self._below
        return sorted(self.given) or [tuned * self.ratio**k for k in range(-below, self.points - below)]

    def check(self, tuned: float) -> None:
        """Refuse rates around a tuned one that floats do not hold, before any of them is computed."""
        for lr in self.given:
            check_range("learning rates (--lrs)", lr, 0)
        if not self.given:
            what = f"{self.points} learning rates a factor {self.ratio:g} apart (--lr-points, --lr-ratio)"
            check_range(what, tuned, self.points - self._below - 1, self.ratio)

    def check_runs(self, curves: int, seeds: int) -> None:
        """Refuse more runs than one sweep may have, for so many pairs of a contender and a width."""
        number, flag = (len(self.given), "--lrs") if self.given else (self.points, "--lr-points")
        made_by = f"{curves} pairs of setting and width, {number} learning rates ({flag}), {seeds} seeds (--seeds)"
        check_runs(curves * number * seeds, made_by)

    @property
    def _below(self) -> int:
        """How many rates are below the tuned one. One more is above it: an optimum that drifts mostly drifts up."""
        return (self.points - 1) // 2


@takes(contenders=mapping, widths=mapping, seeds=positive_int, rates=kind_of(LearningRates))
def trials(
    contenders: Mapping[Contender, Tuned], widths: Mapping[Regime, Sequence[int]], seeds: int, rates: LearningRates
) -> list[Trial]:
    """Every trial of the experiment: contender × width × seed × learning rate."""
    for contender in contenders:
        if contender.setting.regime not in widths:
            raise ValueError(f"no widths were given for {contender}: its regime is {contender.setting.regime}")
    curves = sum(len(widths[contender.setting.regime]) for contender in contenders if contender.setting.regime)
    rates.check_runs(curves, seeds)
    planned = []
    for contender, tuned in contenders.items():
        assert contender.setting.regime is not None
        lrs = rates.around(tuned.lr)
        for width in widths[contender.setting.regime]:
            first = contender.trial(width, 0, lrs[0]).with_tuned(tuned)
            planned += [first.at(width, seed, lr) for seed in range(seeds) for lr in lrs]
    return planned


@takes(runs=collection, metric=kind_of(Metric), swept=several(kind_of(Trial)))
def transfers(runs: Iterable[Run], metric: Metric, swept: Sequence[Trial]) -> dict[Contender, Transfer]:
    """The transfer of each contender, from the finished runs of these trials; runs of other trials are ignored."""
    by_key = {trial.key: trial for trial in swept}
    # A setting is an object of many fields, and a sweep has thousands of trials of one: they are told apart faster so.
    scores: dict[tuple[int, int | None], list[Score]] = {}
    contenders = {(id(trial.setting), trial.active): trial for trial in swept}
    for run in runs:
        if run.key in by_key and run.status in FINISHED:
            trial = by_key[run.key]
            if run.spec != trial.json():
                Trial.of(run)  # refuses it, and says in what it is another run
            scores.setdefault((id(trial.setting), trial.active), []).append(score_of(run, trial, metric))
    by_contender: dict[Contender, list[Score]] = {}
    for kind, trial in contenders.items():
        by_contender.setdefault(Contender.of(trial), []).extend(scores.get(kind, []))
    return {contender: Transfer(metric, own_scores) for contender, own_scores in by_contender.items() if own_scores}


def score_of(run: Run, trial: Trial, metric: Metric) -> Score:
    """The score of a finished run of a trial."""
    value = metric_of(run, metric.name) if run.diverged_at is None else math.nan
    learned = metric_of(run, "train_loss") < metric_of(run, "first_loss")
    return Score(trial.width, trial.lr, trial.seed, value, learned)


def metric_of(run: Run, name: str) -> float:
    """A metric of a finished run; a ValueError names the run where it is missing."""
    try:
        return run.metrics[name]
    except KeyError:
        there = ", ".join(run.metrics) or "no metric"
        raise ValueError(f"run {run.key!r} is {run.status} and has no {name}, only {there}") from None
