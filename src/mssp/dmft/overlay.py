"""What a picture of a limit shows, as plain data: curves over the steps, finite networks beside them, distances.

A solution holds its experiment and every draw; this holds what a reader sees of them, and survives a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mssp._estimates import Estimate, finite
from mssp.dmft.comparison import AtWidth, Comparison
from mssp.dmft.observables import MAIN, Array, Observables, averaged, traces
from mssp.dmft.solution import Solution
from mssp.dmft.text import heading, numbers, verdict

_ROUNDING = 1e-12  # less is zero

Curves = Mapping[str, Array]  # by name, [steps + 1, lines]


@dataclass(frozen=True)
class Beside:
    """Networks of one width: their mean curves, and how far they are from the limit, by name and relative to it."""

    width: int
    seeds: int
    curves: Curves
    deviation: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class Overlay:
    """A limit, with networks beside it where there are any.

    Args:
        inputs: all of them, those that are not trained on too.
        targets: of those that are trained on.
        solutions: independent ones, whose spread is the error.
        exponents: of the networks' distance, by name; empty without networks, as is the verdict.
    """

    heading: str
    regime: str
    scheme: str
    steps: int
    inputs: int
    targets: Array
    solutions: int
    mean: Curves
    error: Curves
    warnings: tuple[str, ...]
    beside: tuple[Beside, ...] = ()
    exponents: Mapping[str, Estimate] = field(default_factory=dict)
    verdict: str = ""

    @classmethod
    def of(cls, solution: Solution, comparison: Comparison | None = None) -> Overlay:
        experiment = solution.experiment
        limit = averaged([_curves(draw, solution) for draw in solution.draws])
        there = () if comparison is None else tuple(_beside(at, solution) for at in comparison.widths)
        exponents = {} if comparison is None else comparison.exponents
        return cls(
            heading(solution),
            experiment.plan.regime or "",
            experiment.plan.scheme,
            experiment.steps,
            len(experiment.all_inputs),
            experiment.targets,
            limit.count,
            limit.mean,
            limit.error,
            solution.warnings,
            there,
            {name: exponents[name] for name in MAIN if name in exponents},
            "" if comparison is None else verdict(comparison),
        )

    def json(self) -> dict[str, Any]:
        return {
            "heading": self.heading,
            "regime": self.regime,
            "scheme": self.scheme,
            "steps": self.steps,
            "inputs": self.inputs,
            "targets": numbers(self.targets),
            "solutions": self.solutions,
            "mean": _lists(self.mean),
            "error": _lists(self.error),
            "warnings": list(self.warnings),
            "beside": [
                {
                    "width": each.width,
                    "seeds": each.seeds,
                    "curves": _lists(each.curves),
                    "deviation": {name: finite(value) for name, value in each.deviation.items()},
                    "error": {name: finite(value) for name, value in each.error.items()},
                }
                for each in self.beside
            ],
            "exponents": {name: [finite(each.value), finite(each.ci)] for name, each in self.exponents.items()},
            "verdict": self.verdict,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Overlay:
        """What :meth:`json` wrote; ValueError where it is something else."""
        try:
            beside = tuple(
                Beside(
                    each["width"],
                    each["seeds"],
                    _arrays(each["curves"]),
                    {name: _number(value) for name, value in each["deviation"].items()},
                    {name: _number(value) for name, value in each["error"].items()},
                )
                for each in found["beside"]
            )
            return cls(
                **{name: found[name] for name in ("heading", "regime", "scheme", "steps", "inputs", "solutions")},
                targets=np.array(found["targets"], dtype=np.float64),
                mean=_arrays(found["mean"]),
                error=_arrays(found["error"]),
                warnings=tuple(found["warnings"]),
                beside=beside,
                exponents={name: Estimate(*map(_number, each)) for name, each in found["exponents"].items()},
                verdict=found["verdict"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of mssp dmft --json: {type(error).__name__}, {error}") from None


def _beside(at: AtWidth, solution: Solution) -> Beside:
    deviation, error = ({name: each[name] for name in MAIN} for each in (at.deviation, at.error))
    return Beside(at.width, at.networks.count, _curves(at.networks.mean, solution), deviation, error)


def _curves(found: Observables, solution: Solution) -> dict[str, Array]:
    """By name, [steps + 1, lines]: linear, so that of a mean it is the mean."""
    kernels = traces(found, len(solution.experiment.all_inputs))
    router = {name: found[name].mean(1) for name in ("router_mean", "router_variance")}
    curves = {"f": found["f"], "loss": found["loss"], "g3": np.diag(found["g3"]), **kernels, **router}
    return {name: np.where(np.abs(each) < _ROUNDING, 0.0, each).reshape(len(each), -1) for name, each in curves.items()}


def _lists(curves: Curves) -> dict[str, Any]:
    return {name: numbers(each) for name, each in curves.items()}


def _arrays(found: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.array(each, dtype=np.float64) for name, each in found.items()}  # which makes NaN of null


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
