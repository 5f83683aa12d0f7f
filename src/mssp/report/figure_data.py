"""The numbers of a figure as a table (CSV): one line per point, with the numbers as they were computed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from mssp.report.figure import Figure, Json, Panel, Series
from mssp.report.words import plain

_COLUMNS = ("panel", "series", "x axis", "x", "y axis", "y", "low", "high", "z")
_ALWAYS = 6  # so many of the columns are in every table; the others are there if they are not empty


def csv_of(figure: Figure) -> str:
    """The table of a figure: a point has its panel's heading, its series' name, its coordinates and the axes' titles.

    >>> from mssp.planning.setting import Setting
    >>> from mssp.report.figures.sweeps import transfer_figure
    >>> from mssp.sweep.metrics import Metric
    >>> from mssp.sweep.transfer import Contender, Score, Transfer
    >>> scores = [Score(64, 2.0**k, seed, 1 - 0.25 * k**2) for k in (-1, 0, 1) for seed in (0, 1)]
    >>> outcomes = {Contender(Setting.of("mssp", None, "sgd")): Transfer(Metric("a", True, "accuracy"), scores)}
    >>> print(csv_of(transfer_figure(outcomes, "Transfer")))
    panel,series,x axis,x,y axis,y,low,high
    MSSP · SGD,N = 64,learning rate,0.5,accuracy,0.75,0.75,0.75
    MSSP · SGD,N = 64,learning rate,1.0,accuracy,1.0,1.0,1.0
    MSSP · SGD,N = 64,learning rate,2.0,accuracy,0.75,0.75,0.75
    MSSP · SGD,N = 64 · best learning rate,learning rate,1.0,accuracy,1.0,,
    <BLANKLINE>

    Bands and error bars are from ``low`` to ``high``. The cells of a heatmap are ``z``. A gap in a curve has no line.
    """
    rows = [_common(panel) | row for panel in figure.panels for row in _rows(panel)]
    columns = [name for name in _COLUMNS if name in _COLUMNS[:_ALWAYS] or any(name in row for row in rows)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _common(panel: Panel) -> Json:
    return {"panel": panel.heading, "x axis": plain(panel.x.title), "y axis": plain(panel.y.title)}


def _rows(panel: Panel) -> Iterator[Json]:
    if panel.cells is not None:
        for y, row in zip(panel.cells.y, panel.cells.z, strict=True):
            yield from ({"x": x, "y": y, "z": z} for x, z in zip(panel.cells.x, row, strict=True) if z is not None)
    for series in panel.series:
        name = " · ".join(filter(None, (series.name, series.part)))
        for index, (at_x, at_y) in enumerate(zip(series.x, series.y, strict=True)):
            if at_x is not None and at_y is not None:
                yield {"series": name, "x": at_x, "y": at_y, **_interval(series, index, at_y)}


def _interval(series: Series, index: int, y: float) -> Json:
    """The ends of a point's band or error bar; an error bar of length zero means that there is none."""
    ci = series.ci[index] if series.ci else math.nan
    if not math.isfinite(ci) or not (series.band or (series.bars is not None and ci)):
        return {}
    return {"low": y - (series.ci_down[index] if series.ci_down else ci), "high": y + ci}
