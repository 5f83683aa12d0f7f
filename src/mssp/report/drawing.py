"""Figures drawn: their data and their layout for a width, in plotly's words.

Nothing is scaled: text is as large on a phone as on a wide screen. Where fewer columns fit than there are, panels fill
rows in the order of reading, each with labels of its own. Panels keep their heights and share the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, count

from mssp.report.colours import BLANK, GROUND, INK, LIGHT, MUTED, RULE, painted
from mssp.report.figure import Axis, Figure, Json, Panel, Series, in_rows
from mssp.report.words import markup, plain

_LEAST = 250  # pixels across a panel: less is no picture
_GAP = 72  # between panels with labels of their own
_LEFT, _RIGHT, _BOTTOM = 84, 28, 62  # margins
_NARROW, _NARROW_LEFT, _NARROW_RIGHT = 480, 66, 14  # a figure without room for wide margins, and those it has
_TITLES_UNDER = 8  # more between rows, where every panel has its axes' titles
_TOP, _FIRST = 4, 16  # above all, and above a title
_TITLE_LINE, _NOTE_LINE, _WORDS_LINE = 24, 19, 18
_LEGEND, _LEGEND_LINE = 24, 19  # a legend's first line and its others
_BAR, _BAR_LABEL = 88, 170  # pixels for a scale's bar, and for its label

_AXIS = {"showgrid": True, "gridcolor": RULE, "zeroline": False, "zerolinecolor": MUTED, "showline": True}
_AXIS |= {"linecolor": MUTED, "ticks": "outside", "ticklen": 4, "tickcolor": MUTED, "tickfont": {"size": 14}}
_AXIS |= {"title": {"font": {"size": 13}, "standoff": 8}}
_CORNER = {"xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "top"}
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
    """A figure by itself: as wide as it is, with its title, for light ground."""
    common, placed = fixed(figure), layout(figure, titled=True)
    axes = {name: common[name] | placed[name] for name in common if name in placed}
    whole = {"data": traces(figure), "layout": common | placed | axes | {"template": TEMPLATE}}
    return {name: painted(part, LIGHT) for name, part in whole.items()}


# -- data --------------------------------------------------------------------------------------------------------------


def traces(figure: Figure) -> list[Json]:
    """Panel by panel; of a panel, bands under cells under series. The first series of a name stands in its legend."""
    legends = _legend_keys(figure)
    data: list[Json] = []
    named: set[tuple[str, str]] = set()
    for panel, number in _numbered(figure).items():
        of_panel = [_band(series) for series in panel.series if series.band and any(map(math.isfinite, series.ci))]
        of_panel += [_cells(panel)] if panel.cells else []
        for series in panel.series:
            name = series.legend, series.name
            of_panel.append(_trace(series) | {"showlegend": series.named and name not in named})
            named |= {name} if series.named else set()
        # plotly drops axes that no trace is on, and what refers to them lands on others.
        of_panel += [] if of_panel else [{"type": "scatter", "name": "", "x": [None], "y": [None], "showlegend": False}]
        data += [trace | {"xaxis": f"x{number}", "yaxis": f"y{number}"} for trace in of_panel]
    data += [_trace(series) | {"x": [None], "y": [None], "showlegend": True} for series in figure.marks]
    return [trace | {"legend": legends.get(trace.get("legend", ""), "legend")} for trace in data]


def _legend_keys(figure: Figure) -> dict[str, str]:
    """What plotly calls each legend."""
    return {name: f"legend{number}" for name, number in zip(figure.legends, _numbers(), strict=False)}


def _numbered(figure: Figure) -> dict[Panel, str]:
    return dict(zip(figure.panels, _numbers(), strict=False))


def _numbers() -> Iterator[str]:
    """As plotly numbers axes and legends: the first has none."""
    yield ""
    yield from map(str, count(2))


def _shared(series: Series) -> Json:
    """What a series and its band have in common; those of a group are switched on and off together."""
    common = {"type": "scatter", "name": series.name, "legend": series.legend, "legendrank": series.rank}
    return common | ({"legendgroup": f"{series.legend} {series.name}"} if series.x and series.legend else {})


def _trace(series: Series) -> Json:
    xs = [x if x is None else x + series.aside for x in series.at_x or series.x]
    trace = _shared(series) | {"mode": series.mode, "x": xs, "y": [*(series.at_y or series.y)]}
    trace["line"] = {"color": series.colour, "width": series.width, "dash": series.dash}
    trace["marker"] = series.marker or {"color": series.colour, "symbol": series.symbol, "size": series.size}
    if isinstance(series.told, str):
        trace |= {"hovertemplate": f"{series.told}<extra></extra>"} if series.told else {"hoverinfo": "skip"}
    else:
        trace |= {"text": [*series.told], "hovertemplate": f"{series.name}<br>%{{text}}<extra></extra>"}
    if series.bars is not None:
        bars = [reach if math.isfinite(reach) else 0.0 for reach in series.ci]
        trace["error_y"] = {"array": bars, "visible": any(bars), "color": series.colour, **series.bars}
        trace["error_y"] |= {"arrayminus": [*series.below]} if series.below else {}
    return trace


def _band(series: Series) -> Json:
    """Around a series, as high as it is uncertain: each stretch without a gap along the top and back."""
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
    xs, ys = (list(part) for part in zip(*outline, strict=True))
    band = {"x": xs, "y": ys, "mode": "none", "fill": "toself", "fillcolor": series.colour, "opacity": series.band}
    return _shared(series) | band | {"hoverinfo": "skip", "showlegend": False}


def _cells(panel: Panel) -> Json:
    """At whole numbers, so that cells are equally wide."""
    cells = panel.cells
    assert cells is not None
    hover = f"{cells.names[0]} %{{customdata[0]}}<br>{cells.names[1]} %{{customdata[1]}}<br>%{{z:.4g}}<extra></extra>"
    trace = {"type": "heatmap", "z": cells.z, "coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "hoverongaps": False}
    labels = [[[x, y] for x in cells.labels[0]] for y in cells.labels[1]]
    return trace | {"hovertemplate": hover, "customdata": labels}


# -- the layout, whatever the width ------------------------------------------------------------------------------------


def fixed(figure: Figure) -> Json:
    """What all layouts share: axes, lines across panels, the scale of colours."""
    common: Json = {"shapes": []}
    for panel, number in _numbered(figure).items():
        for side, other, axis in (("x", "y", panel.x), ("y", "x", panel.y)):
            common[f"{side}axis{number}"] = (_EMPTY if panel.why_empty else axis.look) | {"anchor": f"{other}{number}"}
        if panel.upright is not None:
            ends = {"x0": panel.upright, "x1": panel.upright, "y0": 0, "y1": 1, "layer": "below", "type": "line"}
            place = {"xref": f"x{number}", "yref": f"y{number} domain"}
            common["shapes"].append(ends | place | {"line": {"color": MUTED, "width": 1.5, "dash": "dash"}})
    if figure.scale is not None:
        scale, length = figure.scale, figure.size[0]
        # The bar and its label stand in the empty half of the triangle, and in the margin where that is small.
        bar = {"x": (length + 24) / figure.across, "xanchor": "left", "y": 1, "yanchor": "top", "thickness": 16}
        bar |= {"lenmode": "pixels", "len": length, "ypad": 0, "outlinewidth": 0}
        colours = {"colorscale": "Viridis", "reversescale": scale.reversed, "cmin": scale.low, "cmax": scale.high}
        common |= {"coloraxis": colours | {"colorbar": bar}, "plot_bgcolor": BLANK}
    return common


# -- the layout for a width --------------------------------------------------------------------------------------------


def layout(figure: Figure, room: int = 10**6, titled: bool = False) -> Json:
    """Where everything stands in so many pixels, or in as many as it takes.

    >>> figure = Figure(title="Two", words="", rows=[[Panel(), Panel()]], size=(300, 200), gap=(50, 50))
    >>> [(each["width"], each["xaxis2"]["domain"]) for each in (layout(figure, 360), layout(figure, 712))]
    [(360, [0.0, 1.0]), (712, [0.5416666666666666, 1.0])]

    Panels with a scale of colours get their meaning from where they stand, and stay there.
    """
    beside = 0 if figure.scale is None else max(figure.size[0] + _BAR + _BAR_LABEL - figure.across, 0)
    width = _LEFT + figure.across + _RIGHT + beside
    left, right = _LEFT, _RIGHT + beside
    if figure.scale is None and room < width:
        width = room
        left, right = (_NARROW_LEFT, _NARROW_RIGHT) if width < _NARROW else (left, right)
    head, legends, end = _head(figure, width - left - right, width < _NARROW, titled)
    axes, words, above, down = _panels(figure, width - left - right)
    top = end + 8 + above
    height = top + down + _BOTTOM
    return {
        "width": width,
        "height": height,
        "margin": {"l": left, "r": right, "t": top, "b": _BOTTOM, "autoexpand": False},
        "annotations": [note | {"yshift": top - note["yshift"]} for note in head] + words,
        **{name: legend | {"y": 1 - legend["y"] / height} for name, legend in legends.items()},
        **axes,
    }


def _head(figure: Figure, across: float, narrow: bool, titled: bool) -> tuple[list[Json], dict[str, Json], int]:
    """Title and notes, legends, and where they end: one under the other, in pixels from the top."""
    notes: list[Json] = []
    at = _FIRST if titled else _TOP
    if titled:
        # Not plotly's own title, which cuts a second line off.
        title = _wrapped(markup(figure.title), max(24, (across - 150) // 9))  # clear of the page's buttons
        notes.append(_CORNER | {"text": title, "font": {"size": 18}, "yshift": at})
        at += _TITLE_LINE * _lines(title)
    for text in figure.notes:
        note = _wrapped(markup(text), across / 7)
        notes.append(_CORNER | {"text": note, "font": {"size": 13, "color": MUTED}, "yshift": at})
        at += _NOTE_LINE * _lines(note) + 5
    legends: dict[str, Json] = {}
    # Narrow ones start at the left edge: some entries are as long as a panel is wide.
    place: Json = {"xref": "container", "x": 0.02} if narrow else {"xref": "paper", "x": 0}
    place |= {"xanchor": "left", "yref": "container", "yanchor": "top", "orientation": "h", "itemsizing": "trace"}
    for name, key in _legend_keys(figure).items():
        if entries := _entries(figure, name):
            rows, title_look = _legend_rows(entries, figure.legends[name], across)
            legends[key] = place | {"y": at, "font": {"size": 13}, "tracegroupgap": 0, "title": title_look}
            at += _LEGEND + _LEGEND_LINE * (rows - 1)
    return notes, legends, at


def _entries(figure: Figure, legend: str) -> dict[str, Series]:
    """The first of each name that stands in a legend."""
    entries: dict[str, Series] = {}
    for series in [*(series for panel in figure.panels for series in panel.series), *figure.marks]:
        if series.named and series.legend == legend:
            entries.setdefault(series.name, series)
    return entries


def _legend_rows(entries: Mapping[str, Series], title: str, across: float) -> tuple[int, Json]:
    """How many it takes, and its title, which stands above entries that do not fit beside it: plotly would cut them."""
    widths = [44 + 7.5 * len(name) for name in entries]  # rather too many pixels than too few
    fits = sum(widths) + 8 * len(title) <= across
    # plotly sets titles at the top; in a line as high as that of a larger font they are level with the entries.
    text = f'<span style="font-size:13px">{title}</span>  '
    look = {"text": text, "side": "left" if fits else "top", "font": {"size": 16, "color": MUTED}} if title else {}
    if fits:
        return 1, look
    if any(series.x for series in entries.values()):  # one after the other
        rows, at = 1, 0.0
        for width in widths:
            rows, at = (rows, at + width) if at + width <= across else (rows + 1, width)
    else:  # in columns of equal widths
        rows = math.ceil(len(widths) / max(across // max(widths), 1))
    return rows + bool(title), look


# -- panels ------------------------------------------------------------------------------------------------------------


def _panels(figure: Figure, across: float) -> tuple[Json, list[Json], int, int]:
    """Axes, the words above and on them, the room above the first row, and that of all rows."""
    rows, gap, gap_down = _arranged(figure, across)
    alone = rows is not figure.rows  # panels are no longer beside those that had labels for them
    height = figure.size[1]
    widths = [(across - (len(row) - 1) * gap) / len(row) for row in rows]
    places = [(row, column, panel) for row, panels in enumerate(rows) for column, panel in enumerate(panels) if panel]
    lowest = {column: row for row, column, _ in places}
    leftmost = {row: column for row, column, _ in reversed(places)}
    usual = 1 + any(panel.verdict for panel in figure.panels)  # lines above a panel
    words, more = [], [0] * len(rows)
    for row, _, panel in places:
        heading, verdict = _wrapped(markup(panel.heading), widths[row] / 8), _wrapped(panel.verdict, widths[row] / 6)
        words.append((heading, verdict))
        more[row] = max(more[row], _WORDS_LINE * (_lines(heading) + _lines(verdict) - usual))
    tops = list(accumulate((height + gap_down + extra for extra in more[1:]), initial=0))
    down = tops[-1] + height
    axes: Json = {}
    notes: list[Json] = []
    numbers = _numbered(figure)
    for (row, column, panel), (heading, verdict) in zip(places, words, strict=True):
        number, width = numbers[panel], widths[row]
        x_domain = _parts(column * (width + gap), width, across)
        y_domain = _parts(down - tops[row] - height, height, down)
        if panel.why_empty:
            axes |= {f"xaxis{number}": x_domain, f"yaxis{number}": y_domain}
        else:
            x = _labels(panel.x, alone or lowest[column] == row, width, False)
            y = _labels(panel.y, alone or leftmost[row] == column, height, True)
            axes |= {f"xaxis{number}": x_domain | x, f"yaxis{number}": y_domain | y}
        notes += _words(panel, number, heading, verdict)
    if figure.scale is not None:
        label = _CORNER | {"text": _wrapped(markup(figure.scale.label), 24), "font": {"size": 13}}
        notes.append(label | {"x": (figure.size[0] + _BAR) / across})
    return axes, notes, figure.above + more[0], down


def _arranged(figure: Figure, across: float) -> tuple[Sequence[Sequence[Panel | None]], int, int]:
    """Rows of as many columns as fit, as they are or fewer, and the gaps between columns and rows."""
    (gap, gap_down), columns = figure.gap, max(map(len, figure.rows))
    if columns * min(_LEAST, figure.size[0]) + (columns - 1) * gap <= across:
        return figure.rows, gap, gap_down
    gap = max(gap, _GAP)
    fewer = max(min(columns - 1, int(across + gap) // (_LEAST + gap)), 1)
    return in_rows(figure.as_read, fewer), gap, gap_down + _TITLES_UNDER


def _parts(start: float, length: float, whole: float) -> Json:
    return {"domain": [max(start / whole, 0.0), min((start + length) / whole, 1.0)]}


def _labels(axis: Axis, outermost: bool, length: float, upright: bool) -> Json:
    """The title, and as many labels as fit."""
    shown: Json = {}
    if axis.title and (outermost or not axis.title_once):
        shown["title"] = {"text": _wrapped(axis.title, length // 6) if upright else axis.title}
    if axis.labels_once and not outermost:
        return shown | {"showticklabels": False, "ticks": ""}
    labels = axis.look.get("ticktext", ())
    font = axis.look.get("tickfont", _AXIS["tickfont"])["size"]
    each = 1.5 * font if upright else 0.6 * font * max((len(plain(label)) for label in labels), default=0) + 8
    every = math.ceil(len(labels) * each / length)
    return shown | ({"tickvals": axis.look["tickvals"][::every], "ticktext": labels[::every]} if every > 1 else {})


def _words(panel: Panel, number: str, heading: str, verdict: str) -> Iterator[Json]:
    place = {"xref": f"x{number} domain", "yref": f"y{number} domain"}
    above = place | {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
    if heading:
        shift = 4 + _WORDS_LINE * _lines(verdict)
        yield above | {"text": f"<b>{heading}</b>", "font": {"size": 14}, "yshift": shift}
    if verdict:
        yield above | {"text": verdict, "font": {"size": 12, "color": MUTED}, "yshift": 4}
    if panel.why_empty:
        text = {"text": f"nothing to show:<br>{panel.why_empty}", "font": {"size": 13, "color": MUTED}}
        yield place | text | {"x": 0.5, "y": 0.5, "xanchor": "center", "yanchor": "middle", "align": "center"}


def _wrapped(text: str, length: float) -> str:
    """In lines of so many letters: broken at spaces, rather at those around a dot, which then is not needed."""
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


def _lines(text: str) -> int:
    return text.count("<br>") + 1 if text else 0
