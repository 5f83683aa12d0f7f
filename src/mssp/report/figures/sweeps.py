"""Figures of sweeps: scores over the learning rate, scores over the width, and multipliers around their optimum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from statistics import fmean, median

from mssp._estimates import Estimate
from mssp.planning.setting import JIANG, MSSP, MUP, MUP_HEURISTIC, NTP, SP, Scheme, title_of
from mssp.report.colours import BLANK, GROUND, INK, MUTED, ON_BRIGHT, shades
from mssp.report.figure import Axis, Cells, Figure, Json, Panel, Scale, Series, estimated, in_rows, mark, swatch
from mssp.report.words import many, signed
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Contender, Outcome, Transfer

MAX_PANELS = 12  # of one figure
# Colour and marker of each scheme. MSSP and μP also differ much in lightness.
SCHEME_LOOKS = {
    MSSP: ("#0b3c7d|#a9c0ff", "circle"),
    MUP: ("#cc820b|#e8940c", "square"),
    MUP_HEURISTIC: ("#cc79a7|#cc79a7", "diamond"),
    SP: ("#7a7a7a|#9a9ea8", "triangle-up"),
    NTP: ("#009e73|#009e73", "triangle-down"),
    JIANG: ("#4a9bc8|#56b4e9", "cross"),
}
# Colours and markers for schemes that are not in the table, in the order of the contenders.
SPARE_LOOKS = (
    ("#882255|#dd5fb4", "star-diamond"), ("#999933|#b5b545", "hexagon"),
    ("#332288|#9c8ff5", "bowtie"), ("#117733|#5fbf68", "pentagon"),
)  # fmt: skip
_FARTHEST = 3.0  # a loss that is farther from the best, in units of the median distance, leaves the panel
_OPTIMUM: Json = {"symbol": "star", "size": 15, "line": {"color": GROUND, "width": 1}}
_AT_EDGE: Json = {"symbol": "star", "size": 12, "color": GROUND}
_EDGE: Json = {"line": {"color": MUTED, "width": 1}}
_CROSS: Json = {"symbol": "x-thin", "size": 8, "line": {"color": MUTED, "width": 1.5}}


# -- learning-rate transfer --------------------------------------------------------------------------------------------


def transfer_figure(outcomes: Mapping[Contender, Transfer], title: str) -> Figure:
    """Scores over the learning rate, one panel per setting and one line per width.

    >>> from mssp.planning.setting import Setting
    >>> from mssp.sweep.transfer import Score
    >>> scores = [Score(width, 2.0**k, 0, 1 - 0.1 * k**2) for width in (64, 128) for k in (-1, 0, 1)]
    >>> transfer = Transfer(Metric("accuracy", True, "accuracy"), scores)
    >>> figure = transfer_figure({Contender(Setting.of("mssp", "II", "sgd")): transfer}, "Transfer")
    >>> figure.panels[0].heading, [series.name for series in figure.panels[0].series]
    ('Regime II · MSSP · SGD', ['N = 64', 'N = 128', 'N = 64', 'N = 128'])

    Settings that differ in nothing but the scheme are side by side. Bands are confidence intervals, and stars are the
    best learning rates. A star is open at an end of the grid, since the true best may be outside. A line has a gap
    where a seed diverged.
    """
    metric, contenders = _metric_of(outcomes), _rows(list(outcomes))
    widths = sorted({width for transfer in outcomes.values() for width in transfer.widths})
    colours = dict(zip(widths, shades(len(widths)), strict=True))
    rows: list[list[Panel | None]] = []
    for row in contenders:
        transfers = [outcomes[contender] for contender in row if contender]
        points = [_point(each, width, lr) for each in transfers for width in each.widths for lr in each.lrs(width)]
        span = _span([point.value for point in points if point is not None], metric.higher_is_better)
        y = Axis(title=metric.label, look={"range": span}, title_once=True, labels_once=True)
        rows.append([_transfer_panel(each, outcomes[each], y, colours) if each else None for each in row])
    columns = len(rows[0])
    return Figure(
        title=title,
        summary=_transfer_summary(outcomes, metric),
        rows=rows,
        size=(460 if columns > 1 else 640, 300 if len(rows) < 3 else 240),
        gap=(28, 90),
        heading_room=44,
        marks=_transfer_marks(outcomes),
    )


def _rows(contenders: Sequence[Contender]) -> list[list[Contender | None]]:
    """A column per scheme if every contender has its own place then; else rows of as many contenders as fit."""
    places = {(_name_without_scheme(contender), contender.setting.scheme): contender for contender in contenders}
    settings, schemes = (list(dict.fromkeys(labels)) for labels in zip(*places, strict=True))
    if len(schemes) > 1 and len(places) == len(contenders):
        return [[places.get((setting, scheme)) for scheme in schemes] for setting in settings]
    return in_rows(contenders, 3 if len(contenders) > 4 else min(len(contenders), 2))


def _transfer_panel(contender: Contender, transfer: Transfer, y: Axis, colours: Mapping[int, str]) -> Panel:
    """The scores of a contender over the learning rate, with a line and a star for each width."""
    lines, stars = [], []
    for summary in transfer.summaries:
        lrs, colour, best_lr, best = transfer.lrs(summary.width), colours[summary.width], summary.best_lr, summary.best
        common: Json = {"name": f"N = {summary.width}", "rank": summary.width, "colour": colour}
        points = [_point(transfer, summary.width, lr) for lr in lrs]
        scores = ["diverged" if point is None else _text(point, 4) for point in points]
        hover = [f"learning rate {lr:.4g}<br>{score}" for lr, score in zip(lrs, scores, strict=True)]
        at_x = [math.log2(lr) for lr in lrs]
        lines.append(Series(x=lrs, at_x=at_x, **estimated(points), hover=hover, size=5, band=0.18, **common))
        if math.isfinite(best_lr.value) and math.isfinite(best.value):
            hover = [f"best log2 learning rate {_text(best_lr, 2)}<br>{_text(best, 4)}"]
            place: Json = {"x": [2**best_lr.value], "at_x": [best_lr.value], "y": [best.value]}
            star: Json = {"mode": "markers", "marker": _star(colour, summary.at_edge), "in_legend": False}
            stars.append(Series(part="best learning rate", hover=hover, **place, **star, **common))
    narrowest_best = transfer.summaries[0].best_lr.value
    return Panel(
        heading=_name(contender),
        subtitle=_verdict(transfer),
        x=Axis(title="learning rate", look=_rate_axis(transfer), title_once=True),
        y=y,
        series=[*lines, *stars],
        vertical_line=narrowest_best if math.isfinite(narrowest_best) else None,
    )


def _transfer_marks(outcomes: Mapping[Contender, Transfer]) -> list[Series]:
    narrowest = {transfer.widths[0] for transfer in outcomes.values()}
    at_edges = {summary.at_edge for transfer in outcomes.values() for summary in transfer.summaries}
    label = f"N = {min(narrowest)}" if len(narrowest) == 1 else "the smallest width"
    names = {False: "best learning rate", True: "best, at the grid’s end"}
    return [
        *(mark(names[at_edge], mode="markers", marker=_star(MUTED, at_edge)) for at_edge in sorted(at_edges)),
        mark(f"best for {label}", mode="lines", dash="dash", width=1.5),
        mark("95 % CI over seeds", mode="markers", marker=swatch(MUTED, 0.3)),
    ]


def _star(colour: str, at_edge: bool) -> Json:
    if at_edge:
        return _AT_EDGE | {"line": {"color": colour, "width": 2}}
    return _OPTIMUM | {"color": colour}


def _verdict(transfer: Transfer) -> str:
    drift = transfer.drift
    change = ": unclear" if math.isnan(drift.value) else f" {transfer.drift_verdict}: {_text(drift, 2)} per doubling"
    return f"best lr{change} · wider is better: {transfer.wider_is_better}"


def _transfer_summary(outcomes: Mapping[Contender, Transfer], metric: Metric) -> str:
    seeds = max(transfer.seeds for transfer in outcomes.values())
    widths = len({width for transfer in outcomes.values() for width in transfer.widths})
    sentences = [
        f"It shows {metric.label} over the learning rate for {many(widths, 'width')}: means over {many(seeds, 'seed')} "
        f"with 95 % confidence intervals, in {many(len(outcomes), 'panel')}."
    ]
    for contender, transfer in outcomes.items():
        ends = dict.fromkeys((transfer.summaries[0], transfer.summaries[-1]))
        best = [f"2^({_text(end.best_lr, 2)}) for N = {end.width} (score {_text(end.best, 3)})" for end in ends]
        count = sum(not math.isfinite(score.value) for score in transfer.scores)
        diverged = f"; {many(count, 'run')} diverged" if count else ""
        verdict = f"the best learning rate is {' and '.join(best)}; {_verdict(transfer)}{diverged}"
        sentences.append(f"{_name(contender)}: {verdict}.")
    return " ".join(sentences)


def _point(transfer: Transfer, width: int, lr: float) -> Estimate | None:
    """The mean over seeds; None if one diverged, since the mean of the others would flatter the learning rate."""
    return transfer.shown(width, lr) if all(map(math.isfinite, transfer.values(width, lr).values())) else None


def _rate_axis(transfer: Transfer) -> Json:
    places = sorted({math.log2(lr) for width in transfer.widths for lr in transfer.lrs(width)})
    low, high = places[0] - 0.4, places[-1] + 0.4
    spacing = math.ceil((high - low) / 10)
    ticks = [k for k in range(math.ceil(low), math.floor(high) + 1) if k % spacing == 0]
    labels = [_power(2, k) for k in ticks]
    if len(ticks) < 2:
        return {"range": [low, high], "tickvals": places, "ticktext": [f"{2**place:.3g}" for place in places]}
    return {"range": [low, high], "tickvals": ticks, "ticktext": labels}


# -- scores over width -------------------------------------------------------------------------------------------------


def scaling_figure(outcomes: Mapping[Contender, Outcome], title: str = "Is wider better?") -> Figure:
    """Scores over the width, at the best learning rate of each width and at that of the smallest width.

    A scheme has one colour. Contenders that differ in nothing but the scheme are in one panel.
    """
    metric = _metric_of(outcomes)
    groups: dict[str, dict[Contender, Outcome]] = {}
    for contender, outcome in outcomes.items():
        groups.setdefault(_name_without_scheme(contender), {})[contender] = outcome
    columns = min(len(groups), 3)
    known = list(SCHEME_LOOKS)
    schemes = dict.fromkeys(contender.setting.scheme for contender in outcomes)
    ordered = sorted(schemes, key=lambda scheme: known.index(scheme) if scheme in known else len(known))
    spare = zip([scheme for scheme in ordered if scheme not in known], cycle(SPARE_LOOKS), strict=False)
    looks = SCHEME_LOOKS | dict(spare)
    shifts = {scheme: 0.06 * (place - (len(ordered) - 1) / 2) for place, scheme in enumerate(ordered)}
    panels = [_scaling_panel(setting, group, metric, looks, shifts) for setting, group in groups.items()]
    sentences = [
        f"{' · '.join(filter(None, (setting, contender.setting.scheme.title)))}: {_scaling_summary(outcome)}"
        for setting, group in groups.items()
        for contender, outcome in group.items()
    ]
    return Figure(
        title=title,
        summary=f"It shows {metric.label} over the width, with 95 % confidence intervals. {' '.join(sentences)}",
        rows=in_rows(panels, columns),
        size=(340 if columns > 1 else 600, 280),
        gap=(74, 94),
        heading_room=28,
        marks=[
            mark("own best learning rate", mode="lines"),
            mark("best learning rate of the smallest width", mode="lines", dash="dash"),
        ],
    )


def _scaling_panel(
    setting: str,
    group: Mapping[Contender, Outcome],
    metric: Metric,
    looks: Mapping[Scheme, tuple[str, str]],
    shifts: Mapping[Scheme, float],
) -> Panel:
    """Two lines per scheme; schemes are moved by their shifts, so that error bars do not overlap."""
    widths = sorted({summary.width for outcome in group.values() for summary in outcome.summaries})
    places = [math.log2(width) for width in widths]
    x: Json = {"tickvals": places, "ticktext": list(map(str, widths)), "showgrid": False}
    lines = []
    for contender, outcome in group.items():
        (colour, symbol), shift = looks[contender.setting.scheme], shifts[contender.setting.scheme]
        own = [None if summary.diverged else summary.best for summary in outcome.summaries]
        # The regret is infinite if a run at the learning rate of the smallest width diverged.
        transferred = [None if math.isinf(each.regret.value) else each.transferred for each in outcome.summaries]
        own_widths = [summary.width for summary in outcome.summaries]
        common: Json = {"name": contender.setting.scheme.title, "x": own_widths, "colour": colour}
        common |= {"at_x": [math.log2(width) for width in own_widths], "x_shift": shift}
        common |= {"bars": {"thickness": 1.5, "width": 4}}
        dashed: Json = {"dash": "dash", "symbol": f"{symbol}-open", "mode": "markers+lines", "in_legend": False}
        for points, part, look in (
            (own, "own best learning rate", {"symbol": symbol}),
            (transferred, "best learning rate of the smallest width", dashed),
        ):
            scores = ["diverged" if point is None else _text(point, 4) for point in points]
            hover = [f"N = {width}<br>{score}" for width, score in zip(own_widths, scores, strict=True)]
            lines.append(Series(part=part, hover=hover, **estimated(points), **common, **look))
    bar_ends = [
        y + sign * (ci if math.isfinite(ci) else 0.0)
        for line in lines
        for y, ci in zip(line.y, line.ci, strict=True)
        for sign in (-1, 1)
        if y is not None
    ]
    return Panel(
        heading=setting,
        x=Axis(title="width N", look=x | {"range": [places[0] - 0.3, places[-1] + 0.3]}),
        y=Axis(title=metric.label, look={"range": _span(bar_ends, metric.higher_is_better)}, title_once=True),
        series=lines,
    )


def _scaling_summary(outcome: Outcome) -> str:
    scores = [f"{_text(summary.best, 3)} at N = {summary.width}" for summary in outcome.summaries]
    return (
        f"{', '.join(scores)}; wider is better: {outcome.wider_is_better}; at the smallest width's learning rate the "
        f"widest comes to {_text(outcome.summaries[-1].transferred, 3)}, wider is better: "
        f"{outcome.wider_is_better_transferred}."
    )


# -- multipliers around their optimum ----------------------------------------------------------------------------------


def heatmaps(
    points: Sequence[Mapping[str, float]],
    scores: Sequence[float],
    names: Sequence[str],
    best: Mapping[str, float],
    label: str,
    title: str = "Multipliers around their optimum",
    higher_is_better: bool = True,
) -> Figure:
    """Scores over every two multipliers, while the others are at the optimum: a triangle of heatmaps, bright if good.

    >>> points = [{"init": 1.0, "router": 1.0}, {"init": 4.0, "router": 1.0}]
    >>> heatmaps(points, [0.5, 0.4], ["init", "router"], points[0], "accuracy").panels[0].cells.z
    [[0.5, 0.4]]

    Points that differ from the optimum in three multipliers or more are in no panel; equal points are averaged.
    """
    planes = _planes(points, scores, names, best)
    finite = [value for plane in planes.values() for value in plane.values() if math.isfinite(value)]
    if not finite:
        raise ValueError("no run with a score differs from the optimum in at most two multipliers: nothing to draw")
    logs = {name: {_log2(name, best)} for name in names}
    for pair, plane in planes.items():
        for name, coordinates in zip(pair, zip(*plane, strict=True), strict=False):
            logs[name].update(coordinates)
    axes = _multiplier_axes(logs)
    first, second = names[:2]
    at_optimum = planes[first, second].get((_log2(first, best), _log2(second, best)), math.nan)
    panels = {(across, up): _plane_panel(plane, axes[across], axes[up], best) for (across, up), plane in planes.items()}
    optimum = ", ".join(f"{name} {best[name]:.4g}" for name in names)
    low, high = _span(finite, higher_is_better, margin=0.0)
    marks = [mark("optimum", mode="markers", marker=_OPTIMUM | {"color": INK})]
    if len(finite) < sum(map(len, planes.values())):
        marks.append(mark("diverged", mode="markers", marker=_CROSS))
    if any(len(plane) < math.prod(len(axes[name].logs) for name in pair) for pair, plane in planes.items()):
        marks.append(mark("not run", mode="markers", marker={"symbol": "square", "size": 13, "color": BLANK} | _EDGE))
    return Figure(
        title=title,
        summary=f"It shows {label} over every two of {', '.join(names)}, the others at the optimum ({optimum}): "
        f"{'' if math.isnan(at_optimum) else f'{signed(at_optimum, 4)} there, '}from {signed(min(finite), 4)} to "
        f"{signed(max(finite), 4)} around it.",
        rows=[[panels.get((across, up)) for across in names[:-1]] for up in names[1:]],
        table_order=list(panels.values()),
        size=(150, 150) if len(names) > 2 else (320, 320),
        gap=(16, 16),
        heading_room=4,
        marks=marks,
        scale=Scale(label=label, low=low, high=high, reversed=not higher_is_better),
    )


_Plane = dict[tuple[float, float], float]  # scores by the logarithms of two multipliers; NaN if a run diverged


def _planes(
    points: Sequence[Mapping[str, float]], scores: Sequence[float], names: Sequence[str], best: Mapping[str, float]
) -> dict[tuple[str, str], _Plane]:
    """The plane of every two multipliers. It holds the mean score of the runs at each place."""
    if len(set(names)) < 2:
        raise ValueError(f"a heatmap needs two multipliers or more, got {', '.join(names) or 'none'}")
    if len(points) != len(scores):
        raise ValueError(f"every point has one score: got {len(points)} points and {len(scores)} scores")
    runs: dict[tuple[str, str], dict[tuple[float, float], list[float]]] = {pair: {} for pair in combinations(names, 2)}
    for point, score in zip(points, scores, strict=True):
        off_optimum = {name for name in names if _log2(name, point) != _log2(name, best)}
        for pair, plane in runs.items():
            if off_optimum <= set(pair):
                place = (_log2(pair[0], point), _log2(pair[1], point))
                plane.setdefault(place, []).append(score if math.isfinite(score) else math.nan)
    return {pair: {place: fmean(values) for place, values in plane.items()} for pair, plane in runs.items()}


def _log2(name: str, point: Mapping[str, float]) -> float:
    """The logarithm of a multiplier, rounded so that equal ones have equal logarithms however they were computed."""
    if name not in point:
        raise ValueError(f"a point has no multiplier {name!r}: it has {', '.join(point) or 'none'}")
    if not 0 < point[name] < math.inf:
        raise ValueError(f"multipliers are positive numbers, got {name} = {point[name]}")
    return round(math.log2(point[name]), 6)


@dataclass(frozen=True)
class _Multiplier:
    """A multiplier as an axis: logarithms of its values, with those in between that were not run, and labels."""

    name: str
    logs: list[float]
    labels: list[str]

    @property
    def values(self) -> list[float]:
        return [float(f"{2**log:.6g}") for log in self.logs]

    @property
    def axis(self) -> Axis:
        ticks = {"tickvals": list(range(len(self.labels))), "ticktext": self.labels, "showgrid": False}
        look = ticks | {"range": [-0.5, len(self.labels) - 0.5]}
        return Axis(title=self.name, look=look, title_once=True, labels_once=True)


def _multiplier_axes(logs: Mapping[str, Iterable[float]]) -> dict[str, _Multiplier]:
    """The axes of all multipliers. Labels are powers of 4 or of 2 if all values are such powers, else numbers."""
    all_logs = [log for own_logs in logs.values() for log in own_logs]
    axes = {}
    for name, own_logs in logs.items():
        if any(log % 1 for log in all_logs):
            axes[name] = _Multiplier(name, sorted(own_logs), [f"{2**log:.3g}" for log in sorted(own_logs)])
            continue
        base, unit = (2, 1) if any(log % 2 for log in all_logs) else (4, 2)
        first, last = round(min(own_logs)), round(max(own_logs))
        steps = range(first, last + 1, math.gcd(*(round(log) - first for log in own_logs)) or 1)
        axes[name] = _Multiplier(name, list(map(float, steps)), [_power(base, step // unit) for step in steps])
    return axes


def _plane_panel(plane: _Plane, across: _Multiplier, up: _Multiplier, best: Mapping[str, float]) -> Panel:
    """A heatmap of two multipliers, with crosses where runs diverged and a star at the optimum."""
    rows = [[plane.get((x, y), math.nan) for x in across.logs] for y in up.logs]
    cells = Cells(
        x=across.values,
        y=up.values,
        z=[[value if math.isfinite(value) else None for value in row] for row in rows],
        names=(across.name, up.name),
        labels=(across.labels, up.labels),
    )

    def marks(part: str, places: Sequence[tuple[float, float]], marker: Json) -> Series:
        at_x, at_y = [across.logs.index(x) for x, _ in places], [up.logs.index(y) for _, y in places]
        x, y = [across.values[index] for index in at_x], [up.values[index] for index in at_y]
        look: Json = {"mode": "markers", "marker": marker, "legend": "", "in_legend": False}
        return Series(name="", part=part, x=x, y=y, at_x=at_x, at_y=at_y, **look)

    diverged = [place for place, value in plane.items() if not math.isfinite(value)]
    optimum = (_log2(across.name, best), _log2(up.name, best))
    crosses = [marks("diverged", diverged, _CROSS)] if diverged else []
    star = marks("optimum", [optimum], _OPTIMUM | {"color": ON_BRIGHT})
    return Panel(x=across.axis, y=up.axis, cells=cells, series=[*crosses, star])


# -- shared by the figures ---------------------------------------------------------------------------------------------


def _metric_of(outcomes: Mapping[Contender, Outcome]) -> Metric:
    """The metric of all outcomes; ValueError says why they cannot be in one figure."""
    if not 1 <= len(outcomes) <= MAX_PANELS:
        raise ValueError(f"a figure has 1 to {MAX_PANELS} panels, got {len(outcomes)}")
    for contender, outcome in outcomes.items():
        if not outcome.summaries:
            raise ValueError(f"there are no scores for {str(contender)!r}: nothing to draw")
    metrics = list(dict.fromkeys(outcome.metric for outcome in outcomes.values()))
    if len(metrics) > 1:
        names = ", ".join(metric.name for metric in metrics)
        raise ValueError(f"panels of one figure share an axis, and have different metrics: {names}")
    return metrics[0]


def _name(contender: Contender, scheme: bool = True) -> str:
    """As ``Regime II · MSSP · SGD``, with everything that is not as usual."""
    setting = contender.setting
    regime = title_of(setting.regime)
    parts = (regime, setting.scheme.title if scheme else "", setting.optimizer.title, contender.details)
    return " · ".join(filter(None, parts))


def _name_without_scheme(contender: Contender) -> str:
    """What contenders have in common that differ in nothing but the scheme."""
    return _name(contender, scheme=False)


def _span(values: Sequence[float], higher_is_better: bool, margin: float = 0.08) -> list[float]:
    """The ends of an axis of scores. Losses far above the others are left out, since they would flatten the curves."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if not higher_is_better:
        usual = median(value - low for value in values)
        high = min(high, low + _FARTHEST * usual) if usual else high
    space = margin * (high - low) or (0.5 if high == low else 0.0)
    return [low - space, high + space]


def _power(base: int, exponent: int) -> str:
    return f"{base}<sup>{exponent}</sup>".replace("-", "−")


def _text(estimate: Estimate, digits: int) -> str:
    return estimate.text(digits) if math.isfinite(estimate.value) else "none"
