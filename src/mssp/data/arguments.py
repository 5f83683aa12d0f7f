"""Checks of what a caller asks for: one sentence that names the argument and says what would be right."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, SupportsIndex


def whole(name: str, given: SupportsIndex, least: int | None = 1) -> int:
    """The number, if it is a whole one of at least ``least``.

    >>> whole("batch", 50)
    50
    """
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bound}, got {given!r}")
    return number


def between(name: str, given: float, low: float, high: float) -> float:
    """The number, if it lies in [low, high]."""
    if isinstance(given, bool) or not isinstance(given, Real) or not low <= given <= high:
        raise ValueError(f"{name} must be a number from {low:g} to {high:g}, got {given!r}")
    return float(given)


def file_at(path: str | Path) -> Path:
    """The path, if a file is there."""
    path = Path(path)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {found}: a file is needed")
    return path


def check_options(name: str, function: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Whether a function takes these options; its positional-only arguments are not options."""
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: it takes {', '.join(known)}")
