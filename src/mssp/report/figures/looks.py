"""How quantities look in all figures: the colour, the marker and the legend of every layer and every term."""

from __future__ import annotations

from collections.abc import Iterable

from mssp.measure.quantities import AGGREGATE, BACKWARD, EFFECTIVE, Quantity
from mssp.report.colours import INK
from mssp.report.figure import Json

# Colours and markers of quantities by their labels. Layers have the colours of Okabe and Ito, which the colour-blind
# can tell apart, and terms have those of Tol. Markers help readers who cannot tell the colours apart.
LAYERS = {
    "embedding": ("#009e73|#009e73", "diamond"), "hidden": ("#cc79a7|#cc79a7", "cross"),
    "router": ("#d55e00|#f07a2e", "square"), "expert_in": ("#4a9bc8|#56b4e9", "triangle-up"),
    "expert_out": ("#0072b2|#4f86e8", "triangle-down"), "shared_gate": ("#c68900|#e69f00", "x"),
    "readout": (INK, "circle"),
}  # fmt: skip
SUMMANDS = {
    "init": ("#882255|#dd5fb4", "circle"), "propagating": ("#332288|#9c8ff5", "triangle-up"),
    "effective": ("#999933|#b5b545", "square"), "cross": ("#cc6677|#cc6677", "diamond"),
    "A21": ("#41a393|#44aa99", "triangle-down"), "A22": ("#117733|#5fbf68", "cross"),
}  # fmt: skip
RETURNS = {
    "A4": ("#882255|#dd5fb4", "circle"), "A5": ("#332288|#9c8ff5", "triangle-up"),
    "A6": ("#999933|#b5b545", "square"), "E": ("#41a393|#44aa99", "diamond"),
}  # fmt: skip
OTHERS = (
    ("#aa4499|#c77ad0", "circle"), ("#b58b2a|#ddaa33", "square"),
    ("#117733|#5fbf68", "diamond"), ("#4e9bb5|#66ccee", "triangle-up"),
)  # fmt: skip
_OTHER = "other"  # the name of the legend of quantities that are in no table above
_LOOKS = {EFFECTIVE.legend: LAYERS, AGGREGATE.legend: SUMMANDS, BACKWARD.legend: RETURNS}
LEGENDS = {title: title for title in (*_LOOKS, _OTHER)}


def looks_of(names: Iterable[Quantity]) -> dict[Quantity, Json]:
    """Label, legend, colour and marker by the name of the quantity, as arguments of a series.

    >>> look = looks_of([EFFECTIVE("router")])["effective/router"]
    >>> look["name"], look["legend"], look["symbol"]
    ('router', 'layer', 'square')
    """
    styles: dict[Quantity, Json] = {}
    others: list[str] = []  # labels that are in no table
    for name in names:
        label, legend = name.label, name.kind.legend
        looks = _LOOKS.get(legend, {})
        if label in looks:
            (colour, symbol), rank = looks[label], list(looks).index(label)
        else:
            others += [] if label in others else [label]
            legend, rank = _OTHER, others.index(label)
            colour, symbol = OTHERS[rank % len(OTHERS)]
        styles[name] = {"name": label, "legend": legend, "rank": rank, "colour": colour, "symbol": symbol}
    return styles
