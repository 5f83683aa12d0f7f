"""Where gradients leave the range of a number format as a model grows, and what to do about it.

Expert gradients fall as N^-2 in Regimes II and III: no loss scale can help, since those of the readout do not fall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mssp._estimates import finite
from mssp._tables import align, number
from mssp.coordcheck.result import Check
from mssp.measure.quantities import EPS, GRADIENT

# The smallest number with all its digits, and the smallest at all.
_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_FAR = 1e12  # a width nobody will see


@dataclass(frozen=True)
class Range:
    """One role's gradient: its RMS at the largest size, its exponent, and the size at which it leaves each format.

    ``squares`` is the size at which Adam's mean of squares, in float32, loses its digits.
    """

    role: str
    rms: float
    exponent: float
    leaves: dict[str, float]
    squares: float
    eps: float | None


def ranges(check: Check) -> list[Range]:
    """For every role whose gradient was measured, the fastest falling first."""
    largest = max(check.sizes)
    found = []
    for each in check.quantities.values():
        role, exponent = each.name.of, each.exponents[-1]
        value = each.values[largest][-1]
        if each.name.kind is not GRADIENT or exponent is None or not value > 0:
            continue
        # The theory's exponent where there is one: a few small sizes are no base to extrapolate a slope from.
        power = each.expected.power if each.expected is not None else None
        falls = exponent.value if power is None else float(power)
        eps = check.quantities.get(EPS(role))
        found.append(
            Range(
                role,
                value,
                falls,
                {format: _leaves(value, falls, largest, torch.finfo(dtype).tiny) for format, dtype in _FORMATS.items()},
                _leaves(value, falls, largest, math.sqrt(torch.finfo(torch.float32).tiny)),
                None if eps is None else eps.values[largest][-1],
            )
        )
    return sorted(found, key=lambda each: each.exponent)


def as_json(check: Check) -> dict[str, Any]:
    """By role; a size that is never reached is null."""
    return {
        each.role: {
            "rms": each.rms,
            "exponent": each.exponent,
            "leaves": {name: finite(size) for name, size in {**each.leaves, "fp32 squares": each.squares}.items()},
            "eps": each.eps,
        }
        for each in ranges(check)
    }


def lines(check: Check) -> list[str]:
    """A table, and advice."""
    symbol, largest = "N" if check.axis == "width" else "L", max(check.sizes)
    header = [
        "gradient of", f"RMS at {symbol} = {largest}", "falls as", "below fp16 at", "below bf16 at",
        "squares below fp32 at", "eps / RMS",
    ]  # fmt: skip
    found = ranges(check)
    rows = [
        [
            each.role,
            number(each.rms),
            f"{symbol}^{each.exponent:.2g}".replace("-", "−"),
            _size(symbol, each.leaves["fp16"]),
            _size(symbol, each.leaves["bf16"]),
            _size(symbol, each.squares),
            "" if each.eps is None else number(each.eps / each.rms),
        ]
        for each in found
    ]
    return ["", "numerics", *align([header, *rows]), "", *_advice(check, found)]


def _advice(check: Check, found: Sequence[Range]) -> list[str]:
    fastest = min((each.exponent for each in found), default=0.0)
    slowest = max((each.exponent for each in found), default=0.0)
    gap = slowest - fastest
    if gap < 1:
        return ["gradients of all layers keep within one power of the size: one loss scale serves them"]
    symbol = "N" if check.axis == "width" else "L"
    advice = [
        f"gradients of layers drift apart as {symbol}^{gap:.2g}: in fp16 no single loss scale keeps both ends; "
        "use bf16 or float32 gradients, or scale them layer by layer",
    ]
    if check.setting.optimizer.eps is not None:
        advice.append(
            "for Adam: plan with grad_scale=True (mssp.scale_gradients) so that every layer's gradient is of order 1 "
            "and one eps serves all; or keep the plan's eps per layer, with moments in float32"
        )
    else:
        advice.append("for SGD: the learning rates carry the same powers; keep gradients and the update in float32")
    return advice


def _leaves(value: float, exponent: float, size: float, limit: float) -> float:
    """The size at which a gradient falls below the limit; infinite if it never does, 0 if it has."""
    if value <= limit:
        return 0.0
    if exponent >= 0:
        return math.inf
    return float(size * (limit / value) ** (1 / exponent))


def _size(symbol: str, size: float) -> str:
    if size == 0:
        return "already"
    return "never" if size > _FAR else f"{symbol} ≈ {size:,.0f}"
