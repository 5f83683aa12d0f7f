"""Pictures of a coordinate check: sizes over what grows, their exponents over training, and the paper's evaluation.

A layer has one colour and one marker in all figures, and so have the terms of the sum over experts and of the backward
pass. Expected exponents are dashed, in the colour of what they are expected of, and grey where several share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from statistics import fmean
from typing import TYPE_CHECKING

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
from mssp.report.canvas import (
    DASHED,
    DOTTED,
    MUTED,
    SMALL_TICKS,
    Axes,
    Canvas,
    Json,
    axis_title,
    band_trace,
    error_bars,
    growing_axis,
    inner_size,
    legend_rows,
    line_trace,
    log_axis,
    many,
    on_log_axis,
    shades,
    signed,
    space_around,
    standing_for,
    steps_axis,
    stroke,
    swatch,
    values_of,
)
from mssp.theory.propagation import Exponent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_Panels = Mapping[str, Sequence[Judged]]  # by title

# Layers have colours of Okabe and Ito, which the colour-blind tell apart, terms have others, of Tol. Markers are for
# those who see no colours.
_LAYERS = {
    "embedding": ("#009e73", "diamond"), "hidden": ("#cc79a7", "cross"), "router": ("#d55e00", "square"),
    "expert_in": ("#56b4e9", "triangle-up"), "expert_out": ("#0072b2", "triangle-down"),
    "shared_gate": ("#e69f00", "x"), "readout": ("#1a1a1a", "circle"),
}  # fmt: skip
_SUMMANDS = {
    "init": ("#882255", "circle"), "propagating": ("#332288", "triangle-up"), "effective": ("#999933", "square"),
    "cross": ("#cc6677", "diamond"), "A21": ("#44aa99", "triangle-down"), "A22": ("#117733", "cross"),
}  # fmt: skip
_BACKWARD = {
    "A4": ("#882255", "circle"), "A5": ("#332288", "triangle-up"), "A6": ("#999933", "square"),
    "E": ("#44aa99", "diamond"),
}  # fmt: skip
_OTHERS = (("#aa4499", "circle"), ("#ddaa33", "square"), ("#117733", "diamond"), ("#66ccee", "triangle-up"))
# Legends by their titles, in the order in which they stand; plotly wants numbers, and "legend2" holds the marks.
_SHADES, _OTHER = "legend6", "legend5"
_TITLES = {
    _SHADES: "", "legend": EFFECTIVE.legend, "legend3": AGGREGATE.legend, "legend4": BACKWARD.legend, _OTHER: "other",
}  # fmt: skip
_STYLES = {"legend": _LAYERS, "legend3": _SUMMANDS, "legend4": _BACKWARD}
_LEGENDS = {_TITLES[name]: name for name in _STYLES}

_MOST = 12  # panels of a figure about whose quantities nothing is known
_EARLY = (1, 2, 5, 10)  # updates at which things begin; the last one shows what they have come to
_GAPS, _ABOVE = (64, 104), 46  # pixels between panels, and above one for its heading
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
    columns, rows = _grid(len(chosen), 4)
    panel = {1: 620, 2: 420}.get(columns, 250), 190
    canvas = _sheet(check, f"sizes over the {check.axis}", (columns, rows), panel, {_SHADES: map(_after, steps)})
    for number, each in enumerate(chosen):
        x, y, on = axes = canvas.axes(*divmod(number, columns))
        canvas.heading([each.name], _verdict(each).replace("off", "<b>off</b>"))
        lines = [_sizes_line(check, each, *of) for of in zip(steps, shades(len(steps)), strict=True)]
        sizes = [value for line in lines for value in line["y"] if value is not None]
        if not sizes:
            canvas.leave_empty(axes, "exactly zero" if each.verdict == "zero" else "zero or not finite")
            continue
        x |= growing_axis(check.sizes, f"{check.axis} {_symbol(check)}", panel[0], 0.06)
        y |= log_axis(sizes)
        canvas.data += [line | on for line in (*_guide(check, each, steps), *lines) if any(line["y"])]
    if not chosen:
        canvas.leave_empty(canvas.axes(0, 0), "not measured")
    if any(trace["name"] == "expected" for trace in canvas.data):
        canvas.mark("expected slope", mode="lines", line=stroke(MUTED, DASHED))
    told = " ".join(f"{each.name}: {_verdict(each)}." for each in chosen)
    after = ", ".join(map(str, steps))
    what = f"sizes in log-log after {after} of {many(check.steps, 'update')}, in {many(len(chosen), 'panel')}"
    return _finished(canvas, check, what, told)


def exponents_figure(check: Check, names: Sequence[str] | None = None) -> Figure:
    """Exponents over training: of propagating and effective updates, of the sum over experts, of gradients.

    Lines are missing where a quantity is exactly zero. Bands are confidence intervals, dashed lines what is expected.

    Args:
        names: of quantities, in one panel per kind: ``effective/router`` is of the kind ``effective``.
    """
    panels: dict[str, list[Judged]] = {}
    if names is None:
        for kind in (PROPAGATING, EFFECTIVE, AGGREGATE, GRADIENT):
            panels[kind.title] = _of_kind(check, kind)
    else:
        for each in _named(check, names):
            panels.setdefault(each.name.panel, []).append(each)
    columns, rows = _grid(len(panels), 2)
    styles = _styles(panels)
    panel = 620 if columns == 1 else 440, 240
    canvas = _sheet(check, "exponents over training", (columns, rows), panel, _labels(styles))
    for number, (title, drawn) in enumerate(panels.items()):
        _draw_exponents(canvas, check, canvas.axes(*divmod(number, columns)), title, drawn, styles)
    if not panels:
        canvas.leave_empty(canvas.axes(0, 0), "not measured")
    _mark_expected(canvas)
    what = f"exponents over {many(check.steps, 'update')}, in {many(len(panels), 'panel')}"
    return _finished(canvas, check, what, _exponent_words(panels))


def router_figure(check: Check) -> Figure:
    """How the router spreads inputs over experts in training, by size: dark is wide."""
    labels = [f"{_symbol(check)} = {size}" for size in check.sizes]
    canvas = _sheet(check, "the router", (len(_ROUTED), 1), (260, 200), {_SHADES: labels})
    _draw_training(canvas, check, _ROUTED)
    names = [name for names in _ROUTED.values() for name in names]
    what = f"the router by {check.axis} over {many(check.steps, 'update')}"
    return _finished(canvas, check, what, _trained_words(check, names))


def evaluation_figure(check: Check) -> Figure:
    """The paper's evaluation (App. "Fine-grained scaling evaluations"): how sizes train, and exponents of all terms.

    In the first row dark is wide. Dashed lines are where expected exponents are not zero.
    """
    terms = {AGGREGATE: _SUMMANDS, BACKWARD: _BACKWARD}
    panels = {
        kind.title: _of_kind(check, kind, terms.get(kind, ()))
        for kind in (PROPAGATING, EFFECTIVE, NORMALISED, AGGREGATE, BACKWARD, GRADIENT)
    }
    styles = _styles(panels)
    trained = any(_trained(check, name) for names in _TRAINED.values() for name in names)
    labels = {_SHADES: [f"{_symbol(check)} = {size}" for size in check.sizes]} if trained else {}
    canvas = _sheet(check, "evaluation", (4, 3), (250, 190), {**labels, **_labels(styles)})
    _draw_training(canvas, check, _TRAINED)
    for number, (title, drawn) in enumerate(panels.items()):
        row, column = divmod(number, 3)
        axes = canvas.axes(row + 1, column, columns=3)
        _draw_exponents(canvas, check, axes, title, drawn, styles, but_zero=True)
    _mark_expected(canvas)
    what = f"training by {check.axis} over {many(check.steps, 'update')}, and exponents of all terms"
    names = [name for names in _TRAINED.values() for name in names]
    return _finished(canvas, check, what, f"{_trained_words(check, names)} {_exponent_words(panels)}")


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
    found = {each.name.label: each for each in check.quantities.values() if each.name.kind is kind}
    order = tuple(labels) or (*_LAYERS, *_SUMMANDS, *found)
    return [found[label] for label in dict.fromkeys(order) if label in found]


def _worth_drawing(check: Check) -> list[Judged]:
    terms = ("init", "propagating", "effective", "cross")
    found = [*_of_kind(check, EFFECTIVE), *_of_kind(check, PROPAGATING), *_of_kind(check, AGGREGATE, terms)]
    there = [each for each in found if each.verdict != "zero"]
    return there or [each for each in check.quantities.values() if each.verdict != "zero"][:_MOST]


# -- how they look -----------------------------------------------------------------------------------------------------


def _styles(panels: _Panels) -> dict[str, Json]:
    """What the traces of a quantity share, by its name; of those that are not zero throughout."""
    found: dict[str, Json] = {}
    others: list[str] = []
    for each in (each for drawn in panels.values() for each in drawn if any(each.exponents)):
        label, legend = each.name.label, _LEGENDS.get(each.name.kind.legend, _OTHER)
        if label in _STYLES.get(legend, ()):
            (colour, symbol), rank = _STYLES[legend][label], list(_STYLES[legend]).index(label)
        else:
            others += [] if label in others else [label]
            legend, rank = _OTHER, others.index(label)
            colour, symbol = _OTHERS[rank % len(_OTHERS)]
        style = {"name": label, "legend": legend, "legendgroup": f"{legend} {label}", "legendrank": rank}
        found[each.name] = style | {"line": stroke(colour), "marker": {"color": colour, "symbol": symbol, "size": 5}}
    return found


def _labels(styles: Mapping[str, Json]) -> dict[str, list[str]]:
    """By legend."""
    found: dict[str, list[str]] = {}
    for legend, label in dict.fromkeys((style["legend"], style["name"]) for style in styles.values()):
        found.setdefault(legend, []).append(label)
    return found


def _sheet(
    check: Check, what: str, shape: tuple[int, int], panel: tuple[int, int], labels: Mapping[str, Iterable[str]]
) -> Canvas:
    """An empty figure with its title and its legends, one under the other."""
    across, _ = inner_size(shape, panel, _GAPS)
    rows = {name: legend_rows(list(labels[name]), across) for name in _TITLES if name in labels} | {"legend2": 1}
    canvas = Canvas(f"{heading(check)}: {what}", shape, panel, _GAPS, _ABOVE, sum(rows.values()))
    canvas.legends(rows, _TITLES)
    return canvas


def _finished(canvas: Canvas, check: Check, what: str, words: str) -> Figure:
    canvas.name_once("lines+markers")
    sizes = ", ".join(map(str, check.sizes))
    how = f"over the {check.axis} {_symbol(check)} = {sizes}, with 95 % confidence intervals"
    return canvas.figure(
        f"It shows {what}. Exponents are slopes in log-log {how}, of {many(check.seeds, 'seed')}. "
        f"{words or 'There is nothing to show.'}"
    )


def _grid(count: int, most: int) -> tuple[int, int]:
    columns = min(max(count, 1), most)
    return columns, math.ceil(max(count, 1) / columns)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _sizes_line(check: Check, each: Judged, step: int, colour: str) -> Json:
    ys = [on_log_axis(each.values[size][step]) for size in check.sizes]
    told = [f"{_symbol(check)} = {size}<br>{each.values[size][step]:.4g}" for size in check.sizes]
    style: Json = {"name": _after(step), "legend": _SHADES, "legendrank": step}
    return line_trace(check.sizes, ys, told, line=stroke(colour), marker={"color": colour, "size": 5}, **style)


def _guide(check: Check, each: Judged, steps: Iterable[int]) -> list[Json]:
    """Of the slope that the verdict is about; where it is about other steps, of the last that is expected."""
    expected = {step: prediction.exponent for step in steps if (prediction := each.predicted[step]) is not None}
    powers = {step: float(found.power) for step, found in expected.items() if found.power is not None}
    step = max(powers, key=lambda step: (expected[step] == each.expected, step), default=0)
    points = [(size, y) for size in check.sizes if (y := on_log_axis(each.values[size][step])) is not None]
    if not powers or not points:
        return []
    middle, height = (fmean(map(math.log, part)) for part in zip(*points, strict=True))
    ends = [check.sizes[0], check.sizes[-1]]
    ys = [math.exp(height + powers[step] * (math.log(end) - middle)) for end in ends]
    told = [f"expected slope {signed(powers[step])}"] * 2
    return [line_trace(ends, ys, told, name="expected", line=stroke(MUTED, DASHED)) | {"mode": "lines"}]


# -- over training -----------------------------------------------------------------------------------------------------


def _trained(check: Check, name: str) -> Mapping[int, Sequence[float | None]]:
    """What a quantity, or the loss, came to by size; None where it is not finite."""
    quantity = check.quantities.get(name)
    found = check.loss if name == LOSS() else {} if quantity is None else quantity.values
    return {size: [finite(each) for each in values] for size, values in found.items()}


def _draw_training(canvas: Canvas, check: Check, panels: Mapping[str, Sequence[str]]) -> None:
    """The first row: quantities over training, a second one of a panel dotted."""
    for column, (title, names) in enumerate(panels.items()):
        x, y, on = axes = canvas.axes(0, column)
        canvas.heading([title])
        lines = []
        for size, colour in zip(check.sizes, shades(len(check.sizes)), strict=True):
            style: Json = {"name": f"{_symbol(check)} = {size}", "legend": _SHADES, "legendrank": size}
            style |= {"marker": {"color": colour, "size": 4}}
            # Without markers, which would hide the dots.
            for name, dash, mode in zip(names, ("solid", DOTTED), ("lines+markers", "lines"), strict=False):
                ys = _trained(check, name).get(size, ())
                told = [f"{_after(step)}<br>{each or 0:.4g}" for step, each in enumerate(ys)]
                style |= standing_for(name if len(names) > 1 else "")
                lines.append(line_trace(range(len(ys)), ys, told, line=stroke(colour, dash), **style) | {"mode": mode})
        if any(each is not None for line in lines for each in line["y"]):
            x |= _updates_axis(check)
            y |= {"nticks": 6, **SMALL_TICKS}
            canvas.data += [line | on for line in lines]
        else:
            canvas.leave_empty(axes, "not measured")


def _draw_exponents(
    canvas: Canvas,
    check: Check,
    axes: Axes,
    title: str,
    quantities: Sequence[Judged],
    styles: Mapping[str, Json],
    but_zero: bool = False,
) -> None:
    """Bands, over them what is expected (``but_zero`` leaves zeros out), over it lines."""
    x, y, on = axes
    there = [each for each in quantities if each.name in styles]
    if not there:
        canvas.heading([title])
        canvas.leave_empty(axes, "exactly zero" if quantities else "not measured")
        return
    canvas.heading([title], _verdicts(there))
    bands = [_exponent_band(each.exponents, styles[each.name]) for each in there]
    expected = _expected_lines(there, styles, but_zero)
    lines = [_exponent_line(each.exponents, styles[each.name]) for each in there]
    canvas.data += [trace | on for trace in (*bands, *expected, *lines) if trace["x"]]
    x |= _updates_axis(check)
    y |= _exponent_axis([value for trace in (*expected, *lines) for value in trace["y"] if value is not None])
    y["title"] = axis_title(f"exponent of {_symbol(check)}")


def _exponent_line(points: Sequence[Estimate | None], style: Json) -> Json:
    told = ["" if point is None else f"{point.text(2)}<br>{_after(step)}" for step, point in enumerate(points)]
    line = line_trace(range(len(points)), values_of(points), told, **style)
    if sum(point is not None for point in points) == 1:  # a band would have no width; bars stand side by side
        line |= standing_for(x=line["x"])
        line["x"] = [step + 0.05 * (style["legendrank"] - 3) for step in line["x"]]
        line["error_y"] = error_bars(points, style["line"]["color"])
    return line


def _exponent_band(points: Sequence[Estimate | None], style: Json) -> Json:
    return band_trace(range(len(points)), points, style["line"]["color"], 0.07, **style)


def _expected_lines(quantities: Iterable[Judged], styles: Mapping[str, Json], but_zero: bool) -> list[Json]:
    """One per exponent and colour, where it is expected: dashed; dotted the least that is."""
    colours: dict[tuple[str, float, int], list[str]] = {}
    for each in quantities:
        for step, prediction in enumerate(each.predicted):
            for dash, power in _ends(prediction.exponent if prediction is not None else None):
                if power or not but_zero:
                    colours.setdefault((dash, power, step), []).append(styles[each.name]["line"]["color"])
    found: dict[tuple[str, float, str], list[float | None]] = {}
    for (dash, power, step), owners in sorted(colours.items()):
        xs = found.setdefault((dash, power, owners[0] if len(owners) == 1 else MUTED), [])
        if xs and xs[-1] == step - 0.5:
            xs[-1] = step + 0.5
        else:
            xs += [*([None] if xs else []), step - 0.5, step + 0.5]
    return [
        {"type": "scatter", "mode": "lines", "name": "expected", "showlegend": False, "line": stroke(colour, dash)}
        | {"x": xs, "y": [None if x is None else power for x in xs]}
        | {"hovertemplate": f"expected {signed(power)}<extra></extra>"}
        for (dash, power, colour), xs in found.items()
    ]


def _ends(exponent: Exponent | None) -> list[tuple[str, float]]:
    """The powers that are expected, the highest first."""
    if exponent is None or exponent.power is None:
        return []
    lowest = [(DOTTED, float(exponent.power - exponent.slack))] if exponent.slack else []
    return [(DASHED, float(exponent.power)), *lowest]


def _mark_expected(canvas: Canvas) -> None:
    dashes = {trace["line"].get("dash") for trace in canvas.data if trace["name"] == "expected"}
    for dash, name in ((DASHED, "expected (grey: of several)"), (DOTTED, "expected at least")):
        if dash in dashes:
            canvas.mark(name, mode="lines", line=stroke(MUTED, dash))
    if any("fill" in trace or "error_y" in trace for trace in canvas.data):
        canvas.mark("95 % CI", mode="markers", marker=swatch(MUTED, 0.25))


def _updates_axis(check: Check) -> Json:
    return steps_axis(check.steps, "updates", (-0.5, check.steps + 0.5), 6)


def _exponent_axis(values: Sequence[float]) -> Json:
    low, high = min(values), max(values)
    space = space_around(low, high, 0.1, _LEAST_EXPONENTS)
    every = next((unit for unit in (0.5, 1.0, 2.0, 5.0) if high - low + 2 * space <= 6 * unit), 10.0)
    zero = {"zeroline": True, "zerolinecolor": MUTED, "zerolinewidth": 1}
    return {"range": [low - space, high + space], "tick0": 0, "dtick": every, **zero, **SMALL_TICKS}


# -- words -------------------------------------------------------------------------------------------------------------


def _symbol(check: Check) -> str:
    return "L" if check.axis == "depth" else "N"


def _after(step: int) -> str:
    return f"after {many(step, 'update')}"


def _verdict(each: Judged) -> str:
    """As ``0.07 ± 0.21 (expected 0) ok``."""
    found = each.judged or each.exponents[-1]
    measured = "" if found is None or math.isnan(found.value) else found.text(2)
    ends = " … ".join(signed(power) for _, power in reversed(_ends(each.expected)))
    verdict = each.verdict if each.stable else f"{each.verdict}, not stable"
    return " ".join(filter(None, (measured, f"(expected {ends})" if ends else "", verdict)))


def _trained_words(check: Check, names: Iterable[str]) -> str:
    told = []
    for name in names:
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


def _exponent_words(panels: _Panels) -> str:
    told = {title: "; ".join(f"{each.name} {_verdict(each)}" for each in drawn) for title, drawn in panels.items()}
    return " ".join(f"{title.capitalize()}: {words or 'nothing to show'}." for title, words in told.items())
