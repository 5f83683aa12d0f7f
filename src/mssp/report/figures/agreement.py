"""Predicted exponents against measured ones: one point for every quantity of a check, a panel for every check."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mssp.coordcheck.judgement import TOLERANCE, Judged
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import heading, judged_of, vague_of
from mssp.report.canvas import (
    MUTED,
    SMALL_TICKS,
    Canvas,
    Json,
    axis_title,
    error_bars,
    line_trace,
    many,
    signed,
    standing_for,
    stroke,
    swatch,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PANEL, _GAPS, _ABOVE = (420, 320), (76, 112), 46
_MOST = 3  # columns
_SPREAD = 0.3  # of an exponent: points of one prediction stand side by side within so much
_ROOM = 0.35  # around all points
# By what is found of a quantity; MSSP's and muP's colours mean schemes elsewhere.
_LOOKS = {
    "as predicted, stable": ("#117733", "circle"),
    "as predicted, not stable": ("#ddaa33", "diamond"),
    "off": ("#d55e00", "x"),
}


def agreement_figure(checks: Mapping[str, Check], title: str = "Predicted and measured exponents") -> Figure:
    """Measured exponents over predicted ones; on the diagonal, what scales as the theory says.

    Points of one prediction stand side by side. A quantity may lie in the band of the check's tolerance, and as far
    beyond it as its own interval reaches; some may be below their order by what the theory leaves open.

    Args:
        checks: by the panel's heading.
    """
    columns = min(len(checks), _MOST)
    shape = (columns, math.ceil(len(checks) / columns))
    canvas = Canvas(title, shape, _PANEL, _GAPS, _ABOVE, 1)
    judged = {name: _judged(check) for name, check in checks.items()}
    ends = _ends([each for found in judged.values() for each in found])
    for number, (name, check) in enumerate(checks.items()):
        x, y, on = axes = canvas.axes(*divmod(number, columns))
        canvas.heading([name], _verdict(check, judged[name]))
        if not judged[name]:
            canvas.leave_empty(axes, "nothing is predicted")
            continue
        ticks: Json = {"range": list(ends), "tick0": 0, "dtick": 0.5 if ends[1] - ends[0] < 4 else 1.0, **SMALL_TICKS}
        symbol = "L" if check.axis == "depth" else "N"
        x |= ticks | {"title": axis_title(f"predicted exponent of {symbol}")}
        y |= ticks | ({"title": axis_title("measured")} if number % columns == 0 else {})
        canvas.data += [trace | on for trace in (*_diagonal(ends), *_points(judged[name]))]
    canvas.name_once("markers")
    canvas.mark(f"within {TOLERANCE:g}", mode="markers", marker=swatch(MUTED, 0.25), legend="legend")
    canvas.legend("legend", 0)
    return canvas.figure(_words(checks, judged))


def _judged(check: Check) -> list[Judged]:
    return [
        each
        for each in judged_of(check)
        if each.judged is not None and each.expected is not None and each.expected.power is not None
    ]


def _look(each: Judged) -> str:
    return "off" if each.verdict == "off" else "as predicted, stable" if each.stable else "as predicted, not stable"


def _ends(quantities: Sequence[Judged]) -> tuple[float, float]:
    values = [0.0]
    for each in quantities:
        assert each.judged is not None
        values += [each.judged.value, _power(each)]
    return min(values) - _ROOM, max(values) + _ROOM


def _power(each: Judged) -> float:
    assert each.expected is not None
    assert each.expected.power is not None
    return float(each.expected.power)


def _diagonal(ends: tuple[float, float]) -> list[Json]:
    low, high = ends
    there, back = [low, high], [high, low]
    band = {"x": there + back, "y": [x + TOLERANCE for x in there] + [x - TOLERANCE for x in back]}
    common: Json = {"type": "scatter", "name": "as predicted", "showlegend": False, "hoverinfo": "skip"}
    return [
        common | band | {"mode": "none", "fill": "toself", "fillcolor": MUTED, "opacity": 0.12},
        common | {"x": there, "y": there, "mode": "lines", "line": stroke(MUTED, "6px,4px")},
    ]


def _points(quantities: Sequence[Judged]) -> list[Json]:
    places = _side_by_side(quantities)
    found = []
    for rank, (look, (colour, symbol)) in enumerate(_LOOKS.items()):
        chosen = [each for each in quantities if _look(each) == look]
        if not chosen:
            continue
        measured = [each.judged for each in chosen]
        told = [f"{each.name}<br>{each.judged} (predicted {signed(_power(each))})" for each in chosen]
        xs, ys = [places[each.name] for each in chosen], [each.value for each in measured if each is not None]
        trace = line_trace(xs, ys, told, name=look, legendrank=rank) | {"mode": "markers"}
        trace |= standing_for(x=[_power(each) for each in chosen])
        trace |= {"marker": {"color": colour, "symbol": symbol, "size": 7}}
        bars = error_bars(measured, colour) | {"thickness": 1, "width": 0}
        found.append(trace | {"error_y": bars})
    return found


def _side_by_side(quantities: Sequence[Judged]) -> dict[str, float]:
    """Where points stand: those of one prediction in the order of what was measured, about their place."""
    by_power: dict[float, list[Judged]] = {}
    for each in quantities:
        by_power.setdefault(_power(each), []).append(each)
    widest = max(map(len, by_power.values()))
    places: dict[str, float] = {}
    for power, alike in by_power.items():
        ordered = sorted(alike, key=lambda each: each.judged.value if each.judged else 0.0)
        for index, each in enumerate(ordered):
            places[each.name] = power + _SPREAD * (index - (len(ordered) - 1) / 2) / widest
    return places


def _verdict(check: Check, judged: Sequence[Judged]) -> str:
    off = sum(each.verdict == "off" for each in judged)
    vague = len(vague_of(check))
    known = f", {vague} of them unclear" if vague else ""
    words = (
        f"<b>{off} of {len(judged)} exponents off</b>" if off else f"all {len(judged)} exponents as predicted{known}"
    )
    return f"{words} · {'stable' if check.stable else 'not stable'}"


def _words(checks: Mapping[str, Check], judged: Mapping[str, Sequence[Judged]]) -> str:
    told = [f"It shows measured over predicted exponents for {many(len(checks), 'check')}, with 95 % intervals."]
    for name, check in checks.items():
        far = sorted(judged[name], key=lambda each: -each.excess)[:3]
        farthest = ", ".join(f"{each.name} {each.judged} for {signed(_power(each))}" for each in far)
        verdict = _verdict(check, judged[name]).replace("<b>", "").replace("</b>", "")
        told.append(f"{name} ({heading(check)}): {verdict}. The farthest from the diagonal: {farthest or 'none'}.")
    return " ".join(told)
