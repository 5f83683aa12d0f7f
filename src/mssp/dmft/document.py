"""Writes a limit as a table, as JSON, and as the numbers of its figure.

A solution holds its experiment and all draws. An :class:`Overlay` holds what a figure shows of them: curves over the
steps, of the limit and of finite networks. Overlays are written to files and read back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from mssp._constraints import shown
from mssp._estimates import Estimate, finite
from mssp._forms import Form
from mssp.dmft.comparison import AtWidth, Comparison
from mssp.dmft.observables import MAIN, OVER_INPUTS, Array, Observables, averaged, blocks, relative, traces
from mssp.dmft.solution import Solution
from mssp.planning.setting import II, I

FORM = Form("limit file", "mssp.dmft", "limit.schema.json")
_OVERLAY_FORM = replace(FORM, part="overlay")
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
        """The overlay that :meth:`json` wrote.

        A ValueError names what is not as ``limit.schema.json`` says, or what contradicts the rest of the document.
        """
        _OVERLAY_FORM.refuse_unfit(document)
        return cls._of_fit(document)

    @classmethod
    def _of_fit(cls, document: Mapping[str, Any]) -> Overlay:
        """The overlay of a document that is as the schema says."""
        beside = tuple(
            NetworkCurves(
                networks["width"],
                networks["seeds"],
                _arrays(f"beside.{number}.curves", networks["curves"], document),
                {name: _number(value) for name, value in networks["deviation"].items()},
                {name: _number(value) for name, value in networks["error"].items()},
            )
            for number, networks in enumerate(document["beside"])
        )
        overlay = cls(
            **{name: document[name] for name in ("heading", "regime", "scheme", "steps", "inputs", "solutions")},
            targets=np.array(document["targets"], dtype=np.float64),
            mean=_arrays("mean", document["mean"], document),
            error=_arrays("error", document["error"], document),
            warnings=tuple(document["warnings"]),
            beside=beside,
            exponents={name: Estimate(*map(_number, pair)) for name, pair in document["exponents"].items()},
            verdict=document["verdict"],
        )
        _refuse_contradictions(overlay)
        return overlay


def read(document: Mapping[str, Any]) -> Overlay:
    """The overlay of a limit that ``mssp dmft --json`` wrote, which says nothing else than the rest of the document."""
    FORM.refuse_unfit(document)
    overlay = Overlay._of_fit(document["overlay"])
    if {*document.get("finite", ())} != {str(networks.width) for networks in overlay.beside}:
        raise FORM.corrupt("finite must have the widths that are beside the limit in the overlay")
    names = document.get("exponent", {}).keys()
    if names & {*MAIN} != overlay.exponents.keys() or names != document.get("exponent_ci", {}).keys():
        raise FORM.corrupt("exponent and exponent_ci must have the names that have exponents in the overlay")
    for name, value in _said_outside(overlay).items():
        if not _agree(document[name], _plain(value)):
            raise FORM.corrupt(f"{name} is not that of the overlay")
    _refuse_other_kernels(document["kernels"], overlay)
    return overlay


def _network_curves(at: AtWidth, solution: Solution) -> NetworkCurves:
    deviation, error = ({name: by_name[name] for name in MAIN} for by_name in (at.deviation, at.error))
    return NetworkCurves(at.width, at.networks.count, _curves(at.networks.mean, solution), deviation, error)


def _curves(observables: Observables, solution: Solution) -> dict[str, Array]:
    """Curves by name, [steps + 1, lines]. They are linear in the observables, so a mean has the mean of the curves."""
    kernels = traces(observables, len(solution.experiment.all_inputs))
    router = {name: observables[name].mean(1) for name in ("router_mean", "router_variance")}
    curves = {"f": observables["f"], "loss": observables["loss"], "g3": np.diag(observables["g3"]), **kernels, **router}
    return {name: np.where(np.abs(ys) < _ROUNDING, 0.0, ys).reshape(len(ys), -1) for name, ys in curves.items()}


def _arrays(place: str, curves: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Array]:
    """Curves by name; those of a document are as long as its steps, and outputs have a line for each of its inputs."""
    lines = {"f": document["inputs"]}
    return {
        name: _array(f"overlay.{place}.{name}", ys, document["steps"] + 1, lines.get(name, 1))
        for name, ys in curves.items()
    }


def _array(place: str, values: Any, *shape: int) -> Array:
    """The numbers of a document, with NaN for null; ValueError if they have another shape."""
    try:
        array = np.array(values, dtype=np.float64)
    except ValueError:  # lists of different lengths
        array = np.empty(0)
    if array.shape != shape:
        raise FORM.corrupt(f"{place} must be {' × '.join(map(shown, shape))} numbers")
    return array


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


# -- contradictions in a file ------------------------------------------------------------------------------------------


def _refuse_contradictions(overlay: Overlay) -> None:
    """A ValueError names what a limit would not have written beside the rest of its overlay."""
    if len(overlay.targets) > overlay.inputs:
        raise FORM.corrupt(f"overlay.targets must be at most {overlay.inputs} numbers, got {len(overlay.targets)}")
    widths = [networks.width for networks in overlay.beside]
    if widths != sorted(set(widths)):
        raise FORM.corrupt(f"overlay.beside must have widths in growing order, got {shown(widths)}")
    for name, error in overlay.error.items():
        if (error < 0).any() or (overlay.solutions == 1 and not np.isnan(error).all()):
            raise FORM.corrupt(f"overlay.error.{name} must be at least 0 everywhere, and null for a single solution")
    for name, exponent in overlay.exponents.items():
        if math.isnan(exponent.value) != math.isnan(exponent.ci):
            raise FORM.corrupt(f"overlay.exponents.{name} must be two numbers, or null twice")
    for networks in overlay.beside:
        deviation = relative(networks.curves["f"] - overlay.mean["f"], overlay.mean["f"])
        if not math.isclose(networks.deviation["f"], deviation, rel_tol=1e-6, abs_tol=1e-9) and math.isfinite(
            deviation
        ):
            raise FORM.corrupt(f"overlay.beside of width {networks.width} deviates in f by {deviation:.4g}")
    # The verdict follows from the exponents alone, and there is none without networks.
    verdict = Comparison(cast(Solution, None), (), overlay.exponents).verdict if widths else ""
    FORM.agree("overlay.verdict", overlay.verdict.partition(":")[0], verdict)
    if overlay.exponents and not widths:
        raise FORM.corrupt("overlay.exponents are of networks, and there are none beside the limit")


def _said_outside(overlay: Overlay) -> dict[str, Any]:
    """What a limit says once more outside of its overlay, by its keys."""
    mean, error, exponents = overlay.mean, overlay.error, overlay.exponents
    of_limit = {
        "regime": overlay.regime,
        "scheme": overlay.scheme,
        "inputs": len(overlay.targets),
        "test_inputs": overlay.inputs - len(overlay.targets),
        "steps": overlay.steps,
        "solves": overlay.solutions,
        "loss": mean["loss"][:, 0],
        "loss_error": error["loss"][:, 0],
        "f": mean["f"],
        "f_error": error["f"],
        "warnings": overlay.warnings,
    }
    if not overlay.beside:
        return of_limit
    return of_limit | {
        "finite": {str(networks.width): _said_of(networks) for networks in overlay.beside},
        "exponent": {name: exponent.value for name, exponent in exponents.items()},
        "exponent_ci": {name: exponent.ci for name, exponent in exponents.items()},
        "verdict": overlay.verdict,
    }


def _said_of(networks: NetworkCurves) -> dict[str, Any]:
    curves = {"loss": networks.curves["loss"][:, 0], "f": networks.curves["f"]}
    return {"seeds": networks.seeds, **curves, "deviation": networks.deviation, "error": networks.error}


def _agree(outside: Any, inside: Any) -> bool:
    """Whether a limit says outside what its overlay says; of names it may say more."""
    match inside:
        case dict():
            return all(name in outside and _agree(outside[name], value) for name, value in inside.items())
        case list():
            return len(outside) == len(inside) and all(map(_agree, outside, inside))
        case float():
            return outside is not None and math.isclose(outside, inside, rel_tol=1e-6, abs_tol=1e-9)
    return bool(outside == inside)


def _refuse_other_kernels(kernels: Mapping[str, Any], overlay: Overlay) -> None:
    """A ValueError names a kernel whose curve is not in the overlay."""
    steps, inputs = overlay.steps + 1, overlay.inputs
    curves = {"g3": _array("kernels.g3", kernels["g3"], steps)}
    for name in OVER_INPUTS:
        blocks_at_steps = _array(f"kernels.{name}", kernels[name], steps, inputs, inputs)
        curves[name] = np.trace(blocks_at_steps, axis1=1, axis2=2) / inputs
    for name, values in kernels["router"].items():
        curves[f"router_{name}"] = _array(f"kernels.router.{name}", values, steps, inputs).mean(1)
    for name, curve in curves.items():
        if not np.allclose(curve, overlay.mean[name][:, 0], rtol=1e-6, atol=1e-9, equal_nan=True):
            raise FORM.corrupt(f"kernels give another curve of {name} than that of the overlay")
