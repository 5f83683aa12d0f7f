"""What all figures are drawn with: panels under a title and legends, lines and bands, axes, and words.

Sizes are pixels: a panel is as large among twelve as among two, and the figure grows. Every figure carries a paragraph
that says in words what it shows (:func:`description_of`), for those who cannot see it.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mssp._estimates import Estimate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Json = dict[str, Any]  # a part of a figure, in plotly's words
Axes = tuple[Json, Json, Json]  # a panel's x axis, its y axis, and what puts a trace on them

NEED_PLOTLY = "plots need plotly: pip install 'mssp[report]'"
INK, MUTED, _RULE = "#1a1a1a", "#595959", "#e4e4e4"
TITLE, HEADING, VERDICT = "title", "heading", "verdict"  # names of annotations, by which they are found again
DASHED, DOTTED = "6px,4px", "2px,3px"
SMALL_TICKS: Json = {"tickfont": {"size": 12}}  # of figures with many panels
_LEFT, _RIGHT, _BOTTOM, _LINE = 84, 28, 62, 24  # margins, and the height of a line of title or legend
# Magma without its ends: lightness falls evenly, so that widths keep their order in grey and for the colour-blind.
_LIGHT, _DARK = 0.78, 0.08
_LEAST_DECADES = 1.0  # that a panel spans: noise is not to look like a slope


class Canvas:
    """Panels in rows and columns under a title and legends."""

    def __init__(
        self, title: str, shape: tuple[int, int], panel: tuple[int, int], gap: tuple[int, int], above: int, legends: int
    ) -> None:
        self.title, self.panel, self.gap, self.above = title, panel, gap, above
        self.inner = inner_size(shape, panel, gap)
        lines = textwrap.wrap(title, max(24, (self.inner[0] - 150) // 9))  # clear of the page's buttons
        self.under_title = 16 + _LINE * len(lines)
        top = self.under_title + _LINE * legends + 8 + above
        self.width, self.height = _LEFT + self.inner[0] + _RIGHT, top + self.inner[1] + _BOTTOM
        self.data: list[Json] = []
        self.panels, self.newest = 0, ""
        self.layout: Json = {
            "width": self.width,
            "height": self.height,
            "margin": {"l": _LEFT, "r": _RIGHT, "t": top, "b": _BOTTOM, "autoexpand": False},
            "font": {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "template": "none",  # whatever the user's default is
            "hoverlabel": {"align": "left"},
            "annotations": [],
            "shapes": [],
        }
        # Not plotly's own title, which cuts a second line off.
        self.note(html_lines(lines), size=18, name=TITLE, x=0, y=1, yshift=top - 16, yanchor="top")

    def note(self, text: str, *, size: int, colour: str = INK, **place: Any) -> None:
        """Text at a place, on paper where no panel's axes are named."""
        place = {"xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"} | place
        font = {"size": size, "color": colour}
        note = {"text": text, "font": font, "align": "left", "showarrow": False, "borderpad": 0, "borderwidth": 0}
        self.layout["annotations"].append(note | place)

    def widen(self, by: int) -> None:
        self.layout["width"] += max(by, 0)
        self.layout["margin"]["r"] += max(by, 0)

    # -- panels --------------------------------------------------------------------------------------------------------

    def axes(self, row: int, column: int, columns: int | None = None) -> Axes:
        """A new panel's axes, to be completed, and what puts a trace on them.

        Args:
            columns: of this row, where it has others than the rest: they fill its width.
        """
        self.panels += 1
        self.newest = number = str(self.panels) if self.panels > 1 else ""  # plotly calls the first axis x, not x1
        across, down = self.inner
        width = self.panel[0] if columns is None else (across - (columns - 1) * self.gap[0]) / columns
        x0 = column * (width + self.gap[0])
        y0 = down - self.panel[1] - row * (self.panel[1] + self.gap[1])
        common = {"showgrid": True, "gridcolor": _RULE, "zeroline": False, "showline": True, "linecolor": MUTED}
        common |= {"ticks": "outside", "ticklen": 4, "tickcolor": MUTED, "tickfont": {"size": 14}}
        x = common | {"domain": [x0 / across, (x0 + width) / across], "anchor": f"y{number}"}
        y = common | {"domain": [y0 / down, (y0 + self.panel[1]) / down], "anchor": f"x{number}"}
        self.layout[f"xaxis{number}"], self.layout[f"yaxis{number}"] = x, y
        return x, y, {"xaxis": f"x{number}", "yaxis": f"y{number}"}

    def heading(self, lines: Sequence[str], verdict: str = "") -> None:
        """Above the newest panel."""
        at = self._in_newest(0, 1)
        self.note(f"<b>{html_lines(lines)}</b>", size=14, name=HEADING, yshift=22 if verdict else 4, **at)
        if verdict:
            self.note(verdict, size=12, colour=MUTED, name=VERDICT, yshift=4, **at)

    def leave_empty(self, axes: Axes, why: str) -> None:
        """The newest panel has no data, and says so."""
        # plotly drops axes that no trace is on, and what refers to them lands on others.
        self.data.append({"type": "scatter", "name": "", "x": [None], "y": [None], "showlegend": False} | axes[2])
        for axis in axes[:2]:
            axis |= {"range": [0, 1], "showticklabels": False, "ticks": "", "showgrid": False}
        middle = {"xanchor": "center", "yanchor": "middle", **self._in_newest(0.5, 0.5)}
        self.note(f"nothing to show:<br>{why}", size=13, colour=MUTED, **middle)

    def _in_newest(self, x: float, y: float) -> Json:
        """A place in the newest panel, from its lower left at (0, 0) to its upper right at (1, 1)."""
        return {"xref": f"x{self.newest} domain", "yref": f"y{self.newest} domain", "x": x, "y": y}

    # -- legends -------------------------------------------------------------------------------------------------------

    def legend(self, name: str, row: int, title: str = "") -> None:
        y = 1 - (self.under_title + _LINE * row) / self.height
        place = {"x": 0, "xref": "paper", "xanchor": "left", "y": y, "yref": "container", "yanchor": "top"}
        self.layout[name] = place | {"orientation": "h", "itemsizing": "trace", "font": {"size": 13}}
        if title:
            # plotly sets titles at the top; in a line as high as that of a larger font they are level with the entries.
            text = f'<span style="font-size:13px">{title}</span>  '
            self.layout[name]["title"] = {"text": text, "side": "left", "font": {"size": 16, "color": MUTED}}

    def legends(self, rows: Mapping[str, int], titles: Mapping[str, str], first: int = 0) -> None:
        """One under the other, each of so many rows."""
        for name, taken in rows.items():
            self.legend(name, first, titles.get(name, ""))
            first += taken

    def mark(self, name: str, **style: Any) -> None:
        """An entry of the second legend, without data: what a mark means."""
        entry = {"type": "scatter", "x": [None], "y": [None], "name": name, "legend": "legend2", "showlegend": True}
        self.data.append(entry | style)

    def name_once(self, mode: str) -> None:
        """The first trace of each name stands in the legend for all of them."""
        named = set()
        for trace in self.data:
            if trace.get("mode") == mode and trace["name"] not in named:
                named.add(trace["name"])
                trace["showlegend"] = True

    def figure(self, description: str) -> Figure:
        try:
            from plotly.graph_objects import Figure
        except ImportError:
            raise ValueError(NEED_PLOTLY) from None
        ended = self.title if self.title.endswith((".", "?", "!")) else f"{self.title}."
        # What it takes to set the panels anew for another width.
        meta = {"title": self.title, "description": f"{ended} {description}", "gap": self.gap, "above": self.above}
        return Figure(data=self.data, layout=self.layout | {"meta": meta})


def inner_size(shape: tuple[int, int], panel: tuple[int, int], gap: tuple[int, int]) -> tuple[int, int]:
    """Of columns and rows of panels, with the gaps between them."""
    across, down = (n * size + (n - 1) * space for n, size, space in zip(shape, panel, gap, strict=True))
    return across, down


def legend_rows(labels: Sequence[str], across: int) -> int:
    """How many it takes: plotly puts entries that do not fit on one line into columns of equal widths."""
    widths = entry_widths(labels)
    room = across - 120  # less its title
    return 1 if sum(widths) <= room else math.ceil(len(widths) / max(room // max(widths), 1))


def entry_widths(labels: Iterable[str]) -> list[float]:
    """Pixels that a legend’s entries take: rather too many than too few."""
    return [44 + 7.5 * len(label) for label in labels]


def title_of(figure: Figure) -> str:
    """Without markup."""
    meta = figure.layout.meta
    title = meta.get("title") if isinstance(meta, Mapping) else None
    return title or re.sub(r"<[^>]*>", " ", figure.layout.title.text or "").strip() or "Figure"


def description_of(figure: Figure) -> str:
    """What a figure shows, in words and numbers; empty for figures made elsewhere."""
    meta = figure.layout.meta
    return str(meta.get("description", "")) if isinstance(meta, Mapping) else ""


# -- traces ------------------------------------------------------------------------------------------------------------


def line_trace(
    xs: Iterable[float | None], ys: Iterable[float | None], told: Iterable[str], *, name: str, **style: Any
) -> Json:
    """With a marker at each place, a gap where there is None, and what is told of a place when one points at it."""
    line: Json = {"x": list(xs), "y": list(ys), "mode": "lines+markers", "connectgaps": False}
    line |= {"text": list(told), "hovertemplate": f"{name}<br>%{{text}}<extra></extra>"}
    return _hidden(name) | line | style


def band_trace(
    xs: Iterable[float], points: Iterable[Estimate | None], colour: str, opacity: float, *, name: str, **style: Any
) -> Json:
    """Around estimates, as high as they are uncertain; without places (``x`` is empty) where none says how much."""
    outline = _outline(xs, points)
    band: Json = {"x": [x for x, _ in outline], "y": [y for _, y in outline], "mode": "none", "hoverinfo": "skip"}
    band |= {"fill": "toself", "fillcolor": colour, "opacity": opacity}
    return _hidden(name) | band | style


def _hidden(name: str) -> Json:
    """Not in the legend itself, but switched on and off by the entry of its name."""
    return {"type": "scatter", "name": name, "legendgroup": name, "showlegend": False}


def _outline(xs: Iterable[float], points: Iterable[Estimate | None]) -> list[tuple[float | None, float | None]]:
    """Of a band: for each stretch without a gap, there along the top and back along the bottom."""
    outline: list[tuple[float | None, float | None]] = []
    stretch: list[tuple[float, Estimate]] = []
    for x, point in [*zip(xs, points, strict=True), (math.nan, None)]:
        if point is not None and math.isfinite(point.ci):
            stretch.append((x, point))
        elif stretch:
            outline += [(None, None)] if outline else []
            outline += [(place, here.value + here.ci) for place, here in stretch]
            outline += [(place, here.value - here.ci) for place, here in reversed(stretch)]
            stretch = []
    return outline


def standing_for(series: str = "", **values: Iterable[float]) -> Json:
    """What a trace's data are, for those who read numbers.

    Args:
        series: which of those that share its name it is.
        values: the places by axis, where they are drawn elsewhere: at logarithms, or a little aside.
    """
    return {"meta": {"series": series, **{axis: list(each) for axis, each in values.items()}}}


def values_of(points: Iterable[Estimate | None]) -> list[float | None]:
    return [None if point is None else point.value for point in points]


def error_bars(points: Iterable[Estimate | None], colour: str) -> Json:
    bars = [point.ci if point is not None and math.isfinite(point.ci) else 0.0 for point in points]
    return {"array": bars, "color": colour, "thickness": 1.5, "width": 4}


def stroke(colour: str, dash: str = "solid") -> Json:
    return {"color": colour, "width": 2 if dash == "solid" else 1.5, "dash": dash}


def swatch(colour: str, opacity: float) -> Json:
    """The marker that stands for bands in a legend."""
    return {"symbol": "square", "size": 13, "color": colour, "opacity": opacity}


def shades(count: int, first: float = _LIGHT, last: float = _DARK) -> list[str]:
    """From light to dark, or between other places of the scale."""
    try:
        from plotly.colors import sample_colorscale
    except ImportError:
        raise ValueError(NEED_PLOTLY) from None
    shares = [index / max(count - 1, 1) for index in range(count)]
    return list(sample_colorscale("Magma", [first + share * (last - first) for share in shares]))


# -- axes --------------------------------------------------------------------------------------------------------------


def axis_title(text: str, length: int = 1000) -> Json:
    return {"text": html_lines(textwrap.wrap(text, length // 6)), "font": {"size": 13}, "standoff": 8}


def steps_axis(steps: int, title: str, ends: tuple[float, float], most: int) -> Json:
    """Over training, with a label at about ``most`` of its steps or fewer."""
    every = next((unit for unit in (1, 2, 5, 10, 20, 50, 100, 200, 500) if steps <= most * unit), steps)
    return {"range": list(ends), "tick0": 0, "dtick": every, "title": axis_title(title), **SMALL_TICKS}


def growing_axis(sizes: Sequence[int], title: str, length: int, share: float) -> Json:
    """Over what grows, logarithmic, with labels at sizes, as many as fit, and a share of it as space at both ends."""
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    space = share * (high - low) or 0.2
    labelled = sizes[:: math.ceil(len(sizes) * 44 / length)]
    ticks = {"tickvals": labelled, "ticktext": [str(size) for size in labelled]}
    return {"type": "log", "range": [low - space, high + space], "title": axis_title(title), **ticks, **SMALL_TICKS}


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


# -- words -------------------------------------------------------------------------------------------------------------


def html_lines(lines: Iterable[str]) -> str:
    return "<br>".join(escape(line, quote=False) for line in lines)


def many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def signed(value: float, digits: int = 2) -> str:
    """With a minus sign, which is no hyphen."""
    return f"{value:.{digits}g}".replace("-", "−")
