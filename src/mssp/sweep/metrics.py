"""The metrics by which runs are judged."""

from __future__ import annotations

from dataclasses import dataclass

from mssp._constraints import switch, takes, word


@takes(name=word, higher_is_better=switch, label=word)
@dataclass(frozen=True)
class Metric:
    """A number to judge runs by."""

    name: str
    higher_is_better: bool
    label: str

    def __str__(self) -> str:
        return self.name


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
