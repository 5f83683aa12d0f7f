"""The figure of measured over predicted exponents: a panel for every check, a point for every quantity of a check."""

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

_MAX_COLUMNS = 3
_SPREAD = 0.3  # on the x axis, over which the points of one prediction are spread
_MARGIN = 0.35  # between the outermost points and the ends of the axes
# Colour and marker of each verdict. The colours of MSSP and μP are not used, since in other figures they mean schemes.
_LOOKS = {
    "as predicted, stable": ("#117733|#5fbf68", "circle"),
    "as predicted, not stable": ("#b58b2a|#ddaa33", "diamond"),
    "off": ("#d55e00|#f07a2e", "x"),
}


def agreement_figure(checks: Mapping[str, Check], title: str = "Predicted and measured exponents") -> Figure:
    """Measured over predicted exponents: a quantity that scales as the theory says is on the diagonal.

    Points of one prediction are side by side. A quantity is as predicted in the band of the check's tolerance, and as
    far beyond the band as its own interval reaches. Where the theory leaves a range open, it may also be further below.

    Args:
        checks: the checks by the headings of their panels.
    """
    points = {name: _points(check) for name, check in checks.items()}
    exponents = [e for of_check in points.values() for point in of_check for e in (point.measured.value, point.power)]
    ends = min([0.0, *exponents]) - _MARGIN, max([0.0, *exponents]) + _MARGIN
    panels = [_panel(name, check, points[name], ends) for name, check in checks.items()]
    return Figure(
        title=title,
        summary=_summary(checks, points),
        rows=in_rows(panels, min(len(checks), _MAX_COLUMNS)),
        size=(420, 320),
        gap=(76, 112),
        marks=[mark(f"within {TOLERANCE:g}", legend=MAIN, mode="markers", marker=swatch(MUTED, 0.25))],
    )


@dataclass(frozen=True, eq=False)
class _Point:
    """A quantity of a check with its measured and its predicted exponent."""

    quantity: Judged
    measured: Estimate
    power: float

    @property
    def verdict(self) -> str:
        if self.quantity.verdict == "off":
            return "off"
        return "as predicted, stable" if self.quantity.stable else "as predicted, not stable"


def _points(check: Check) -> list[_Point]:
    return [
        _Point(quantity, quantity.judged, quantity.expected_power)
        for quantity in judged_of(check)
        if quantity.judged is not None and quantity.expected_power is not None
    ]


def _panel(heading: str, check: Check, points: Sequence[_Point], ends: tuple[float, float]) -> Panel:
    if not points:
        return Panel(heading=heading, subtitle=_subtitle(check, points), why_empty="nothing is predicted")
    look: Json = {"range": list(ends), "tick0": 0, "dtick": 0.5 if ends[1] - ends[0] < 4 else 1.0, **SMALL_TICKS}
    line: Json = {"colour": MUTED, "dash": DASHED, "width": 1.5, "band": 0.12, "legend": ""}
    diagonal = Series(name="as predicted", x=ends, y=ends, ci=[TOLERANCE] * 2, mode="lines", in_legend=False, **line)
    places = _side_by_side(points)
    series = [diagonal]
    for rank, (verdict, (colour, symbol)) in enumerate(_LOOKS.items()):
        if alike := [point for point in points if point.verdict == verdict]:
            hover = [f"{point.quantity.name}<br>{point.measured} (predicted {signed(point.power)})" for point in alike]
            numbers = estimated(point.measured for point in alike) | {"x": [point.power for point in alike]}
            style: Json = {"at_x": [places[point] for point in alike], "bars": {"thickness": 1, "width": 0}}
            style |= {"mode": "markers", "colour": colour, "symbol": symbol, "size": 7}
            series.append(Series(name=verdict, hover=hover, rank=rank, **numbers, **style))
    return Panel(
        heading=heading,
        subtitle=_subtitle(check, points),
        x=Axis(title=f"predicted exponent of {check.symbol}", look=look),
        y=Axis(title="measured", look=look, title_once=True),
        series=series,
    )


def _side_by_side(points: Sequence[_Point]) -> dict[_Point, float]:
    """The x coordinates of points: those of one prediction are around it, in the order of their measured exponents."""
    by_power: dict[float, list[_Point]] = {}
    for point in points:
        by_power.setdefault(point.power, []).append(point)
    widest = max(map(len, by_power.values()))
    return {
        point: power + _SPREAD * (index - (len(alike) - 1) / 2) / widest
        for power, alike in by_power.items()
        for index, point in enumerate(sorted(alike, key=lambda point: point.measured.value))
    }


def _subtitle(check: Check, points: Sequence[_Point]) -> str:
    off = sum(point.verdict == "off" for point in points)
    vague = len(vague_of(check))
    unclear = f", {vague} of them unclear" if vague else ""
    none_off = f"all {len(points)} exponents as predicted{unclear}"
    verdict = f"<b>{off} of {len(points)} exponents off</b>" if off else none_off
    return f"{verdict} · {'stable' if check.stable else 'not stable'}"


def _summary(checks: Mapping[str, Check], points: Mapping[str, Sequence[_Point]]) -> str:
    sentences = [f"It shows measured over predicted exponents for {many(len(checks), 'check')}, with 95 % intervals."]
    for name, check in checks.items():
        worst = sorted(points[name], key=lambda point: -point.quantity.excess)[:3]
        farthest = ", ".join(f"{point.quantity.name} {point.measured} for {signed(point.power)}" for point in worst)
        verdict = plain(_subtitle(check, points[name]))
        sentences.append(f"{name} ({heading(check)}): {verdict}. The farthest from the diagonal: {farthest or 'none'}.")
    return " ".join(sentences)
