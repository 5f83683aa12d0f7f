"""A limit as a table, as JSON, and as what a picture of it shows.

A solution holds its experiment and every draw. An :class:`Overlay` holds what a reader sees of them, curves over the
steps with finite networks beside them, and survives a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mssp._estimates import Estimate, finite
from mssp.dmft.comparison import AtWidth, Comparison
from mssp.dmft.observables import MAIN, OVER_INPUTS, Array, Observables, averaged, blocks, traces
from mssp.dmft.solution import Solution
from mssp.planning.setting import II, III, I

# Beside the main ones, in tables of deviations.
SHOWN = (*MAIN, "g3", "phi2", "g2", "router_gradient")
SYMBOLS = {
    "f": "f", "loss": "loss", "phi1": "Φ¹", "phi2": "Φ²", "phi3": "Φ³", "g1": "G¹", "g2": "G²", "g3": "G³",
    "router_gradient": "G^ψ", "router_mean": "mean ψ", "router_variance": "var ψ",
}  # fmt: skip
_ROWS = 11  # steps that a table shows


def heading(solution: Solution) -> str:
    experiment, plan = solution.experiment, solution.experiment.plan
    of = solution.constants
    assert plan.setting.regime is not None, "experiments are of a regime"
    sizes = {
        I: f"M = {of.experts}, N_e/N = {of.expert_width_ratio:g}",
        II: f"M/N = {of.experts_per_width:g}, N_e = {of.expert_width}",
        III: f"M/N = {of.experts_per_width:g}, N_e/N = {of.expert_width_ratio:g}",
    }[plan.setting.regime]
    of_what = f"{experiment.activation}, {experiment.gate} gates, inputs {len(experiment.inputs)}, lr {plan.lr:g}"
    return f"the limit of {plan.scheme} in regime {plan.regime}: {sizes}, {of_what}"


def lines(solution: Solution, comparison: Comparison | None = None) -> list[str]:
    """A table over time and, with finite networks, one of their deviations."""
    found = [heading(solution), "", *_over_time(solution)]
    if comparison is not None:
        found += ["", *_deviations(comparison), "", verdict(comparison)]
    return found + [f"note: {warning}" for warning in solution.warnings]


def _over_time(solution: Solution) -> list[str]:
    mean, error = solution.mean, solution.found.error
    inputs = len(solution.experiment.all_inputs)
    along = averaged([traces(draw, inputs) for draw in solution.draws])
    # In Regime I all experts have one ψ; elsewhere they differ, about a mean that says little.
    router = "router_mean" if solution.experiment.plan.setting.regime is I else "router_variance"
    columns = {
        "loss": (mean["loss"], error["loss"]),
        "f of the first": (mean["f"][:, 0], error["f"][:, 0]),
        **{f"tr {SYMBOLS[name]}": (along.mean[name], along.error[name]) for name in ("phi1", "phi3", "g1")},
        SYMBOLS[router]: (mean[router][:, 0], error[router][:, 0]),
    }
    width = 18
    rows = [f"{'step':>4}" + "".join(f"{name:>{width}}" for name in columns), "─" * (4 + width * len(columns))]
    for step in _shown_steps(len(mean["loss"])):
        cells = [Estimate(float(value[step]), float(off[step])).text(4) for value, off in columns.values()]
        rows.append(f"{step:>4}" + "".join(f"{cell:>{width}}" for cell in cells))
    count = solution.found.count
    errors = f"± one standard error, from {count} independent solutions; " if count > 1 else ""
    rows.append(f"{errors}tr: the mean over inputs")
    return rows


def _shown_steps(count: int) -> list[int]:
    stride = max(1, math.ceil((count - 1) / (_ROWS - 1)))
    return sorted({*range(0, count, stride), count - 1})


def _deviations(comparison: Comparison) -> list[str]:
    names = [name for name in SHOWN if name in comparison.exponents]
    width = 16
    rows = [
        "networks of finite width: deviation of their mean, ± what the noise of few seeds would be",
        f"{'width':>9}{'seeds':>7}" + "".join(f"{SYMBOLS[name]:>{width}}" for name in names),
        "─" * (16 + width * len(names)),
    ]
    for at in comparison.widths:
        noise = ["" if math.isnan(at.error[name]) else f" ± {at.error[name]:.1%}" for name in names]
        cells = [f"{at.deviation[name]:.1%}{off}" for name, off in zip(names, noise, strict=True)]
        rows.append(f"{at.width:>9}{at.networks.count:>7}" + "".join(f"{cell:>{width}}" for cell in cells))
    exponents = [comparison.exponents[name] for name in names]
    cells = ["in the noise" if math.isnan(each.value) else each.text(2) for each in exponents]
    rows.append(f"{'exponent of N':>16}" + "".join(f"{cell:>{width}}" for cell in cells))
    return rows


def verdict(comparison: Comparison) -> str:
    """One line: whether networks come closer to the limit as they grow, and how close they are."""
    word, largest, exponents = comparison.verdict, comparison.largest, comparison.exponents
    there = [name for name in MAIN if name in exponents]
    if not there:
        return f"{word}: the limit is zero throughout"
    close = f"at N = {largest.width} they are within {max(largest.deviation[name] for name in there):.1%}"
    if word == "slow":
        which = ", ".join(f"{SYMBOLS[name]} as N^{exponents[name].text(2)}" for name in comparison.slow)
        return f"slow: the bias falls more slowly than 1/N ({which}); {close}"
    known = [name for name in there if exponents[name].value + exponents[name].ci < 0]
    if not known:
        return f"unclear: the bias is hidden in the noise of these seeds; {close}"
    return f"converges: the bias falls as N^{exponents[known[0]].text(2)} in {SYMBOLS[known[0]]}; {close}"


def as_json(solution: Solution, comparison: Comparison | None = None) -> dict[str, Any]:
    """Of kernels, the blocks at equal times, [step][input][input]; index t is after t updates."""
    plan, mean, error = solution.experiment.plan, solution.mean, solution.found.error
    inputs = len(solution.experiment.all_inputs)
    found: dict[str, Any] = {
        "regime": plan.regime,
        "scheme": plan.scheme,
        "inputs": len(solution.experiment.inputs),
        "test_inputs": inputs - len(solution.experiment.inputs),
        "steps": solution.experiment.steps,
        "solves": solution.found.count,
        "loss": numbers(mean["loss"]),
        "loss_error": numbers(error["loss"]),
        "f": numbers(mean["f"]),
        "f_error": numbers(error["f"]),
        "kernels": {
            **{name: numbers(blocks(mean, name, inputs)) for name in OVER_INPUTS},
            "g3": numbers(np.diag(mean["g3"])),
            "router": {"mean": numbers(mean["router_mean"]), "variance": numbers(mean["router_variance"])},
        },
        "relative_error": {name: finite(solution.relative_error(name)) for name in mean},
        "contradiction": {
            name: finite(float(np.linalg.norm(each))) for name, each in solution.contradictions.mean.items()
        },
        "warnings": list(solution.warnings),
        "plan": plan.hash,
    }
    if comparison is not None:
        found["finite"] = {
            str(at.width): {
                "seeds": at.networks.count,
                "loss": numbers(at.networks.mean["loss"]),
                "f": numbers(at.networks.mean["f"]),
                "deviation": {name: finite(each) for name, each in at.deviation.items()},
                "error": {name: finite(each) for name, each in at.error.items()},
            }
            for at in comparison.widths
        }
        found["exponent"] = {name: finite(each.value) for name, each in comparison.exponents.items()}
        found["exponent_ci"] = {name: finite(each.ci) for name, each in comparison.exponents.items()}
        found["verdict"] = verdict(comparison)
    return found


def numbers(array: Array) -> Any:
    """Nested lists; NaN, where one solution says nothing of its error, is null."""
    return [numbers(each) for each in array] if array.ndim else finite(float(array))


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
