"""The paper's transfer experiment: learning rate × width × seed × scheme, for any regimes and optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mssp._numbers import positive, positive_int
from mssp.ladders.tuned import Tuned
from mssp.sweep.store import Run
from mssp.sweep.transfer import Metric, Score, Transfer
from mssp.sweep.trial import Trial

METRICS = {
    metric.name: metric
    for metric in (
        Metric("train_top5", True, "top-5 training accuracy, end of training"),
        Metric("train_accuracy", True, "training accuracy, end of training"),
        Metric("train_loss", False, "training loss, end of training"),
        Metric("validation_top5", True, "top-5 validation accuracy"),
        Metric("validation_accuracy", True, "validation accuracy"),
        Metric("validation_loss", False, "validation loss"),
    )
}


@dataclass(frozen=True)
class Setting:
    """What a learning rate is swept for: one curve per width."""

    optimizer: str
    regime: str
    scheme: str
    active: int | None = None
    readout: str = "zero"

    def __str__(self) -> str:
        return " · ".join(filter(None, (f"Regime {self.regime}", self.scheme, self.optimizer, self.details)))

    @property
    def details(self) -> str:
        """What is not as usual; mostly nothing."""
        routing = "" if self.active is None else f"{self.active} of 8 active"
        readout = "" if self.readout == "zero" else f"readout {self.readout}"
        return " · ".join(filter(None, (routing, readout)))

    def trial(self, width: int, seed: int, lr: float) -> Trial:
        return Trial(
            self.regime, self.scheme, self.optimizer, width, seed, lr, active=self.active, readout=self.readout
        )

    @classmethod
    def of(cls, trial: Trial) -> Setting:
        return cls(trial.optimizer, trial.regime, trial.scheme, trial.active, trial.readout)


@dataclass(frozen=True)
class LearningRates:
    """Learning rates a factor apart around a setting's tuned one, or the same for all.

    >>> LearningRates(points=4, ratio=2.0).around(0.1)
    [0.05, 0.1, 0.2, 0.4]
    """

    points: int = 8
    ratio: float = 2.0
    given: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive_int("the number of learning rates", self.points)
        if positive("the ratio of learning rates", self.ratio) <= 1:
            raise ValueError(f"the ratio of learning rates must be more than 1, got {self.ratio}")
        for lr in self.given:
            positive("a learning rate", lr)

    def around(self, tuned: float) -> list[float]:
        # One more above than below: what drifts, drifts up.
        below = (self.points - 1) // 2
        return sorted(self.given) or [tuned * self.ratio**k for k in range(-below, self.points - below)]


def trials(
    settings: Mapping[Setting, Tuned], widths: Mapping[str, Sequence[int]], seeds: int, rates: LearningRates
) -> list[Trial]:
    """Every run of the experiment; ``widths`` by regime."""
    return [
        setting.trial(width, seed, lr).with_tuned(tuned)
        for setting, tuned in settings.items()
        for width in widths[setting.regime]
        for seed in range(positive_int("seeds", seeds))
        for lr in rates.around(tuned.lr)
    ]


def transfers(runs: Iterable[Run], metric: Metric, asked: Sequence[Trial]) -> dict[Setting, Transfer]:
    """The asked-for runs of a study by setting; a store may hold more, of other grids."""
    keys = {trial.key: trial for trial in asked}
    scores: dict[Setting, list[Score]] = {Setting.of(trial): [] for trial in asked}
    for run in runs:
        trial = keys.get(run.key)
        if trial is None or run.status not in ("done", "diverged"):
            continue
        value = run.metrics[metric.name] if run.diverged_at is None else math.nan
        learned = run.metrics["train_loss"] < run.metrics["first_loss"]
        scores[Setting.of(trial)].append(Score(trial.width, trial.lr, trial.seed, value, learned))
    return {setting: Transfer(metric, found) for setting, found in scores.items() if found}
