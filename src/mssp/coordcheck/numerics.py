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

# A format ends at the smallest number that has all its digits.
_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}
_FAR = 1e12  # a size that no model will have


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
    for quantity in check.quantities.values():
        role, rms, measured = quantity.name.of, quantity.values[largest][-1], quantity.exponents[-1]
        if quantity.name.kind is not GRADIENT or measured is None or not rms > 0:
            continue
        # The theory's exponent where there is one: the slope over a few small sizes does not extrapolate well.
        exponent = measured.value if quantity.expected_power is None else quantity.expected_power
        leaves = {name: _leaves(rms, exponent, largest, torch.finfo(dtype).tiny) for name, dtype in _FORMATS.items()}
        squares = _leaves(rms, exponent, largest, math.sqrt(torch.finfo(torch.float32).tiny))
        eps = check.quantities.get(EPS(role))
        found.append(Range(role, rms, exponent, leaves, squares, None if eps is None else eps.values[largest][-1]))
    return sorted(found, key=lambda each: each.exponent)


def as_json(check: Check) -> dict[str, Any]:
    """By role; a size that is never reached is null."""
    document = {}
    for each in ranges(check):
        leaves = {name: finite(size) for name, size in {**each.leaves, "fp32 squares": each.squares}.items()}
        document[each.role] = {"rms": each.rms, "exponent": each.exponent, "leaves": leaves, "eps": each.eps}
    return document


def lines(check: Check) -> list[str]:
    """A table, and advice."""
    symbol, largest = "N" if check.axis == "width" else "L", max(check.sizes)
    header = [
        "gradient of", f"RMS at {symbol} = {largest}", "falls as", "below fp16 at", "below bf16 at",
        "squares below fp32 at", "eps / RMS",
    ]  # fmt: skip
    by_role = ranges(check)
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
        for each in by_role
    ]
    return ["", "numerics", *align([header, *rows]), "", *_advice(check, symbol, [each.exponent for each in by_role])]


def _advice(check: Check, symbol: str, exponents: Sequence[float]) -> list[str]:
    gap = max(exponents, default=0.0) - min(exponents, default=0.0)
    if gap < 1:
        return ["gradients of all layers keep within one power of the size: one loss scale serves them"]
    advice = (
        "for SGD: the learning rates carry the same powers; keep gradients and the update in float32"
        if check.setting.optimizer.eps is None
        else "for Adam: plan with grad_scale=True (mssp.scale_gradients) so that every layer's gradient is of order 1 "
        "and one eps serves all; or keep the plan's eps per layer, with moments in float32"
    )
    return [
        f"gradients of layers drift apart as {symbol}^{gap:.2g}: in fp16 no single loss scale keeps both ends; "
        "use bf16 or float32 gradients, or scale them layer by layer",
        advice,
    ]


def _leaves(rms: float, exponent: float, size: float, limit: float) -> float:
    """The size at which a gradient falls below the limit: infinite if it never does, 0 if it is below already."""
    if rms <= limit:
        return 0.0
    return math.inf if exponent >= 0 else float(size * (limit / rms) ** (1 / exponent))


def _size(symbol: str, size: float) -> str:
    if size == 0:
        return "already"
    return "never" if size > _FAR else f"{symbol} ≈ {size:,.0f}"
