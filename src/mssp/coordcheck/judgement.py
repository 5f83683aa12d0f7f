"""Measured exponents against predicted ones: is every quantity as the theory says, and is the model worth scaling?

These are two questions. ``verdict``: does the model behave as the theory says of its scheme, that is, is it implemented
right? ``stable``: do the desiderata of maximal scale stability hold, that is, is it worth scaling? A right
implementation of muP in Regime II passes and is not stable.

A quantity is judged by its exponent, averaged over the steps for which one exponent is predicted. It is off if it
misses the prediction by more than 0.15 plus its confidence interval, and the bend of finite sizes (``series.py``) does
not explain the miss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mssp._estimates import Estimate
from mssp.coordcheck.series import Numbers, Series, bent_estimate, estimate
from mssp.measure.quantities import (
    ACTIVATION,
    EXPERT_DISTANCE,
    FAITHFULNESS,
    GRADIENT,
    LOSS,
    PROPAGATING,
    RATE,
    UPDATE,
    WEIGHTS,
    Quantity,
)
from mssp.planning.setting import II
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent, slack

TOLERANCE = 0.15
# In Regime II experts' outputs may have any order up to √M, because they are not variables of the dynamics (the paper's
# App. "Justification of MSSP in Regime II"): under muP they are of order 1.
_FREE_IN_II = (PROPAGATING("expert_out"), ACTIVATION("expert_out"))
# Finite sizes bend a slope by no more than this, the largest bend that we measured over widths of 64 to 512.
_LARGEST_BEND = 0.25
# A bend is known less well than a slope; its own interval counts up to this.
_LARGEST_BEND_CI = 0.15
# Exponents are multiples of a half: a wider interval cannot tell two of them apart.
WIDEST_CI = 0.35
# A smaller update, relative to its weight, is lost in the weight's rounding (float32 has seven digits).
_SMALLEST_UPDATE = 3e-7
# A product may round differently from one call to the next: this share of a term's largest size counts as zero.
_ZERO_SHARE = 1e-4
_FINAL_DIVISOR = 3  # stability is judged over the last third of the steps


@dataclass(frozen=True)
class Judged:
    """One quantity: what was measured, what was expected, and the verdict.

    Args:
        exponents: the measured exponent after 0, 1, ... updates; None where the quantity is exactly zero or not finite.
        values: by size, the geometric mean over seeds after 0, 1, ... updates.
        predicted: the prediction after 0, 1, ... updates; None where nothing is predicted.
        judged, expected: the exponent to which the verdict belongs, and what it should be.
        verdict: ``ok``, ``off``, ``zero`` or ``unpredicted``.
    """

    name: Quantity
    exponents: tuple[Estimate | None, ...]
    values: Mapping[int, tuple[float, ...]]
    predicted: tuple[Prediction | None, ...]
    judged: Estimate | None
    expected: Exponent | None
    stable: bool
    verdict: str
    reason: str = ""

    @property
    def excess(self) -> float:
        """How far the exponent is from the expected one; infinite for a quantity without exponents to compare."""
        if self.judged is None or self.expected_power is None:
            return math.inf
        return abs(self.judged.value - self.expected_power)

    @property
    def expected_power(self) -> float | None:
        """The expected power as a float; None if nothing is expected, or a term that vanishes."""
        power = None if self.expected is None else self.expected.power
        return None if power is None else float(power)


def judged_quantities(series: Series, theory: Theory) -> dict[str, Judged]:
    """The judged quantities of a series by name, without the loss."""
    return {name: _judged(name, series, theory) for name in series.quantities if name.kind is not LOSS}


def _judged(name: Quantity, series: Series, theory: Theory) -> Judged:
    values, sizes = series.values[name], series.sizes
    steps = range(series.steps + 1)
    predicted = tuple(_prediction(name, step, series, theory) for step in steps)
    unjudged = Judged(
        name,
        tuple(_exponent(series, values[:, step]) for step in steps),
        {size: tuple(_geometric(values[index, step]) for step in steps) for index, size in enumerate(sizes)},
        predicted,
        judged=None,
        expected=None,
        stable=_is_stable(name, series, theory),
        verdict="unpredicted" if values.any() else "zero",
    )
    if name.kind is EXPERT_DISTANCE:
        return _judged_tie(unjudged, values[:, 0] != 0, theory)
    binding = {step: prediction for step, prediction in enumerate(predicted) if prediction and prediction.binding}
    if not binding or _rounded_away(name, series, max(binding)):
        return unjudged
    if not np.isfinite(values).all():
        return replace(unjudged, verdict="off", reason="is not finite", stable=False)
    reason = _wrongly_zero(sizes, values, binding)
    if reason is not None:
        return replace(unjudged, verdict="off", reason=reason)
    powers = [prediction for prediction in dict.fromkeys(binding.values()) if prediction.exponent.is_power]
    steps_of = {power: [step for step, prediction in binding.items() if prediction == power] for power in powers}
    misses = [_miss(power, series, values[:, steps_of[power]]) for power in powers]
    if not misses:
        return unjudged
    worst = max(misses, key=lambda miss: miss.beyond)
    verdict = "off" if worst.beyond > 0 else "ok"
    return replace(unjudged, judged=worst.measured, expected=worst.expected, verdict=verdict)


def _prediction(name: Quantity, step: int, series: Series, theory: Theory) -> Prediction | None:
    """What is expected at the sizes of the series; a simulation has finite sizes of its own."""
    prediction = theory.prediction(name, step)
    if prediction is None or prediction.source == "simulated":
        return prediction
    return prediction.at_finite_sizes(theory.excess(name, series.values))


def _judged_tie(unjudged: Judged, distinct: npt.NDArray[np.bool_], theory: Theory) -> Judged:
    """Judges whether experts start equal: they should if the scheme ties them, and differ if it does not."""
    if theory.tied and distinct.any():
        return replace(unjudged, verdict="off", reason="differ at the start, and the rule ties them")
    if not theory.tied and not distinct.all():
        return replace(unjudged, verdict="off", reason="start equal, and the rule draws each its own")
    return replace(unjudged, verdict="ok")


def _rounded_away(name: Quantity, series: Series, step: int) -> bool:
    """Whether updates were lost in the rounding of their weights, so that no learning rate can be read off them."""
    weights = series.values.get(WEIGHTS(name.of)) if name.kind is RATE else None
    if weights is None or not weights.any():
        return False
    return bool((series.values[UPDATE(name.of)][:, step] < _SMALLEST_UPDATE * weights[:, step]).any())


class _Miss(NamedTuple):
    measured: Estimate
    expected: Exponent
    beyond: float  # how far the miss lies beyond the tolerance; negative within it


def _miss(prediction: Prediction, series: Series, values: Numbers) -> _Miss:
    slope = estimate(series.sizes, values, paired=series.paired)
    bent_slope = bent_estimate(series.sizes, values, paired=series.paired)
    interval = slope.ci if slope.ci >= 0 else WIDEST_CI  # two sizes and one seed give no interval
    beyond = _distance(slope.value, prediction.exponent) - interval
    if bent_slope is not None:
        bend = min(max(bent_slope.value - slope.value, -_LARGEST_BEND), _LARGEST_BEND)
        bend_interval = max(interval, min(bent_slope.ci, _LARGEST_BEND_CI) if bent_slope.ci >= 0 else 0.0)
        beyond = min(beyond, _distance(slope.value + bend, prediction.of_large_sizes) - bend_interval)
    return _Miss(slope, prediction.exponent, beyond - TOLERANCE - prediction.ci)


def _distance(exponent: float, expected: Exponent) -> float:
    """How far an exponent lies outside the expected range, which the slack widens downwards."""
    assert expected.power is not None
    high, low = float(expected.power), float(expected.power - expected.slack)
    return max(exponent - high, low - exponent, 0.0)


def _wrongly_zero(sizes: Sequence[int], values: Numbers, binding: Mapping[int, Prediction]) -> str | None:
    """The complaint about a term that is zero and should not be, or should be zero and is not; None if all is right."""
    for step, prediction in binding.items():
        at_step = values[:, step]
        updates = f"after {step} update{'' if step == 1 else 's'}"
        if not prediction.exponent.is_power and (at_step > _ZERO_SHARE * values.max(1)).any():
            return f"should be exactly zero {updates}, and is not"
        if prediction.exponent.is_power and not at_step.all():
            where = f" at size {sizes[int((at_step == 0).any(1).argmax())]}" if at_step.any() else ""
            return f"is exactly zero{where} {updates}, and should not be"
    return None


def _is_stable(name: Quantity, series: Series, theory: Theory) -> bool:
    """Whether the exponent of the last steps is the one that maximal scale stability demands."""
    desired = _desired(name, theory)
    if desired is None:
        return True
    final_values = series.values[name][:, -max((series.steps + 1) // _FINAL_DIVISOR, 1) :]
    if not np.isfinite(final_values).all():
        return False
    if not final_values.any():
        last_prediction = theory.prediction(name, series.steps)
        return last_prediction is not None and not last_prediction.exponent.is_power  # zero so far, as predicted
    wanted = Prediction(desired, "paper").at_finite_sizes(theory.excess(name, series.values))
    return bool(final_values.all()) and _miss(wanted, series, final_values).beyond <= 0


def _desired(name: Quantity, theory: Theory) -> Exponent | None:
    """The exponent that the desiderata demand of a quantity; None if they demand nothing, or a term that vanishes."""
    regime = theory.plan.setting.regime
    if regime is None or not theory.has_rule(name):
        return None
    if name.kind is FAITHFULNESS:
        below = slack(GRADIENT(name.of))
        return theory.raised(name, Exponent(below, below))  # the ratio is larger where a gradient is below its order
    power = theory.stable(name)
    if power is None:
        return None
    free = regime is II and name in _FREE_IN_II and not theory.depth
    return theory.raised(name, Exponent(power, Fraction(1, 2) if free else slack(name)))


def _exponent(series: Series, values: Numbers) -> Estimate | None:
    """The measured exponent; None where a value is zero or not finite."""
    exponent = estimate(series.sizes, values, paired=series.paired)
    return None if math.isnan(exponent.value) else exponent


def _geometric(values: Numbers) -> float:
    """The geometric mean over seeds; 0 if a value is 0, NaN if one is not finite."""
    if not np.isfinite(values).all():
        return math.nan
    return float(np.exp(np.log(values).mean())) if values.all() else 0.0
