"""The picture of a limit: what an infinitely large network does in training, and finite ones beside it.

Every panel over the steps shows one quantity. The limit has a colour of its own, and is dashed where finite networks
are drawn too, which are solid and darker the wider they are. Inputs that nothing is trained on are dotted.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

import numpy as np

from mssp._estimates import Estimate, finite
from mssp.dmft.comparison import Comparison
from mssp.dmft.document import SYMBOLS, Overlay
from mssp.dmft.observables import OVER_INPUTS, Array
from mssp.dmft.solution import Solution
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
    growing_axis,
    html_lines,
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
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Panels in the order of rows: what each shows, and more exactly. The distance from the limit ends the first row.
_PANELS = {
    "loss": ("Training loss", "half the mean squared error"),
    "f": ("Outputs", "one line for each of P = {inputs} inputs"),
    "phi1": ("Features", "mean square over units and inputs"),
    "phi2": ("Expert units behind their gates", "mean square over units and inputs"),
    "phi3": ("Sum over experts", "mean square over units and inputs"),
    "g1": ("Gradient at features", "mean square, scaled to order one"),
    "g2": ("Gradient at expert units", "mean square, scaled to order one"),
    "g3": ("Readout weights", "mean square, scaled to order one"),
    "router_mean": ("Mean of router logits", "over experts and inputs"),
    "router_variance": ("Variance of router logits", "over experts, the mean over inputs"),
    "router_gradient": ("Gradient at router logits", "mean square, scaled to order one"),
}
_COLUMNS, _ROWS, _PANEL, _GAPS, _ABOVE = 3, 4, (320, 190), (84, 106), 46
_ACCENT = "#00a37a"  # green stands out from all shades of widths, light and dark
_LIMIT, _UNSEEN, _TARGET, _ERROR = "limit, N → ∞", "unseen inputs", "target", "± 1 standard error"
_DIAMOND: Json = {"symbol": "diamond-open", "size": 8, "color": MUTED, "line": {"width": 1.5}}
# Of what is compared over widths; markers are for those who see no colours.
_COMPARED = {
    "f": ("#1a1a1a", "circle"), "phi1": ("#0072b2", "square"),
    "phi3": ("#d55e00", "diamond"), "g1": ("#aa4499", "triangle-up"),
}  # fmt: skip
_BESIDE = 0.02  # of the widths' axis: so far neighbours stand apart, that error bars do not cover each other
_ABOVE_ALL = 1.6  # times the largest deviation, at the smallest width: there the line of slope −1 starts
_LOWEST_BAR = 0.25  # of a deviation: bars that reach lower leave the panel
_LEAST_SPAN = 0.05  # of the largest value, that a panel spans: noise is not to look like training


def dmft_figure(solution: Solution, comparison: Comparison | None = None) -> Figure:
    """A limit over training, with bands of one standard error; with a comparison, finite networks beside it.

    >>> from mssp.dmft import example, solve
    >>> from mssp.report.canvas import description_of
    >>> limit = solve(example("II", "mssp", inputs=2, steps=3), samples=400, solves=2)
    >>> "It shows the limit over 3 steps of training" in description_of(dmft_figure(limit))
    True

    Rows show outputs, forward signals, backward signals and the router. With a comparison, the first row ends with the
    distance of finite networks from the limit over their width, in log-log.
    """
    return overlay_figure(Overlay.of(solution, comparison))


def overlay_figure(shown: Overlay) -> Figure:
    """The same of what a file holds."""
    canvas = _sheet(shown)
    for number, name in enumerate(_PANELS):
        row, column = divmod(number + (number > 1), _COLUMNS)
        two = row == 0 and not shown.beside  # panels, which have the room of three
        axes = canvas.axes(row, column, columns=2 if two else None)
        _draw_over_steps(canvas, axes, name, shown)
    if shown.beside:
        _draw_deviations(canvas, canvas.axes(0, _COLUMNS - 1), shown)
    canvas.name_once("lines")
    canvas.name_once("lines+markers")
    for name, style in _marks(shown).items():
        canvas.mark(name, legend="legend", legendrank=_after_widths(shown, 2), **style)
    return canvas.figure(_words(shown))


def _sheet(shown: Overlay) -> Canvas:
    """An empty figure: its title, what a reader should know, and its legends, one under the other."""
    across, _ = inner_size((_COLUMNS, _ROWS), _PANEL, _GAPS)
    labels = {"legend": [_LIMIT, *_marks(shown)]}
    if shown.beside:
        labels["legend"] += [_width_name(each.width) for each in shown.beside]
        labels["legend2"] = [*_exponent_names(shown).values(), "slope −1"]
    rows = {legend: legend_rows(each, across) for legend, each in labels.items()}
    notes = [line for warning in shown.warnings for line in textwrap.wrap(f"Note: {warning}", across // 7)]
    title = shown.heading.replace("N_e", "Nₑ")
    above = len(notes) + sum(rows.values())
    canvas = Canvas(f"{title[0].upper()}{title[1:]}", (_COLUMNS, _ROWS), _PANEL, _GAPS, _ABOVE, above)
    if notes:
        below_title = canvas.layout["margin"]["t"] - canvas.under_title
        canvas.note(html_lines(notes), size=13, colour=MUTED, x=0, y=1, yshift=below_title, yanchor="top")
    canvas.legends(rows, {"legend2": "exponent of N"}, first=len(notes))
    return canvas


def _after_widths(shown: Overlay, place: int) -> int:
    """A rank in the legend, where widths are their own."""
    return max((each.width for each in shown.beside), default=0) + place


def _marks(shown: Overlay) -> dict[str, Json]:
    """Entries of the legend for what is no line of its own."""
    found: dict[str, Json] = {_TARGET: {"mode": "markers", "marker": _DIAMOND}}
    if shown.inputs > len(shown.targets):
        found[_UNSEEN] = {"mode": "lines", "line": stroke(MUTED, DOTTED)}
    if shown.solutions > 1:
        found[_ERROR] = {"mode": "markers", "marker": swatch(_ACCENT, 0.35)}
    return found


# -- over steps --------------------------------------------------------------------------------------------------------


def _draw_over_steps(canvas: Canvas, axes: Axes, name: str, shown: Overlay) -> None:
    """Bands, over them finite networks, over them the limit."""
    x, y, on = axes
    title, detail = _PANELS[name]
    canvas.heading([title], detail.format(inputs=shown.inputs))
    steps, trained = shown.steps, len(shown.targets)
    widths = list(zip(shown.beside, shades(len(shown.beside)), strict=True))
    bands, lines, limits = [], [], []
    for index, (values, errors) in enumerate(zip(shown.mean[name].T, shown.error[name].T, strict=True)):
        dash = DOTTED if name == "f" and index >= trained else ""
        for each, colour in widths:
            solid = stroke(colour, dash or "solid")
            curve = each.curves[name][:, index]
            lines.append(_steps_line(_width_name(each.width), name, index, curve, solid, each.width))
        thick = {"color": _ACCENT, "width": 2.5, "dash": dash or (DASHED if widths else "solid")}
        limits.append(_steps_line(_LIMIT, name, index, values, thick, _after_widths(shown, 1)))
        bands.append(_error_band(values, errors))
    targets = [_targets(shown.targets, 1.05 * steps)] if name == "f" else []
    traces = [*bands, *lines, *limits, *targets]
    drawn = [value for trace in traces for value in trace["y"] if value is not None]
    if not any(drawn):
        canvas.leave_empty(axes, "zero throughout" if drawn else "not finite")
        return
    x |= steps_axis(steps, "step t", (-0.03 * steps, 1.09 * steps), 8)
    low, high = min(drawn), max(drawn)
    space = space_around(low, high, 0.08, _LEAST_SPAN * max(abs(low), abs(high)))
    y |= {"range": [low - space, high + space], "nticks": 6, "exponentformat": "power", **SMALL_TICKS}
    y["title"] = _symbol_title(name)
    canvas.data += [trace | on for trace in traces if trace["x"]]


def _steps_line(label: str, name: str, index: int, values: Array, look: Json, rank: int) -> Json:
    ys = [finite(float(value)) for value in values]
    of = f", input {index + 1}" if name == "f" else ""
    told = [f"step {step}{of}<br>{signed(value, 4)}" for step, value in enumerate(values)]
    line = line_trace(range(len(ys)), ys, told, name=label, line=look, legendrank=rank)
    return line | {"mode": "lines", **standing_for(of.removeprefix(", "))}


def _error_band(values: Array, errors: Array) -> Json:
    points = [Estimate(*each) for each in zip(values, errors, strict=True)]
    return band_trace(range(len(points)), points, _ACCENT, 0.25, name=_LIMIT)


def _targets(targets: Array, place: float) -> Json:
    told = [f"of input {index + 1}<br>{signed(target, 4)}" for index, target in enumerate(targets)]
    marks = line_trace([place] * len(targets), targets.tolist(), told, name=_TARGET, marker=_DIAMOND)
    return marks | {"mode": "markers"}


def _symbol_title(name: str) -> Json:
    text = f"tr {SYMBOLS[name]}(t,t) / P" if name in OVER_INPUTS else "G³(t,t)" if name == "g3" else SYMBOLS[name]
    title = axis_title(text)
    return title | {"text": title["text"].replace("^ψ", "<sup>ψ</sup>")}


# -- over widths -------------------------------------------------------------------------------------------------------


def _draw_deviations(canvas: Canvas, axes: Axes, shown: Overlay) -> None:
    """A line per quantity whose limit is not zero, over a line of slope −1."""
    x, y, on = axes
    judged = shown.verdict.partition(":")[0]
    canvas.heading(["Distance from the limit"], f"means over networks ± their noise · {judged}")
    widths = [each.width for each in shown.beside]
    axis = growing_axis(widths, "width N", _PANEL[0], 0.08)
    low, high = axis["range"]
    apart = _BESIDE * (high - low)
    lines = [_deviation_line(shown, name, label, apart) for name, label in _exponent_names(shown).items()]
    points = [point for line in lines for point in zip(line["y"], line["error_y"]["array"], strict=True) if point[0]]
    if not points:
        canvas.leave_empty(axes, "the limit is zero")
        return
    top = _ABOVE_ALL * max(value for value, _ in points)
    heights = [top * widths[0] / width for width in widths]
    guide = line_trace(widths, heights, ["as 1/N"] * len(widths), name="slope −1", legend="legend2", legendrank=9)
    guide |= {"mode": "lines", "line": stroke(MUTED, DASHED)}
    x |= axis
    reach = [end for value, bar in points for end in (value + bar, max(value - bar, _LOWEST_BAR * value))]
    y |= log_axis([top, *reach]) | {"title": axis_title("% of the limit’s size")}
    canvas.data += [trace | on for trace in (guide, *lines)]


def _deviation_line(shown: Overlay, name: str, label: str, apart: float) -> Json:
    colour, symbol = _COMPARED[name]
    rank = list(_COMPARED).index(name)
    beside = 10 ** (apart * (rank - (len(_COMPARED) - 1) / 2))
    found = {each.width: (100 * each.deviation[name], 100 * each.error[name]) for each in shown.beside}
    ys = [on_log_axis(value) for value, _ in found.values()]
    up = [bar if math.isfinite(bar) else 0.0 for _, bar in found.values()]
    # A bar that reaches to zero has no end on this axis: it leaves the panel.
    down = [min(bar, 0.999 * (value or 0.0)) for value, bar in zip(ys, up, strict=True)]
    told = [f"N = {width}<br>{value:.2f} % ± {bar:.2f} %" for width, (value, bar) in found.items()]
    line = line_trace([width * beside for width in found], ys, told, name=label, legend="legend2", legendrank=rank)
    line |= {"line": stroke(colour), "marker": {"color": colour, "symbol": symbol, "size": 8}, **standing_for(x=found)}
    return line | {"error_y": {"array": up, "arrayminus": down, "color": colour, "thickness": 1.2, "width": 3}}


# -- words -------------------------------------------------------------------------------------------------------------


def _width_name(width: int) -> str:
    return f"N = {width}"


def _exponent_names(shown: Overlay) -> dict[str, str]:
    """Of what has a limit that is not zero, which deviations are relative to; as ``f: −0.98 ± 0.10``."""
    found = {name: shown.exponents[name] for name in _COMPARED if name in shown.exponents}
    told = {name: "in the noise" if math.isnan(each.value) else each.text(2) for name, each in found.items()}
    return {name: f"{SYMBOLS[name]}: {words}" for name, words in told.items()}


def _words(shown: Overlay) -> str:
    mean = f", the mean of {shown.solutions} solutions with bands of one standard error" if shown.solutions > 1 else ""
    told = [f"It shows the limit over {many(shown.steps, 'step')} of training{mean}."]
    if shown.beside:
        seeds = ", ".join(f"{each.width} ({many(each.seeds, 'seed')})" for each in shown.beside)
        told.append(f"Beside it are means over finite networks of width N = {seeds}.")
    for name, (title, _) in _PANELS.items():
        ends = [
            f"{title}: from {_listed(shown.mean[name][0])} to {_listed(shown.mean[name][-1], shown.error[name][-1])}"
        ]
        ends += [f"N = {each.width} comes to {_listed(each.curves[name][-1])}" for each in shown.beside[-1:]]
        told.append(f"{'; '.join(ends)}.")
    if shown.beside:
        exponents = ", ".join(_exponent_names(shown).values()) or "none"
        told.append(f"Distance from the limit over width: {shown.verdict}. Exponents of N: {exponents}.")
    return " ".join([*told, *(f"Note: {warning}." for warning in shown.warnings)])


def _listed(values: Array, errors: Array | None = None) -> str:
    off = np.full(len(values), np.nan) if errors is None else errors
    return ", ".join(
        f"{signed(value, 4)}{'' if math.isnan(error) else f' ± {signed(error, 2)}'}"
        for value, error in zip(values, off, strict=True)
    )
