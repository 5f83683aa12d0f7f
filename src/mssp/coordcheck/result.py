"""The outcome of a check: every quantity with its verdict, the causes, and the two answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mssp._estimates import Estimate, finite
from mssp.coordcheck.causes import Cause, causes, divergence, with_reasons
from mssp.coordcheck.judgement import Judged, judged_quantities
from mssp.coordcheck.series import Series
from mssp.coordcheck.text import lines
from mssp.measure.quantities import LOSS, Quantity
from mssp.planning.setting import OPTIMIZERS, READOUTS, REGIMES, SCHEMES, Setting
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent


@dataclass(frozen=True)
class Check:
    """What a check found.

    Args:
        axis: what grows: ``width`` or ``depth``.
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
    def of(cls, series: Series, theory: Theory) -> Check:
        symbol = "L" if theory.depth else "N"
        quantities = judged_quantities(series, theory)
        lost = series.diverged()
        axis = "depth" if theory.depth else "width"
        found = causes(quantities, symbol) if lost is None else [divergence(*lost, axis)]
        plan = theory.plan
        losses = series.values.get(LOSS())
        return cls(
            replace(plan.setting, as_printed=False),
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
    def off(self) -> list[Judged]:
        """What is off, the worst first."""
        found = [each for each in self.quantities.values() if each.verdict == "off"]
        return sorted(found, key=lambda each: -each.excess)

    @property
    def passed(self) -> bool:
        return not self.off

    def __str__(self) -> str:
        return "\n".join(lines(self))

    @property
    def stable(self) -> bool:
        return all(each.stable for each in self.quantities.values())

    def json(self) -> dict[str, Any]:
        """As ``check.schema.json`` describes it."""
        words = self.setting.words()
        return {
            **{name: words[name] for name in ("scheme", "optimizer", "regime", "readout")},
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

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Check:
        """The check that :meth:`json` wrote, as far as tables and figures go; ValueError where it is none."""
        try:
            axis = str(found["axis"])
            words = {name: found[name] for name in ("scheme", "optimizer", "regime", "readout")}
            unknown = _unknown(words | {"axis": axis})
            if unknown:
                raise ValueError(unknown)
            read = cls(
                setting=Setting.of(**words),
                axis=axis,
                steps=found["steps"],
                seeds=found["seeds"],
                sizes=tuple(found[f"{axis}s"]),
                quantities={name: _quantity(name, each) for name, each in found["quantities"].items()},
                causes=tuple(Cause(**cause) for cause in found["causes"]),
                loss={int(size): _numbers(losses) for size, losses in found["loss"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of mssp check --json: {type(error).__name__}, {error}") from None
        except ValueError as error:
            raise ValueError(f"it is no result of mssp check --json: {error}") from None
        wrong = read._contradiction()
        if wrong:
            raise ValueError(f"it is no result of mssp check --json: {wrong}")
        return read

    def _contradiction(self) -> str:
        """What is wrong with numbers that a file gives; empty where nothing is."""
        numbers = (*self.sizes, self.steps, self.seeds)
        if not self.sizes or not all(type(number) is int and number > 0 for number in numbers):
            return (
                f"sizes, steps and seeds are positive whole numbers, got {list(self.sizes)}, {self.steps}, {self.seeds}"
            )
        for each in self.quantities.values():
            lengths = {len(each.exponents), len(each.predicted), *map(len, each.values.values())}
            if set(each.values) != set(self.sizes) or lengths != {self.steps + 1}:
                return f"{each.name} has not {self.steps + 1} values at each of {list(self.sizes)}"
        return ""


def _unknown(words: Mapping[str, Any]) -> str:
    """The first word of a file that means nothing; empty where all do."""
    for name, known in (
        ("scheme", SCHEMES),
        ("optimizer", OPTIMIZERS),
        ("axis", ("width", "depth")),
        ("regime", (*REGIMES, None)),
        ("readout", READOUTS),
    ):
        if words[name] not in (*map(str, known), *({None} & set(known))):
            return f"{name} is {words[name]!r}, none of {', '.join(map(str, known))}"
    return ""


def _quantity_json(each: Judged) -> dict[str, Any]:
    return {
        "exponents": [None if found is None else finite(found.value) for found in each.exponents],
        "ci": [None if found is None else finite(found.ci) for found in each.exponents],
        "values": {str(size): [finite(value) for value in values] for size, values in each.values.items()},
        "predicted": [_power(prediction) for prediction in each.predicted],
        "slack": [_slack(prediction) for prediction in each.predicted],
        "source": next((prediction.source for prediction in each.predicted if prediction is not None), None),
        "judged": _judged_json(each),
        "stable": each.stable,
        "verdict": each.verdict,
        "reason": each.reason,
    }


def _power(prediction: Prediction | None) -> float | None:
    power = None if prediction is None else prediction.exponent.power
    return None if power is None else float(power)


def _slack(prediction: Prediction | None) -> float | None:
    return None if _power(prediction) is None or prediction is None else float(prediction.exponent.slack)


def _judged_json(each: Judged) -> dict[str, float | None] | None:
    if each.judged is None:
        return None
    expected = None if each.expected is None else Prediction(each.expected, "")
    return {
        "exponent": finite(each.judged.value),
        "ci": finite(each.judged.ci),
        "expected": _power(expected),
        "slack": _slack(expected),
    }


# -- and back ----------------------------------------------------------------------------------------------------------


def _quantity(name: str, found: Mapping[str, Any]) -> Judged:
    # Null stands for a term that vanishes as well as for one that nothing is said of; to readers they are alike.
    powers = zip(found["predicted"], found["slack"], strict=True)
    source, judged = found["source"], found["judged"]
    return Judged(
        Quantity.named(name),
        tuple(map(_estimate, found["exponents"], found["ci"])),
        {int(size): _numbers(values) for size, values in found["values"].items()},
        tuple(None if source is None else Prediction(_exponent(power, slack), source) for power, slack in powers),
        None if judged is None else Estimate(*_numbers([judged["exponent"], judged["ci"]])),
        None if judged is None or judged["expected"] is None else _exponent(judged["expected"], judged["slack"]),
        found["stable"],
        found["verdict"],
        found["reason"],
    )


def _estimate(value: float | None, ci: float | None) -> Estimate | None:
    return None if value is None else Estimate(*_numbers([value, ci]))


def _exponent(power: float | None, slack: float | None) -> Exponent:
    """Powers are small fractions, which a float does not spell."""
    if power is None or slack is None:
        return Exponent(None)
    return Exponent(*(Fraction(number).limit_denominator(1000) for number in (power, slack)))


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)
