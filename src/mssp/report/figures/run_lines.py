"""Lines and panels over the steps of training runs, from which the figures of runs are made.

A run has the same colour in all panels that runs share. Of more steps than a line has room for, points are means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from mssp.report.colours import INK
from mssp.report.figure import DASHED, MARKS, Axis, Figure, Json, Panel, Series, in_rows
from mssp.report.figures.axes import SMALL_TICKS, log_axis, on_log_axis
from mssp.report.figures.looks import LEGENDS
from mssp.report.words import many, markup, signed
from mssp.train.logged_run import Curve, LoggedRun

Runs = Mapping[str, LoggedRun]  # by their names

MOST_POINTS = 500  # of a line
RUN_COLOURS = (
    "#0072b2|#4f86e8", "#d55e00|#f07a2e", "#009e73|#009e73", "#cc79a7|#cc79a7", "#c68900|#e69f00", "#4a9bc8|#56b4e9",
    "#882255|#dd5fb4", INK,
)  # fmt: skip
RUNS, GROUPS = "runs", "groups"  # names of legends
_LEGENDS = {RUNS: "", GROUPS: "", **LEGENDS, MARKS: ""}
_MARKED = 60  # a line of more points has no markers
# Pixels of a panel by the number of columns, and between columns and rows. Three columns fit on a page.
_WIDTHS, _GAPS = {1: 900, 2: 440, 3: 240}, {1: (64, 104), 2: (64, 104), 3: (54, 104)}
THIN: Json = {"mode": "lines", "width": 1}


def looks_of_runs(runs: Runs) -> Iterator[tuple[str, LoggedRun, Json]]:
    """Every run with its name and how its lines look; dashed where colours do not suffice."""
    for rank, (name, run) in enumerate(runs.items()):
        dash = DASHED if rank // len(RUN_COLOURS) % 2 else "solid"
        look = {"colour": RUN_COLOURS[rank % len(RUN_COLOURS)], "legend": RUNS, "rank": rank, "dash": dash}
        yield name, run, look


def line(curve: Curve, name: str, part: str = "", **look: Any) -> Series:
    """A line over the steps, with gaps where numbers were not finite."""
    points = thinned(curve)
    look = {"mode": "lines"} | look if len(points) > _MARKED else look
    hover = f"{markup(' · '.join(filter(None, (name, part))))}<br>step %{{x}}<br>%{{y:.4g}}"
    return Series(name=markup(name), part=part, x=[*points], y=[*points.values()], hover=hover, **look)


def thinned(curve: Curve) -> Curve:
    """At most so many points as a line has room for: means over stretches of equally many, at the last step of each.

    >>> curve = thinned({step: float(step) for step in range(1, 1001)})
    >>> len(curve), list(curve.items())[:2]
    (500, [(2, 1.5), (4, 3.5)])
    """
    steps = sorted(curve)
    length = stretch(curve)
    if length == 1:
        return {step: curve[step] for step in steps}
    means: Curve = {}
    for start in range(0, len(steps), length):
        there = [value for step in steps[start : start + length] if (value := curve[step]) is not None]
        means[steps[min(start + length, len(steps)) - 1]] = fmean(there) if there else None
    return means


def stretch(curve: Curve) -> int:
    """How many points of a curve are one point of its line."""
    return max(math.ceil(len(curve) / MOST_POINTS), 1)


def panel(
    heading: str,
    series: Sequence[Series],
    *,
    title: str = "",
    subtitle: str = "",
    logarithmic: bool = False,
    also: Sequence[float] = (),
    last: int = 0,
    look: Json | None = None,
) -> Panel:
    """A panel over the steps. One without any number shows nothing, and has no series.

    Args:
        also: values that a logarithmic axis has room for beside those of the series, such as those of other panels.
        last: the step that the axis reaches at least.
    """
    there = [each for each in series if any(y is not None for y in each.y)]
    common: Json = {"heading": heading, "subtitle": subtitle}
    if logarithmic:
        there = [each for each in map(_on_log_axis, there) if any(y is not None for y in each.y)]
    if not there:
        return Panel(**common, why_empty="zero or not finite" if any(each.x for each in series) else "not measured")
    look = {"nticks": 6, **SMALL_TICKS} | (look or {})
    if logarithmic:
        look = log_axis([*(y for each in there for y in each.y if y is not None), *also])
    elif not any(y for each in there for y in each.y):
        look |= {"range": [-0.05, 1]}  # plotly would show as much below zero as above
    end = max([last or 1, *(x for each in there for x in each.x if x is not None)])
    steps: Json = {"range": [-0.02 * end, 1.02 * end], "nticks": 7, **SMALL_TICKS}
    return Panel(**common, x=Axis(title="step", look=steps), y=Axis(title=title, look=look), series=there)


def _on_log_axis(series: Series) -> Series:
    return replace(series, y=[None if y is None else on_log_axis(y) for y in series.y])


def figure_of(
    runs: Runs,
    title: str,
    content: str,
    details: str,
    panels: Sequence[Panel],
    columns: int,
    height: int,
    **parts: Any,
) -> Figure:
    """A figure of runs, whose summary says what it shows, and the details.

    Args:
        columns: at most; three are narrow.
        height: of a panel, in pixels.
    """
    columns = min(columns, len(panels))
    longest = max((stretch(curve) for run in runs.values() for curve in run.numbers.values()), default=1)
    return Figure(
        title=title,
        summary=" ".join(filter(None, (f"It shows {content} of {many(len(runs), 'run')}.", details))),
        rows=in_rows(panels, columns),
        size=(_WIDTHS[columns], height),
        gap=_GAPS[columns],
        legends=_LEGENDS,
        notes=[f"Points are means over up to {longest} steps."] if longest > 1 else [],
        **parts,
    )


def ends(runs: Runs, curves_of: Callable[[LoggedRun], Mapping[str, Curve]]) -> str:
    """The last number of every curve, in words."""
    sentences = []
    for name, run in runs.items():
        last = {label: curve[max(curve)] for label, curve in curves_of(run).items() if curve}
        texts = [f"{label} {'not finite' if value is None else signed(value, 4)}" for label, value in last.items()]
        sentences.append(f"{name} at the end: {', '.join(texts) or 'nothing to show'}.")
    return " ".join(sentences)


def last_step(runs: Runs) -> int:
    """The last step that any of the runs has."""
    return max((run.step for run in runs.values()), default=0)


def heading_of(name: str, runs: Runs, what: str = "") -> str:
    """The heading of a panel of one run; its name is left out where there is no other."""
    return " · ".join(filter(None, (name if len(runs) > 1 else "", what)))
