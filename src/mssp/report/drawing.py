"""Draws figures: turns a :class:`Figure` into plotly's data, and into a layout for a given width.

Nothing is scaled: text is as large on a phone as on a wide screen. Where there is little room, panels are in fewer
columns, and each has its own labels. Panels keep their heights and share the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count

from mssp.report.colours import BLANK, GROUND, INK, LIGHT, MUTED, RULE, painted
from mssp.report.figure import Axis, Figure, Json, Panel, Series, in_rows
from mssp.report.words import markup, plain

# All lengths are in pixels.
_MIN_PANEL_WIDTH = 250  # a narrower panel is not readable
_LABELLED_GAP = 72  # between columns of panels that all have labels
_LEFT, _RIGHT, _BOTTOM = 84, 28, 62  # margins
_NARROW = 480  # figures that are less wide than this have narrow margins
_NARROW_LEFT, _NARROW_RIGHT = 66, 14
_EXTRA_ROW_GAP = 8  # between rows of panels that all have axis titles
_TOP, _TOP_OF_TITLE = 4, 16  # margins above a figure without a title, and above a title
_TITLE_LINE, _NOTE_LINE, _HEADING_LINE = 24, 19, 18  # heights of lines
_LEGEND_FIRST_LINE, _LEGEND_LINE = 24, 19
_SCALE_BAR, _SCALE_LABEL = 88, 170  # widths of the bar that shows a scale of colours, and of its label

_AXIS = {"showgrid": True, "gridcolor": RULE, "zeroline": False, "zerolinecolor": MUTED, "showline": True}
_AXIS |= {"linecolor": MUTED, "ticks": "outside", "ticklen": 4, "tickcolor": MUTED, "tickfont": {"size": 14}}
_AXIS |= {"title": {"font": {"size": 13}, "standoff": 8}}
_CORNER = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "top"}
_NO_DATA = {"type": "scatter", "name": "", "x": [None], "y": [None], "showlegend": False}
_EMPTY = {"range": [0, 1], "showticklabels": False, "ticks": "", "showgrid": False}
# What all figures share, whatever the user's default template is.
TEMPLATE: Json = {
    "layout": {
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": GROUND,
        "plot_bgcolor": GROUND,
        "hoverlabel": {"align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "annotationdefaults": {"align": "left", "showarrow": False, "borderpad": 0, "borderwidth": 0},
    }
}


def drawn(figure: Figure) -> Json:
    """The whole figure for plotly: as wide as it wants to be, with its title, in the colours for a light ground."""
    common, placed = fixed(figure), layout(figure, titled=True)
    axes = {name: common[name] | placed[name] for name in common if name in placed}
    complete = {"data": traces(figure), "layout": common | placed | axes | {"template": TEMPLATE}}
    return {name: painted(part, LIGHT) for name, part in complete.items()}


# -- data --------------------------------------------------------------------------------------------------------------


def traces(figure: Figure) -> list[Json]:
    """Plotly's traces, panel by panel: bands are under cells, and cells under series.

    The first series of a name has the entry in the legend.
    """
    legends = _legend_keys(figure)
    data: list[Json] = []
    in_legends: set[tuple[str, str]] = set()
    for panel, number in _numbered(figure).items():
        panel_traces = [_band(series) for series in panel.series if series.band and any(map(math.isfinite, series.ci))]
        panel_traces += [_cells(panel)] if panel.cells else []
        for series in panel.series:
            entry = series.legend, series.name
            panel_traces.append(_trace(series) | {"showlegend": series.in_legend and entry not in in_legends})
            in_legends |= {entry} if series.in_legend else set()
        # plotly drops axes without a trace, and then draws their annotations on other axes.
        panel_traces = panel_traces or [_NO_DATA]
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in panel_traces]
    data += [_trace(series) | {"x": [None], "y": [None], "showlegend": True} for series in figure.marks]
    return [trace | {"legend": legends.get(trace.get("legend", ""), "legend")} for trace in data]


def _legend_keys(figure: Figure) -> dict[str, str]:
    """Plotly's keys for the legends, by our names."""
    return {name: f"legend{number}" for name, number in zip(figure.legends, _numbers(), strict=False)}


def _numbered(figure: Figure) -> dict[Panel, str]:
    """The number of each panel's axes."""
    return dict(zip(figure.panels, _numbers(), strict=False))


def _numbers() -> Iterator[str]:
    """Suffixes with which plotly numbers axes and legends: the first has none, the second has 2."""
    yield ""
    yield from map(str, count(2))


def _shared(series: Series) -> Json:
    """The keys that a series and its band have in common; a click on the legend hides a whole group."""
    common = {"type": "scatter", "name": series.name, "legend": series.legend, "legendrank": series.rank}
    return common | ({"legendgroup": f"{series.legend} {series.name}"} if series.x and series.legend else {})


def _trace(series: Series) -> Json:
    xs = [x if x is None else x + series.x_shift for x in series.at_x or series.x]
    trace = _shared(series) | {"mode": series.mode, "x": xs, "y": [*(series.at_y or series.y)]}
    trace["line"] = {"color": series.colour, "width": series.width, "dash": series.dash}
    trace["marker"] = series.marker or {"color": series.colour, "symbol": series.symbol, "size": series.size}
    if isinstance(series.hover, str):
        trace |= {"hovertemplate": f"{series.hover}<extra></extra>"} if series.hover else {"hoverinfo": "skip"}
    else:
        trace |= {"text": [*series.hover], "hovertemplate": f"{series.name}<br>%{{text}}<extra></extra>"}
    if series.bars is not None:
        bars = [ci if math.isfinite(ci) else 0.0 for ci in series.ci]
        trace["error_y"] = {"array": bars, "visible": any(bars), "color": series.colour, **series.bars}
        trace["error_y"] |= {"arrayminus": [*series.ci_down]} if series.ci_down else {}
    return trace


def _band(series: Series) -> Json:
    """The band of a series: one outline, forth and back, around every stretch of points without a gap."""
    outline: list[tuple[float | None, float | None]] = []
    stretch: list[tuple[float | None, float, float]] = []
    points = zip(series.at_x or series.x, series.y, series.ci, strict=True)
    for x, y, ci in [*points, (None, None, math.nan)]:
        if y is not None and math.isfinite(ci):
            stretch.append((x, y + ci, y - ci))
        elif stretch:
            outline += [(None, None)] if outline else []
            outline += [(x, high) for x, high, _ in stretch] + [(x, low) for x, _, low in reversed(stretch)]
            stretch = []
    xs, ys = (list(coordinates) for coordinates in zip(*outline, strict=True))
    band = {"x": xs, "y": ys, "mode": "none", "fill": "toself", "fillcolor": series.colour, "opacity": series.band}
    return _shared(series) | band | {"hoverinfo": "skip", "showlegend": False}


def _cells(panel: Panel) -> Json:
    """A heatmap, whose cells are at whole numbers, so that all have the same size."""
    cells = panel.cells
    assert cells is not None
    hover = f"{cells.names[0]} %{{customdata[0]}}<br>{cells.names[1]} %{{customdata[1]}}<br>%{{z:.4g}}<extra></extra>"
    trace = {"type": "heatmap", "z": cells.z, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "hoverongaps": False}
    labels = [[[x, y] for x in cells.labels[0]] for y in cells.labels[1]]
    return trace | {"hovertemplate": hover, "customdata": labels}


# -- the layout: the same for all widths -------------------------------------------------------------------------------


def fixed(figure: Figure) -> Json:
    """The part of the layout that does not depend on the width: axes, vertical lines, the scale of colours."""
    common: Json = {"shapes": []}
    for panel, number in _numbered(figure).items():
        for side, other, axis in (("x", "y", panel.x), ("y", "x", panel.y)):
            common[f"{side}axis{number}"] = (_EMPTY if panel.why_empty else axis.look) | {"anchor": f"{other}{number}"}
        if panel.vertical_line is not None:
            x = panel.vertical_line
            ends = {"x0": x, "x1": x, "y0": 0, "y1": 1, "layer": "below", "type": "line"}
            place = {"xref": f"x{number}", "yref": f"y{number} domain"}
            common["shapes"].append(ends | place | {"line": {"color": MUTED, "width": 1.5, "dash": "dash"}})
    if figure.scale is not None:
        scale, length = figure.scale, figure.size[0]
        # The bar and its label stand in the empty half of the triangle of panels, or in the margin if it is small.
        bar = {"x": (length + 24) / figure.width, "xanchor": "left", "y": 1, "yanchor": "top", "thickness": 16}
        bar |= {"lenmode": "pixels", "len": length, "ypad": 0, "outlinewidth": 0}
        colours = {"colorscale": "Viridis", "reversescale": scale.reversed, "cmin": scale.low, "cmax": scale.high}
        common |= {"coloraxis": colours | {"colorbar": bar}, "plot_bgcolor": BLANK}
    return common


# -- the layout: for one width -----------------------------------------------------------------------------------------


def layout(figure: Figure, room: int = 10**6, titled: bool = False) -> Json:
    """The part of the layout that depends on the width: sizes, positions, and text in lines.

    >>> figure = Figure(title="Two", summary="", rows=[[Panel(), Panel()]], size=(300, 200), gap=(50, 50))
    >>> [(fitted["width"], fitted["xaxis2"]["domain"]) for fitted in (layout(figure, 360), layout(figure, 712))]
    [(360, [0.0, 1.0]), (712, [0.5416666666666666, 1.0])]

    A figure with a scale of colours has the same layout for all widths, since the places of its panels mean something.

    Args:
        room: the pixels that the figure may take; it takes no more than it needs.
        titled: whether the title is part of the figure.
    """
    scale_room = _SCALE_BAR + _SCALE_LABEL  # from the end of the first panel
    outside = 0 if figure.scale is None else max(figure.size[0] + scale_room - figure.width, 0)
    left, right = _LEFT, _RIGHT + outside
    width = left + figure.width + right
    if figure.scale is None and room < width:
        width = room
        left, right = (_NARROW_LEFT, _NARROW_RIGHT) if width < _NARROW else (left, right)
    notes, legends, legends_end = _head(figure, width - left - right, width < _NARROW, titled)
    axes, headings, heading_room, panels_height = _panels(figure, width - left - right)
    top = legends_end + 8 + heading_room
    height = top + panels_height + _BOTTOM
    return {
        "width": width,
        "height": height,
        "margin": {"l": left, "r": right, "t": top, "b": _BOTTOM, "autoexpand": False},
        "annotations": [note | {"yshift": top - note["yshift"]} for note in notes] + headings,
        **{name: legend | {"y": 1 - legend["y"] / height} for name, legend in legends.items()},
        **axes,
    }


def _head(figure: Figure, width: float, narrow: bool, titled: bool) -> tuple[list[Json], dict[str, Json], int]:
    """The title with the notes, the legends, and the place where they end, in pixels from the top."""
    notes: list[Json] = []
    top = _TOP_OF_TITLE if titled else _TOP
    if titled:
        # An annotation, since plotly cuts off the second line of its own titles.
        title = _wrapped(markup(figure.title), max(24, (width - 150) // 9))  # leaves room for the page's buttons
        notes.append(_CORNER | {"text": title, "font": {"size": 18}, "yshift": top})
        top += _TITLE_LINE * _lines(title)
    for text in figure.notes:
        note = _wrapped(markup(text), width / 7)
        notes.append(_CORNER | {"text": note, "font": {"size": 13, "color": MUTED}, "yshift": top})
        top += _NOTE_LINE * _lines(note) + 5
    legends: dict[str, Json] = {}
    # In a narrow figure legends start at its left edge, since entries can be as long as a panel is wide.
    place: Json = {"xref": "container", "x": 0.02} if narrow else {"xref": "paper", "x": 0}
    place |= {"xanchor": "left", "yref": "container", "yanchor": "top", "orientation": "h", "itemsizing": "trace"}
    for name, key in _legend_keys(figure).items():
        if entries := _entries(figure, name):
            lines, title_look = _legend_lines(entries, figure.legends[name], width)
            legends[key] = place | {"y": top, "font": {"size": 13}, "tracegroupgap": 0, "title": title_look}
            top += _LEGEND_FIRST_LINE + _LEGEND_LINE * (lines - 1)
    return notes, legends, top


def _entries(figure: Figure, legend: str) -> dict[str, Series]:
    """The entries of a legend by their text, each with the first series of that name."""
    entries: dict[str, Series] = {}
    for series in [*(series for panel in figure.panels for series in panel.series), *figure.marks]:
        if series.in_legend and series.legend == legend:
            entries.setdefault(series.name, series)
    return entries


def _legend_lines(entries: Mapping[str, Series], title: str, width: float) -> tuple[int, Json]:
    """The number of lines that a legend takes, and its title.

    The title stands above entries that do not fit beside it, because plotly would cut them off.
    """
    lengths = [44 + 7.5 * len(name) for name in entries]  # estimated: rather too long than too short
    fits = sum(lengths) + 8 * len(title) <= width
    # plotly puts titles at the top of their line; a larger font makes the line as high as that of the entries.
    text = f'<span style="font-size:13px">{title}</span>  '
    look = {"text": text, "side": "left" if fits else "top", "font": {"size": 16, "color": MUTED}} if title else {}
    if fits:
        return 1, look
    if any(series.x for series in entries.values()):  # plotly sets these entries one after the other
        lines, line_length = 1, 0.0
        for length in lengths:
            fits = line_length + length <= width
            lines, line_length = (lines, line_length + length) if fits else (lines + 1, length)
    else:  # and these in columns of equal widths
        lines = math.ceil(len(lengths) / max(width // max(lengths), 1))
    return lines + bool(title), look


# -- panels ------------------------------------------------------------------------------------------------------------


def _panels(figure: Figure, width: float) -> tuple[Json, list[Json], int, int]:
    """The axes, the annotations, the room above the first row of panels, and the height of all rows."""
    rows, gap, row_gap = _arranged(figure, width)
    reflowed = rows is not figure.rows  # a panel may have lost the neighbour that showed labels for both
    height = figure.size[1]
    widths = [(width - (len(row) - 1) * gap) / len(row) for row in rows]
    places = [(row, column, panel) for row, panels in enumerate(rows) for column, panel in enumerate(panels) if panel]
    lowest = {column: row for row, column, _ in places}
    leftmost = {row: column for row, column, _ in reversed(places)}
    usual_lines = 1 + any(panel.subtitle for panel in figure.panels)
    titles, extra = [], [0] * len(rows)  # extra: pixels above a row for more lines than usual
    for row, _, panel in places:
        heading, subtitle = _wrapped(markup(panel.heading), widths[row] / 8), _wrapped(panel.subtitle, widths[row] / 6)
        titles.append((heading, subtitle))
        extra[row] = max(extra[row], _HEADING_LINE * (_lines(heading) + _lines(subtitle) - usual_lines))
    tops = list(accumulate((height + row_gap + pixels for pixels in extra[1:]), initial=0))
    total_height = tops[-1] + height
    axes: Json = {}
    annotations: list[Json] = []
    numbers = _numbered(figure)
    for (row, column, panel), (heading, subtitle) in zip(places, titles, strict=True):
        number, panel_width = numbers[panel], widths[row]
        x = _domain(column * (panel_width + gap), panel_width, width)
        y = _domain(total_height - tops[row] - height, height, total_height)
        if not panel.why_empty:
            x |= _labels(panel.x, reflowed or lowest[column] == row, panel_width, upright=False)
            y |= _labels(panel.y, reflowed or leftmost[row] == column, height, upright=True)
        axes |= {f"xaxis{number}": x, f"yaxis{number}": y}
        annotations += _annotations(panel, number, heading, subtitle)
    if figure.scale is not None:
        label = _CORNER | {"text": _wrapped(markup(figure.scale.label), 24), "font": {"size": 13}}
        annotations.append(label | {"x": (figure.size[0] + _SCALE_BAR) / width})
    return axes, annotations, figure.heading_room + extra[0], total_height


def _arranged(figure: Figure, width: float) -> tuple[Sequence[Sequence[Panel | None]], int, int]:
    """The rows, of fewer columns if not all fit, with the gaps between columns and between rows."""
    (gap, row_gap), columns = figure.gap, max(map(len, figure.rows))
    if columns * min(_MIN_PANEL_WIDTH, figure.size[0]) + (columns - 1) * gap <= width:
        return figure.rows, gap, row_gap
    gap = max(gap, _LABELLED_GAP)
    columns = max(min(columns - 1, int(width + gap) // (_MIN_PANEL_WIDTH + gap)), 1)
    return in_rows(figure.row_by_row, columns), gap, row_gap + _EXTRA_ROW_GAP


def _domain(start: float, length: float, total: float) -> Json:
    return {"domain": [max(start / total, 0.0), min((start + length) / total, 1.0)]}


def _labels(axis: Axis, outermost: bool, length: float, upright: bool) -> Json:
    """The title of an axis, and as many of its labels as fit."""
    shown: Json = {}
    if axis.title and (outermost or not axis.title_once):
        shown["title"] = {"text": _wrapped(axis.title, length // 6) if upright else axis.title}
    if axis.labels_once and not outermost:
        return shown | {"showticklabels": False, "ticks": ""}
    labels = axis.look.get("ticktext", ())
    font = axis.look.get("tickfont", _AXIS["tickfont"])["size"]
    longest = max((len(plain(label)) for label in labels), default=0)
    label_length = 1.5 * font if upright else 0.6 * font * longest + 8
    step = math.ceil(len(labels) * label_length / length)
    return shown | ({"tickvals": axis.look["tickvals"][::step], "ticktext": labels[::step]} if step > 1 else {})


def _annotations(panel: Panel, number: str, heading: str, subtitle: str) -> Iterator[Json]:
    """The heading and the subtitle above a panel, and the text inside an empty one."""
    place = {"xref": f"x{number} domain", "yref": f"y{number} domain"}
    above = place | {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
    if heading:
        shift = 4 + _HEADING_LINE * _lines(subtitle)
        yield above | {"text": f"<b>{heading}</b>", "font": {"size": 14}, "yshift": shift}
    if subtitle:
        yield above | {"text": subtitle, "font": {"size": 12, "color": MUTED}, "yshift": 4}
    if panel.why_empty:
        text = {"text": f"nothing to show:<br>{panel.why_empty}", "font": {"size": 13, "color": MUTED}}
        yield place | text | {"x": 0.5, "y": 0.5, "xanchor": "center", "yanchor": "middle", "align": "center"}


def _wrapped(text: str, length: float) -> str:
    """Breaks text into lines of at most so many letters, if words are that short.

    It breaks at dots between phrases, which are left out there, and at spaces inside a phrase that is too long.
    """
    if len(plain(text)) <= length:
        return text
    lines: list[str] = []
    for phrase in text.split(" · "):
        if lines and len(plain(f"{lines[-1]} · {phrase}")) <= length:
            lines[-1] += f" · {phrase}"
            continue
        lines.append("")
        for word in phrase.split():
            if not lines[-1] or len(plain(f"{lines[-1]} {word}")) <= length:
                lines[-1] = f"{lines[-1]} {word}".strip()
            else:
                lines.append(word)
    return "<br>".join(lines)


def _lines(text: str) -> int:
    return text.count("<br>") + 1 if text else 0
