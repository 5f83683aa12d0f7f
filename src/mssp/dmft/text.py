"""A limit for people and for programs: a table, and JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mssp._estimates import Estimate, finite
from mssp.dmft.comparison import Comparison
from mssp.dmft.observables import MAIN, OVER_INPUTS, Array, averaged, blocks, traces
from mssp.dmft.solution import Solution

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
    sizes = {
        "I": f"M = {of.experts}, N_e/N = {of.expert_width_ratio:g}",
        "II": f"M/N = {of.experts_per_width:g}, N_e = {of.expert_width}",
        "III": f"M/N = {of.experts_per_width:g}, N_e/N = {of.expert_width_ratio:g}",
    }[plan.regime or ""]
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
    router = "router_mean" if solution.experiment.plan.regime == "I" else "router_variance"
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
