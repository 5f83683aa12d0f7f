"""Predicted exponents against measured ones: one point for every quantity of a check, a panel for every check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mssp._estimates import Estimate
from mssp.coordcheck.judgement import TOLERANCE, Judged
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import heading, judged_of, vague_of
from mssp.report.colours import MUTED
from mssp.report.figure import DASHED, MAIN, Axis, Figure, Json, Panel, Series, estimated, in_rows, mark, swatch
from mssp.report.figures.axes import SMALL_TICKS
from mssp.report.words import many, plain, signed

_MOST = 3  # columns
_SPREAD = 0.3  # of an exponent: points of one prediction stand side by side within so much
_ROOM = 0.35  # around all points
# By what is found of a quantity; MSSP's and muP's colours mean schemes elsewhere.
_LOOKS = {
    "as predicted, stable": ("#117733|#5fbf68", "circle"),
    "as predicted, not stable": ("#b58b2a|#ddaa33", "diamond"),
    "off": ("#d55e00|#f07a2e", "x"),
}


def agreement_figure(checks: Mapping[str, Check], title: str = "Predicted and measured exponents") -> Figure:
    """Measured exponents over predicted ones; on the diagonal, what scales as the theory says.

    Points of one prediction stand side by side. A quantity may lie in the band of the check's tolerance, and as far
    beyond it as its own interval reaches; some may be below their order by what the theory leaves open.

    Args:
        checks: by the panel's heading.
    """
    points = {name: _points(check) for name, check in checks.items()}
    values = [
        value for several in points.values() for point in several for value in (point.measured.value, point.power)
    ]
    ends = min([0.0, *values]) - _ROOM, max([0.0, *values]) + _ROOM
    panels = [_panel(name, check, points[name], ends) for name, check in checks.items()]
    return Figure(
        title=title,
        words=_words(checks, points),
        rows=in_rows(panels, min(len(checks), _MOST)),
        size=(420, 320),
        gap=(76, 112),
        marks=[mark(f"within {TOLERANCE:g}", legend=MAIN, mode="markers", marker=swatch(MUTED, 0.25))],
    )


@dataclass(frozen=True, eq=False)
class _Point:
    quantity: Judged
    measured: Estimate
    power: float

    @property
    def look(self) -> str:
        if self.quantity.verdict == "off":
            return "off"
        return "as predicted, stable" if self.quantity.stable else "as predicted, not stable"


def _points(check: Check) -> list[_Point]:
    return [
        _Point(each, each.judged, float(each.expected.power))
        for each in judged_of(check)
        if each.judged is not None and each.expected is not None and each.expected.power is not None
    ]


def _panel(name: str, check: Check, points: Sequence[_Point], ends: tuple[float, float]) -> Panel:
    if not points:
        return Panel(heading=name, verdict=_verdict(check, points), why_empty="nothing is predicted")
    look: Json = {"range": list(ends), "tick0": 0, "dtick": 0.5 if ends[1] - ends[0] < 4 else 1.0, **SMALL_TICKS}
    line: Json = {"colour": MUTED, "dash": DASHED, "width": 1.5, "band": 0.12, "legend": ""}
    diagonal = Series(name="as predicted", x=ends, y=ends, ci=[TOLERANCE] * 2, mode="lines", named=False, **line)
    places = _side_by_side(points)
    series = [diagonal]
    for rank, (word, (colour, marker)) in enumerate(_LOOKS.items()):
        if alike := [point for point in points if point.look == word]:
            told = [f"{each.quantity.name}<br>{each.measured} (predicted {signed(each.power)})" for each in alike]
            numbers = estimated(point.measured for point in alike) | {"x": [point.power for point in alike]}
            drawn: Json = {"at_x": [places[point] for point in alike], "bars": {"thickness": 1, "width": 0}}
            drawn |= {"mode": "markers", "colour": colour, "symbol": marker, "size": 7}
            series.append(Series(name=word, told=told, rank=rank, **numbers, **drawn))
    return Panel(
        heading=name,
        verdict=_verdict(check, points),
        x=Axis(title=f"predicted exponent of {check.symbol}", look=look),
        y=Axis(title="measured", look=look, title_once=True),
        series=series,
    )


def _side_by_side(points: Sequence[_Point]) -> dict[_Point, float]:
    """Where points stand: those of one prediction in the order of what was measured, about their place."""
    by_power: dict[float, list[_Point]] = {}
    for point in points:
        by_power.setdefault(point.power, []).append(point)
    widest = max(map(len, by_power.values()))
    return {
        point: power + _SPREAD * (index - (len(alike) - 1) / 2) / widest
        for power, alike in by_power.items()
        for index, point in enumerate(sorted(alike, key=lambda point: point.measured.value))
    }


def _verdict(check: Check, points: Sequence[_Point]) -> str:
    off = sum(point.look == "off" for point in points)
    vague = len(vague_of(check))
    unclear = f", {vague} of them unclear" if vague else ""
    right = f"all {len(points)} exponents as predicted{unclear}"
    words = f"<b>{off} of {len(points)} exponents off</b>" if off else right
    return f"{words} · {'stable' if check.stable else 'not stable'}"


def _words(checks: Mapping[str, Check], points: Mapping[str, Sequence[_Point]]) -> str:
    words = [f"It shows measured over predicted exponents for {many(len(checks), 'check')}, with 95 % intervals."]
    for name, check in checks.items():
        far = sorted(points[name], key=lambda point: -point.quantity.excess)[:3]
        farthest = ", ".join(f"{each.quantity.name} {each.measured} for {signed(each.power)}" for each in far)
        verdict = plain(_verdict(check, points[name]))
        words.append(f"{name} ({heading(check)}): {verdict}. The farthest from the diagonal: {farthest or 'none'}.")
    return " ".join(words)
