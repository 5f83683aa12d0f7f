"""What is behind a miss: the settings that do not follow their rules, named in words.

What a layer was told can be seen in its weights: their size at the start is the initialization, the size of an update
over that of its gradient the learning rate (Adam's updates are as large as the learning rate itself). A setting that
is off explains what it drives; what no setting explains lies in the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

# Of the sum over experts as a whole: what is off here is first explained by a cause that has no role either.
_OF_THE_WHOLE = (EXPERT_DISTANCE, AGGREGATION, AGGREGATE, FEATURE_CHANGE)


@dataclass(frozen=True)
class Cause:
    """A setting that does not follow its rule.

    Args:
        setting: ``weights`` (initial), ``rate`` (learning rate), ``eps``, ``aggregation``, ``experts`` (tied or not),
            or ``divergence``.
        role: whose; empty for the aggregation factor and the experts as a whole.
        text: what it does and what it should do.
    """

    setting: str
    role: str
    text: str


def causes(quantities: Mapping[str, Judged], symbol: str) -> list[Cause]:
    """The settings that are off, the likeliest culprit first; ``symbol`` is what grows."""
    found: list[Cause] = []
    for kind in ACCUSING:
        off = [each for each in quantities.values() if each.name.kind is kind and each.verdict == "off"]
        eps_is_off = {cause.role for cause in found if cause.setting == EPS.family}
        off = [each for each in off if not (kind is RATE and each.name.of in eps_is_off)]
        off.sort(key=lambda each: -each.excess)
        found += [Cause(kind.family, each.name.of, _text(each, symbol)) for each in off]
    return found


def divergence(size: int, step: int, axis: str) -> Cause:
    """What is behind everything where a model was lost."""
    if not step:
        text = f"something is not finite at {axis} {size} before any update: look at the data and the initial loss"
    else:
        text = f"training diverged at {axis} {size} after {step} update{'s'[: step > 1]}: lower the learning rate"
    return Cause("divergence", "", text)


def with_reasons(quantities: Mapping[str, Judged], found: Iterable[Cause], symbol: str) -> dict[str, Judged]:
    """The quantities with what they do in words, and for those that are off, why."""
    found = list(found)
    return {
        name: each if each.verdict in ("zero", "unpredicted") else replace(each, reason=_reason(each, found, symbol))
        for name, each in quantities.items()
    }


def power(symbol: str, exponent: float) -> str:
    """As people write it.

    >>> power("N", -0.5), power("N", 0.004)
    ('N^−0.5', 'N^0')
    """
    return f"{symbol}^{exponent:.2g}".replace("-", "−") if abs(exponent) >= 0.005 else f"{symbol}^0"


def _reason(each: Judged, found: list[Cause], symbol: str) -> str:
    if each.judged is None or each.expected is None or each.expected.power is None:
        what = each.reason or "as it should be"
    else:
        value = each.judged.value
        verb = "grows" if value > 0.05 else "falls" if value < -0.05 else "stays"
        expected = power(symbol, float(each.expected.power))
        does = verb if verb == "stays" else f"{verb} as {power(symbol, value)}"
        what = f"{does}, as expected" if each.verdict == "ok" else f"{does}, expected {expected}"
        if each.verdict == "ok" and verb != "stays":
            what = f"{does}: {expected} is expected"
    if each.verdict != "off" or each.name.kind in ACCUSING:
        return what
    if not found:
        return f"{what}: every setting that was judged follows its rule, so look at the forward pass and the loss"
    role = "" if each.name.kind in _OF_THE_WHOLE else each.name.of or None
    cause = next((cause for cause in found if cause.role == role), found[0])
    return f"{what}: {cause.text}"


def _text(each: Judged, symbol: str) -> str:
    kind = each.name.kind
    what = kind.accuses.format(role=each.name.of)
    if each.judged is None or each.expected is None or each.expected.power is None:
        return f"{each.name if kind.told else what} {each.reason}"
    value, right = each.judged.value, float(each.expected.power)
    if kind is RATE:
        return f"{what} is {_factor(symbol, value - right)}"
    scale = "scale" if kind is WEIGHTS else "scales"
    return f"{what} {scale} as {power(symbol, value)}, the rule says {power(symbol, right)}"


def _factor(symbol: str, exponent: float) -> str:
    """A wrong factor, in the words of someone who looks for it in the code."""
    size = abs(exponent)
    verb = "multiplied" if exponent > 0 else "divided"
    if abs(size - 1) < 0.25:
        return f"{verb} by {symbol} once too often"
    if abs(size - 0.5) < 0.25:
        return f"{verb} by √{symbol} too often"
    return f"{verb} by {power(symbol, size)} too much"
