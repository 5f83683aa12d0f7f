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
    def of(cls, series: Series, theory: Theory) -> Check:
        axis = "depth" if theory.depth else "width"
        symbol = _SYMBOLS[axis]
        quantities = judged_quantities(series, theory)
        diverged = series.diverged()
        accused = causes(quantities, symbol) if diverged is None else [divergence(*diverged, axis)]
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
        """The check that :meth:`json` wrote, as far as tables and figures need it; ValueError for other documents."""
        try:
            axis = str(document["axis"])
            words = {name: document[name] for name in ("scheme", "optimizer", "regime", "readout")}
            _check_words(words | {"axis": axis})
            check = cls(
                setting=Setting.of(**words),
                axis=axis,
                steps=document["steps"],
                seeds=document["seeds"],
                sizes=tuple(document[f"{axis}s"]),
                quantities={name: _quantity(name, entry) for name, entry in document["quantities"].items()},
                causes=tuple(Cause(**cause) for cause in document["causes"]),
                loss={int(size): _numbers(losses) for size, losses in document["loss"].items()},
            )
            check._check_numbers()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no result of mssp check --json: {type(error).__name__}, {error}") from None
        except ValueError as error:
            raise ValueError(f"it is no result of mssp check --json: {error}") from None
        return check

    def _check_numbers(self) -> None:
        """Refuse numbers of a file that contradict one another."""
        numbers = (*self.sizes, self.steps, self.seeds)
        if not self.sizes or not all(type(number) is int and number > 0 for number in numbers):
            got = f"{list(self.sizes)}, {self.steps}, {self.seeds}"
            raise ValueError(f"sizes, steps and seeds are positive whole numbers, got {got}")
        for quantity in self.quantities.values():
            lengths = {len(quantity.exponents), len(quantity.predicted), *map(len, quantity.values.values())}
            if set(quantity.values) != set(self.sizes) or lengths != {self.steps + 1}:
                raise ValueError(f"{quantity.name} has not {self.steps + 1} values at each of {list(self.sizes)}")


def _check_words(words: Mapping[str, Any]) -> None:
    """Refuse unknown words in a file."""
    for name, known in (
        ("scheme", SCHEMES),
        ("optimizer", OPTIMIZERS),
        ("axis", tuple(_SYMBOLS)),
        ("regime", (*REGIMES, None)),
        ("readout", READOUTS),
    ):
        if words[name] not in (*map(str, known), *({None} & set(known))):
            raise ValueError(f"{name} is {words[name]!r}, none of {', '.join(map(str, known))}")


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
