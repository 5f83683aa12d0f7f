"""Figures of a coordinate check: sizes of quantities over the width or depth, exponents over training, the router.

A layer has the same colour and marker in all figures, and so has every term of the sum over experts and of the backward
pass. Expected exponents are dashed lines, in the colour of their quantity, or grey if several quantities share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from statistics import fmean
from typing import Any

from mssp._estimates import Estimate, finite
from mssp.coordcheck.judgement import Judged
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import heading
from mssp.measure.quantities import (
    ACTIVATION,
    AGGREGATE,
    BACKWARD,
    EFFECTIVE,
    FEATURE_CHANGE,
    GRADIENT,
    HIGHEST_SCORE,
    LARGEST_LOAD,
    LOGIT_CHANGE,
    LOSS,
    LOWEST_SCORE,
    NORMALISED,
    PROPAGATING,
    Kind,
    Quantity,
)
from mssp.report.colours import MUTED, shades
from mssp.report.figure import (
    DASHED,
    DOTTED,
    MARKS,
    Axis,
    Figure,
    Json,
    Panel,
    Series,
    estimated,
    in_rows,
    mark,
    swatch,
)
from mssp.report.figures.axes import SMALL_TICKS, log_axis, on_log_axis, sizes_axis, space_around, steps_axis
from mssp.report.figures.looks import LAYERS, LEGENDS, RETURNS, SUMMANDS, looks_of
from mssp.report.words import many, signed
from mssp.theory.propagation import Exponent

_Quantities = Mapping[str, Sequence[Judged]]  # by the heading of their panel

_SHADES = "shades"  # the name of the legend of sizes or steps
_LEGENDS = {_SHADES: "", **LEGENDS, MARKS: ""}

_MAX_PANELS = 12  # of a figure that takes any quantities, because the check has none of the usual ones
_EARLY = (1, 2, 5, 10)  # updates that a figure of sizes shows, with the last one
_GAP = (64, 104)  # pixels between columns, and between rows
_EXPECTED = "expected"
_DASHES: Json = {"name": _EXPECTED, "legend": "", "in_legend": False, "mode": "lines"}
_DASHES |= {"colour": MUTED, "dash": DASHED, "width": 1.5}
_MIN_SPAN = 1.2  # least span of an axis of exponents: noise must not look like a trend
# Panels over training: their headings and quantities. The second quantity of a panel is dotted.
_TRAINING = {
    "training loss": (LOSS(),),
    "features’ change ‖Δh‖": (FEATURE_CHANGE(),),
    "router logits ‖ψ‖": (ACTIVATION("router"),),
    "router scores, lowest dotted": (HIGHEST_SCORE(), LOWEST_SCORE()),
}
_ROUTER = {
    "scores, lowest dotted": (HIGHEST_SCORE(), LOWEST_SCORE()),
    "largest load, 1 if all are equal": (LARGEST_LOAD(),),
    "change of logits": (LOGIT_CHANGE(),),
}


def sizes_figure(check: Check, names: Sequence[str] | None = None) -> Figure:
    """Sizes of quantities over the width or depth, in log-log: a panel per quantity, and a line per update.

    Lines are darker after more updates. A dashed line has the expected slope. It goes through the middle of the points
    after the last update for which a slope is expected.

    Args:
        names: names of quantities. By default effective and propagating updates and the sum over experts, without
            those that are zero.
    """
    chosen = _usual(check) if names is None else _named(check, names)
    steps = [*(step for step in _EARLY if step < check.steps), check.steps]
    columns = min(max(len(chosen), 1), 4)
    panels = [_sizes_panel(check, quantity, steps) for quantity in chosen]
    expected = any(series.name == _EXPECTED for panel in panels for series in panel.series)
    after = ", ".join(map(str, steps))
    return _figure(
        check,
        f"sizes over the {check.axis}",
        f"sizes in log-log after {after} of {many(check.steps, 'update')}, in {many(len(chosen), 'panel')}",
        " ".join(f"{quantity.name}: {_verdict(quantity)}." for quantity in chosen),
        rows=in_rows(panels or [Panel(why_empty="not measured")], columns),
        size=({1: 620, 2: 420}.get(columns, 250), 190),
        marks=[mark("expected slope", mode="lines", dash=DASHED, width=1.5)] if expected else [],
    )


def exponents_figure(check: Check, names: Sequence[str] | None = None) -> Figure:
    """Exponents over training: of propagating and effective updates, of the sum over experts, of gradients.

    A quantity that is exactly zero has no line. Bands are confidence intervals. Dashed lines are expected exponents.

    Args:
        names: names of quantities; those of one kind are in one panel (``effective/router`` is of ``effective``).
    """
    by_panel: dict[str, list[Judged]] = {}
    if names is None:
        by_panel = {kind.title: _of_kind(check, kind) for kind in (PROPAGATING, EFFECTIVE, AGGREGATE, GRADIENT)}
    else:
        for quantity in _named(check, names):
            by_panel.setdefault(quantity.name.panel, []).append(quantity)
    styles = _styles(by_panel)
    panels = [_exponents_panel(check, title, quantities, styles) for title, quantities in by_panel.items()]
    columns = min(max(len(by_panel), 1), 2)
    return _figure(
        check,
        "exponents over training",
        f"exponents over {many(check.steps, 'update')}, in {many(len(by_panel), 'panel')}",
        _exponents_summary(by_panel),
        rows=in_rows(panels or [Panel(why_empty="not measured")], columns),
        size=(620 if columns == 1 else 440, 240),
        marks=_expected_marks(panels),
    )


def router_figure(check: Check) -> Figure:
    """How the router spreads inputs over experts in training: a line per size of the model, darker if it is larger."""
    return _figure(
        check,
        "the router",
        f"the router by {check.axis} over {many(check.steps, 'update')}",
        _training_summary(check, _ROUTER),
        rows=[_training_panels(check, _ROUTER)],
        size=(260, 200),
    )


def evaluation_figure(check: Check) -> Figure:
    """The paper's evaluation (App. "Fine-grained scaling evaluations"): training by size, and exponents of all terms.

    In the first row the lines of larger models are darker. Expected exponents of zero are not drawn.
    """
    terms = {AGGREGATE: SUMMANDS, BACKWARD: RETURNS}
    by_panel = {
        kind.title: _of_kind(check, kind, terms.get(kind, ()))
        for kind in (PROPAGATING, EFFECTIVE, NORMALISED, AGGREGATE, BACKWARD, GRADIENT)
    }
    styles = _styles(by_panel)
    panels = [
        _exponents_panel(check, title, quantities, styles, without_zeros=True) for title, quantities in by_panel.items()
    ]
    return _figure(
        check,
        "evaluation",
        f"training by {check.axis} over {many(check.steps, 'update')}, and exponents of all terms",
        f"{_training_summary(check, _TRAINING)} {_exponents_summary(by_panel)}",
        rows=[_training_panels(check, _TRAINING), *in_rows(panels, 3)],
        size=(250, 190),
        marks=_expected_marks(panels),
    )


def _figure(check: Check, title: str, content: str, details: str, **parts: Any) -> Figure:
    """A figure of a check, whose summary says what it shows, what exponents are, and the details."""
    sizes = ", ".join(map(str, check.sizes))
    summary = (
        f"It shows {content}. Exponents are slopes in log-log over the {check.axis} {check.symbol} = {sizes}, with "
        f"95 % confidence intervals, of {many(check.seeds, 'seed')}. {details or 'There is nothing to show.'}"
    )
    return Figure(title=f"{heading(check)}: {title}", summary=summary, gap=_GAP, legends=_LEGENDS, **parts)


# -- which quantities --------------------------------------------------------------------------------------------------


def _named(check: Check, names: Sequence[str]) -> list[Judged]:
    """The quantities of the given names; ValueError names those that are similar to an unknown one."""
    for name in names:
        if name not in check.quantities:
            similar = get_close_matches(name, check.quantities, n=4, cutoff=0.0)
            more = ", …" if len(check.quantities) > len(similar) else ""
            raise ValueError(f"the check has no quantity {name!r}: it has {', '.join(similar) or 'none'}{more}")
    return [check.quantities[name] for name in dict.fromkeys(names)]


def _of_kind(check: Check, kind: Kind, labels: Iterable[str] = ()) -> list[Judged]:
    """The quantities of one kind with the given labels; by default all, layers in the order of the forward pass."""
    by_label = {quantity.name.label: quantity for quantity in check.quantities.values() if quantity.name.kind is kind}
    order = tuple(labels) or (*LAYERS, *SUMMANDS, *by_label)
    return [by_label[label] for label in dict.fromkeys(order) if label in by_label]


def _usual(check: Check) -> list[Judged]:
    """The quantities that a figure of sizes shows by default."""
    terms = ("init", "propagating", "effective", "cross")
    usual = [*_of_kind(check, EFFECTIVE), *_of_kind(check, PROPAGATING), *_of_kind(check, AGGREGATE, terms)]
    nonzero = [quantity for quantity in check.quantities.values() if quantity.verdict != "zero"]
    return [quantity for quantity in usual if quantity.verdict != "zero"] or nonzero[:_MAX_PANELS]


# -- colours and markers -----------------------------------------------------------------------------------------------


def _styles(by_panel: _Quantities) -> Mapping[Quantity, Json]:
    """Label, legend, colour and marker by the name of the quantity, for all that are not zero throughout."""
    return looks_of(each.name for quantities in by_panel.values() for each in quantities if any(each.exponents))


# -- sizes -------------------------------------------------------------------------------------------------------------


def _sizes_panel(check: Check, quantity: Judged, steps: Sequence[int]) -> Panel:
    titles: Json = {"heading": quantity.name, "subtitle": _verdict(quantity).replace("off", "<b>off</b>")}
    lines = [_sizes_line(check, quantity, step, colour) for step, colour in zip(steps, shades(len(steps)), strict=True)]
    sizes = [y for line in lines for y in line.y if y is not None]
    if not sizes:
        return Panel(**titles, why_empty="exactly zero" if quantity.verdict == "zero" else "zero or not finite")
    return Panel(
        **titles,
        x=Axis(title=f"{check.axis} {check.symbol}", look=sizes_axis(check.sizes, 0.06)),
        y=Axis(look=log_axis(sizes)),
        series=[*_guide(check, quantity, steps), *(line for line in lines if any(line.y))],
    )


def _sizes_line(check: Check, quantity: Judged, step: int, colour: str) -> Series:
    values = {size: quantity.values[size][step] for size in check.sizes}
    hover = [f"{check.symbol} = {size}<br>{value:.4g}" for size, value in values.items()]
    look: Json = {"name": _after(step), "legend": _SHADES, "rank": step, "colour": colour, "size": 5}
    return Series(x=check.sizes, y=[on_log_axis(value) for value in values.values()], hover=hover, **look)


def _guide(check: Check, quantity: Judged, steps: Iterable[int]) -> list[Series]:
    """A line of the expected slope: the one that the verdict is about, or else the last one that is expected."""
    expected = {step: prediction.exponent for step in steps if (prediction := quantity.predicted[step]) is not None}
    powers = {step: float(exponent.power) for step, exponent in expected.items() if exponent.power is not None}
    step = max(powers, key=lambda step: (expected[step] == quantity.expected, step), default=0)
    points = [(size, y) for size in check.sizes if (y := on_log_axis(quantity.values[size][step])) is not None]
    if not powers or not points:
        return []
    middle, height = (fmean(map(math.log, values)) for values in zip(*points, strict=True))
    ends = [check.sizes[0], check.sizes[-1]]
    ys = [math.exp(height + powers[step] * (math.log(end) - middle)) for end in ends]
    return [Series(x=ends, y=ys, hover=[f"expected slope {signed(powers[step])}"] * 2, **_DASHES)]


# -- over training -----------------------------------------------------------------------------------------------------


def _over_steps(check: Check, name: str) -> Mapping[int, Sequence[float | None]]:
    """The values of a quantity, or of the loss, over the steps, by the size of the model; None if not finite."""
    quantity = check.quantities.get(name)
    values = check.loss if name == LOSS() else {} if quantity is None else quantity.values
    return {size: [finite(value) for value in of_size] for size, of_size in values.items()}


def _training_panels(check: Check, contents: Mapping[str, Sequence[str]]) -> list[Panel]:
    """Panels of quantities over training: a line per size of the model; the second quantity of a panel is dotted."""
    panels = []
    for title, names in contents.items():
        lines = []
        for size, colour in zip(check.sizes, shades(len(check.sizes)), strict=True):
            style: Json = {"name": f"{check.symbol} = {size}", "legend": _SHADES, "rank": size, "colour": colour}
            for number, name in enumerate(names):
                ys = _over_steps(check, name).get(size, ())
                hover = [f"{_after(step)}<br>{y or 0:.4g}" for step, y in enumerate(ys)]
                # Without markers, which would hide the dots.
                dotted: Json = {"mode": "lines", "dash": DOTTED, "width": 1.5, "in_legend": False} if number else {}
                part = name if len(names) > 1 else ""
                lines.append(Series(x=range(len(ys)), y=ys, part=part, hover=hover, size=4, **style, **dotted))
        if any(y is not None for line in lines for y in line.y):
            y_axis = Axis(look={"nticks": 6, **SMALL_TICKS})
            panels.append(Panel(heading=title, x=_updates(check), y=y_axis, series=lines))
        else:
            panels.append(Panel(heading=title, why_empty="not measured"))
    return panels


def _exponents_panel(
    check: Check, title: str, quantities: Sequence[Judged], styles: Mapping[Quantity, Json], without_zeros: bool = False
) -> Panel:
    """Measured exponents of one kind over training, on the lines of those that are expected."""
    nonzero = [quantity for quantity in quantities if quantity.name in styles]
    if not nonzero:
        return Panel(heading=title, why_empty="exactly zero" if quantities else "not measured")
    expected = _expected_lines(nonzero, styles, without_zeros)
    lines = [_exponents_line(quantity.exponents, styles[quantity.name]) for quantity in nonzero]
    values = [y for series in (*expected, *lines) for y in series.y if y is not None]
    y = Axis(title=f"exponent of {check.symbol}", look=_exponent_axis(values))
    return Panel(heading=title, subtitle=_verdicts(nonzero), x=_updates(check), y=y, series=[*expected, *lines])


def _exponents_line(points: Sequence[Estimate | None], style: Json) -> Series:
    hover = ["" if point is None else f"{point.text(2)}<br>{_after(step)}" for step, point in enumerate(points)]
    single: Json = {}
    if sum(point is not None for point in points) == 1:  # its band would have no width: it has an error bar instead
        single = {"x_shift": 0.05 * (style["rank"] - 3), "bars": {"thickness": 1.5, "width": 4}}
    return Series(x=range(len(points)), hover=hover, size=5, band=0.07, **estimated(points), **single, **style)


def _expected_lines(quantities: Iterable[Judged], styles: Mapping[Quantity, Json], without_zeros: bool) -> list[Series]:
    """Lines at expected exponents over the steps for which they are expected, one line per exponent and colour.

    The line is dotted for the lower end of a range that the theory leaves open.
    """
    colours: dict[tuple[str, float, int], list[str]] = {}
    for quantity in quantities:
        for step, prediction in enumerate(quantity.predicted):
            for dash, power in _ends(prediction.exponent if prediction is not None else None):
                if power or not without_zeros:
                    colours.setdefault((dash, power, step), []).append(styles[quantity.name]["colour"])
    stretches: dict[tuple[str, float, str], list[float | None]] = {}  # x coordinates with gaps
    for (dash, power, step), sharing in sorted(colours.items()):
        xs = stretches.setdefault((dash, power, sharing[0] if len(sharing) == 1 else MUTED), [])
        if xs and xs[-1] == step - 0.5:
            xs[-1] = step + 0.5
        else:
            xs += [*([None] if xs else []), step - 0.5, step + 0.5]
    return [
        Series(x=xs, y=[None if x is None else power for x in xs], hover=f"expected {signed(power)}", **look)
        for (dash, power, colour), xs in stretches.items()
        for look in (_DASHES | {"dash": dash, "colour": colour},)
    ]


def _ends(exponent: Exponent | None) -> list[tuple[str, float]]:
    """The dash and the power of the lines for an expected exponent: two lines if the theory leaves a range open."""
    if exponent is None or exponent.power is None:
        return []
    lowest = [(DOTTED, float(exponent.power - exponent.slack))] if exponent.slack else []
    return [(DASHED, float(exponent.power)), *lowest]


def _expected_marks(panels: Iterable[Panel]) -> list[Series]:
    lines = [line for panel in panels for line in panel.series]
    dashes = {line.dash for line in lines if line.name == _EXPECTED}
    names = {DASHED: "expected (grey: of several)", DOTTED: "expected at least"}
    marks = [mark(name, mode="lines", dash=dash, width=1.5) for dash, name in names.items() if dash in dashes]
    if any(math.isfinite(ci) for line in lines for ci in line.ci):
        marks.append(mark("95 % CI", mode="markers", marker=swatch(MUTED, 0.25)))
    return marks


def _updates(check: Check) -> Axis:
    return Axis(title="updates", look=steps_axis(check.steps, (-0.5, check.steps + 0.5), 6))


def _exponent_axis(values: Sequence[float]) -> Json:
    low, high = min(values), max(values)
    space = space_around(low, high, 0.1, _MIN_SPAN)
    spacing = next((unit for unit in (0.5, 1.0, 2.0, 5.0) if high - low + 2 * space <= 6 * unit), 10.0)
    zero = {"zeroline": True, "zerolinewidth": 1}
    return {"range": [low - space, high + space], "tick0": 0, "dtick": spacing, **zero, **SMALL_TICKS}


# -- text --------------------------------------------------------------------------------------------------------------


def _after(step: int) -> str:
    return f"after {many(step, 'update')}"


def _verdict(quantity: Judged) -> str:
    """As ``0.07 ± 0.21 (expected 0) ok``."""
    exponent = quantity.judged or quantity.exponents[-1]
    measured = "" if exponent is None or math.isnan(exponent.value) else exponent.text(2)
    ends = " … ".join(signed(power) for _, power in reversed(_ends(quantity.expected)))
    verdict = quantity.verdict if quantity.stable else f"{quantity.verdict}, not stable"
    return " ".join(filter(None, (measured, f"(expected {ends})" if ends else "", verdict)))


def _training_summary(check: Check, contents: Mapping[str, Sequence[str]]) -> str:
    sentences = []
    for name in (name for names in contents.values() for name in names):
        last = {size: values[-1] for size, values in _over_steps(check, name).items() if values}
        ends = [f"{'not finite' if value is None else signed(value, 3)} for {size}" for size, value in last.items()]
        sentences.append(f"{name} at the end: {', '.join(ends) or 'nothing to show'}.")
    return " ".join(sentences)


def _verdicts(quantities: Sequence[Judged]) -> str:
    """As ``off: router · 3 ok``."""
    off = [quantity.name.label for quantity in quantities if quantity.verdict == "off"]
    ok = sum(quantity.verdict == "ok" for quantity in quantities)
    phrases = [f"<b>off</b>: {', '.join(off)}" if off else "", f"{ok} ok" if ok else ""]
    return " · ".join(filter(None, phrases)) or "nothing is expected"


def _exponents_summary(by_panel: _Quantities) -> str:
    sentences = []
    for title, quantities in by_panel.items():
        verdicts = "; ".join(f"{quantity.name} {_verdict(quantity)}" for quantity in quantities)
        sentences.append(f"{title.capitalize()}: {verdicts or 'nothing to show'}.")
    return " ".join(sentences)
