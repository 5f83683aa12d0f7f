"""Measured against predicted: is every quantity as the theory says, and is it worth scaling?

Two questions, two answers. ``verdict``: does the model behave as the theory says this scheme should, that is, is it
implemented right? ``stable``: do the desiderata of maximal scale stability hold, that is, is it worth scaling? muP in
Regime II, implemented right, passes and is not stable.

A quantity is judged by its exponent averaged over the steps for which one exponent is predicted. It is off if it
misses by more than 0.15 and its confidence interval, and if the bend of finite sizes (``fit.py``) does not explain it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from mssp.coordcheck.fit import bent_estimate, estimate
from mssp.coordcheck.series import Numbers, Series
from mssp.statistics import Estimate
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent, slack, stable_exponent

TOLERANCE = 0.15
# Experts' outputs may be of any order up to √M in Regime II, where they are no variable of the dynamics (the paper's
# App. "Justification of MSSP in Regime II"): under muP they are of order 1.
_FREE_IN_II = ("propagating/expert_out", "activation/expert_out")
# The bend is fitted with few sizes to spare: an interval wider than this excuses nothing.
_WIDEST_EXCUSE = 0.25
# A product may round differently from one call to the next: of a term that is to come, so much may be there before.
_ROUNDING = 1e-4
_LAST = 3  # stability is a question about the last third of the steps


@dataclass(frozen=True)
class Quantity:
    """One quantity: what was measured, what was expected, and the verdict.

    Args:
        exponents: after 0, 1, ... updates; None where the quantity is exactly zero or not finite.
        values: by size, the geometric mean over seeds after 0, 1, ... updates.
        predicted: after 0, 1, ... updates; None where nothing is predicted.
        judged: the exponent that the verdict is about, and ``expected`` what it should be.
        verdict: ``ok``, ``off``, ``zero`` or ``unpredicted``.
    """

    name: str
    exponents: tuple[Estimate | None, ...]
    values: Mapping[int, tuple[float, ...]]
    predicted: tuple[Prediction | None, ...]
    judged: Estimate | None
    expected: Exponent | None
    stable: bool
    verdict: str
    reason: str = ""


def judged_quantities(series: Series, theory: Theory) -> dict[str, Quantity]:
    """Every quantity of a series, by name; what was told rather than measured is judged like the rest."""
    return {name: _judged(name, series, theory) for name in series.values if name != "loss"}


def _judged(name: str, series: Series, theory: Theory) -> Quantity:
    values, sizes = series.values[name], series.sizes
    steps = range(series.steps + 1)
    predicted = tuple(theory.prediction(name, step) for step in steps)
    there = [bool((values[:, step] != 0).any()) for step in steps]
    more_than_rounding = [bool((values[:, step] > _ROUNDING * values.max(1)).any()) for step in steps]
    bare = Quantity(
        name,
        tuple(_exponent(sizes, values[:, step]) if there[step] else None for step in steps),
        {size: tuple(_geometric(values[index, step]) for step in steps) for index, size in enumerate(sizes)},
        predicted,
        judged=None,
        expected=None,
        stable=_is_stable(name, series, theory),
        verdict="unpredicted" if any(there) else "zero",
    )
    if name == "experts/distance":
        return _judged_tie(bare, there[0], theory)
    if not np.isfinite(values).all():
        return replace(bare, verdict="off", reason="is not finite", stable=False)
    wrongly = _wrongly_zero(predicted, there, more_than_rounding)
    if wrongly is not None:
        return replace(bare, verdict="off", reason=wrongly)
    misses = [
        _miss(prediction, sizes, values[:, chosen])
        for prediction, chosen in _steps_by_prediction(predicted, there).items()
    ]
    if not misses:
        return bare
    worst = max(misses, key=lambda miss: miss.beyond)
    return replace(bare, judged=worst.found, expected=worst.expected, verdict="off" if worst.beyond > 0 else "ok")


def _judged_tie(bare: Quantity, apart: bool, theory: Theory) -> Quantity:
    """Experts start equal where the scheme ties them, and only there."""
    if theory.tied == (not apart):
        return replace(bare, verdict="ok")
    how = "differ at the start, and the rule ties them" if apart else "start equal, and the rule draws each its own"
    return replace(bare, verdict="off", reason=how)


@dataclass(frozen=True)
class _Miss:
    found: Estimate
    expected: Exponent
    beyond: float  # by how much the miss exceeds what is allowed; negative if it does not


def _miss(prediction: Prediction, sizes: Sequence[int], values: Numbers) -> _Miss:
    plain, bent = estimate(sizes, values), bent_estimate(sizes, values)
    beyond = _beyond(plain, prediction, math.inf)
    if bent is not None:
        beyond = min(beyond, _beyond(bent, prediction, _WIDEST_EXCUSE))
    return _Miss(plain, prediction.exponent, beyond)


def _beyond(found: Estimate, prediction: Prediction, widest: float) -> float:
    interval = 0.0 if math.isnan(found.ci) else min(found.ci, widest)
    return _distance(found.value, prediction.exponent) - TOLERANCE - prediction.ci - interval


def _distance(exponent: float, expected: Exponent) -> float:
    assert expected.power is not None
    high, low = float(expected.power), float(expected.power - expected.slack)
    return max(exponent - high, low - exponent, 0.0)


def _steps_by_prediction(predicted: Sequence[Prediction | None], there: Sequence[bool]) -> dict[Prediction, list[int]]:
    found: dict[Prediction, list[int]] = {}
    for step, (prediction, is_there) in enumerate(zip(predicted, there, strict=True)):
        if prediction is None or not prediction.binding:
            continue
        if prediction.exponent.power is not None and is_there:
            found.setdefault(prediction, []).append(step)
    return found


def _wrongly_zero(
    predicted: Sequence[Prediction | None], there: Sequence[bool], more_than_rounding: Sequence[bool]
) -> str | None:
    for step, (prediction, is_there) in enumerate(zip(predicted, there, strict=True)):
        if prediction is None or not prediction.binding:
            continue
        updates = f"after {step} update{'' if step == 1 else 's'}"
        if prediction.exponent.power is None and more_than_rounding[step]:
            return f"should be exactly zero {updates}, and is not"
        if prediction.exponent.power is not None and not is_there:
            return f"is exactly zero {updates}, and should not be"
    return None


def _is_stable(name: str, series: Series, theory: Theory) -> bool:
    """Whether the exponent of the last steps is that which maximal scale stability asks for."""
    wanted = None if theory.depth else _wanted(name, theory.plan.regime or "")
    if wanted is None:
        return True
    last = series.values[name][:, -max((series.steps + 1) // _LAST, 1) :]
    if not np.isfinite(last).all():
        return False
    if not last.any():
        return True  # held at zero by an initial value, as the paper's missing lines
    return _miss(Prediction(wanted, "paper"), series.sizes, last).beyond <= 0


def _wanted(name: str, regime: str) -> Exponent | None:
    """What the desiderata ask of a quantity; None where they ask nothing."""
    if name.startswith("faithfulness/"):
        below = slack(name.replace("faithfulness", "gradient"))
        return Exponent(below, below)  # eps is above a gradient that is below its order
    power = stable_exponent(name, regime)
    if power is None:
        return None
    return Exponent(power, Fraction(1, 2) if regime == "II" and name in _FREE_IN_II else slack(name))


def _exponent(sizes: Sequence[int], values: Numbers) -> Estimate | None:
    found = estimate(sizes, values)
    return None if math.isnan(found.value) else found


def _geometric(values: Numbers) -> float:
    """The geometric mean over seeds; 0 where one is 0."""
    if not np.isfinite(values).all():
        return math.nan
    return float(np.exp(np.log(values).mean())) if values.all() else 0.0
