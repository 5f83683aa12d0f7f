"""Writes a limit as a table, as JSON, and as the numbers of its figure.

A solution holds its experiment and all draws. An :class:`Overlay` holds what a figure shows of them: curves over the
steps, of the limit and of finite networks. Overlays are written to files and read back.
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
from mssp.planning.setting import II, I

SHOWN = (*MAIN, "g3", "phi2", "g2", "router_gradient")  # in tables of deviations
SYMBOLS = {
    "f": "f", "loss": "loss", "phi1": "Φ¹", "phi2": "Φ²", "phi3": "Φ³", "g1": "G¹", "g2": "G²", "g3": "G³",
    "router_gradient": "G^ψ", "router_mean": "mean ψ", "router_variance": "var ψ",
}  # fmt: skip
_ROWS = 11  # the number of steps in a table


def heading(solution: Solution) -> str:
    experiment, constants = solution.experiment, solution.constants
    plan, regime = experiment.plan, experiment.plan.setting.regime
    experts = f"M = {constants.experts}" if regime is I else f"M/N = {constants.experts_per_width:g}"
    units = f"N_e = {constants.expert_width}" if regime is II else f"N_e/N = {constants.expert_width_ratio:g}"
    choices = f"{experiment.activation}, {experiment.gate} gates, inputs {len(experiment.inputs)}, lr {plan.lr:g}"
    return f"the limit of {plan.scheme} in regime {plan.regime}: {experts}, {units}, {choices}"


def lines(solution: Solution, comparison: Comparison | None = None) -> list[str]:
    """A table of the limit over time and, with a comparison, a table of the networks' deviations."""
    text = [heading(solution), "", *_over_time(solution)]
    if comparison is not None:
        text += ["", *_deviations(comparison), "", verdict(comparison)]
    return text + [f"note: {warning}" for warning in solution.warnings]


def _over_time(solution: Solution) -> list[str]:
    mean, error = solution.mean, solution.found.error
    inputs = len(solution.experiment.all_inputs)
    diagonals = averaged([traces(draw, inputs) for draw in solution.draws])
    # In Regime I all experts have the same ψ. In the other regimes they differ, and their mean is of little interest.
    router = "router_mean" if solution.experiment.plan.setting.regime is I else "router_variance"
    columns = {
        "loss": (mean["loss"], error["loss"]),
        "f of the first": (mean["f"][:, 0], error["f"][:, 0]),
        **{f"tr {SYMBOLS[name]}": (diagonals.mean[name], diagonals.error[name]) for name in ("phi1", "phi3", "g1")},
        SYMBOLS[router]: (mean[router][:, 0], error[router][:, 0]),
    }
    width = 18
    rows = [f"{'step':>4}" + "".join(f"{name:>{width}}" for name in columns), "─" * (4 + width * len(columns))]
    for step in _shown_steps(len(mean["loss"])):
        cells = [Estimate(float(value[step]), float(ci[step])).text(4) for value, ci in columns.values()]
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
    cells = ["in the noise" if math.isnan(exponent.value) else exponent.text(2) for exponent in exponents]
    rows.append(f"{'exponent of N':>16}" + "".join(f"{cell:>{width}}" for cell in cells))
    return rows


def verdict(comparison: Comparison) -> str:
    """One line: whether networks come closer to the limit as they grow, and how close they are."""
    largest, exponents = comparison.largest, comparison.main
    if not exponents:
        return f"{comparison.verdict}: the limit is zero throughout"
    close = f"at N = {largest.width} they are within {max(largest.deviation[name] for name in exponents):.1%}"
    if comparison.slow:
        powers = ", ".join(f"{SYMBOLS[name]} as N^{exponents[name].text(2)}" for name in comparison.slow)
        return f"slow: the bias falls more slowly than 1/N ({powers}); {close}"
    if not comparison.falling:
        return f"unclear: the bias is hidden in the noise of these seeds; {close}"
    first = comparison.falling[0]
    return f"converges: the bias falls as N^{exponents[first].text(2)} in {SYMBOLS[first]}; {close}"


def as_json(solution: Solution, comparison: Comparison | None = None) -> dict[str, Any]:
    """The limit as JSON: kernels are blocks at equal times, [step][input][input], and index t is after t updates."""
    plan, mean, error = solution.experiment.plan, solution.mean, solution.found.error
    inputs = len(solution.experiment.all_inputs)
    document: dict[str, Any] = {
        "regime": plan.regime,
        "scheme": plan.scheme,
        "inputs": len(solution.experiment.inputs),
        "test_inputs": inputs - len(solution.experiment.inputs),
        "steps": solution.experiment.steps,
        "solves": solution.found.count,
        "loss": mean["loss"],
        "loss_error": error["loss"],
        "f": mean["f"],
        "f_error": error["f"],
        "kernels": {
            **{name: blocks(mean, name, inputs) for name in OVER_INPUTS},
            "g3": np.diag(mean["g3"]),
            "router": {"mean": mean["router_mean"], "variance": mean["router_variance"]},
        },
        "relative_error": {name: solution.relative_error(name) for name in mean},
        "contradiction": {name: np.linalg.norm(array) for name, array in solution.contradictions.mean.items()},
        "warnings": solution.warnings,
        "plan": plan.hash,
    }
    if comparison is not None:
        document["finite"] = {
            str(at.width): {
                "seeds": at.networks.count,
                "loss": at.networks.mean["loss"],
                "f": at.networks.mean["f"],
                "deviation": at.deviation,
                "error": at.error,
            }
            for at in comparison.widths
        }
        document["exponent"] = {name: exponent.value for name, exponent in comparison.exponents.items()}
        document["exponent_ci"] = {name: exponent.ci for name, exponent in comparison.exponents.items()}
        document["verdict"] = verdict(comparison)
    return {key: _plain(value) for key, value in document.items()}


def _plain(value: Any) -> Any:
    """A value of a document as JSON can hold it: arrays are nested lists, and NaN and infinity are null."""
    match value:
        case float():
            return finite(float(value))
        case Estimate():
            return [finite(value.value), finite(value.ci)]
        case NetworkCurves():
            return _plain(vars(value))
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case np.ndarray() | tuple():
            return [_plain(item) for item in value]
    return value


_ROUNDING = 1e-12  # smaller values are shown as zero

Curves = Mapping[str, Array]  # by name, [steps + 1, lines]


@dataclass(frozen=True)
class NetworkCurves:
    """The mean curves of networks of one width, and their deviation from the limit by name, relative to the limit."""

    width: int
    seeds: int
    curves: Curves
    deviation: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class Overlay:
    """The numbers of a figure: the curves of a limit and, if there are any, of finite networks.

    Args:
        inputs: the number of all inputs, including those that are not trained on.
        targets: the targets of the inputs that are trained on.
        solutions: the number of independent solutions, whose spread is the error.
        beside: the curves of networks, by width.
        exponents: the exponents of the networks' bias, by name; empty without networks, like the verdict.
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
    beside: tuple[NetworkCurves, ...] = ()
    exponents: Mapping[str, Estimate] = field(default_factory=dict)
    verdict: str = ""

    @classmethod
    def of(cls, solution: Solution, comparison: Comparison | None = None) -> Overlay:
        experiment = solution.experiment
        limit = averaged([_curves(draw, solution) for draw in solution.draws])
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
            () if comparison is None else tuple(_network_curves(at, solution) for at in comparison.widths),
            {} if comparison is None else comparison.main,
            "" if comparison is None else verdict(comparison),
        )

    def json(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Overlay:
        """The overlay that :meth:`json` wrote; ValueError if the document is something else."""
        try:
            beside = tuple(
                NetworkCurves(
                    networks["width"],
                    networks["seeds"],
                    _arrays(networks["curves"]),
                    {name: _number(value) for name, value in networks["deviation"].items()},
                    {name: _number(value) for name, value in networks["error"].items()},
                )
                for networks in document["beside"]
            )
            return cls(
                **{name: document[name] for name in ("heading", "regime", "scheme", "steps", "inputs", "solutions")},
                targets=np.array(document["targets"], dtype=np.float64),
                mean=_arrays(document["mean"]),
                error=_arrays(document["error"]),
                warnings=tuple(document["warnings"]),
                beside=beside,
                exponents={name: Estimate(*map(_number, pair)) for name, pair in document["exponents"].items()},
                verdict=document["verdict"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of mssp dmft --json: {type(error).__name__}, {error}") from None


def _network_curves(at: AtWidth, solution: Solution) -> NetworkCurves:
    deviation, error = ({name: by_name[name] for name in MAIN} for by_name in (at.deviation, at.error))
    return NetworkCurves(at.width, at.networks.count, _curves(at.networks.mean, solution), deviation, error)


def _curves(observables: Observables, solution: Solution) -> dict[str, Array]:
    """Curves by name, [steps + 1, lines]. They are linear in the observables, so a mean has the mean of the curves."""
    kernels = traces(observables, len(solution.experiment.all_inputs))
    router = {name: observables[name].mean(1) for name in ("router_mean", "router_variance")}
    curves = {"f": observables["f"], "loss": observables["loss"], "g3": np.diag(observables["g3"]), **kernels, **router}
    return {name: np.where(np.abs(ys) < _ROUNDING, 0.0, ys).reshape(len(ys), -1) for name, ys in curves.items()}


def _arrays(curves: Mapping[str, Any]) -> dict[str, Array]:
    return {name: np.array(ys, dtype=np.float64) for name, ys in curves.items()}  # numpy makes NaN of null


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
