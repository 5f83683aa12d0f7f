"""The outcome of a check: every quantity with its verdict, the causes, and the two answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mssp._constraints import shown
from mssp._estimates import Estimate, finite
from mssp._forms import Form
from mssp.coordcheck.causes import FORWARD, Cause, causes, divergence, with_factors, with_reasons
from mssp.coordcheck.judgement import TOLERANCE, WIDEST_CI, Judged, judged_quantities
from mssp.coordcheck.series import Series, slopes
from mssp.coordcheck.text import lines
from mssp.measure.quantities import EXPERT_DISTANCE, GRADIENT, LOSS, Quantity
from mssp.planning.setting import Setting
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent

FORM = Form("check file", "mssp.coordcheck", "check.schema.json")
_SYMBOLS = {"width": "N", "depth": "L"}  # by axis


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    Args:
        axis: the dimension that grows: ``width`` or ``depth``.
        loss: by size, the mean training loss over seeds before each update.
    """

    setting: Setting
    axis: str
    sizes: tuple[int, ...]
    steps: int
    seeds: int
    quantities: Mapping[str, Judged]
    causes: tuple[Cause, ...]
    loss: Mapping[int, tuple[float, ...]]

    @classmethod
    def of(cls, series: Series, theory: Theory, forward_pass: Callable[[], Sequence[str]] = list) -> Check:
        """The outcome of measured series. ``forward_pass`` measures what is wrong there, and is asked if one is off."""
        axis = "depth" if theory.depth else "width"
        symbol = _SYMBOLS[axis]
        quantities = judged_quantities(series, theory)
        diverged = series.diverged()
        accused = causes(quantities, symbol) if diverged is None else [divergence(*diverged, axis)]
        if any(quantity.verdict == "off" for quantity in quantities.values()):
            accused = with_factors(accused, forward_pass())
        losses = zip(series.sizes, series.values.get(LOSS(), ()), strict=False)
        return cls(
            replace(theory.plan.setting, as_printed=False),
            axis,
            series.sizes,
            series.steps,
            series.seeds,
            with_reasons(quantities, accused, symbol),
            tuple(accused),
            {size: tuple(by_step.mean(-1)[:-1].tolist()) for size, by_step in losses},
        )

    @property
    def symbol(self) -> str:
        """The paper's symbol of what grows: N for the width, L for the depth."""
        return _SYMBOLS[self.axis]

    @property
    def off(self) -> list[Judged]:
        """The quantities that are off, the worst first."""
        off = [quantity for quantity in self.quantities.values() if quantity.verdict == "off"]
        return sorted(off, key=lambda quantity: -quantity.excess)

    @property
    def passed(self) -> bool:
        """Whether no quantity is off."""
        return not self.off

    def __str__(self) -> str:
        return "\n".join(lines(self))

    @property
    def stable(self) -> bool:
        """Whether every quantity keeps its order, as the desiderata of maximal scale stability demand."""
        return all(quantity.stable for quantity in self.quantities.values())

    def json(self) -> dict[str, Any]:
        """The check as a document, which ``check.schema.json`` describes."""
        words = self.setting.words()
        return {
            **{name: words[name] for name in ("scheme", "optimizer", "regime", "readout")},
            "axis": self.axis,
            f"{self.axis}s": list(self.sizes),
            "steps": self.steps,
            "seeds": self.seeds,
            "quantities": {name: _quantity_json(quantity) for name, quantity in self.quantities.items()},
            "causes": [vars(cause) for cause in self.causes],
            "loss": {str(size): _finite(losses) for size, losses in self.loss.items()},
            "verdict": "pass" if self.passed else "fail",
            "stable": self.stable,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Check:
        """The check that :meth:`json` wrote, as far as tables and figures need it.

        A ValueError names what is not as ``check.schema.json`` says, or what contradicts the rest of the document.
        """
        FORM.refuse_unfit(document)
        try:
            words = {name: document[name] for name in ("scheme", "optimizer", "regime", "readout")}
            check = cls(
                setting=Setting.of(**words).checked(),
                axis=document["axis"],
                steps=document["steps"],
                seeds=document["seeds"],
                sizes=tuple(document[f"{document['axis']}s"]),
                quantities={name: _quantity(name, entry) for name, entry in document["quantities"].items()},
                causes=tuple(Cause(**cause) for cause in document["causes"]),
                loss={int(size): _numbers(losses) for size, losses in document["loss"].items()},
            )
        except ValueError as error:
            raise FORM.corrupt(str(error)) from None
        _refuse_contradictions(check, document)
        return check


def _quantity_json(quantity: Judged) -> dict[str, Any]:
    predictions = [prediction for prediction in quantity.predicted if prediction is not None]
    powers = [_powers(None if prediction is None else prediction.exponent) for prediction in quantity.predicted]
    return {
        "exponents": [None if exponent is None else finite(exponent.value) for exponent in quantity.exponents],
        "ci": [None if exponent is None else finite(exponent.ci) for exponent in quantity.exponents],
        "values": {str(size): _finite(values) for size, values in quantity.values.items()},
        "predicted": [power for power, _ in powers],
        "slack": [slack for _, slack in powers],
        "source": predictions[0].source if predictions else None,
        "judged": _judged_json(quantity),
        "stable": quantity.stable,
        "verdict": quantity.verdict,
        "reason": quantity.reason,
    }


def _judged_json(quantity: Judged) -> dict[str, float | None] | None:
    if quantity.judged is None:
        return None
    expected, slack = _powers(quantity.expected)
    judged = {"exponent": finite(quantity.judged.value), "ci": finite(quantity.judged.ci)}
    return judged | {"expected": expected, "slack": slack}


def _powers(exponent: Exponent | None) -> tuple[float | None, float | None]:
    """The power and its slack; None for a term that vanishes, and where there is no prediction."""
    if exponent is None or exponent.power is None:
        return None, None
    return float(exponent.power), float(exponent.slack)


def _finite(values: Sequence[float]) -> list[float | None]:
    return [finite(value) for value in values]


# -- reading JSON ------------------------------------------------------------------------------------------------------


def _quantity(name: str, entry: Mapping[str, Any]) -> Judged:
    # Null stands for a term that vanishes as well as for one of which nothing is predicted: readers treat them alike.
    powers = zip(entry["predicted"], entry["slack"], strict=True)
    source, judged = entry["source"], entry["judged"]
    return Judged(
        Quantity.named(name),
        tuple(map(_estimate, entry["exponents"], entry["ci"])),
        {int(size): _numbers(values) for size, values in entry["values"].items()},
        tuple(None if source is None else Prediction(_exponent(power, slack), source) for power, slack in powers),
        None if judged is None else Estimate(*_numbers([judged["exponent"], judged["ci"]])),
        None if judged is None or judged["expected"] is None else _exponent(judged["expected"], judged["slack"]),
        entry["stable"],
        entry["verdict"],
        entry["reason"],
    )


def _estimate(value: float | None, ci: float | None) -> Estimate | None:
    return None if value is None else Estimate(*_numbers([value, ci]))


def _exponent(power: float | None, slack: float | None) -> Exponent:
    """The exponent of a file's floats, rounded to the small fractions that powers are."""
    if power is None or slack is None:
        return Exponent(None)
    return Exponent(*(Fraction(number).limit_denominator(1000) for number in (power, slack)))


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


# -- contradictions in a file ------------------------------------------------------------------------------------------

_ROUNDING = 1e-6  # of exponents, which follow from values that other programs may have rounded
_SMALLEST_NORMAL = 1e-300  # smaller floats have fewer digits
_LARGEST_LOG = 700.0  # of a float
_FEWEST_SIZES_FOR_BEND = 4  # of the exponents, to which a part of a miss may be laid (series.py)
_ACCUSED_OF_ALL = "divergence"


def _refuse_contradictions(check: Check, document: Mapping[str, Any]) -> None:
    """A ValueError names what a check would not have written beside the rest of the document."""
    if list(check.sizes) != sorted(check.sizes):
        raise FORM.corrupt(f"{check.axis}s must be in growing order, got {_listed(check.sizes)}")
    for name, entry in document["quantities"].items():
        _refuse_lists(check, f"quantities.{name}", entry)
        _refuse_exponents(check, f"quantities.{name}", check.quantities[name])
        _refuse_verdict(check, f"quantities.{name}", check.quantities[name])
    if check.loss and (
        set(check.loss) != set(check.sizes) or {len(losses) for losses in check.loss.values()} != {check.steps}
    ):
        raise FORM.corrupt(f"loss must have {check.steps} numbers at each of {_listed(check.sizes)}")
    FORM.agree("verdict", document["verdict"], "pass" if check.passed else "fail")
    FORM.agree("stable", document["stable"], check.stable)
    for role in document.get("numerics", {}):
        if GRADIENT(role) not in check.quantities:
            raise FORM.corrupt(f"numerics.{role} is of a gradient that the check has not")
    _refuse_causes(check)


def _refuse_lists(check: Check, place: str, entry: Mapping[str, Any]) -> None:
    """A ValueError names a list that is too short or too long, or a number whose companion is missing."""
    count = check.steps + 1
    for name in ("exponents", "ci", "predicted", "slack"):
        if len(entry[name]) != count:
            raise FORM.corrupt(f"{place}.{name} must be {count} numbers, got {len(entry[name])}")
    lengths = {len(values) for values in entry["values"].values()}
    if {int(size) for size in entry["values"]} != set(check.sizes) or lengths != {count}:
        raise FORM.corrupt(f"{place}.values must have {count} numbers at each of {_listed(check.sizes)}")
    for step in range(count):
        if entry["exponents"][step] is None and entry["ci"][step] is not None:
            raise FORM.corrupt(f"{place}.ci.{step} belongs to no exponent")
        if (entry["predicted"][step] is None) != (entry["slack"][step] is None):
            raise FORM.corrupt(f"{place}.slack.{step} belongs to no prediction, or is missing")
    if entry["source"] is None and any(power is not None for power in entry["predicted"]):
        raise FORM.corrupt(f"{place} has predictions, and no source of them")


def _refuse_exponents(check: Check, place: str, quantity: Judged) -> None:
    """A ValueError names an exponent that is not the slope of its values, and a prediction beyond the floats."""
    values = np.array([quantity.values[size] for size in check.sizes])
    for step, slope in enumerate(slopes(check.sizes, values)):
        if not (values[:, step] > _SMALLEST_NORMAL).all():  # a seed is zero or not finite: others may give an exponent
            continue
        exponent = quantity.exponents[step]
        if exponent is None or not math.isclose(exponent.value, slope, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            got = None if exponent is None else exponent.value
            raise FORM.corrupt(f"{place}.exponents.{step} must be {slope:.6g}, as its values grow, got {shown(got)}")
    span = math.log(check.sizes[-1] / check.sizes[0])
    highest = math.log(max(1.0, np.nanmax(values, initial=0.0)))
    for step, prediction in enumerate(quantity.predicted):
        power = None if prediction is None else prediction.exponent.power
        if power is not None and highest + abs(power) * span > _LARGEST_LOG:
            raise FORM.corrupt(f"{place}.predicted.{step} leads beyond all numbers, got {float(power):g}")


def _refuse_verdict(check: Check, place: str, quantity: Judged) -> None:
    """A ValueError names a verdict that does not follow from what was measured and expected, by judgement.py."""
    verdict, judged = quantity.verdict, quantity.judged
    if verdict == "zero" and any(map(any, quantity.values.values())):
        raise FORM.corrupt(f"{place}.verdict is zero, and not all of its values are")
    if judged is None:
        if verdict == "ok" and quantity.name.kind is not EXPERT_DISTANCE:
            raise FORM.corrupt(f"{place}.verdict is ok, and nothing was judged")
        if verdict == "off" and not quantity.reason:
            raise FORM.corrupt(f"{place}.verdict is off, and there is no reason")
        return
    if verdict not in ("ok", "off") or quantity.name.kind is EXPERT_DISTANCE:
        raise FORM.corrupt(f"{place}.judged must be null beside the verdict {verdict}")
    assert quantity.expected is not None
    assert quantity.expected_power is not None
    alike = [
        exponent.value
        for exponent, prediction in zip(quantity.exponents, quantity.predicted, strict=True)
        if exponent is not None and prediction is not None and prediction.exponent == quantity.expected
    ]
    # The judged exponent is a mean over steps of this prediction.
    if not alike or not min(alike) - _ROUNDING <= judged.value <= max(alike) + _ROUNDING:
        raise FORM.corrupt(f"{place}.judged belongs to none of its exponents and predictions")
    high, low = quantity.expected_power, quantity.expected_power - float(quantity.expected.slack)
    interval = judged.ci if judged.ci >= 0 else WIDEST_CI
    miss = max(judged.value - high, low - judged.value, 0.0) - TOLERANCE - interval
    bend = 0.0 if len(check.sizes) < _FEWEST_SIZES_FOR_BEND else 2 * WIDEST_CI
    simulated = any(prediction is not None and prediction.source == "simulated" for prediction in quantity.predicted)
    if (verdict == "off" and miss < -_ROUNDING) or (verdict == "ok" and miss > bend + _ROUNDING and not simulated):
        raise FORM.corrupt(f"{place}.verdict is {verdict}, and {judged} was measured where {high:g} is expected")


def _refuse_causes(check: Check) -> None:
    """A ValueError names a cause of which no quantity tells, or one that is missing."""
    accused = {(cause.setting, cause.role) for cause in check.causes if cause.setting != FORWARD}  # of which none tells
    if (_ACCUSED_OF_ALL, "") in accused:
        numbers = [*check.loss.values(), *(row for each in check.quantities.values() for row in each.values.values())]
        if len(accused) > 1 or all(math.isfinite(number) for row in numbers for number in row):
            raise FORM.corrupt("causes name a divergence, beside other causes or where all numbers are finite")
        return
    off = {(cause.setting, cause.role) for cause in causes(check.quantities, check.symbol)}
    for setting, role in sorted(accused ^ off):
        which = f"{setting} of {role}" if role else setting
        said = "name" if (setting, role) in accused else "do not name"
        raise FORM.corrupt(f"causes {said} {shown(which)}, whose quantity is {'not ' * (said == 'name')}off")


def _listed(sizes: Sequence[int]) -> str:
    return shown(list(sizes))
