"""The result of a search as a table for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mssp._estimates import finite, mean_of
from mssp._tables import align
from mssp.sweep import grids
from mssp.sweep.metrics import Metric
from mssp.sweep.search import Found


@dataclass(frozen=True)
class Summary:
    """The result of a search, ready to print.

    Args:
        confirmed: the scores of the best trial with other seeds; not finite where it diverged.
    """

    result: Found
    metric: Metric
    confirmed: Sequence[float]

    @property
    def score(self) -> float:
        """The best score with the sign of the metric: a loss is positive again."""
        return self.result.score if self.metric.higher_is_better else -self.result.score

    @property
    def diverged(self) -> int:
        """How many of the other seeds diverged."""
        return sum(not math.isfinite(value) for value in self.confirmed)

    def lines(self, heading: str, early_stop: bool, target: str) -> list[str]:
        """The result as text; ``target`` is the plan file that was written."""
        result = self.result
        lost_runs = sum(math.isinf(score) for _, score in result.tried)
        fate = "diverged or were stopped" if early_stop else "diverged"
        text = [heading, "", f"lr {result.best.lr:.6g}", "", *align(self._rows()), ""]
        text.append(f"{self.metric.label} {self.score:.4f}, the best of {len(result.tried)} runs ({lost_runs} {fate})")
        if self.confirmed:
            diverged = f", and {self.diverged} of {len(self.confirmed)} diverged" if self.diverged else ""
            text.append(f"with {len(self.confirmed)} new seeds {mean_of(self.confirmed).text(4)} (95% CI){diverged}")
        if result.at_edge:
            text.append(f"at the edge: more may be better; --multipliers {target} goes on from there")
        return text

    def _rows(self) -> list[list[str]]:
        fine = self.result.fine
        rows = [["multiplier", "best", *(["of", ""] if fine else [])]]
        for name, value in grids.point_of(self.result.best).items():
            axis = fine.get(name, ())
            edge = "at the edge" if name in self.result.at_edge else ""
            rows.append([name, f"{value:.6g}", *([f"{min(axis):.4g} … {max(axis):.4g}", edge] if axis else [])])
        return rows

    def json(self) -> dict[str, Any]:
        mean = mean_of(self.confirmed)
        seeds = len(self.confirmed)
        new_seeds = {"mean": finite(mean.value), "ci": finite(mean.ci), "seeds": seeds, "diverged": self.diverged}
        return {
            "lr": self.result.best.lr,
            "multipliers": grids.point_of(self.result.best),
            "aggregation_mult": self.result.best.aggregation_mult,
            "metric": self.metric.name,
            "best": self.score,
            "new_seeds": new_seeds if seeds else None,
            "runs": len(self.result.tried),
            "at_edge": list(self.result.at_edge),
        }
