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

# The smallest number of each format that has all its digits. Adam keeps means of squared gradients in float32.
_LIMITS = {
    "fp16": torch.finfo(torch.float16).tiny,
    "bf16": torch.finfo(torch.bfloat16).tiny,
    "fp32 squares": math.sqrt(torch.finfo(torch.float32).tiny),
}
_LARGEST_SIZE = 1e12  # no model will have a larger one


@dataclass(frozen=True)
class Range:
    """When one role's gradient leaves the number formats.

    Args:
        rms, eps: at the largest size of the check.
        leaves: by format, the size at which the gradient falls below its range: infinite for never, 0 for already.
    """

    role: str
    rms: float
    exponent: float
    leaves: dict[str, float]
    eps: float | None


def ranges(check: Check) -> list[Range]:
    """The range of every role whose gradient was measured, the fastest falling gradient first."""
    largest = max(check.sizes)
    gradients = []
    for quantity in check.quantities.values():
        role, rms, measured = quantity.name.of, quantity.values[largest][-1], quantity.exponents[-1]
        if quantity.name.kind is not GRADIENT or measured is None or not rms > 0:
            continue
        # The theory's exponent where there is one: the slope over a few small sizes does not extrapolate well.
        exponent = measured.value if quantity.expected_power is None else quantity.expected_power
        leaves = {name: _leaves(rms, exponent, largest, limit) for name, limit in _LIMITS.items()}
        eps = check.quantities.get(EPS(role))
        gradients.append(Range(role, rms, exponent, leaves, None if eps is None else eps.values[largest][-1]))
    return sorted(gradients, key=lambda gradient: gradient.exponent)


def as_json(check: Check) -> dict[str, Any]:
    """The ranges by role as JSON; a size that is never reached is null."""
    document = {}
    for gradient in ranges(check):
        leaves = {name: finite(size) for name, size in gradient.leaves.items()}
        numbers = {"rms": gradient.rms, "exponent": gradient.exponent, "leaves": leaves, "eps": gradient.eps}
        document[gradient.role] = numbers
    return document


def lines(check: Check) -> list[str]:
    """The ranges as a table, and advice, for a terminal."""
    symbol, largest = check.symbol, max(check.sizes)
    header = [
        "gradient of", f"RMS at {symbol} = {largest}", "falls as", "below fp16 at", "below bf16 at",
        "squares below fp32 at", "eps / RMS",
    ]  # fmt: skip
    gradients = ranges(check)
    rows = [
        [
            gradient.role,
            number(gradient.rms),
            f"{symbol}^{gradient.exponent:.2g}".replace("-", "−"),
            *(_size(symbol, gradient.leaves[name]) for name in _LIMITS),
            "" if gradient.eps is None else number(gradient.eps / gradient.rms),
        ]
        for gradient in gradients
    ]
    exponents = [gradient.exponent for gradient in gradients]
    return ["", "numerics", *align([header, *rows]), "", *_advice(check, symbol, exponents)]


def _advice(check: Check, symbol: str, exponents: Sequence[float]) -> list[str]:
    """What to do about gradients with these exponents."""
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
    return "never" if size > _LARGEST_SIZE else f"{symbol} ≈ {size:,.0f}"
