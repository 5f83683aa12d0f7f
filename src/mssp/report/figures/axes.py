"""Axes that several figures have: over training, over what grows, logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mssp.report.figure import Json
from mssp.report.words import signed

SMALL_TICKS: Json = {"tickfont": {"size": 12}}  # of figures with many panels
_LEAST_DECADES = 1.0  # that a panel spans: noise is not to look like a slope


def steps_axis(steps: int, ends: tuple[float, float], most: int) -> Json:
    """Over training, with a label at about ``most`` of its steps or fewer."""
    every = next((unit for unit in (1, 2, 5, 10, 20, 50, 100, 200, 500) if steps <= most * unit), steps)
    return {"range": list(ends), "tick0": 0, "dtick": every, **SMALL_TICKS}


def growing_axis(sizes: Sequence[int], share: float) -> Json:
    """Over what grows, logarithmic, with labels at sizes, and a share of it as space at both ends."""
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    space = share * (high - low) or 0.2
    labels = {"tickvals": list(sizes), "ticktext": [str(size) for size in sizes]}
    return {"type": "log", "range": [low - space, high + space], **labels, **SMALL_TICKS}


def log_axis(values: Sequence[float]) -> Json:
    low, high = math.log10(min(values)), math.log10(max(values))
    space = space_around(low, high, 0.08, _LEAST_DECADES)
    low, high = low - space, high + space
    every = math.ceil((high - low) / 5)
    digits = (1, 2, 5) if high - low < 5 / 3 else (1, 3) if high - low < 3 else (1,)
    decades = [decade for decade in range(math.floor(low), math.ceil(high) + 1) if decade % every == 0]
    ticks = [(digit, decade) for decade in decades for digit in digits if low <= decade + math.log10(digit) <= high]
    places = [digit * 10.0**decade for digit, decade in ticks]
    if all(-3 <= decade <= 3 for _, decade in ticks):
        labels = [f"{place:g}" for place in places]
    else:
        labels = [f"{'' if digit == 1 else f'{digit}·'}10<sup>{signed(decade)}</sup>" for digit, decade in ticks]
    return {"type": "log", "range": [low, high], "tickvals": places, "ticktext": labels, **SMALL_TICKS}


def on_log_axis(value: float) -> float | None:
    """None where it has no place there."""
    return value if 0 < value < math.inf else None


def space_around(low: float, high: float, share: float, least: float) -> float:
    """At both ends of an axis: a share of what is between, and as much more as it takes to span ``least``."""
    return max(share * (high - low), (least - high + low) / 2)
