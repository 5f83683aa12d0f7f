"""The outcome of a check: every quantity with its verdict, the causes, and the two answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mssp.coordcheck.causes import Cause, causes, divergence, with_reasons
from mssp.coordcheck.judgement import Quantity, judged_quantities
from mssp.coordcheck.series import Series
from mssp.statistics import Estimate, finite
from mssp.theory.expected import Prediction, Theory


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        axis: what grows: ``width`` or ``depth``.
        loss: by size, the mean training loss over seeds before each update.
    """

    scheme: str
    optimizer: str
    regime: str | None
    readout: str
    axis: str
    sizes: tuple[int, ...]
    steps: int
    seeds: int
    quantities: Mapping[str, Quantity]
    causes: tuple[Cause, ...]
    loss: Mapping[int, tuple[float, ...]]

    @classmethod
    def of(cls, series: Series, theory: Theory) -> Check:
        symbol = "L" if theory.depth else "N"
        quantities = judged_quantities(series, theory)
        lost = series.diverged()
        axis = "depth" if theory.depth else "width"
        found = causes(quantities, symbol) if lost is None else [divergence(*lost, axis)]
        plan = theory.plan
        losses = series.values.get("loss")
        return cls(
            plan.scheme,
            plan.optimizer,
            plan.regime,
            plan.readout,
            axis,
            series.sizes,
            series.steps,
            series.seeds,
            with_reasons(quantities, found, symbol),
            tuple(found),
            {}
            if losses is None
            else {size: tuple(losses[index].mean(-1)[:-1].tolist()) for index, size in enumerate(series.sizes)},
        )

    @property
    def off(self) -> list[Quantity]:
        """What is off, the worst first."""
        found = [each for each in self.quantities.values() if each.verdict == "off"]
        return sorted(found, key=lambda each: -each.excess)

    @property
    def passed(self) -> bool:
        return not self.off

    def __str__(self) -> str:
        from mssp.coordcheck.text import lines  # which draws a Check, and so stands after it

        return "\n".join(lines(self))

    @property
    def stable(self) -> bool:
        return all(each.stable for each in self.quantities.values())

    def json(self) -> dict[str, Any]:
        """As ``schemas/check.json`` describes it."""
        return {
            "scheme": self.scheme,
            "optimizer": self.optimizer,
            "regime": self.regime,
            "readout": self.readout,
            "axis": self.axis,
            f"{self.axis}s": list(self.sizes),
            "steps": self.steps,
            "seeds": self.seeds,
            "quantities": {name: _quantity_json(each) for name, each in self.quantities.items()},
            "causes": [vars(cause) for cause in self.causes],
            "loss": {str(size): [finite(x) for x in losses] for size, losses in self.loss.items()},
            "verdict": "pass" if self.passed else "fail",
            "stable": self.stable,
        }


def _quantity_json(each: Quantity) -> dict[str, Any]:
    return {
        "exponents": [None if found is None else finite(found.value) for found in each.exponents],
        "ci": [None if found is None else finite(found.ci) for found in each.exponents],
        "values": {str(size): [finite(value) for value in values] for size, values in each.values.items()},
        "predicted": [_power(prediction) for prediction in each.predicted],
        "source": next((prediction.source for prediction in each.predicted if prediction is not None), None),
        "judged": _estimate_json(each.judged),
        "stable": each.stable,
        "verdict": each.verdict,
        "reason": each.reason,
    }


def _power(prediction: Prediction | None) -> float | None:
    power = None if prediction is None else prediction.exponent.power
    return None if power is None else float(power)


def _estimate_json(found: Estimate | None) -> dict[str, float | None] | None:
    return None if found is None else {"exponent": finite(found.value), "ci": finite(found.ci)}
