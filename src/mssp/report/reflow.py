"""Figures for other widths, phones and paper among them: fewer columns of panels, and words wrapped anew.

Nothing is scaled: text is as large on a phone as on a wide screen. Panels keep their heights and share the width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from mssp.report.canvas import HEADING, TITLE, VERDICT, Json, axis_title, entry_widths
from mssp.report.panels import Panel, panels_of, plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_Places = Mapping[str, tuple[int, int, int]]  # each panel's row, its column, and how many columns there are in its row

_SIZE = 1000, 600  # of figures that say none
_LEAST = 250  # pixels across a panel: less is no picture
_GAP = 72  # between panels with labels of their own
_NARROW = 480  # a figure without room for wide margins
_NARROW_MARGINS = {"l": 66, "r": 14}
_TITLES_UNDER = 8  # more between rows, where every panel has its axes' titles
_TOP, _FIRST_LINE, _MORE_LINES = 4, 24, 19  # above all; a legend's first line and its others
_WORDS_LINE = 18  # above a panel


def reflowed(figure: Figure, across: int) -> Json:
    """A figure's layout for a width in pixels, without its title, which stands in the page as a heading.

    >>> from mssp.report.canvas import Canvas
    >>> canvas = Canvas("Title", shape=(2, 1), panel=(300, 200), gap=(50, 50), above=30, legends=0)
    >>> for column, text in enumerate(("left", "right")):
    ...     _ = canvas.axes(0, column)
    ...     canvas.heading([text])
    >>> layout = reflowed(canvas.figure("Two panels."), 360)
    >>> layout["width"], layout["xaxis"]["domain"], layout["xaxis2"]["domain"]
    (360, [0.0, 1.0], [0.0, 1.0])

    Where fewer columns fit than there are, panels fill rows in the order of reading, each with labels of its own. A
    figure that does not reflow (:func:`reflows`) stays as wide as it is.
    """
    layout: Json = deepcopy(figure.layout.to_plotly_json())
    layout["width"], layout["height"] = layout.get("width") or _SIZE[0], layout.get("height") or _SIZE[1]
    if not _from_canvas(layout):
        return layout
    sheet = _Sheet(layout, figure.data)
    if reflows(figure) and across < layout["width"]:
        sheet.set_panels(across)
    sheet.set_top()
    return layout


def reflows(figure: Figure) -> bool:
    """Whether it has other layouts than its own.

    Panels without headings get their meaning from where they stand, and a colour bar stands beside them.
    """
    layout = figure.layout.to_plotly_json()
    panels = panels_of(layout)
    named = len(panels) == 1 or all(panel.heading for panel in panels)
    return _from_canvas(layout) and named and "coloraxis" not in layout


def _from_canvas(layout: Mapping[str, Any]) -> bool:
    meta = layout.get("meta")
    return isinstance(meta, Mapping) and {"gap", "above"} <= set(meta)


class _Sheet:
    """A layout that is being changed."""

    def __init__(self, layout: Json, traces: Sequence[Any]) -> None:
        self.layout, self.traces, self.panels = layout, traces, panels_of(layout)
        (self.gap, self.gap_down), self.above = layout["meta"]["gap"], layout["meta"]["above"]
        margin = layout["margin"]
        self.across = layout["width"] - margin["l"] - margin["r"]  # between the margins
        self.down = layout["height"] - margin["t"] - margin["b"]

    # -- panels --------------------------------------------------------------------------------------------------------

    def set_panels(self, width: int) -> None:
        margin = self.layout["margin"]
        margin |= _NARROW_MARGINS if width < _NARROW else {}
        across = width - margin["l"] - margin["r"]
        height = round((self.panels[0].y[1] - self.panels[0].y[0]) * self.down)
        places = self._places(across)
        widths = {n: (across - (columns - 1) * self.gap) / columns for n, (_, _, columns) in places.items()}
        tops = self._wrap(widths, places, height)
        self.across, self.down = across, max(tops) + height
        for number, (row, column, _) in places.items():
            x, y = self.layout[f"xaxis{number}"], self.layout[f"yaxis{number}"]
            x["domain"] = _parts(column * (widths[number] + self.gap), widths[number], self.across)
            y["domain"] = _parts(self.down - tops[row] - height, height, self.down)
            _thin_out(x, widths[number])
        self.layout["width"] = width

    def _places(self, across: float) -> _Places:
        """As many columns as fit: as they are, or fewer, filled in the order of reading."""
        natural = min(panel.x[1] - panel.x[0] for panel in self.panels) * self.across
        columns = round((self.across + self.gap) / (natural + self.gap))
        if columns * min(_LEAST, natural) + (columns - 1) * self.gap <= across:
            return {panel.number: (panel.row, *self._slot(panel)) for panel in self.panels}
        self.gap = max(self.gap, _GAP)
        fewer = max(min(columns - 1, (across + self.gap) // (_LEAST + self.gap)), 1)
        self._label_all()
        return {panel.number: (*divmod(place, fewer), fewer) for place, panel in enumerate(self.panels)}

    def _slot(self, panel: Panel) -> tuple[int, int]:
        """A panel's column, and how many its row has: those of one row are equally wide, and some may be missing."""
        pitch = (panel.x[1] - panel.x[0]) * self.across + self.gap
        return round(panel.x[0] * self.across / pitch), round((self.across + self.gap) / pitch)

    def _label_all(self) -> None:
        """Panels that are no longer beside those that had labels for them."""
        self.gap_down += _TITLES_UNDER
        for panel in self.panels:
            x, y = self.layout[f"xaxis{panel.number}"], self.layout[f"yaxis{panel.number}"]
            for axis, title in ((x, panel.x_title), (y, panel.y_title)):
                if axis.get("ticks") != "":  # the panel is not empty
                    axis |= {"showticklabels": True, "title": axis_title("") | {"text": title}}

    def _wrap(self, widths: Mapping[str, float], places: _Places, height: int) -> list[int]:
        """Headings and verdicts; the answer is where rows then start, in pixels from the top of the first."""
        before = max(_lines(panel.heading) + _lines(panel.verdict) for panel in self.panels)
        more: dict[int, int] = {}  # lines, by row
        for panel in self.panels:
            row, across = places[panel.number][0], widths[panel.number]
            heading, verdict = _wrapped(panel.heading, across / 8), _wrapped(panel.verdict, across / 6)
            more[row] = max(more.get(row, -before), _lines(heading) + _lines(verdict) - before)
            for note in self.layout["annotations"]:
                if note.get("xref") == f"x{panel.number} domain" and note.get("name") == HEADING:
                    note |= {"text": heading, "yshift": 4 + _WORDS_LINE * _lines(verdict)}
                if note.get("xref") == f"x{panel.number} domain" and note.get("name") == VERDICT:
                    note |= {"text": verdict}
        self.above += _WORDS_LINE * more[0]
        tops = [0]
        for row in range(1, len(more)):
            tops.append(tops[-1] + height + self.gap_down + _WORDS_LINE * more[row])
        return tops

    # -- above them ----------------------------------------------------------------------------------------------------

    def set_top(self) -> None:
        """Notes and legends, one under the other, where the title was too."""
        layout, at = self.layout, _TOP
        layout["annotations"] = [note for note in layout["annotations"] if note.get("name") != TITLE]
        notes, legends = {}, {}
        for index, note in enumerate(layout["annotations"]):
            if note.get("xref") == "paper" and (note["x"], note["y"]) == (0, 1):
                note["text"] = _wrapped(note["text"], self.across / 7)
                notes[index] = at
                at += _MORE_LINES * _lines(note["text"]) + 6
        names = [key for key in layout if re.fullmatch(r"legend\d*", key)]
        for name in sorted(names, key=lambda name: -layout[name]["y"]):
            rows = self._legend_rows(name)
            legends[name] = at
            at += _FIRST_LINE + _MORE_LINES * (rows - 1) if rows else 0
        top = at + 8 + self.above
        layout["margin"]["t"] = top
        layout["height"] = top + self.down + layout["margin"]["b"]
        for index, start in notes.items():
            layout["annotations"][index]["yshift"] = top - start
        for name, start in legends.items():
            layout[name]["y"] = 1 - start / layout["height"]

    def _legend_rows(self, name: str) -> int:
        """How many it takes. A title stands above entries that do not fit beside it, where plotly would cut them."""
        legend = self.layout[name]
        entries = [trace for trace in self.traces if trace.showlegend and (trace.legend or "legend") == name]
        widths = entry_widths([trace.name for trace in entries])
        title = plain(legend.get("title", {}).get("text", ""))
        legend["tracegroupgap"] = 0
        if self.layout["width"] < _NARROW:  # from the left edge on: some entries are as long as a panel is wide
            legend |= {"xref": "container", "x": 0.02}
        if sum(widths) + 8 * len(title) <= self.across or not entries:
            return min(len(entries), 1)
        if title:
            legend["title"]["side"] = "top"
        rows = _packed(widths, self.across)
        if not any(trace.legendgroup for trace in entries):  # in columns of equal widths
            rows = math.ceil(len(widths) / max(self.across // max(widths), 1))
        return rows + bool(title)


def _packed(widths: Sequence[float], across: float) -> int:
    """Rows of things that stand one after the other."""
    rows, at = 1, 0.0
    for width in widths:
        rows, at = (rows, at + width) if at + width <= across else (rows + 1, width)
    return rows


def _parts(start: float, length: float, whole: float) -> list[float]:
    return [max(start / whole, 0.0), min((start + length) / whole, 1.0)]


def _thin_out(axis: Json, across: float) -> None:
    """As many labels as fit."""
    if labels := axis.get("ticktext"):
        longest = max(len(plain(label)) for label in labels)
        every = math.ceil(len(labels) * (0.6 * axis["tickfont"]["size"] * longest + 8) / across)
        axis |= {"tickvals": axis["tickvals"][::every], "ticktext": labels[::every]}


# -- words -------------------------------------------------------------------------------------------------------------


def _wrapped(markup: str, length: float) -> str:
    """At spaces, rather at those around a dot, which then is not needed. Tags take no room."""
    text = re.sub(r"(\w-)<br>", r"\1", markup).replace("<br>", " ")
    if len(plain(text)) <= length:
        return text
    lines: list[str] = []
    for part in text.split(" · "):
        if lines and len(plain(f"{lines[-1]} · {part}")) <= length:
            lines[-1] += f" · {part}"
            continue
        lines.append("")
        for word in part.split():
            if not lines[-1] or len(plain(f"{lines[-1]} {word}")) <= length:
                lines[-1] = f"{lines[-1]} {word}".strip()
            else:
                lines.append(word)
    return "<br>".join(lines)


def _lines(markup: str) -> int:
    return markup.count("<br>") + 1 if markup else 0
