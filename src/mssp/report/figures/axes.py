"""Axes that several figures have: training steps, sizes of models, and logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mssp.report.figure import Json
from mssp.report.words import signed

SMALL_TICKS: Json = {"tickfont": {"size": 12}}  # for figures with many panels
_MIN_DECADES = 1.0  # that a logarithmic axis spans, so that noise does not look like a slope


def steps_axis(steps: int, ends: tuple[float, float], max_labels: int) -> Json:
    """An axis of training steps with about ``max_labels`` labels or fewer."""
    spacing = next((unit for unit in (1, 2, 5, 10, 20, 50, 100, 200, 500) if steps <= max_labels * unit), steps)
    return {"range": list(ends), "tick0": 0, "dtick": spacing, **SMALL_TICKS}


def sizes_axis(sizes: Sequence[int], margin: float) -> Json:
    """A logarithmic axis of the sizes of models, with a label at each size.

    Args:
        margin: the space at either end, as a fraction of the distance between the smallest and the largest size.
    """
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    space = margin * (high - low) or 0.2
    labels = {"tickvals": list(sizes), "ticktext": [str(size) for size in sizes]}
    return {"type": "log", "range": [low - space, high + space], **labels, **SMALL_TICKS}


def log_axis(values: Sequence[float]) -> Json:
    """A logarithmic axis around positive values, with labels such as 0.1 or 3·10⁶."""
    low, high = math.log10(min(values)), math.log10(max(values))
    space = space_around(low, high, 0.08, _MIN_DECADES)
    low, high = low - space, high + space
    spacing = math.ceil((high - low) / 5)
    digits = (1, 2, 5) if high - low < 5 / 3 else (1, 3) if high - low < 3 else (1,)
    decades = [decade for decade in range(math.floor(low), math.ceil(high) + 1) if decade % spacing == 0]
    ticks = [(digit, decade) for decade in decades for digit in digits if low <= decade + math.log10(digit) <= high]
    places = [digit * 10.0**decade for digit, decade in ticks]
    if all(-3 <= decade <= 3 for _, decade in ticks):
        labels = [f"{place:g}" for place in places]
    else:
        labels = [f"{'' if digit == 1 else f'{digit}·'}10<sup>{signed(decade)}</sup>" for digit, decade in ticks]
    return {"type": "log", "range": [low, high], "tickvals": places, "ticktext": labels, **SMALL_TICKS}


def on_log_axis(value: float) -> float | None:
    """The value, or None if a logarithmic axis has no place for it."""
    return value if 0 < value < math.inf else None


def space_around(low: float, high: float, margin: float, min_span: float) -> float:
    """The space at either end of an axis: a fraction of its range, and more if it would span less than ``min_span``."""
    return max(margin * (high - low), (min_span - high + low) / 2)
