"""Colours of figures in a page: on its light ground, and on its dark one.

Figures name their colours for white paper. On a dark ground ink is light, white is the ground, and shades of widths run
the other way, so that the widest still stands out most. On both, lines contrast with the ground by 3 to 1 or more, and
text by 4.5 to 1, as WCAG 2.2 asks; bands and grid lines are quieter than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from mssp.report.canvas import shades

LIGHT_GROUND, DARK_GROUND = "#ffffff", "#15171c"
LINES, TEXT = 3.0, 4.5  # the least contrasts

# What grounds and grids are: they need not stand out.
QUIET = {"white": DARK_GROUND, "#efefef": "#2b2e36", "#e4e4e4": "#2b2e36"}
# What else figures use. Those that are good on both grounds are here too, so that a new colour is noticed.
LOUD = {
    "#1a1a1a": "#ececee", "#595959": "#a9adb6",
    # layers
    "#009e73": "#009e73", "#cc79a7": "#cc79a7", "#d55e00": "#f07a2e", "#56b4e9": "#56b4e9", "#0072b2": "#4f86e8",
    "#e69f00": "#e69f00",
    # terms, and what has no name
    "#882255": "#dd5fb4", "#332288": "#9c8ff5", "#999933": "#b5b545", "#cc6677": "#cc6677", "#44aa99": "#44aa99",
    "#117733": "#5fbf68", "#aa4499": "#c77ad0", "#ddaa33": "#ddaa33", "#66ccee": "#66ccee",
    # schemes, limits
    "#0b3c7d": "#a9c0ff", "#e8940c": "#e8940c", "#7a7a7a": "#9a9ea8", "#00a37a": "#1fd1a0",
}  # fmt: skip
# On cells of a heatmap, whose colours stay.
ON_CELLS = {"#1A1A1A": "#1A1A1A"}
# Parts of the scale that shades are of: on light ground without its light end, on dark ground without its dark one.
_ON_LIGHT, _ON_DARK = (0.67, 0.08), (0.49, 0.97)
_MOST_SHADES = 24
_NAMED = {"white": "#ffffff", "black": "#000000"}


def on_light(colour: str) -> str:
    """A figure's colour, darkened where a line of it would be faint on white.

    >>> on_light("#0b3c7d"), on_light("#e8940c")
    ('#0b3c7d', '#cc820b')
    """
    if colour in QUIET or colour in ON_CELLS:
        return colour
    return _shades(*_ON_LIGHT).get(colour) or _mixed(colour, "#000000", LIGHT_GROUND)


def on_dark(colour: str) -> str:
    """A figure's colour for a dark ground; one that is not known here is lightened until it stands out.

    >>> on_dark("#1a1a1a"), on_dark("white"), on_dark("#123456")
    ('#ececee', '#15171c', '#506982')
    """
    known = (QUIET | LOUD | ON_CELLS).get(colour) or _shades(*_ON_DARK).get(colour)
    return known or _mixed(colour, "#ffffff", DARK_GROUND)


def palettes(colours: Iterable[str]) -> dict[str, dict[str, str]]:
    """What to replace by what, for each ground.

    >>> palettes(["#1a1a1a", "#009e73"])
    {'light': {}, 'dark': {'#1a1a1a': '#ececee'}}
    """
    names = sorted(set(colours))
    found = {"light": {name: on_light(name) for name in names}, "dark": {name: on_dark(name) for name in names}}
    return {ground: {a: b for a, b in changes.items() if a != b} for ground, changes in found.items()}


def colours_of(part: Any, key: str = "") -> Iterator[str]:
    """Every colour that a part of a figure names; colour scales are none.

    >>> list(colours_of({"line": {"color": "#1a1a1a"}, "name": "white", "marker": {"color": ["white"]}}))
    ['#1a1a1a', 'white']
    """
    if isinstance(part, str) and key.endswith("color"):
        yield part
    elif isinstance(part, Mapping):
        for name, each in part.items():
            yield from colours_of(each, name)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from colours_of(each, key)


def contrast(one: str, other: str) -> float:
    """From 1, of equal colours, to 21, as WCAG defines it.

    >>> contrast("white", "#000000")
    21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@cache
def _shades(first: float, last: float) -> dict[str, str]:
    """Each shade that figures use, and what it is between other places of the scale."""
    counts = range(1, _MOST_SHADES + 1)
    return {a: b for n in counts for a, b in zip(shades(n), shades(n, first, last), strict=True)}


def _mixed(colour: str, into: str, ground: str) -> str:
    """With as much of another colour as it takes to contrast with the ground."""
    if not re.fullmatch(r"#[0-9a-f]{6}|rgb\([\d., ]+\)", colour):
        return colour
    for share in range(0, 100, 2):
        parts = zip(_parts(colour), _parts(into), strict=True)
        mixed = "#" + "".join(f"{round(a + (b - a) * share / 100):02x}" for a, b in parts)
        if contrast(mixed, ground) >= LINES:
            return mixed if share else colour
    return into


def _parts(colour: str) -> list[float]:
    """Red, green and blue, to 255."""
    colour = _NAMED.get(colour, colour)
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [float(part) for part in re.findall(r"[\d.]+", colour)]


def _luminance(colour: str) -> float:
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in (c / 255 for c in _parts(colour))]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
