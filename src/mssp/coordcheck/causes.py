"""The causes of a miss: the settings that do not follow their rules, named in words.

A layer's settings can be read off its weights: their initial size is the initialization, and the size of an update
over that of its gradient is the learning rate (under Adam, whose updates are as large as the learning rate, the update
alone). A setting that is off explains misses of what depends on it. A miss that no setting explains comes from the
forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mssp.coordcheck.judgement import Judged
from mssp.measure.quantities import (
    ACCUSING,
    AGGREGATE,
    AGGREGATION,
    EPS,
    EXPERT_DISTANCE,
    FEATURE_CHANGE,
    RATE,
    WEIGHTS,
)

FORWARD, _DIVERGENCE = "forward", "divergence"
_IN_FORWARD_PASS = "the cause was found in the forward pass"  # by a sentence that is too long for every quantity
# Kinds of quantities of the whole sum over experts: a cause without a role explains them first.
_SUM_KINDS = (EXPERT_DISTANCE, AGGREGATION, AGGREGATE, FEATURE_CHANGE)


@dataclass(frozen=True)
class Cause:
    """A setting that does not follow its rule.

    Args:
        setting: ``weights`` (initial), ``rate`` (learning rate), ``eps``, ``aggregation``, ``experts`` (tied or not),
            ``forward`` (a factor of the forward pass, or a size, as measured there), or ``divergence``.
        role: the role that has the setting; empty for the aggregation factor and for all experts together.
        text: what the setting does and what it should do.
    """

    setting: str
    role: str
    text: str


def causes(quantities: Mapping[str, Judged], symbol: str) -> list[Cause]:
    """The settings that are off, the likeliest cause first; ``symbol`` is that of the dimension that grows."""
    accused: list[Cause] = []
    for kind in ACCUSING:
        off = [quantity for quantity in quantities.values() if quantity.name.kind is kind and quantity.verdict == "off"]
        if kind is RATE:
            eps_is_off = {cause.role for cause in accused if cause.setting == EPS.family}
            off = [quantity for quantity in off if quantity.name.of not in eps_is_off]
        off.sort(key=lambda quantity: -quantity.excess)
        accused += [Cause(kind.family, quantity.name.of, _text(quantity, symbol)) for quantity in off]
    return accused


def with_factors(accused: Sequence[Cause], wrong: Sequence[str]) -> list[Cause]:
    """The causes with what is wrong in the forward pass, which was measured there and comes first.

    An aggregation factor that is accused already is not accused again.
    """
    if any(cause.setting == AGGREGATION.family for cause in accused):
        return list(accused)
    found = [Cause(FORWARD, "", text) for text in wrong]
    diverged = [cause for cause in accused if cause.setting == _DIVERGENCE]
    return [*diverged, *found, *(cause for cause in accused if cause not in diverged)]


def divergence(size: int, step: int, axis: str) -> Cause:
    """The single cause of all misses of a model that diverged."""
    if not step:
        text = f"something is not finite at {axis} {size} before any update: look at the data and the initial loss"
    else:
        text = f"training diverged at {axis} {size} after {step} update{'s'[: step > 1]}: lower the learning rate"
    return Cause(_DIVERGENCE, "", text)


def with_reasons(quantities: Mapping[str, Judged], accused: Sequence[Cause], symbol: str) -> dict[str, Judged]:
    """The quantities with their reasons: how each of them scales, and the cause if it is off."""
    return {
        name: quantity
        if quantity.verdict in ("zero", "unpredicted")
        else replace(quantity, reason=_reason(quantity, accused, symbol))
        for name, quantity in quantities.items()
    }


def power(symbol: str, exponent: float) -> str:
    """A power as people write it.

    >>> power("N", -0.5), power("N", 0.004)
    ('N^−0.5', 'N^0')
    """
    return f"{symbol}^{exponent:.2g}".replace("-", "−") if abs(exponent) >= 0.005 else f"{symbol}^0"


def _reason(quantity: Judged, accused: Sequence[Cause], symbol: str) -> str:
    if quantity.judged is None or quantity.expected_power is None:
        statement = quantity.reason or "as it should be"
    else:
        value, expected = quantity.judged.value, power(symbol, quantity.expected_power)
        verb = "grows" if value > 0.05 else "falls" if value < -0.05 else "stays"
        scaling = verb if verb == "stays" else f"{verb} as {power(symbol, value)}"
        if quantity.verdict == "off":
            statement = f"{scaling}, expected {expected}"
        else:
            statement = f"{scaling}, as expected" if verb == "stays" else f"{scaling}: {expected} is expected"
    if quantity.verdict != "off" or quantity.name.kind in ACCUSING:
        return statement
    if not accused:
        return f"{statement}: every setting that was judged follows its rule, so look at the forward pass and the loss"
    role = "" if quantity.name.kind in _SUM_KINDS else quantity.name.of or None
    cause = next((cause for cause in accused if cause.role == role), accused[0])
    return f"{statement}: {_IN_FORWARD_PASS if cause.setting == FORWARD else cause.text}"


def _text(quantity: Judged, symbol: str) -> str:
    """What a setting that is off does and what it should do."""
    kind = quantity.name.kind
    setting = kind.accuses.format(role=quantity.name.of)
    if quantity.judged is None or quantity.expected_power is None:
        return f"{quantity.name if kind.told else setting} {quantity.reason}"
    value, rule_power = quantity.judged.value, quantity.expected_power
    if kind is RATE:
        return f"{setting} is {_factor(symbol, value - rule_power)}"
    scale = "scale" if kind is WEIGHTS else "scales"
    return f"{setting} {scale} as {power(symbol, value)}, the rule says {power(symbol, rule_power)}"


def _factor(symbol: str, exponent: float) -> str:
    """The wrong factor of a learning rate, in words that help to find it in the code."""
    size = abs(exponent)
    verb = "multiplied" if exponent > 0 else "divided"
    if abs(size - 1) < 0.25:
        return f"{verb} by {symbol} once too often"
    if abs(size - 0.5) < 0.25:
        return f"{verb} by √{symbol} too often"
    return f"{verb} by {power(symbol, size)} too much"
