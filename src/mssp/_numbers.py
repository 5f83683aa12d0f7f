"""Numbers that a caller gives: one sentence names the argument and says what would be right."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import SupportsIndex


def whole(name: str, given: SupportsIndex, least: int | None = 1) -> int:
    """The number, if it is a whole one of at least ``least``.

    >>> whole("batch", 50)
    50
    """
    number = _as_int(given)
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bound}, got {given!r}")
    return number


def between(name: str, given: float, low: float, high: float) -> float:
    """The number, if it lies in [low, high]."""
    if isinstance(given, bool) or not isinstance(given, Real) or not low <= given <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {given!r}")
    return float(given)


# Every product of sizes and their inverses stays far inside the range of floats.
_LARGEST = 2**53


def positive_int(name: str, given: SupportsIndex) -> int:
    """The number, if it is a positive whole one; a ValueError that names it otherwise."""
    size = _as_int(given) or 0
    if not 0 < size <= _LARGEST:
        shown = repr(given) if size <= _LARGEST else f"one of {len(str(size))} digits"
        raise ValueError(f"{name} must be a positive whole number, got {shown}")
    return size


def positive(name: str, given: float) -> float:
    number = _finite(given)
    if number is None or number <= 0:
        raise ValueError(f"{name} must be a positive number, got {given!r}")
    return number


def positive_or_zero(name: str, given: float) -> float:
    number = _finite(given)
    if number is None or number < 0:
        raise ValueError(f"{name} must be a number of at least 0, got {given!r}")
    return number


def _as_int(given: object) -> int | None:
    """A whole number as an int, None for anything else; True and False are no numbers."""
    try:
        return None if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


def _finite(given: object) -> float | None:
    """A real number as a float, None for anything else."""
    if not isinstance(given, Real) or isinstance(given, bool):
        return None
    try:
        number = float(given)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
