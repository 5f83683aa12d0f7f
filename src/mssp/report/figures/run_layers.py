"""Figures of training runs with a line for every layer or term, and a panel for every run: rates, updates, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mssp.measure.alarms import KINDS as ALARMS
from mssp.measure.quantities import EFFECTIVE, KINDS, Kind, Quantity, sections
from mssp.report.colours import INK, MUTED
from mssp.report.figure import DASHED, DOTTED, Figure, Json, Panel, Series
from mssp.report.figures.looks import LAYERS, RETURNS, SUMMANDS, looks_of
from mssp.report.figures.run_lines import GROUPS, Runs, figure_of, heading_of, last_step, line, panel
from mssp.train.logged_run import Curve, LoggedRun

_MOST_LAYERS = 12  # of a figure of loads
_MOST_GROUPS = 5  # that a legend names in one entry


def rates_figure(runs: Runs) -> Figure | None:
    """The learning rate of every group; groups with the same rates share a line. None if no run has any."""
    of_runs = {
        name: {each.removeprefix("lr/"): curve for each, curve in run.numbers.items() if each.startswith("lr/")}
        for name, run in runs.items()
    }
    rates = _positive(curve for curves in of_runs.values() for curve in curves.values())
    look: Json = {"title": "learning rate", "logarithmic": True, "also": rates, "last": last_step(runs)}
    panels = [panel(heading_of(name, runs), _rate_lines(of_run), **look) for name, of_run in of_runs.items() if of_run]
    if not panels:
        return None
    return figure_of(
        runs,
        "Learning rates",
        "the learning rate of every group",
        "",
        panels,
        columns=_columns(runs),
        height=240,
    )


def _rate_lines(curves: Mapping[str, Curve]) -> list[Series]:
    """A line for all groups with the same rates, with the look of the first of them, the largest rates first."""
    alike: dict[tuple[tuple[int, float | None], ...], list[str]] = {}
    for group, curve in curves.items():
        alike.setdefault(tuple(curve.items()), []).append(group)
    roles = {group: EFFECTIVE(group.partition(" ")[0]) for group in curves}
    looks = looks_of(roles.values())
    highest = {points: max((rate for _, rate in points if rate is not None), default=0.0) for points in alike}
    lines = []
    for rank, points in enumerate(sorted(alike, key=lambda each: -highest[each])):
        groups = alike[points]
        names = ", ".join(groups[:_MOST_GROUPS])
        more = f" and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
        look = looks[roles[groups[0]]] | {"legend": GROUPS, "rank": rank, "mode": "lines"}
        lines.append(line(dict(points), **look | {"name": names + more}))
    return lines


# Which of a layer's experts are drawn, by their place from the emptiest, 0, to the fullest, 1, and how they look.
_PLACES: Mapping[str, tuple[float, Json]] = {
    "fullest": (1.0, {"colour": "#d55e00|#f07a2e"}),
    "upper quarter": (0.75, {"colour": MUTED, "dash": DASHED, "width": 1.5}),
    "median": (0.5, {"colour": INK}),
    "lower quarter": (0.25, {"colour": MUTED, "dash": DOTTED, "width": 1.5}),
    "emptiest": (0.0, {"colour": "#0072b2|#4f86e8"}),
}


def loads_figures(runs: Runs) -> dict[str, Figure]:
    """The loads of experts over a fair one, by run: a panel for each layer, from the fullest expert to the emptiest."""
    figures = {}
    for name, run in runs.items():
        step = max(1, -(-len(run.loads) // _MOST_LAYERS))
        layers = list(run.loads)[::step]
        panels = [_loads_panel(layer, run.loads[layer]) for layer in layers]
        if not panels:
            continue
        left_out = f"One of {step} of the {len(run.loads)} layers is shown." if step > 1 else ""
        figures[name] = figure_of(
            {name: run},
            f"Loads of experts{f': {name}' if len(runs) > 1 else ''}",
            "the loads of the experts of each layer, over a fair one, from the fullest expert to the emptiest,",
            left_out,
            panels,
            columns=2,
            height=200,
        )
    return figures


def _loads_panel(layer: str, loads: Mapping[int, Sequence[float]]) -> Panel:
    lines = []
    for rank, (name, (place, look)) in enumerate(_PLACES.items()):
        curve: Curve = {step: sorted(of)[round(place * (len(of) - 1))] * len(of) for step, of in loads.items()}
        lines.append(line(curve, name, legend=GROUPS, rank=rank, **{"mode": "lines"} | look))
    return panel(layer, lines, look={"rangemode": "tozero"})


def updates_figure(runs: Runs) -> Figure | None:
    """The size of every role's updates over the learning rate that the plan says; None if nobody looked."""
    of_runs = {
        name: {EFFECTIVE(each[5:]): curve for each, curve in run.numbers.items() if each.startswith("step/")}
        for name, run in runs.items()
    }
    panels = _panels(of_runs, runs, "")
    if not panels:
        return None
    small, large = ALARMS["small updates"].limit, ALARMS["large updates"].limit
    return figure_of(
        runs,
        "Sizes of updates",
        "the RMS of every role’s updates over the learning rate that the plan says",
        f"It is about 1 where gradients agree over the steps, and an alarm below {small:g} and above {large:g}.",
        panels,
        columns=_columns(runs),
        height=240,
    )


def sizes_figures(runs: Runs) -> dict[str, Figure]:
    """Measured sizes over the steps by section: a panel for every kind and run. A size of zero has no place there."""
    figures = {}
    for section in sections():
        kinds = [kind for kind in KINDS if kind.section == section and not kind.is_single]
        panels = []
        for kind in kinds:
            panels += _panels({name: _of_kind(run, kind) for name, run in runs.items()}, runs, _heading(kind))
        if panels:
            figures[section] = figure_of(
                runs,
                f"Measured sizes: {section}",
                "sizes over the steps",
                " ".join(f"{_heading(kind)}: {kind.meaning}" for kind in kinds),
                panels,
                columns=_columns(runs),
                height=220,
            )
    return figures


def _heading(kind: Kind) -> str:
    """The title of a kind, or its name where several kinds have the same title."""
    alone = sum(other.title == kind.title for other in KINDS) == 1
    return kind.title if kind.title and alone else kind.name


def _columns(runs: Runs) -> int:
    """A column for every run where there are three, so that those of one kind are side by side."""
    return 3 if len(runs) in (3, 6) else 2


def _panels(of_runs: Mapping[str, Mapping[Quantity, Curve]], runs: Runs, what: str) -> list[Panel]:
    """A panel for every run that has something, with the same axis for all of them."""
    sizes = _positive(curve for curves in of_runs.values() for curve in curves.values())
    looks = looks_of(_in_order(name for curves in of_runs.values() for name in curves))
    panels = []
    for run, curves in of_runs.items():
        lines = [line(curves[name], **looks[name] | {"size": 5}) for name in looks if name in curves]
        if lines:
            heading = heading_of(run, runs, what)
            panels.append(panel(heading, lines, logarithmic=True, also=sizes, last=last_step(runs)))
    return panels


def _positive(curves: Iterable[Curve]) -> list[float]:
    return [value for curve in curves for value in curve.values() if value is not None and value > 0]


def _in_order(names: Iterable[Quantity]) -> list[Quantity]:
    """Layers and terms in the order of the forward pass, and others after them."""
    order = [*LAYERS, *SUMMANDS, *RETURNS]
    return sorted(dict.fromkeys(names), key=lambda name: order.index(name.label) if name.label in order else len(order))


def _of_kind(run: LoggedRun, kind: Kind) -> dict[Quantity, Curve]:
    """The sizes of a kind; of a term that is split into parts the sum alone."""
    return {name: curve for name, curve in run.sizes.items() if name.kind is kind and (kind.pairs or not name.part)}
