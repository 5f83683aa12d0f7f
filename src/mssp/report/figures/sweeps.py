"""The paper's pictures of sweeps: learning-rate transfer, scores over width, and multipliers around their optimum."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, cycle
from statistics import fmean, median
from typing import TYPE_CHECKING

from mssp._estimates import Estimate
from mssp.planning.setting import JIANG, MSSP, MUP, MUP_HEURISTIC, NTP, OPTIMIZERS, SCHEMES, SP
from mssp.report.canvas import (
    INK,
    MUTED,
    Canvas,
    Json,
    axis_title,
    band_trace,
    error_bars,
    html_lines,
    line_trace,
    many,
    shades,
    signed,
    standing_for,
    stroke,
    swatch,
    values_of,
)
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Outcome, Transfer, WidthSummary

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PANELS = 12  # of a figure at most
_BLANK = "#efefef"
_ON_BRIGHT = "#1A1A1A"  # ink on a bright cell, which is bright on dark ground too; written so that it is told from ink
# Each scheme's colour and marker; MSSP and μP are far apart in lightness too.
_SCHEMES = {
    MSSP.name: ("#0b3c7d", "circle"),
    MUP.name: ("#e8940c", "square"),
    MUP_HEURISTIC.name: ("#cc79a7", "diamond"),
    SP.name: ("#7a7a7a", "triangle-up"),
    NTP.name: ("#009e73", "triangle-down"),
    JIANG.name: ("#56b4e9", "cross"),
    "": ("#0b3c7d", "circle"),
}
# Looks of schemes that have none of their own, in the order in which they come.
_OTHERS = (("#882255", "star-diamond"), ("#999933", "hexagon"), ("#332288", "bowtie"), ("#117733", "pentagon"))
_TITLES = {each.name: each.title for each in (*SCHEMES, *OPTIMIZERS)}
_AT_RATES = {"solid": "own best learning rate", "dash": "best learning rate of the smallest width"}
_FAR = 3.0  # times the median distance from the best score: losses beyond leave the panel

_EDGE: Json = {"line": {"color": MUTED, "width": 1}}
_CROSS: Json = {"symbol": "x-thin", "size": 8, "line": {"color": MUTED, "width": 1.5}}


def transfer_figure(panels: Mapping[str, Transfer], title: str) -> Figure:
    """Scores over the learning rate, one panel per setting and one line per width.

    >>> from mssp.report.canvas import description_of
    >>> from mssp.sweep.transfer import Score
    >>> scores = [Score(width, 2.0**k, 0, 1 - 0.1 * k**2) for width in (64, 128) for k in (-1, 0, 1)]
    >>> transfer = Transfer(Metric("accuracy", True, "accuracy"), scores)
    >>> description_of(transfer_figure({"Regime II · mssp · sgd": transfer}, "Transfer"))[:73]
    'Transfer. It shows accuracy over the learning rate for 2 widths: means ov'

    Schemes are columns where keys name them, as :class:`mssp.sweep.transfer.Contender` does, so that settings that
    differ in nothing else stand side by side. Bands are confidence intervals, stars the best learning rates (open at an
    end of the grid, where the true one may lie outside). A line has a gap where a seed diverged.
    """
    metric, places = _metric_of(panels), _places(list(panels))
    widths = sorted({width for transfer in panels.values() for width in transfer.widths})
    colours = dict(zip(widths, shades(len(widths)), strict=True))
    columns, rows = (1 + max(place[axis] for place in places.values()) for axis in (0, 1))
    across, down = 460 if columns > 1 else 640, 300 if rows < 3 else 240
    headings = {key: textwrap.wrap(_pretty(key), across // 7) for key in panels}
    above = 26 + 18 * max(map(len, headings.values()))
    legend_rows = math.ceil(len(widths) * 100 / (columns * across))
    canvas = Canvas(title, (columns, rows), (across, down), (28, above + 46), above, legend_rows + 1)
    for key, transfer in panels.items():
        column, row = places[key]
        beside = [other for other in panels if places[other][1] == row]
        first = all(places[other][0] >= column for other in beside)
        last = all(place[1] <= row for place in places.values() if place[0] == column)
        shown = [point.value for other in beside for point in _points(panels[other]) if point is not None]
        x, y, on = canvas.axes(row, column)
        x |= _rate_axis(transfer) | ({"title": axis_title("learning rate")} if last else {})
        y |= _score_axis(metric, shown, down, labelled=first) | {"showticklabels": first}
        canvas.heading(headings[key], _verdict(transfer))
        start = transfer.summaries[0].best_lr.value
        if math.isfinite(start):
            line = stroke(MUTED, "dash")
            ends = {"x0": start, "x1": start, "xref": on["xaxis"], "y0": 0, "y1": 1, "yref": f"{on['yaxis']} domain"}
            canvas.layout["shapes"].append({"type": "line", "layer": "below", "line": line} | ends)
        parts = [_width_traces(transfer, summary, colours[summary.width]) for summary in transfer.summaries]
        for part in zip(*parts, strict=True):  # bands under lines under stars
            canvas.data += [trace | on for trace in part if trace]
    canvas.name_once("lines+markers")
    _transfer_marks(canvas, panels)
    canvas.legend("legend", 0)
    canvas.legend("legend2", legend_rows)
    return canvas.figure(_transfer_words(panels, metric))


def _width_traces(transfer: Transfer, summary: WidthSummary, colour: str) -> tuple[Json, Json, Json]:
    """A width's band, line and star; empty where there is nothing to draw."""
    lrs = transfer.lrs(summary.width)
    xs, points = [math.log2(lr) for lr in lrs], [_point(transfer, summary.width, lr) for lr in lrs]
    common: Json = {"name": f"N = {summary.width}", "legendrank": summary.width}
    band = band_trace(xs, points, colour, 0.18, **common)
    words = ["diverged" if point is None else _text(point, 4) for point in points]
    told = [f"learning rate {lr:.4g}<br>{each}" for lr, each in zip(lrs, words, strict=True)]
    line = line_trace(xs, values_of(points), told, **common) | standing_for(x=lrs)
    line |= {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 5}}
    best_lr, best = summary.best_lr, summary.best
    told = [f"best log2 learning rate {_text(best_lr, 2)}<br>{_text(best, 4)}"]
    star = line_trace([best_lr.value], [best.value], told, **common)
    star |= {"mode": "markers", "marker": _star(colour, summary.at_edge)}
    star |= standing_for("best learning rate", x=[2**best_lr.value])
    found = math.isfinite(best_lr.value) and math.isfinite(best.value)
    return band if band["x"] else {}, line, star if found else {}


def _transfer_marks(canvas: Canvas, panels: Mapping[str, Transfer]) -> None:
    bases = {transfer.widths[0] for transfer in panels.values()}
    edges = {summary.at_edge for transfer in panels.values() for summary in transfer.summaries}
    for edge in sorted(edges):
        name = "best, at the grid’s end" if edge else "best learning rate"
        canvas.mark(name, mode="markers", marker=_star(MUTED, edge))
    base = f"N = {min(bases)}" if len(bases) == 1 else "the smallest width"
    canvas.mark(f"best for {base}", mode="lines", line=stroke(MUTED, "dash"))
    canvas.mark("95 % CI over seeds", mode="markers", marker=swatch(MUTED, 0.3))


def _verdict(transfer: Transfer) -> str:
    drift = transfer.drift
    moved = ": unclear" if math.isnan(drift.value) else f" {transfer.drift_verdict}: {_text(drift, 2)} per doubling"
    return f"best lr{moved} · wider is better: {transfer.wider_is_better}"


def _transfer_words(panels: Mapping[str, Transfer], metric: Metric) -> str:
    seeds = max(transfer.seeds for transfer in panels.values())
    widths = len({width for transfer in panels.values() for width in transfer.widths})
    words = [f"It shows {metric.label} over the learning rate for {many(widths, 'width')}: means over"]
    words.append(f"{many(seeds, 'seed')} with 95 % confidence intervals, in {many(len(panels), 'panel')}.")
    for key, transfer in panels.items():
        ends = dict.fromkeys((transfer.summaries[0], transfer.summaries[-1]))
        tops = [f"2^({_text(end.best_lr, 2)}) for N = {end.width} (score {_text(end.best, 3)})" for end in ends]
        lost = sum(not math.isfinite(score.value) for score in transfer.scores)
        diverged = f"; {many(lost, 'run')} diverged" if lost else ""
        words.append(f"{_pretty(key)}: the best learning rate is {' and '.join(tops)}; {_verdict(transfer)}{diverged}.")
    return " ".join(words)


def scaling_figure(panels: Mapping[str, Outcome], title: str = "Is wider better?") -> Figure:
    """Scores over the width, at each width's own best learning rate and the smallest's: a colour per scheme."""
    metric = _metric_of(panels)
    groups: dict[str, dict[str, Outcome]] = {}
    for key, transfer in panels.items():
        setting, scheme = _split(key)
        groups.setdefault(setting, {})[scheme] = transfer
    columns = min(len(groups), 3)
    across, down = 340 if columns > 1 else 600, 280
    headings = {setting: textwrap.wrap(_pretty(setting), across // 8) for setting in groups}
    above = 10 + 18 * max(map(len, headings.values()))
    shape = (columns, math.ceil(len(groups) / columns))
    canvas = Canvas(title, shape, (across, down), (74, above + 66), above, 2)
    schemes = sorted({scheme for group in groups.values() for scheme in group}, key=_rank)
    looks = _looks(schemes)
    words = []
    for number, (setting, group) in enumerate(groups.items()):
        x, y, on = canvas.axes(*divmod(number, columns))
        widths = sorted({each.width for transfer in group.values() for each in transfer.summaries})
        places = [math.log2(width) for width in widths]
        x |= {"title": axis_title("width N"), "tickvals": places, "ticktext": list(map(str, widths))}
        x |= {"range": [places[0] - 0.3, places[-1] + 0.3], "showgrid": False}
        canvas.heading(headings[setting])
        for scheme, transfer in group.items():
            shift = 0.06 * (schemes.index(scheme) - (len(schemes) - 1) / 2)  # error bars side by side
            traces = _scaling_traces(transfer, scheme, shift, looks[scheme])
            canvas.data += [trace | on for trace in traces]
            scores = [f"{_text(each.best, 3)} at N = {each.width}" for each in transfer.summaries]
            words.append(
                f"{_pretty(' · '.join(filter(None, (setting, scheme))))}: {', '.join(scores)}; wider is better: "
                f"{transfer.wider_is_better}; at the smallest width's learning rate the widest comes to "
                f"{_text(transfer.summaries[-1].transferred, 3)}, wider is better: "
                f"{transfer.wider_is_better_transferred}."
            )
        shown = [
            value + sign * bar
            for trace in canvas.data
            if trace["xaxis"] == on["xaxis"]
            for value, bar in zip(trace["y"], trace["error_y"]["array"], strict=True)
            for sign in (-1, 1)
            if value is not None
        ]
        y |= _score_axis(metric, shown, down, labelled=number % columns == 0)
    canvas.name_once("lines+markers")
    for dash, name in _AT_RATES.items():
        canvas.mark(name, mode="lines", line={"color": MUTED, "dash": dash})
    canvas.legend("legend", 0)
    canvas.legend("legend2", 1)
    return canvas.figure(f"It shows {metric.label} over the width, with 95 % confidence intervals. {' '.join(words)}")


def _rank(scheme: str) -> int:
    """Its place beside other schemes; those without a look of their own come last."""
    return list(_SCHEMES).index(scheme) if scheme in _SCHEMES else len(_SCHEMES)


def _looks(schemes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colours and markers of all that is in a figure."""
    others = [scheme for scheme in schemes if scheme not in _SCHEMES]
    return _SCHEMES | dict(zip(others, cycle(_OTHERS)))


def _scaling_traces(transfer: Outcome, scheme: str, shift: float, look: tuple[str, str]) -> tuple[Json, Json]:
    """At each width's own best rate, and at the smallest width's."""
    colour, symbol = look
    widths = [each.width for each in transfer.summaries]
    xs = [math.log2(width) + shift for width in widths]

    def trace(points: Sequence[Estimate | None], dash: str, mode: str, symbol: str) -> Json:
        words = ["diverged" if point is None else _text(point, 4) for point in points]
        told = [f"N = {width}<br>{each}" for width, each in zip(widths, words, strict=True)]
        line = line_trace(xs, values_of(points), told, name=_pretty(scheme) or "best score")
        line |= {"mode": mode, "line": {"color": colour, "width": 2, "dash": dash}}
        line |= standing_for(_AT_RATES[dash], x=widths)
        bars = error_bars(points, colour)
        line["error_y"] = bars | {"visible": any(bars["array"])}
        return line | {"marker": {"color": colour, "symbol": symbol}}

    own = [None if each.diverged else each.best for each in transfer.summaries]
    # Where own runs do and the regret is infinite, it was a transferred run that diverged.
    moved = [None if math.isinf(each.regret.value) else each.transferred for each in transfer.summaries]
    # Two words for one look: only "lines+markers" are named in the legend.
    return trace(own, "solid", "lines+markers", symbol), trace(moved, "dash", "markers+lines", f"{symbol}-open")


def heatmaps(
    points: Sequence[Mapping[str, float]],
    scores: Sequence[float],
    names: Sequence[str],
    best: Mapping[str, float],
    label: str,
    title: str = "Multipliers around their optimum",
    higher_is_better: bool = True,
) -> Figure:
    """Scores over every two multipliers, the others at the optimum: a triangle of panels, bright where it is good.

    >>> from mssp.report.canvas import description_of
    >>> points = [{"init": 1.0, "router": 1.0}, {"init": 4.0, "router": 1.0}]
    >>> description_of(heatmaps(points, [0.5, 0.4], ["init", "router"], points[0], "accuracy"))[34:88]
    'It shows accuracy over every two of init, router, the '

    Points that differ from the optimum in three multipliers or more are in no panel; equal points are averaged.
    """
    planes = _planes(points, scores, names, best)
    finite = [value for plane in planes.values() for value in plane.values() if math.isfinite(value)]
    if not finite:
        raise ValueError("no run with a score differs from the optimum in at most two multipliers: nothing to draw")
    places = {name: {_log2(name, best)} for name in names}
    for pair, plane in planes.items():
        for name, found in zip(pair, zip(*plane, strict=True), strict=False):
            places[name].update(found)
    axes = _multiplier_axes(places)
    first, second = names[:2]
    middle = planes[first, second].get((_log2(first, best), _log2(second, best)), math.nan)
    count = len(names) - 1
    side = 150 if count > 1 else 320
    canvas = Canvas(title, (count, count), (side, side), (16, 16), 4, 1)
    for (across, up), plane in planes.items():
        column, row = names.index(across), names.index(up) - 1
        x, y, on = canvas.axes(row, column)
        for axis, name, outer in ((x, across, row == count - 1), (y, up, column == 0)):
            labels = axes[name][1]
            every = math.ceil(len(labels) / 5)
            axis.update(tickvals=list(range(len(labels)))[::every], ticktext=labels[::every], showgrid=False)
            axis.update(range=[-0.5, len(labels) - 0.5], showticklabels=outer, ticks="outside" if outer else "")
            axis["title"] = axis_title(name if outer else "", side)
        canvas.data += [trace | on for trace in _plane_traces(plane, (across, up), axes, best)]
    low, high = _span(finite, higher_is_better, margin=0.0)
    # The colour bar and its label stand in the empty half of the triangle, and in the margin where that is small.
    bar = {"x": (side + 24) / canvas.inner[0], "xanchor": "left", "y": 1, "yanchor": "top", "thickness": 16}
    bar |= {"lenmode": "pixels", "len": side, "ypad": 0, "outlinewidth": 0}
    canvas.note(html_lines(textwrap.wrap(label, 24)), size=13, x=(side + 88) / canvas.inner[0], y=1, yanchor="top")
    canvas.widen(side + 88 + 170 - canvas.inner[0])
    scale = {"colorscale": "Viridis", "reversescale": not higher_is_better, "cmin": low, "cmax": high, "colorbar": bar}
    canvas.layout |= {"coloraxis": scale, "plot_bgcolor": _BLANK}
    canvas.mark("optimum", mode="markers", marker=_star(INK, False))
    if len(finite) < sum(map(len, planes.values())):
        canvas.mark("diverged", mode="markers", marker=_CROSS)
    if any(len(plane) < math.prod(len(axes[name][1]) for name in pair) for pair, plane in planes.items()):
        canvas.mark("not run", mode="markers", marker={"symbol": "square", "size": 13, "color": _BLANK} | _EDGE)
    canvas.legend("legend2", 0)
    where = ", ".join(f"{name} {best[name]:.4g}" for name in names)
    return canvas.figure(
        f"It shows {label} over every two of {', '.join(names)}, the others at the optimum ({where}): "
        f"{'' if math.isnan(middle) else f'{signed(middle, 4)} there, '}from {signed(min(finite), 4)} to "
        f"{signed(max(finite), 4)} around it."
    )


_Plane = dict[tuple[float, float], float]


def _planes(
    points: Sequence[Mapping[str, float]], scores: Sequence[float], names: Sequence[str], best: Mapping[str, float]
) -> dict[tuple[str, str], _Plane]:
    """Scores by the logarithms of each two multipliers; NaN where a run diverged."""
    if len(set(names)) < 2:
        raise ValueError(f"a heatmap needs two multipliers or more, got {', '.join(names) or 'none'}")
    if len(points) != len(scores):
        raise ValueError(f"every point has one score: got {len(points)} points and {len(scores)} scores")
    found: dict[tuple[str, str], dict[tuple[float, float], list[float]]] = {pair: {} for pair in combinations(names, 2)}
    for point, score in zip(points, scores, strict=True):
        moved = {name for name in names if _log2(name, point) != _log2(name, best)}
        for pair, plane in found.items():
            if moved <= set(pair):
                place = (_log2(pair[0], point), _log2(pair[1], point))
                plane.setdefault(place, []).append(score if math.isfinite(score) else math.nan)
    return {pair: {place: fmean(each) for place, each in cells.items()} for pair, cells in found.items()}


def _log2(name: str, point: Mapping[str, float]) -> float:
    """Rounded, so that equal multipliers have equal logarithms however they were computed."""
    if name not in point:
        raise ValueError(f"a point has no multiplier {name!r}: it has {', '.join(point) or 'none'}")
    if not 0 < point[name] < math.inf:
        raise ValueError(f"multipliers are positive numbers, got {name} = {point[name]}")
    return round(math.log2(point[name]), 6)


def _multiplier_axes(places: Mapping[str, Iterable[float]]) -> dict[str, tuple[list[float], list[str]]]:
    """For each multiplier the logarithms along its axis, those between that were not run too, and their labels."""
    every = [place for each in places.values() for place in each]
    axes: dict[str, tuple[list[float], list[str]]] = {}
    for name, each in places.items():
        if any(place % 1 for place in every):
            axes[name] = sorted(each), [f"{2**place:.3g}" for place in sorted(each)]
            continue
        base, unit = (2, 1) if any(place % 2 for place in every) else (4, 2)
        first, last = round(min(each)), round(max(each))
        steps = range(first, last + 1, math.gcd(*(round(place) - first for place in each)) or 1)
        axes[name] = list(map(float, steps)), [_power(base, step // unit) for step in steps]
    return axes


def _plane_traces(
    plane: _Plane, names: tuple[str, str], axes: Mapping[str, tuple[list[float], list[str]]], best: Mapping[str, float]
) -> list[Json]:
    """The cells, crosses on those that diverged, the star on the optimum."""
    (xs, x_labels), (ys, y_labels) = (axes[name] for name in names)
    z = [[plane.get((x, y), math.nan) for x in xs] for y in ys]
    hover = f"{names[0]} %{{customdata[0]}}<br>{names[1]} %{{customdata[1]}}<br>%{{z:.4g}}<extra></extra>"
    cells: Json = {"type": "heatmap", "z": [[value if math.isfinite(value) else None for value in row] for row in z]}
    cells |= {"coloraxis": "coloraxis", "xgap": 1, "ygap": 1, "hoverongaps": False, "hovertemplate": hover}
    cells["customdata"] = [[[x, y] for x in x_labels] for y in y_labels]
    x_values, y_values = ([float(f"{2**place:.6g}") for place in places] for places in (xs, ys))
    cells |= standing_for(x=x_values, y=y_values)
    common = {"type": "scatter", "mode": "markers", "showlegend": False, "hoverinfo": "skip"}
    lost = [(xs.index(x), ys.index(y)) for (x, y), value in plane.items() if not math.isfinite(value)]
    crosses = common | {"x": [x for x, _ in lost], "y": [y for _, y in lost], "marker": _CROSS}
    crosses |= standing_for("diverged", x=[x_values[x] for x, _ in lost], y=[y_values[y] for _, y in lost])
    star = {
        "x": [xs.index(_log2(names[0], best))],
        "y": [ys.index(_log2(names[1], best))],
        "marker": _star(_ON_BRIGHT, False),
        **standing_for("optimum", x=[best[names[0]]], y=[best[names[1]]]),
    }
    return [cells, *([crosses] if lost else []), common | star]


# -- what figures share ------------------------------------------------------------------------------------------------


def _metric_of(panels: Mapping[str, Outcome]) -> Metric:
    if not 1 <= len(panels) <= PANELS:
        raise ValueError(f"a figure has 1 to {PANELS} panels, got {len(panels)}")
    for key, transfer in panels.items():
        if not transfer.summaries:
            raise ValueError(f"there are no scores for {key!r}: nothing to draw")
    metrics = list(dict.fromkeys(transfer.metric for transfer in panels.values()))
    if len(metrics) > 1:
        names = ", ".join(metric.name for metric in metrics)
        raise ValueError(f"panels of one figure share an axis, and have different metrics: {names}")
    return metrics[0]


def _split(key: str) -> tuple[str, str]:
    """The setting without its scheme, and the scheme; empty where the key names none."""
    parts = key.split(" · ")
    scheme = next((part for part in parts if part in map(str, SCHEMES)), "")
    return " · ".join(part for part in parts if part != scheme), scheme


def _places(keys: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Column and row of each panel."""
    split = [_split(key) for key in keys]
    settings, schemes = (list(dict.fromkeys(part)) for part in zip(*split, strict=True))
    if len(schemes) > 1 and len(set(split)) == len(split):
        return {
            key: (schemes.index(scheme), settings.index(rest)) for key, (rest, scheme) in zip(keys, split, strict=True)
        }
    columns = 3 if len(keys) > 4 else min(len(keys), 2)
    return {key: (number % columns, number // columns) for number, key in enumerate(keys)}


def _point(transfer: Transfer, width: int, lr: float) -> Estimate | None:
    """None where a seed diverged: a mean over those that did not would flatter the learning rate."""
    return transfer.shown(width, lr) if all(map(math.isfinite, transfer.values(width, lr).values())) else None


def _points(transfer: Transfer) -> list[Estimate | None]:
    return [_point(transfer, width, lr) for width in transfer.widths for lr in transfer.lrs(width)]


def _rate_axis(transfer: Transfer) -> Json:
    places = sorted({math.log2(lr) for width in transfer.widths for lr in transfer.lrs(width)})
    low, high = places[0] - 0.4, places[-1] + 0.4
    every = math.ceil((high - low) / 10)
    ticks = [k for k in range(math.ceil(low), math.floor(high) + 1) if k % every == 0]
    labels = [_power(2, k) for k in ticks]
    if len(ticks) < 2:
        return {"range": [low, high], "tickvals": places, "ticktext": [f"{2**place:.3g}" for place in places]}
    return {"range": [low, high], "tickvals": ticks, "ticktext": labels}


def _score_axis(metric: Metric, values: Sequence[float], height: int, labelled: bool) -> Json:
    title = {"title": axis_title(metric.label, height)} if labelled else {}
    return {"range": _span(values, metric.higher_is_better), "automargin": False, **title}


def _span(values: Sequence[float], higher_is_better: bool, margin: float = 0.08) -> list[float]:
    """From the worst score to the best. Losses have no upper end, and one that explodes would flatten all others."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if not higher_is_better:
        usual = median(value - low for value in values)
        high = min(high, low + _FAR * usual) if usual else high
    space = margin * (high - low) or (0.5 if high == low else 0.0)
    return [low - space, high + space]


def _star(colour: str, at_edge: bool) -> Json:
    if at_edge:
        return {"symbol": "star", "size": 12, "color": "white", "line": {"color": colour, "width": 2}}
    return {"symbol": "star", "size": 15, "color": colour, "line": {"color": "white", "width": 1}}


def _pretty(text: str) -> str:
    return " · ".join(_TITLES.get(part, part) for part in text.split(" · "))


def _power(base: int, exponent: int) -> str:
    return f"{base}<sup>{exponent}</sup>".replace("-", "−")


def _text(estimate: Estimate, digits: int) -> str:
    return estimate.text(digits) if math.isfinite(estimate.value) else "none"
