"""The picture of a limit: the training of an infinitely large network, with that of finite networks for comparison.

Every panel over the steps shows one quantity. Finite networks are solid lines, darker if they are wider. The limit has
a colour of its own; it is dashed if there are finite networks in the picture. Lines of inputs that are not trained on
are dotted.
"""

from __future__ import annotations

import math

import numpy as np

from mssp._estimates import finite
from mssp.dmft.comparison import Comparison
from mssp.dmft.document import SYMBOLS, Overlay
from mssp.dmft.observables import OVER_INPUTS, Array
from mssp.dmft.solution import Solution
from mssp.report.colours import INK, MUTED, shades
from mssp.report.figure import DASHED, DOTTED, MAIN, Axis, Figure, Json, Panel, Series, in_rows, mark, swatch
from mssp.report.figures.axes import SMALL_TICKS, log_axis, on_log_axis, sizes_axis, space_around, steps_axis
from mssp.report.words import many, signed

# Heading and subtitle of each panel. The panel with the distance from the limit is not listed; it comes last in the
# first row.
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
_COLUMNS = 3
_ACCENT = "#00a37a|#1fd1a0"  # green, unlike all shades of the widths on both grounds
_EXPONENTS = "exponents"  # the name of a legend
_LIMIT, _UNSEEN, _TARGET, _ERROR = "limit, N → ∞", "unseen inputs", "target", "± 1 standard error"
_DIAMOND: Json = {"symbol": "diamond-open", "size": 8, "color": MUTED, "line": {"width": 1.5}}
# Colour and marker of each quantity in the distance panel; markers help readers who cannot tell the colours apart.
_COMPARED = {
    "f": (INK, "circle"), "phi1": ("#0072b2|#4f86e8", "square"),
    "phi3": ("#d55e00|#f07a2e", "diamond"), "g1": ("#aa4499|#c77ad0", "triangle-up"),
}  # fmt: skip
_MARKER_OFFSET = 0.02  # fraction of the x axis between neighbouring markers, so that error bars do not overlap
_GUIDE_HEIGHT = 1.6  # where the line of slope −1 starts, at the smallest width: multiples of the largest distance
_LOWEST_BAR_END = 0.25  # fraction of a distance; an error bar that reaches lower leaves the panel
_MIN_SPAN = 0.05  # least span of a y axis, as a fraction of the largest value: noise must not look like training


def dmft_figure(solution: Solution, comparison: Comparison | None = None) -> Figure:
    """A limit over training, with bands of one standard error, and finite networks if there is a comparison.

    >>> from mssp.dmft import example, solve
    >>> limit = solve(example("II", "mssp", inputs=2, steps=3), samples=400, solves=2)
    >>> dmft_figure(limit).summary[:43]
    'It shows the limit over 3 steps of training'

    The rows show outputs, forward signals, backward signals and the router. With a comparison, the first row ends with
    the distance of finite networks from the limit over their width, in log-log.
    """
    return overlay_figure(Overlay.of(solution, comparison))


def overlay_figure(overlay: Overlay) -> Figure:
    """The same figure, from an `Overlay` (the content of a saved file)."""
    panels = [_over_steps(name, overlay) for name in _PANELS]
    distance = [_distance_panel(overlay)] if overlay.beside else []
    title = overlay.heading.replace("N_e", "Nₑ")
    return Figure(
        title=f"{title[0].upper()}{title[1:]}",
        summary=_summary(overlay),
        # Without the distance panel, the first row has two panels, which are wider than the others.
        rows=[[*panels[:2], *distance], *in_rows(panels[2:], _COLUMNS)],
        table_order=[*panels, *distance],
        size=(320, 190),
        gap=(84, 106),
        legends={MAIN: "", _EXPONENTS: "exponent of N"},
        marks=_marks(overlay),
        notes=[f"Note: {warning}" for warning in overlay.warnings],
    )


def _rank_after_networks(overlay: Overlay, place: int) -> int:
    """A legend rank behind all finite networks, whose rank is their width."""
    return max((network.width for network in overlay.beside), default=0) + place


def _marks(overlay: Overlay) -> list[Series]:
    """The legend's entries for targets, dotted lines and bands."""
    looks: dict[str, Json] = {_TARGET: {"mode": "markers", "marker": _DIAMOND}}
    if overlay.inputs > len(overlay.targets):
        looks[_UNSEEN] = {"mode": "lines", "dash": DOTTED, "width": 1.5}
    if overlay.solutions > 1:
        looks[_ERROR] = {"mode": "markers", "marker": swatch(_ACCENT, 0.35)}
    return [mark(name, legend=MAIN, rank=_rank_after_networks(overlay, 2), **look) for name, look in looks.items()]


# -- over steps --------------------------------------------------------------------------------------------------------


def _over_steps(name: str, overlay: Overlay) -> Panel:
    """One quantity over training: finite networks, and over them the limit with its bands."""
    heading, subtitle = _PANELS[name]
    titles: Json = {"heading": heading, "subtitle": subtitle.format(inputs=overlay.inputs)}
    steps, trained = overlay.steps, len(overlay.targets)
    networks, limits = [], []
    for index, (values, errors) in enumerate(zip(overlay.mean[name].T, overlay.error[name].T, strict=True)):
        unseen = name == "f" and index >= trained
        for network, colour in zip(overlay.beside, shades(len(overlay.beside)), strict=True):
            network_look: Json = {"name": f"N = {network.width}", "rank": network.width, "colour": colour}
            network_look |= {"dash": DOTTED, "width": 1.5} if unseen else {}
            networks.append(_curve(name, index, network.curves[name][:, index], network_look))
        limit_look: Json = {"name": _LIMIT, "rank": _rank_after_networks(overlay, 1), "colour": _ACCENT, "width": 2.5}
        limit_look |= {"dash": DOTTED if unseen else DASHED if overlay.beside else "solid"}
        limits.append(_curve(name, index, values, limit_look | {"band": 0.25, "ci": errors.tolist()}))
    series = [*networks, *limits, *([_targets(overlay.targets, 1.05 * steps)] if name == "f" else [])]
    heights = [
        height
        for curve in series
        for y, ci in zip(curve.y, curve.ci or [0.0] * len(curve.y), strict=True)
        if y is not None
        for height in ((y - ci, y + ci) if math.isfinite(ci) else (y,))
    ]
    if not any(heights):
        return Panel(**titles, why_empty="zero throughout" if heights else "not finite")
    low, high = min(heights), max(heights)
    space = space_around(low, high, 0.08, _MIN_SPAN * max(abs(low), abs(high)))
    ticks: Json = {"nticks": 6, "exponentformat": "power", **SMALL_TICKS}
    symbol = SYMBOLS[name].replace("^ψ", "<sup>ψ</sup>")
    y_title = f"tr {symbol}(t,t) / P" if name in OVER_INPUTS else "G³(t,t)" if name == "g3" else symbol
    return Panel(
        **titles,
        x=Axis(title="step t", look=steps_axis(steps, (-0.03 * steps, 1.09 * steps), 8)),
        y=Axis(title=y_title, look={"range": [low - space, high + space]} | ticks),
        series=series,
    )


def _curve(quantity: str, index: int, values: Array, look: Json) -> Series:
    """A quantity over the steps; of the outputs, that of one input."""
    part = f"input {index + 1}" if quantity == "f" else ""
    suffix = f", {part}" if part else ""
    hover = [f"step {step}{suffix}<br>{signed(value, 4)}" for step, value in enumerate(values)]
    ys = [finite(float(value)) for value in values]
    return Series(x=range(len(ys)), y=ys, part=part, hover=hover, mode="lines", **look)


def _targets(targets: Array, x: float) -> Series:
    """The outputs that training aims at, as markers to the right of the curves."""
    hover = [f"of input {index + 1}<br>{signed(target, 4)}" for index, target in enumerate(targets)]
    look: Json = {"mode": "markers", "marker": _DIAMOND, "in_legend": False}
    return Series(name=_TARGET, x=[x] * len(targets), y=targets.tolist(), hover=hover, **look)


# -- over widths -------------------------------------------------------------------------------------------------------


def _distance_panel(overlay: Overlay) -> Panel:
    """The distance of finite networks from the limit: a line per quantity, and a guide of slope −1."""
    answer = overlay.verdict.partition(":")[0]
    titles: Json = {"heading": "Distance from the limit", "subtitle": f"means over networks ± their noise · {answer}"}
    widths = [network.width for network in overlay.beside]
    x = sizes_axis(widths, 0.08)
    offset = _MARKER_OFFSET * (x["range"][1] - x["range"][0])
    lines = [_distance(overlay, name, label, offset) for name, label in _exponent_labels(overlay).items()]
    points = [(y, error) for line in lines for y, error in zip(line.y, line.ci, strict=True) if y]
    if not points:
        return Panel(**titles, why_empty="the limit is zero")
    top = _GUIDE_HEIGHT * max(y for y, _ in points)
    bar_ends = [end for y, error in points for end in (y + error, max(y - error, _LOWEST_BAR_END * y))]
    guide = Series(
        name="slope −1",
        x=widths,
        y=[top * widths[0] / width for width in widths],
        hover=["as 1/N"] * len(widths),
        legend=_EXPONENTS,
        rank=9,
        mode="lines",
        colour=MUTED,
        dash=DASHED,
        width=1.5,
    )
    return Panel(
        **titles,
        x=Axis(title="width N", look=x),
        y=Axis(title="% of the limit’s size", look=log_axis([top, *bar_ends])),
        series=[guide, *lines],
    )


def _distance(overlay: Overlay, name: str, label: str, offset: float) -> Series:
    """The distance of one quantity over the width, its markers moved by a multiple of the offset (in decades)."""
    colour, symbol = _COMPARED[name]
    rank = list(_COMPARED).index(name)
    shift = 10 ** (offset * (rank - (len(_COMPARED) - 1) / 2))
    percents = {net.width: (100 * net.deviation[name], 100 * net.error[name]) for net in overlay.beside}
    ys = [on_log_axis(value) for value, _ in percents.values()]
    errors = [error if math.isfinite(error) else 0.0 for _, error in percents.values()]
    return Series(
        name=label,
        x=list(percents),
        at_x=[width * shift for width in percents],
        y=ys,
        ci=errors,
        # A logarithmic axis has no zero: a bar that would reach it ends just above, far below the panel.
        ci_down=[min(error, 0.999 * (value or 0.0)) for value, error in zip(ys, errors, strict=True)],
        bars={"thickness": 1.2, "width": 3},
        hover=[f"N = {width}<br>{value:.2f} % ± {error:.2f} %" for width, (value, error) in percents.items()],
        legend=_EXPONENTS,
        rank=rank,
        colour=colour,
        symbol=symbol,
        size=8,
    )


# -- text --------------------------------------------------------------------------------------------------------------


def _exponent_labels(overlay: Overlay) -> dict[str, str]:
    """Legend labels such as ``f: −0.98 ± 0.10``, for every quantity whose limit is not zero.

    Distances are relative to the limit, so that a limit of zero has none.
    """
    exponents = {name: overlay.exponents[name] for name in _COMPARED if name in overlay.exponents}
    texts = {name: "in the noise" if math.isnan(each.value) else each.text(2) for name, each in exponents.items()}
    return {name: f"{SYMBOLS[name]}: {text}" for name, text in texts.items()}


def _summary(overlay: Overlay) -> str:
    solutions = overlay.solutions
    mean = f", the mean of {solutions} solutions with bands of one standard error" if solutions > 1 else ""
    sentences = [f"It shows the limit over {many(overlay.steps, 'step')} of training{mean}."]
    if overlay.beside:
        seeds = ", ".join(f"{network.width} ({many(network.seeds, 'seed')})" for network in overlay.beside)
        sentences.append(f"Beside it are means over finite networks of width N = {seeds}.")
    for name, (heading, _) in _PANELS.items():
        mean_values, errors = overlay.mean[name], overlay.error[name]
        sentence = f"{heading}: from {_listed(mean_values[0])} to {_listed(mean_values[-1], errors[-1])}"
        for widest in overlay.beside[-1:]:
            sentence += f"; N = {widest.width} comes to {_listed(widest.curves[name][-1])}"
        sentences.append(f"{sentence}.")
    if overlay.beside:
        exponents = ", ".join(_exponent_labels(overlay).values()) or "none"
        sentences.append(f"Distance from the limit over width: {overlay.verdict}. Exponents of N: {exponents}.")
    return " ".join([*sentences, *(f"Note: {warning}." for warning in overlay.warnings)])


def _listed(values: Array, errors: Array | None = None) -> str:
    """As ``0.5 ± 0.02, 0.6 ± 0.01``."""
    errors = np.full(len(values), np.nan) if errors is None else errors
    return ", ".join(
        f"{signed(value, 4)}{'' if math.isnan(error) else f' ± {signed(error, 2)}'}"
        for value, error in zip(values, errors, strict=True)
    )
