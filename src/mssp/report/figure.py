"""Figures as data: panels with the numbers that they show, before anything is drawn.

One function per figure builds a :class:`Figure`, ``drawing.py`` draws it for a width, and ``figure_data.py`` writes its
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mssp._estimates import Estimate
from mssp.report.colours import INK, MUTED
from mssp.sweep.transfer import Contender

Json = dict[str, Any]  # a part of a figure, in plotly's words

DASHED, DOTTED = "6px,4px", "2px,3px"
MAIN, MARKS = "main", "marks"  # legends: of series, and of what has no data


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name.

    Args:
        x: where points are, and ``y`` what they come to, as computed; there is a gap where one of them is None.
        part: which of those that share its name it is.
        ci: how far intervals reach to either side; NaN where nobody knows.
        below: how far they reach down, where that is not as far.
        at_x: where points are drawn, if not at x: at logarithms, for one; ``at_y`` likewise.
        aside: how far to the right of that they are drawn, and without their band, to stand side by side.
        told: what one reads when one points at a point, or at any of them.
        legend: of the figure's, the one that it belongs to; it stands there unless it is not ``named``.
        rank: its place in the legend.
        marker: in plotly's words, for one that is not told by its symbol and its size.
        band: the opacity of a band as high as the intervals; without one it is 0.
        bars: bars as long as the intervals, in plotly's words; None without.
    """

    name: str
    x: Sequence[float | None] = ()
    y: Sequence[float | None] = ()
    part: str = ""
    ci: Sequence[float] = ()
    below: Sequence[float] = ()
    at_x: Sequence[float] = ()
    at_y: Sequence[float] = ()
    aside: float = 0.0
    told: Sequence[str] | str = ""
    legend: str = MAIN
    named: bool = True
    rank: int = 1000
    mode: str = "lines+markers"
    colour: str = INK
    dash: str = "solid"
    width: float = 2
    symbol: str = "circle"
    size: float = 6
    marker: Json | None = None
    band: float = 0.0
    bars: Json | None = None


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Rows of numbers over two axes, drawn side by side; ``labels`` are what places are called, by axis."""

    x: Sequence[float]
    y: Sequence[float]
    z: Sequence[Sequence[float | None]]
    names: tuple[str, str]
    labels: tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One side of a panel.

    Args:
        title: with markup.
        look: range, ticks and the rest, in plotly's words.
        title_once: only the outermost panel shows the title; with ``labels_once``, the labels too.
    """

    title: str = ""
    look: Json = field(default_factory=dict)
    title_once: bool = False
    labels_once: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes, and what is drawn on them.

    Args:
        verdict: below the heading, with markup.
        upright: where a dashed line stands.
        why_empty: what is said in place of data.
        contender: what a panel of a sweep is of.
    """

    heading: str = ""
    verdict: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    series: Sequence[Series] = ()
    cells: Cells | None = None
    upright: float | None = None
    why_empty: str = ""
    contender: Contender | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The colours of cells: from low to high, bright where it is good."""

    label: str
    low: float
    high: float
    reversed: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels in rows under a title, notes and legends.

    Args:
        words: what it shows, in words and numbers, for those who cannot see it.
        rows: panels of a row share its width. None leaves a place free.
        order: of all panels in tables, where that is not the order of reading.
        size: pixels across a panel of the longest row, and down any.
        gap: pixels between columns, and between rows.
        above: pixels above a panel for a heading and a verdict of one line each.
        legends: from the top, names and titles; those without entries take no room.
        marks: entries of legends without data.
    """

    title: str
    words: str
    rows: Sequence[Sequence[Panel | None]]
    size: tuple[int, int]
    gap: tuple[int, int]
    order: Sequence[Panel] = ()
    above: int = 46
    legends: Mapping[str, str] = field(default_factory=lambda: {MAIN: "", MARKS: ""})
    marks: Sequence[Series] = ()
    notes: Sequence[str] = ()
    scale: Scale | None = None

    @property
    def panels(self) -> Sequence[Panel]:
        return self.order or self.as_read

    @property
    def as_read(self) -> list[Panel]:
        """Panels, row by row."""
        return [panel for row in self.rows for panel in row if panel is not None]

    @property
    def across(self) -> int:
        """Pixels across a row, as it is by itself."""
        columns = max(map(len, self.rows))
        return columns * self.size[0] + (columns - 1) * self.gap[0]

    @property
    def description(self) -> str:
        ended = self.title if self.title.endswith((".", "?", "!")) else f"{self.title}."
        return f"{ended} {self.words}"


def in_rows(panels: Sequence[Panel], columns: int) -> list[list[Panel | None]]:
    """Panels in the order of reading; the last row may have free places.

    >>> [len(row) for row in in_rows([Panel(), Panel(), Panel()], 2)]
    [2, 2]
    """
    places = [*panels, *[None] * (-len(panels) % columns)]
    return [places[start : start + columns] for start in range(0, len(places), columns)]


def mark(name: str, legend: str = MARKS, **look: Any) -> Series:
    """An entry of a legend, without data: what a mark means."""
    return Series(name=name, legend=legend, **({"colour": MUTED} | look))


def swatch(colour: str, opacity: float) -> Json:
    """The marker that stands for bands in a legend."""
    return {"symbol": "square", "size": 13, "color": colour, "opacity": opacity}


def estimated(points: Iterable[Estimate | None]) -> Json:
    """The heights and the intervals of a series."""
    points = list(points)
    nan = float("nan")
    return {
        "y": [None if point is None else point.value for point in points],
        "ci": [nan if point is None else point.ci for point in points],
    }
