"""The picture of a limit: what an infinitely large network does in training, and finite ones beside it.

Every panel over the steps shows one quantity. The limit has a colour of its own, and is dashed where finite networks
are drawn too, which are solid and darker the wider they are. Inputs that nothing is trained on are dotted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mssp._estimates import finite
from mssp.dmft.comparison import Comparison
from mssp.dmft.document import SYMBOLS, Overlay
from mssp.dmft.observables import OVER_INPUTS, Array
from mssp.dmft.solution import Solution
from mssp.report.colours import INK, MUTED, shades
from mssp.report.figure import DASHED, DOTTED, MAIN, Axis, Figure, Json, Panel, Series, in_rows, mark, swatch
from mssp.report.figures.axes import SMALL_TICKS, growing_axis, log_axis, on_log_axis, space_around, steps_axis
from mssp.report.words import many, signed

# What panels show, and more exactly. The distance from the limit ends the first row.
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
_ACCENT = "#00a37a|#1fd1a0"  # green stands out from all shades of widths, light and dark
_EXPONENTS = "exponents"  # a legend
_LIMIT, _UNSEEN, _TARGET, _ERROR = "limit, N → ∞", "unseen inputs", "target", "± 1 standard error"
_DIAMOND: Json = {"symbol": "diamond-open", "size": 8, "color": MUTED, "line": {"width": 1.5}}
# Of what is compared over widths; markers are for those who see no colours.
_COMPARED = {
    "f": (INK, "circle"), "phi1": ("#0072b2|#4f86e8", "square"),
    "phi3": ("#d55e00|#f07a2e", "diamond"), "g1": ("#aa4499|#c77ad0", "triangle-up"),
}  # fmt: skip
_BESIDE = 0.02  # of the widths' axis: so far neighbours stand apart, that error bars do not cover each other
_ABOVE_ALL = 1.6  # times the largest deviation, at the smallest width: there the line of slope −1 starts
_LOWEST_BAR = 0.25  # of a deviation: bars that reach lower leave the panel
_LEAST_SPAN = 0.05  # of the largest value, that a panel spans: noise is not to look like training


def dmft_figure(solution: Solution, comparison: Comparison | None = None) -> Figure:
    """A limit over training, with bands of one standard error; with a comparison, finite networks beside it.

    >>> from mssp.dmft import example, solve
    >>> limit = solve(example("II", "mssp", inputs=2, steps=3), samples=400, solves=2)
    >>> dmft_figure(limit).words[:43]
    'It shows the limit over 3 steps of training'

    Rows show outputs, forward signals, backward signals and the router. With a comparison, the first row ends with the
    distance of finite networks from the limit over their width, in log-log.
    """
    return overlay_figure(Overlay.of(solution, comparison))


def overlay_figure(shown: Overlay) -> Figure:
    """The same of what a file holds."""
    panels = [_over_steps(name, shown) for name in _PANELS]
    distance = [_deviations(shown)] if shown.beside else []
    title = shown.heading.replace("N_e", "Nₑ")
    return Figure(
        title=f"{title[0].upper()}{title[1:]}",
        words=_words(shown),
        rows=[[*panels[:2], *distance], *in_rows(panels[2:], _COLUMNS)],  # without it two have the room of three
        order=[*panels, *distance],
        size=(320, 190),
        gap=(84, 106),
        legends={MAIN: "", _EXPONENTS: "exponent of N"},
        marks=_marks(shown),
        notes=[f"Note: {warning}" for warning in shown.warnings],
    )


def _after_widths(shown: Overlay, place: int) -> int:
    """A rank in the legend, where widths are their own."""
    return max((each.width for each in shown.beside), default=0) + place


def _marks(shown: Overlay) -> list[Series]:
    """Entries of the legend for what is no line of its own."""
    looks: dict[str, Json] = {_TARGET: {"mode": "markers", "marker": _DIAMOND}}
    if shown.inputs > len(shown.targets):
        looks[_UNSEEN] = {"mode": "lines", "dash": DOTTED, "width": 1.5}
    if shown.solutions > 1:
        looks[_ERROR] = {"mode": "markers", "marker": swatch(_ACCENT, 0.35)}
    return [mark(name, legend=MAIN, rank=_after_widths(shown, 2), **look) for name, look in looks.items()]


# -- over steps --------------------------------------------------------------------------------------------------------


def _over_steps(name: str, shown: Overlay) -> Panel:
    """Finite networks, over them the limit with its bands."""
    title, detail = _PANELS[name]
    words: Json = {"heading": title, "verdict": detail.format(inputs=shown.inputs)}
    steps, trained = shown.steps, len(shown.targets)
    lines, limits = [], []
    for index, (values, errors) in enumerate(zip(shown.mean[name].T, shown.error[name].T, strict=True)):
        unseen = name == "f" and index >= trained
        for each, colour in zip(shown.beside, shades(len(shown.beside)), strict=True):
            look: Json = {"dash": DOTTED, "width": 1.5} if unseen else {}
            curve = each.curves[name][:, index]
            lines.append(_line(name, index, curve, name=f"N = {each.width}", rank=each.width, colour=colour, **look))
        dash = DOTTED if unseen else DASHED if shown.beside else "solid"
        look = {"name": _LIMIT, "rank": _after_widths(shown, 1), "colour": _ACCENT, "width": 2.5, "dash": dash}
        limits.append(_line(name, index, values, band=0.25, ci=errors.tolist(), **look))
    series = [*lines, *limits, *([_targets(shown.targets, 1.05 * steps)] if name == "f" else [])]
    # Bands are of the panel too: they reach as far as their errors.
    drawn = [
        end
        for each in series
        for y, ci in zip(each.y, each.ci or [0.0] * len(each.y), strict=True)
        if y is not None
        for end in ((y - ci, y + ci) if math.isfinite(ci) else (y,))
    ]
    if not any(drawn):
        return Panel(**words, why_empty="zero throughout" if drawn else "not finite")
    low, high = min(drawn), max(drawn)
    space = space_around(low, high, 0.08, _LEAST_SPAN * max(abs(low), abs(high)))
    ticks: Json = {"nticks": 6, "exponentformat": "power", **SMALL_TICKS}
    symbol = SYMBOLS[name].replace("^ψ", "<sup>ψ</sup>")
    traced = f"tr {symbol}(t,t) / P" if name in OVER_INPUTS else "G³(t,t)" if name == "g3" else symbol
    return Panel(
        **words,
        x=Axis(title="step t", look=steps_axis(steps, (-0.03 * steps, 1.09 * steps), 8)),
        y=Axis(title=traced, look={"range": [low - space, high + space]} | ticks),
        series=series,
    )


def _line(quantity: str, index: int, values: Array, **look: Any) -> Series:
    part = f"input {index + 1}" if quantity == "f" else ""
    of = f", {part}" if part else ""
    told = [f"step {step}{of}<br>{signed(value, 4)}" for step, value in enumerate(values)]
    ys = [finite(float(value)) for value in values]
    return Series(x=range(len(ys)), y=ys, part=part, told=told, mode="lines", **look)


def _targets(targets: Array, place: float) -> Series:
    told = [f"of input {index + 1}<br>{signed(target, 4)}" for index, target in enumerate(targets)]
    look: Json = {"mode": "markers", "marker": _DIAMOND, "named": False}
    return Series(name=_TARGET, x=[place] * len(targets), y=targets.tolist(), told=told, **look)


# -- over widths -------------------------------------------------------------------------------------------------------


def _deviations(shown: Overlay) -> Panel:
    """A line per quantity whose limit is not zero, over a line of slope −1."""
    judged = shown.verdict.partition(":")[0]
    words: Json = {"heading": "Distance from the limit", "verdict": f"means over networks ± their noise · {judged}"}
    widths = [each.width for each in shown.beside]
    x = growing_axis(widths, 0.08)
    low, high = x["range"]
    lines = [_deviation(shown, name, label, _BESIDE * (high - low)) for name, label in _exponent_names(shown).items()]
    points = [(y, up) for line in lines for y, up in zip(line.y, line.ci, strict=True) if y]
    if not points:
        return Panel(**words, why_empty="the limit is zero")
    top = _ABOVE_ALL * max(value for value, _ in points)
    reach = [end for value, up in points for end in (value + up, max(value - up, _LOWEST_BAR * value))]
    guide = Series(
        name="slope −1",
        x=widths,
        y=[top * widths[0] / width for width in widths],
        told=["as 1/N"] * len(widths),
        legend=_EXPONENTS,
        rank=9,
        mode="lines",
        colour=MUTED,
        dash=DASHED,
        width=1.5,
    )
    return Panel(
        **words,
        x=Axis(title="width N", look=x),
        y=Axis(title="% of the limit’s size", look=log_axis([top, *reach])),
        series=[guide, *lines],
    )


def _deviation(shown: Overlay, name: str, label: str, apart: float) -> Series:
    colour, symbol = _COMPARED[name]
    rank = list(_COMPARED).index(name)
    aside = 10 ** (apart * (rank - (len(_COMPARED) - 1) / 2))
    values = {each.width: (100 * each.deviation[name], 100 * each.error[name]) for each in shown.beside}
    ys = [on_log_axis(value) for value, _ in values.values()]
    up = [error if math.isfinite(error) else 0.0 for _, error in values.values()]
    return Series(
        name=label,
        x=list(values),
        at_x=[width * aside for width in values],
        y=ys,
        ci=up,
        # A bar that reaches to zero has no end on this axis: it leaves the panel.
        below=[min(error, 0.999 * (value or 0.0)) for value, error in zip(ys, up, strict=True)],
        bars={"thickness": 1.2, "width": 3},
        told=[f"N = {width}<br>{value:.2f} % ± {error:.2f} %" for width, (value, error) in values.items()],
        legend=_EXPONENTS,
        rank=rank,
        colour=colour,
        symbol=symbol,
        size=8,
    )


# -- words -------------------------------------------------------------------------------------------------------------


def _exponent_names(shown: Overlay) -> dict[str, str]:
    """Of what has a limit that is not zero, which deviations are relative to; as ``f: −0.98 ± 0.10``."""
    exponents = {name: shown.exponents[name] for name in _COMPARED if name in shown.exponents}
    told = {name: "in the noise" if math.isnan(each.value) else each.text(2) for name, each in exponents.items()}
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
