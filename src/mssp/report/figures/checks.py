"""Pictures of a coordinate check: sizes over what grows, their exponents over training, and the paper's evaluation.

A layer has one colour and one marker in all figures, and so have the terms of the sum over experts and of the backward
pass. Expected exponents are dashed, in the colour of what they are expected of, and grey where several share one.
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
)
from mssp.report.colours import INK, MUTED, shades
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
from mssp.report.figures.axes import SMALL_TICKS, growing_axis, log_axis, on_log_axis, space_around, steps_axis
from mssp.report.words import many, signed
from mssp.theory.propagation import Exponent

_Quantities = Mapping[str, Sequence[Judged]]  # by the title of their panel

# Layers have colours of Okabe and Ito, which the colour-blind tell apart, terms have others, of Tol. Markers are for
# those who see no colours.
_LAYERS = {
    "embedding": ("#009e73|#009e73", "diamond"), "hidden": ("#cc79a7|#cc79a7", "cross"),
    "router": ("#d55e00|#f07a2e", "square"), "expert_in": ("#4a9bc8|#56b4e9", "triangle-up"),
    "expert_out": ("#0072b2|#4f86e8", "triangle-down"), "shared_gate": ("#c68900|#e69f00", "x"),
    "readout": (INK, "circle"),
}  # fmt: skip
_SUMMANDS = {
    "init": ("#882255|#dd5fb4", "circle"), "propagating": ("#332288|#9c8ff5", "triangle-up"),
    "effective": ("#999933|#b5b545", "square"), "cross": ("#cc6677|#cc6677", "diamond"),
    "A21": ("#41a393|#44aa99", "triangle-down"), "A22": ("#117733|#5fbf68", "cross"),
}  # fmt: skip
_BACKWARD = {
    "A4": ("#882255|#dd5fb4", "circle"), "A5": ("#332288|#9c8ff5", "triangle-up"),
    "A6": ("#999933|#b5b545", "square"), "E": ("#41a393|#44aa99", "diamond"),
}  # fmt: skip
_OTHERS = (
    ("#aa4499|#c77ad0", "circle"), ("#b58b2a|#ddaa33", "square"),
    ("#117733|#5fbf68", "diamond"), ("#4e9bb5|#66ccee", "triangle-up"),
)  # fmt: skip
_SHADES, _OTHER = "shades", "other"  # legends
_LOOKS = {EFFECTIVE.legend: _LAYERS, AGGREGATE.legend: _SUMMANDS, BACKWARD.legend: _BACKWARD}
_LEGENDS = {_SHADES: "", **{title: title for title in (*_LOOKS, _OTHER)}, MARKS: ""}

_MOST = 12  # panels of a figure about whose quantities nothing is known
_EARLY = (1, 2, 5, 10)  # updates at which things begin; the last one shows what they have come to
_GAP = (64, 104)  # pixels between panels
_EXPECTED = "expected"
_DASHES: Json = {"name": _EXPECTED, "legend": "", "named": False, "mode": "lines"}
_DASHES |= {"colour": MUTED, "dash": DASHED, "width": 1.5}
_LEAST_EXPONENTS = 1.2  # that a panel spans: noise is not to look like a slope
# The first row of an evaluation; a second quantity is dotted.
_TRAINED = {
    "training loss": (LOSS(),),
    "features’ change ‖Δh‖": (FEATURE_CHANGE(),),
    "router logits ‖ψ‖": (ACTIVATION("router"),),
    "router scores, lowest dotted": (HIGHEST_SCORE(), LOWEST_SCORE()),
}
_ROUTED = {
    "scores, lowest dotted": (HIGHEST_SCORE(), LOWEST_SCORE()),
    "largest load, 1 if all are equal": (LARGEST_LOAD(),),
    "change of logits": (LOGIT_CHANGE(),),
}


def sizes_figure(check: Check, names: Sequence[str] | None = None) -> Figure:
    """Sizes over what grows in log-log: one panel per quantity, one line per update, dark where it is late.

    A dashed line has the expected slope, through the middle of the last update that it is expected after.

    Args:
        names: of quantities; by default effective and propagating updates and the sum over experts, but what is zero.
    """
    chosen = _worth_drawing(check) if names is None else _named(check, names)
    steps = [*(step for step in _EARLY if step < check.steps), check.steps]
    columns = min(max(len(chosen), 1), 4)
    panels = [_sizes_panel(check, each, steps) for each in chosen]
    expected = any(series.name == _EXPECTED for panel in panels for series in panel.series)
    after = ", ".join(map(str, steps))
    return _figure(
        check,
        "sizes",
        f"sizes in log-log after {after} of {many(check.steps, 'update')}, in {many(len(chosen), 'panel')}",
        " ".join(f"{each.name}: {_verdict(each)}." for each in chosen),
        rows=in_rows(panels or [Panel(why_empty="not measured")], columns),
        size=({1: 620, 2: 420}.get(columns, 250), 190),
        marks=[mark("expected slope", mode="lines", dash=DASHED, width=1.5)] if expected else [],
    )


def exponents_figure(check: Check, names: Sequence[str] | None = None) -> Figure:
    """Exponents over training: of propagating and effective updates, of the sum over experts, of gradients.

    Lines are missing where a quantity is exactly zero. Bands are confidence intervals, dashed lines what is expected.

    Args:
        names: of quantities, in one panel per kind: ``effective/router`` is of the kind ``effective``.
    """
    drawn: dict[str, list[Judged]] = {}
    if names is None:
        drawn = {kind.title: _of_kind(check, kind) for kind in (PROPAGATING, EFFECTIVE, AGGREGATE, GRADIENT)}
    else:
        for each in _named(check, names):
            drawn.setdefault(each.name.panel, []).append(each)
    styles = _styles(drawn)
    panels = [_exponents_panel(check, title, quantities, styles) for title, quantities in drawn.items()]
    columns = min(max(len(drawn), 1), 2)
    return _figure(
        check,
        "exponents over training",
        f"exponents over {many(check.steps, 'update')}, in {many(len(drawn), 'panel')}",
        _exponent_words(drawn),
        rows=in_rows(panels or [Panel(why_empty="not measured")], columns),
        size=(620 if columns == 1 else 440, 240),
        marks=_expected_marks(panels),
    )


def router_figure(check: Check) -> Figure:
    """How the router spreads inputs over experts in training, by size: dark is wide."""
    return _figure(
        check,
        "the router",
        f"the router by {check.axis} over {many(check.steps, 'update')}",
        _trained_words(check, _ROUTED),
        rows=[_training_panels(check, _ROUTED)],
        size=(260, 200),
    )


def evaluation_figure(check: Check) -> Figure:
    """The paper's evaluation (App. "Fine-grained scaling evaluations"): how sizes train, and exponents of all terms.

    In the first row dark is wide. Dashed lines are where expected exponents are not zero.
    """
    terms = {AGGREGATE: _SUMMANDS, BACKWARD: _BACKWARD}
    drawn = {
        kind.title: _of_kind(check, kind, terms.get(kind, ()))
        for kind in (PROPAGATING, EFFECTIVE, NORMALISED, AGGREGATE, BACKWARD, GRADIENT)
    }
    styles = _styles(drawn)
    panels = [_exponents_panel(check, title, quantities, styles, True) for title, quantities in drawn.items()]
    return _figure(
        check,
        "evaluation",
        f"training by {check.axis} over {many(check.steps, 'update')}, and exponents of all terms",
        f"{_trained_words(check, _TRAINED)} {_exponent_words(drawn)}",
        rows=[_training_panels(check, _TRAINED), *in_rows(panels, 3)],
        size=(250, 190),
        marks=_expected_marks(panels),
    )


def _figure(check: Check, title: str, what: str, words: str, **parts: Any) -> Figure:
    title = f"{title} over the {check.axis}" if title == "sizes" else title
    sizes = ", ".join(map(str, check.sizes))
    how = f"over the {check.axis} {check.symbol} = {sizes}, with 95 % confidence intervals"
    how = f"Exponents are slopes in log-log {how}, of {many(check.seeds, 'seed')}."
    words = f"It shows {what}. {how} {words or 'There is nothing to show.'}"
    return Figure(title=f"{heading(check)}: {title}", words=words, gap=_GAP, legends=_LEGENDS, **parts)


# -- which quantities --------------------------------------------------------------------------------------------------


def _named(check: Check, names: Sequence[str]) -> list[Judged]:
    for name in names:
        if name not in check.quantities:
            some = get_close_matches(name, check.quantities, n=4, cutoff=0.0)
            more = ", …" if len(check.quantities) > len(some) else ""
            raise ValueError(f"the check has no quantity {name!r}: it has {', '.join(some) or 'none'}{more}")
    return [check.quantities[name] for name in dict.fromkeys(names)]


def _of_kind(check: Check, kind: Kind, labels: Iterable[str] = ()) -> list[Judged]:
    """Those with certain labels; all by default, layers in the order in which signals pass them."""
    by_label = {each.name.label: each for each in check.quantities.values() if each.name.kind is kind}
    order = tuple(labels) or (*_LAYERS, *_SUMMANDS, *by_label)
    return [by_label[label] for label in dict.fromkeys(order) if label in by_label]


def _worth_drawing(check: Check) -> list[Judged]:
    terms = ("init", "propagating", "effective", "cross")
    usual = [*_of_kind(check, EFFECTIVE), *_of_kind(check, PROPAGATING), *_of_kind(check, AGGREGATE, terms)]
    there = [each for each in usual if each.verdict != "zero"]
    return there or [each for each in check.quantities.values() if each.verdict != "zero"][:_MOST]


# -- how they look -----------------------------------------------------------------------------------------------------


def _styles(drawn: _Quantities) -> dict[str, Json]:
    """How the series of a quantity looks, by its name; of those that are not zero throughout."""
    styles: dict[str, Json] = {}
    others: list[str] = []
    for each in (each for quantities in drawn.values() for each in quantities if any(each.exponents)):
        label, legend = each.name.label, each.name.kind.legend
        looks = _LOOKS.get(legend, {})
        if label in looks:
            (colour, symbol), rank = looks[label], list(looks).index(label)
        else:
            others += [] if label in others else [label]
            legend, rank = _OTHER, others.index(label)
            colour, symbol = _OTHERS[rank % len(_OTHERS)]
        styles[each.name] = {"name": label, "legend": legend, "rank": rank, "colour": colour, "symbol": symbol}
    return styles


# -- sizes -------------------------------------------------------------------------------------------------------------


def _sizes_panel(check: Check, quantity: Judged, steps: Sequence[int]) -> Panel:
    words: Json = {"heading": quantity.name, "verdict": _verdict(quantity).replace("off", "<b>off</b>")}
    lines = [_sizes_line(check, quantity, *each) for each in zip(steps, shades(len(steps)), strict=True)]
    sizes = [y for line in lines for y in line.y if y is not None]
    if not sizes:
        return Panel(**words, why_empty="exactly zero" if quantity.verdict == "zero" else "zero or not finite")
    return Panel(
        **words,
        x=Axis(title=f"{check.axis} {check.symbol}", look=growing_axis(check.sizes, 0.06)),
        y=Axis(look=log_axis(sizes)),
        series=[*_guide(check, quantity, steps), *(line for line in lines if any(line.y))],
    )


def _sizes_line(check: Check, quantity: Judged, step: int, colour: str) -> Series:
    values = {size: quantity.values[size][step] for size in check.sizes}
    told = [f"{check.symbol} = {size}<br>{value:.4g}" for size, value in values.items()]
    look: Json = {"name": _after(step), "legend": _SHADES, "rank": step, "colour": colour, "size": 5}
    return Series(x=check.sizes, y=[on_log_axis(value) for value in values.values()], told=told, **look)


def _guide(check: Check, quantity: Judged, steps: Iterable[int]) -> list[Series]:
    """Of the slope that the verdict is about; where it is about other steps, of the last that is expected."""
    expected = {step: prediction.exponent for step in steps if (prediction := quantity.predicted[step]) is not None}
    powers = {step: float(exponent.power) for step, exponent in expected.items() if exponent.power is not None}
    step = max(powers, key=lambda step: (expected[step] == quantity.expected, step), default=0)
    points = [(size, y) for size in check.sizes if (y := on_log_axis(quantity.values[size][step])) is not None]
    if not powers or not points:
        return []
    middle, height = (fmean(map(math.log, part)) for part in zip(*points, strict=True))
    ends = [check.sizes[0], check.sizes[-1]]
    ys = [math.exp(height + powers[step] * (math.log(end) - middle)) for end in ends]
    return [Series(x=ends, y=ys, told=[f"expected slope {signed(powers[step])}"] * 2, **_DASHES)]


# -- over training -----------------------------------------------------------------------------------------------------


def _trained(check: Check, name: str) -> Mapping[int, Sequence[float | None]]:
    """What a quantity, or the loss, came to by size; None where it is not finite."""
    quantity = check.quantities.get(name)
    values = check.loss if name == LOSS() else {} if quantity is None else quantity.values
    return {size: [finite(value) for value in of_size] for size, of_size in values.items()}


def _training_panels(check: Check, panels: Mapping[str, Sequence[str]]) -> list[Panel]:
    """Quantities over training; a second one of a panel is dotted, without markers, which would hide the dots."""
    drawn = []
    for title, names in panels.items():
        lines = []
        for size, colour in zip(check.sizes, shades(len(check.sizes)), strict=True):
            style: Json = {"name": f"{check.symbol} = {size}", "legend": _SHADES, "rank": size, "colour": colour}
            for number, name in enumerate(names):
                ys = _trained(check, name).get(size, ())
                told = [f"{_after(step)}<br>{y or 0:.4g}" for step, y in enumerate(ys)]
                dotted: Json = {"mode": "lines", "dash": DOTTED, "width": 1.5, "named": False} if number else {}
                part = name if len(names) > 1 else ""
                lines.append(Series(x=range(len(ys)), y=ys, part=part, told=told, size=4, **style, **dotted))
        if any(y is not None for line in lines for y in line.y):
            y_axis = Axis(look={"nticks": 6, **SMALL_TICKS})
            drawn.append(Panel(heading=title, x=_updates(check), y=y_axis, series=lines))
        else:
            drawn.append(Panel(heading=title, why_empty="not measured"))
    return drawn


def _exponents_panel(
    check: Check, title: str, quantities: Sequence[Judged], styles: Mapping[str, Json], but_zero: bool = False
) -> Panel:
    """What is expected (``but_zero`` leaves zeros out), over it what was measured."""
    there = [each for each in quantities if each.name in styles]
    if not there:
        return Panel(heading=title, why_empty="exactly zero" if quantities else "not measured")
    expected = _expected_lines(there, styles, but_zero)
    lines = [_exponents_line(each.exponents, styles[each.name]) for each in there]
    values = [y for series in (*expected, *lines) for y in series.y if y is not None]
    y = Axis(title=f"exponent of {check.symbol}", look=_exponent_axis(values))
    return Panel(heading=title, verdict=_verdicts(there), x=_updates(check), y=y, series=[*expected, *lines])


def _exponents_line(points: Sequence[Estimate | None], style: Json) -> Series:
    told = ["" if point is None else f"{point.text(2)}<br>{_after(step)}" for step, point in enumerate(points)]
    alone: Json = {}
    if sum(point is not None for point in points) == 1:  # a band has no width; bars stand side by side
        alone = {"aside": 0.05 * (style["rank"] - 3), "bars": {"thickness": 1.5, "width": 4}}
    return Series(x=range(len(points)), told=told, size=5, band=0.07, **estimated(points), **alone, **style)


def _expected_lines(quantities: Iterable[Judged], styles: Mapping[str, Json], but_zero: bool) -> list[Series]:
    """One per exponent and colour, where it is expected: dashed; dotted the least that is."""
    colours: dict[tuple[str, float, int], list[str]] = {}
    for each in quantities:
        for step, prediction in enumerate(each.predicted):
            for dash, power in _ends(prediction.exponent if prediction is not None else None):
                if power or not but_zero:
                    colours.setdefault((dash, power, step), []).append(styles[each.name]["colour"])
    places: dict[tuple[str, float, str], list[float | None]] = {}
    for (dash, power, step), owners in sorted(colours.items()):
        xs = places.setdefault((dash, power, owners[0] if len(owners) == 1 else MUTED), [])
        if xs and xs[-1] == step - 0.5:
            xs[-1] = step + 0.5
        else:
            xs += [*([None] if xs else []), step - 0.5, step + 0.5]
    return [
        Series(x=xs, y=[None if x is None else power for x in xs], told=f"expected {signed(power)}", **look)
        for (dash, power, colour), xs in places.items()
        for look in (_DASHES | {"dash": dash, "colour": colour},)
    ]


def _ends(exponent: Exponent | None) -> list[tuple[str, float]]:
    """The powers that are expected, the highest first."""
    if exponent is None or exponent.power is None:
        return []
    lowest = [(DOTTED, float(exponent.power - exponent.slack))] if exponent.slack else []
    return [(DASHED, float(exponent.power)), *lowest]


def _expected_marks(panels: Iterable[Panel]) -> list[Series]:
    series = [each for panel in panels for each in panel.series]
    dashes = {each.dash for each in series if each.name == _EXPECTED}
    names = {DASHED: "expected (grey: of several)", DOTTED: "expected at least"}
    marks = [mark(name, mode="lines", dash=dash, width=1.5) for dash, name in names.items() if dash in dashes]
    if any(math.isfinite(ci) for each in series for ci in each.ci):
        marks.append(mark("95 % CI", mode="markers", marker=swatch(MUTED, 0.25)))
    return marks


def _updates(check: Check) -> Axis:
    return Axis(title="updates", look=steps_axis(check.steps, (-0.5, check.steps + 0.5), 6))


def _exponent_axis(values: Sequence[float]) -> Json:
    low, high = min(values), max(values)
    space = space_around(low, high, 0.1, _LEAST_EXPONENTS)
    every = next((unit for unit in (0.5, 1.0, 2.0, 5.0) if high - low + 2 * space <= 6 * unit), 10.0)
    zero = {"zeroline": True, "zerolinewidth": 1}
    return {"range": [low - space, high + space], "tick0": 0, "dtick": every, **zero, **SMALL_TICKS}


# -- words -------------------------------------------------------------------------------------------------------------


def _after(step: int) -> str:
    return f"after {many(step, 'update')}"


def _verdict(each: Judged) -> str:
    """As ``0.07 ± 0.21 (expected 0) ok``."""
    exponent = each.judged or each.exponents[-1]
    measured = "" if exponent is None or math.isnan(exponent.value) else exponent.text(2)
    ends = " … ".join(signed(power) for _, power in reversed(_ends(each.expected)))
    verdict = each.verdict if each.stable else f"{each.verdict}, not stable"
    return " ".join(filter(None, (measured, f"(expected {ends})" if ends else "", verdict)))


def _trained_words(check: Check, panels: Mapping[str, Sequence[str]]) -> str:
    told = []
    for name in (name for names in panels.values() for name in names):
        last = {size: values[-1] for size, values in _trained(check, name).items() if values}
        words = [f"{'not finite' if value is None else signed(value, 3)} for {size}" for size, value in last.items()]
        told.append(f"{name} at the end: {', '.join(words) or 'nothing to show'}.")
    return " ".join(told)


def _verdicts(quantities: Sequence[Judged]) -> str:
    """As ``off: router · 3 ok``."""
    off = [each.name.label for each in quantities if each.verdict == "off"]
    ok = sum(each.verdict == "ok" for each in quantities)
    words = [f"<b>off</b>: {', '.join(off)}" if off else "", f"{ok} ok" if ok else ""]
    return " · ".join(filter(None, words)) or "nothing is expected"


def _exponent_words(panels: _Quantities) -> str:
    told = {title: "; ".join(f"{each.name} {_verdict(each)}" for each in drawn) for title, drawn in panels.items()}
    return " ".join(f"{title.capitalize()}: {words or 'nothing to show'}." for title, words in told.items())
