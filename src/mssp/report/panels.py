"""The panels of a figure, read back from its layout: where they stand, what they are called, what their axes are.

What the outer panels of a figure say for those beside and above them is said of each panel here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

from mssp.report.canvas import HEADING, VERDICT


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        number: of its axes, as plotly counts: none for the first.
        row: from the top.
        x: from its left to its right end, as parts of what is between the margins; ``y`` from its lower to its upper.
        heading: with markup, as drawn, and so are ``verdict`` and the axes' titles. Empty where there is none.
        x_title: its own, or that of a panel under it; ``y_title`` its own, or that of a panel beside it.
    """

    number: str
    row: int
    x: tuple[float, float]
    y: tuple[float, float]
    heading: str
    verdict: str
    x_title: str
    y_title: str


def panels_of(layout: Mapping[str, Any]) -> list[Panel]:
    """In the order of reading: row by row.

    >>> from mssp.report.canvas import Canvas
    >>> canvas = Canvas("Title", shape=(2, 1), panel=(300, 200), gap=(50, 50), above=30, legends=0)
    >>> for column, text in enumerate(("left", "right")):
    ...     _ = canvas.axes(0, column)
    ...     canvas.heading([text])
    >>> [(panel.number, panel.heading) for panel in panels_of(canvas.layout)]
    [('', '<b>left</b>'), ('2', '<b>right</b>')]
    """
    numbers = [key.removeprefix("xaxis") for key in layout if re.fullmatch(r"xaxis\d*", key)]
    axes = {number: (layout[f"xaxis{number}"], layout[f"yaxis{number}"]) for number in numbers}
    places = {n: (_ends(x), _ends(y)) for n, (x, y) in axes.items() if "domain" in x and "domain" in y}
    tops = sorted({y for _, y in places.values()}, reverse=True)
    words = {
        (note.get("name"), str(note.get("xref")).removesuffix(" domain")): note["text"]
        for note in layout.get("annotations", ())
    }
    order = sorted(places, key=lambda number: (tops.index(places[number][1]), places[number][0]))
    upwards = order[::-1]
    return [
        Panel(
            number,
            tops.index(places[number][1]),
            *places[number],
            words.get((HEADING, f"x{number}"), ""),
            words.get((VERDICT, f"x{number}"), ""),
            _first_title(axes[other][0] for other in (number, *upwards) if places[other][0] == places[number][0]),
            _first_title(axes[other][1] for other in (number, *order) if places[other][1] == places[number][1]),
        )
        for number in order
    ]


def plain(markup: str) -> str:
    """Words without their markup, on one line.

    >>> plain("<b>Regime II ·<br>SGD &amp; more</b>")
    'Regime II · SGD & more'
    """
    spaced = re.sub(r"<br>", " ", markup)
    return unescape(re.sub(r"<[^>]*>", "", spaced)).strip()


def _ends(axis: Mapping[str, Any]) -> tuple[float, float]:
    """Rounded: equal ends are computed in different ways."""
    low, high = (round(end, 9) for end in axis["domain"])
    return low, high


def _first_title(axes: Any) -> str:
    return next((text for axis in axes if (text := axis.get("title", {}).get("text", ""))), "")
