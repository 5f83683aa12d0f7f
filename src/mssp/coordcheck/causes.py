"""What is behind a miss: the settings that do not follow their rules, named in words.

What a layer was told can be seen in its weights: their size at the start is the initialization, the size of an update
over that of its gradient the learning rate (Adam's updates are as large as the learning rate itself). A setting that
is off explains what it drives; what no setting explains lies in the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mssp.coordcheck.judgement import Judged

# In this order: an eps that dominates shrinks Adam's updates, and looks like a small learning rate.
_SETTINGS = ("experts", "weights", "aggregation", "eps", "rate")


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
    for setting in _SETTINGS:
        off = [each for name, each in quantities.items() if _setting(name) == setting and each.verdict == "off"]
        eps_is_off = {cause.role for cause in found if cause.setting == "eps"}
        off = [each for each in off if not (setting == "rate" and _role(each.name) in eps_is_off)]
        off.sort(key=lambda each: -each.excess)
        found += [Cause(setting, _role(each.name), _text(each, setting, symbol)) for each in off]
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
    if each.verdict != "off" or _setting(each.name) in _SETTINGS:
        return what
    if not found:
        return f"{what}: every setting that was judged follows its rule, so look at the forward pass and the loss"
    role = _role(each.name)
    cause = next((cause for cause in found if cause.role == role), found[0])
    return f"{what}: {cause.text}"


def _text(each: Judged, setting: str, symbol: str) -> str:
    role = _role(each.name)
    if setting == "experts":
        return f"experts {each.reason}"
    if each.judged is None or each.expected is None or each.expected.power is None:
        names = {"weights": f"the initial weights of {role}", "rate": f"the learning rate of {role}"}
        return f"{names.get(setting, each.name)} {each.reason}"
    value, right = each.judged.value, float(each.expected.power)
    if setting == "rate":
        return f"the learning rate of {role} is {_factor(symbol, value - right)}"
    what = {
        "weights": f"the initial weights of {role} scale",
        "eps": f"Adam's eps of {role} scales",
        "aggregation": "the aggregation factor scales",
    }[setting]
    return f"{what} as {power(symbol, value)}, the rule says {power(symbol, right)}"


def _factor(symbol: str, exponent: float) -> str:
    """A wrong factor, in the words of someone who looks for it in the code."""
    size = abs(exponent)
    verb = "multiplied" if exponent > 0 else "divided"
    if abs(size - 1) < 0.25:
        return f"{verb} by {symbol} once too often"
    if abs(size - 0.5) < 0.25:
        return f"{verb} by √{symbol} too often"
    return f"{verb} by {power(symbol, size)} too much"


def _setting(name: str) -> str:
    return "experts" if name == "experts/distance" else name.partition("/")[0]


def _role(name: str) -> str:
    kind, _, role = name.partition("/")
    return "" if kind in ("experts", "aggregation", "aggregate", "features") else role.rpartition("/")[2]
