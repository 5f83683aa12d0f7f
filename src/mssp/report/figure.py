"""Figures as data: panels with the numbers that they show, before anything is drawn.

Every figure has a function that builds its :class:`Figure` (in ``figures/``). ``drawing.py`` draws it for a width, and
``figure_data.py`` writes its numbers as a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mssp._estimates import Estimate
from mssp.report.colours import INK, MUTED

Item = TypeVar("Item")
Json = dict[str, Any]  # a part of a figure, with plotly's keys

DASHED, DOTTED = "6px,4px", "2px,3px"
MAIN, MARKS = "main", "marks"  # names of legends: that of the series, and that of entries without data


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve, or points that are drawn alike.

    Args:
        name: as the legend has it; the series of several panels may share a name, and then an entry.
        x: the coordinates as computed, with ``y``; the curve has a gap where either is None.
        part: tells series of the same name apart, such as ``"input 2"``.
        ci: half-widths of the intervals around ``y``; NaN where the interval is unknown.
        ci_down: half-widths downwards, if intervals are not symmetric.
        at_x: where points are drawn, if not at ``x``, such as at logarithms; ``at_y`` likewise.
        x_shift: moves points and bars to the right, but not the band, so that the bars of neighbours do not overlap.
        hover: the text that appears over each point, or one text for all of them.
        legend: the name of the legend that the series belongs to; it has an entry there if ``in_legend``.
        rank: the place of the entry in its legend.
        marker: plotly's keys for a marker that needs more than ``symbol`` and ``size``.
        band: the opacity of a band as high as the intervals; 0 draws none.
        bars: plotly's keys for error bars as long as the intervals; None draws none.
    """

    name: str
    x: Sequence[float | None] = ()
    y: Sequence[float | None] = ()
    part: str = ""
    ci: Sequence[float] = ()
    ci_down: Sequence[float] = ()
    at_x: Sequence[float] = ()
    at_y: Sequence[float] = ()
    x_shift: float = 0.0
    hover: Sequence[str] | str = ""
    legend: str = MAIN
    in_legend: bool = True
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
    """A heatmap: rows of numbers ``z`` over two axes, with the axes' ``names`` and the ``labels`` of their ticks."""

    x: Sequence[float]
    y: Sequence[float]
    z: Sequence[Sequence[float | None]]
    names: tuple[str, str]
    labels: tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The x axis or the y axis of a panel.

    Args:
        title: with markup.
        look: the range, the ticks and so on, with plotly's keys.
        title_once: only the outermost panel of a row or column shows the title.
        labels_once: only the outermost panel shows the ticks' labels.
    """

    title: str = ""
    look: Json = field(default_factory=dict)
    title_once: bool = False
    labels_once: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """One pair of axes, and what is drawn on them.

    Args:
        subtitle: the line below the heading, with markup.
        vertical_line: the x coordinate of a dashed line from the bottom to the top.
        why_empty: the text that stands in place of data.
    """

    heading: str = ""
    subtitle: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    series: Sequence[Series] = ()
    cells: Cells | None = None
    vertical_line: float | None = None
    why_empty: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The scale of colours for cells: from dark at ``low`` to bright at ``high``, or ``reversed``; bright is good."""

    label: str
    low: float
    high: float
    reversed: bool


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels in rows under a title, notes and legends.

    Args:
        summary: what the figure shows, in words and numbers, for readers who cannot see it.
        rows: the panels of a row share its width. None leaves a place free.
        table_order: the order of the panels in tables of numbers, if it is not that of reading.
        size: the width in pixels of a panel of the longest row, and the height of every panel.
        gap: pixels between columns, and between rows.
        heading_room: pixels above a panel for a heading and a subtitle of one line each.
        legends: titles of the legends by name, from top to bottom; a legend without entries takes no room.
        marks: entries of legends that belong to no series.
    """

    title: str
    summary: str
    rows: Sequence[Sequence[Panel | None]]
    size: tuple[int, int]
    gap: tuple[int, int]
    table_order: Sequence[Panel] = ()
    heading_room: int = 46
    legends: Mapping[str, str] = field(default_factory=lambda: {MAIN: "", MARKS: ""})
    marks: Sequence[Series] = ()
    notes: Sequence[str] = ()
    scale: Scale | None = None

    @property
    def panels(self) -> Sequence[Panel]:
        return self.table_order or self.row_by_row

    @property
    def row_by_row(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row if panel is not None]

    @property
    def width(self) -> int:
        """Pixels across the longest row, without margins."""
        columns = max(map(len, self.rows))
        return columns * self.size[0] + (columns - 1) * self.gap[0]

    @property
    def description(self) -> str:
        """The title as a sentence, and the summary."""
        sentence = self.title if self.title.endswith((".", "?", "!")) else f"{self.title}."
        return f"{sentence} {self.summary}"


def in_rows(items: Sequence[Item], columns: int) -> list[list[Item | None]]:
    """Fills rows with panels or other items, from left to right; the last row may have free places.

    >>> [len(row) for row in in_rows([Panel(), Panel(), Panel()], 2)]
    [2, 2]
    """
    places = [*items, *[None] * (-len(items) % columns)]
    return [places[start : start + columns] for start in range(0, len(places), columns)]


def mark(name: str, legend: str = MARKS, **look: Any) -> Series:
    """An entry of a legend that belongs to no series and explains a line or a marker."""
    return Series(name=name, legend=legend, **({"colour": MUTED} | look))


def swatch(colour: str, opacity: float) -> Json:
    """The marker that stands for a band in a legend."""
    return {"symbol": "square", "size": 13, "color": colour, "opacity": opacity}


def estimated(points: Iterable[Estimate | None]) -> Json:
    """The arguments ``y`` and ``ci`` of a series of estimates."""
    points = list(points)
    nan = float("nan")
    return {
        "y": [None if point is None else point.value for point in points],
        "ci": [nan if point is None else point.ci for point in points],
    }
