"""What a figure draws, as a table: one line per point, in numbers as they were computed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mssp.report.panels import panels_of, plain

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_Row = dict[str, Any]
_Band = dict[float, tuple[float, float]]  # from where to where, by x

_COLUMNS = ("panel", "series", "x axis", "x", "y axis", "y", "low", "high", "z")
_ALWAYS = 6  # of them; the others where something is in them
_ROUNDING = 1e-9


def csv_of(figure: Figure) -> str:
    """Panels by their headings, lines by their names in the legend, and where points stand, with the axes' titles.

    >>> from mssp.report.figures.sweeps import transfer_figure
    >>> from mssp.sweep.metrics import Metric
    >>> from mssp.sweep.transfer import Score, Transfer
    >>> scores = [Score(64, 2.0**k, seed, 1 - 0.25 * k**2) for k in (-1, 0, 1) for seed in (0, 1)]
    >>> print(csv_of(transfer_figure({"mssp": Transfer(Metric("a", True, "accuracy"), scores)}, "Transfer")))
    panel,series,x axis,x,y axis,y,low,high
    MSSP,N = 64,learning rate,0.5,accuracy,0.75,0.75,0.75
    MSSP,N = 64,learning rate,1.0,accuracy,1.0,1.0,1.0
    MSSP,N = 64,learning rate,2.0,accuracy,0.75,0.75,0.75
    MSSP,N = 64 · best learning rate,learning rate,1.0,accuracy,1.0,,
    <BLANKLINE>

    Logarithms are undone, and points that are drawn a little aside are where they belong. A band or a bar is from
    ``low`` to ``high``; the cells of a heatmap are ``z``. Gaps have no lines.
    """
    rows = list(_rows(figure))
    columns = [name for name in _COLUMNS if name in _COLUMNS[:_ALWAYS] or any(name in row for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(figure: Figure) -> Iterator[_Row]:
    panels = {panel.number: panel for panel in panels_of(figure.layout.to_plotly_json())}
    bands: dict[Any, list[_Band]] = {}
    for trace in figure.data:
        if _is_band(trace):
            bands.setdefault(_owner(trace), []).append(_band(trace))
    for trace in figure.data:
        if trace.type not in ("scatter", "heatmap") or _is_band(trace):
            continue
        series = (trace.name, (trace.meta or {}).get("series"))
        common = {"series": " · ".join(filter(None, series))}
        if panel := panels.get((trace.xaxis or "x").removeprefix("x")):
            common |= {"panel": plain(panel.heading), "x axis": plain(panel.x_title), "y axis": plain(panel.y_title)}
        points = _cells(trace) if trace.type == "heatmap" else _points(trace, bands.get(_owner(trace), []))
        yield from (common | point for point in points)


def _cells(trace: Any) -> Iterator[_Row]:
    for y, row in zip(_values(trace, "y", len(trace.z)), trace.z, strict=True):
        for x, z in zip(_values(trace, "x", len(row)), row, strict=True):
            if z is not None:
                yield {"x": x, "y": y, "z": z}


def _points(trace: Any, bands: Sequence[_Band]) -> Iterator[_Row]:
    ys = trace.y if trace.y is not None else ()
    drawn = trace.x if trace.x is not None else range(len(ys))
    reach = next((band for band in bands if _is_around(band, drawn, ys)), {}) | _bars(trace, drawn, ys)
    places = zip(_values(trace, "x", len(ys)), _values(trace, "y", len(ys)), strict=True)
    for (x, y), at, height in zip(places, drawn, ys, strict=True):
        if at is not None and height is not None:
            yield {"x": x, "y": y, **dict(zip(("low", "high"), reach.get(at, ()), strict=False))}


def _values(trace: Any, axis: str, count: int) -> Sequence[Any]:
    """Where its places are, or belong."""
    known = (trace.meta or {}).get(axis)
    drawn = trace[axis] if known is None else known
    return range(count) if drawn is None else drawn


# -- bands and bars ----------------------------------------------------------------------------------------------------


def _is_band(trace: Any) -> bool:
    return bool(trace.type == "scatter" and trace.fill == "toself")


def _owner(trace: Any) -> tuple[Any, ...]:
    """What a band shares with its line."""
    return trace.xaxis, trace.name, trace.legendgroup


def _band(trace: Any) -> _Band:
    """Back from its outline: of each stretch along the top, and back along the bottom."""
    found: _Band = {}
    stretch: list[tuple[float, float]] = []
    for x, y in [*zip(trace.x, trace.y, strict=True), (None, None)]:
        if x is not None:
            stretch.append((x, y))
            continue
        half = len(stretch) // 2
        for (place, high), (_, low) in zip(stretch[:half], reversed(stretch[half:]), strict=True):
            found[place] = low, high
        stretch = []
    return found


def _is_around(band: _Band, xs: Sequence[Any], ys: Sequence[Any]) -> bool:
    """Lines that share a name, as those of several inputs do, are told apart by where they are: in the middle."""
    points = dict(zip(xs, ys, strict=True))
    return all(
        points.get(x) is not None and math.isclose((low + high) / 2, points[x], rel_tol=_ROUNDING, abs_tol=_ROUNDING)
        for x, (low, high) in band.items()
    )


def _bars(trace: Any, xs: Sequence[Any], ys: Sequence[Any]) -> _Band:
    """Where there are any: one of length zero stands for none."""
    bars = trace.error_y
    if bars.array is None or bars.visible is False:
        return {}
    below = bars.arrayminus if bars.arrayminus is not None else bars.array
    return {
        x: (y - down, y + up) for x, y, up, down in zip(xs, ys, bars.array, below, strict=True) if y is not None and up
    }
