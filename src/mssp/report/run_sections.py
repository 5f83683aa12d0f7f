"""What a report says of training runs: a row for each in the summary, notes, figures, and a table of alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mssp.report.figure import Figure
from mssp.report.figures.run_layers import loads_figures, rates_figure, sizes_figures, updates_figure
from mssp.report.figures.run_lines import Runs
from mssp.report.figures.runs import (
    loss_figure,
    median_rate,
    norms_figure,
    routers_figure,
    single_sizes_figure,
    speed_figure,
)
from mssp.report.page.document import Block, Cell, Chart, Row, Table, Words
from mssp.report.words import signed
from mssp.train.logged_run import Curve, LoggedRun

_UNKNOWN = "—"
_HEADER = ("run", "model", "plan", "steps", "training", "validation", "clipped", "tokens/s", "alarms")
_ALARM_HEADER = ("run", "step", "layer", "alarm", "value", "limit", "likely cause", "what to try")
_ABOUT = ("about",)  # entries of settings that say nothing of what was computed


def summary_blocks(runs: Runs) -> list[Block]:
    """Notes on runs that have not ended, and a row for every run."""
    if not runs:
        return []
    caption = "Losses are the last ones, in nats per token. Tokens per second are those of the median step."
    notes = [Words(note) for name, run in runs.items() for note in _notes(name, run)]
    return [*notes, Table(_HEADER, [_row(name, run) for name, run in runs.items()], "runs", caption)]


def _notes(name: str, run: LoggedRun) -> Iterator[str]:
    if run.steps is not None and run.step < run.steps:
        yield f"Not finished: {name} is at step {run.step:,} of {run.steps:,}."
    yield from (f"{name}: {note}" for note in run.notes)


def _row(name: str, run: LoggedRun) -> Row:
    rate, clipped = median_rate(run), _last(run.numbers.get("clipped", {}))
    steps = f"{run.step:,}" if run.steps in (None, run.step) else f"{run.step:,} of {run.steps:,}"
    return Row(
        [
            name,
            _model(run),
            (run.plan or _UNKNOWN)[:8],
            steps,
            _loss(run.numbers.get("loss", {})),
            _loss(run.validation),
            _UNKNOWN if clipped is None or run.clip is None else f"{clipped:.0%}",
            _UNKNOWN if rate is None else f"{rate:,.0f}",
            Cell(str(len(run.alarms)), "bad") if run.alarms else Cell("none", "good"),
        ]
    )


def _model(run: LoggedRun) -> str:
    """As ``N 128, N_e 64, M 16, K 2, L 2 · 0.726 M parameters``."""
    config = run.settings.get("model.config")
    named = "/".join(Path(str(config)).parts[-2:]) if config else ""
    dims = {} if run.model is None else run.model.dims
    sizes = ", ".join(f"{symbol} {size:.0f}" for symbol, size in dims.items() if symbol != "D")
    count = "" if run.parameters is None else f"{run.parameters / 1e6:,.3g} M parameters"
    return " · ".join(filter(None, (named, sizes, count))) or _UNKNOWN


def _last(curve: Curve) -> float | None:
    return curve[max(curve)] if curve else None


def _loss(curve: Curve) -> str:
    if not curve:
        return _UNKNOWN
    last = _last(curve)
    return "not finite" if last is None else f"{last:.4f}"


def training_blocks(runs: Runs) -> list[Block]:
    """Losses, what the runs differ in, gradients, learning rates."""
    differing = _differences(runs)
    return [
        *_chart(loss_figure(runs), "loss"),
        *([differing] if differing is not None else []),
        *_chart(norms_figure(runs), "gradients"),
        *_chart(rates_figure(runs), "rates"),
    ]


def _differences(runs: Runs) -> Table | None:
    """The settings in which runs differ, and nothing of those in which they do not."""
    settings = {name: {**run.settings, "data": run.data} for name, run in runs.items() if run.settings}
    entries = dict.fromkeys(entry for of_run in settings.values() for entry in of_run if entry not in _ABOUT)
    rows = []
    for entry in entries:
        values = [_value(of_run, entry) for of_run in settings.values()]
        rows += [Row([entry, *values])] if len(set(values)) > 1 else []
    caption = "The settings in which runs differ."
    return Table(["setting", *settings], rows, "differences", caption) if rows else None


def _value(settings: Mapping[str, Any], entry: str) -> str:
    value = settings.get(entry)
    return _UNKNOWN if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def alarm_blocks(runs: Runs) -> list[Block]:
    """A table of all alarms, in the order of their steps; empty if there is none."""
    alarms = [(alarm, name) for name, run in runs.items() for alarm in run.alarms]
    rows = []
    for alarm, name in sorted(alarms, key=lambda each: each[0].step):
        more = f" and {alarm.layers - 1} more" if alarm.layers > 1 else ""
        value = "not finite" if alarm.value is None else signed(alarm.value, 3)
        numbers = [value, signed(alarm.limit, 3)]
        rows.append(Row([name, f"{alarm.step:,}", alarm.layer + more, alarm.kind, *numbers, alarm.cause, alarm.remedy]))
    caption = "An alarm is raised when three observations in a row agree, and again when it has gone and come back."
    return [Table(_ALARM_HEADER, rows, "alarms-table", caption)] if rows else []


def router_blocks(runs: Runs) -> list[Block]:
    """The health of the routers, the loads of experts, and the sizes of updates."""
    loads = [Chart(figure, f"loads-{number}") for number, figure in enumerate(loads_figures(runs).values(), 1)]
    return [*_chart(routers_figure(runs), "routers-health"), *loads, *_chart(updates_figure(runs), "updates")]


def size_blocks(runs: Runs) -> list[Block]:
    """Everything that was measured of the terms."""
    figures = sizes_figures(runs) if runs else {}
    charts = [Chart(figure, f"sizes-{number}") for number, figure in enumerate(figures.values(), 1)]
    return [*_chart(single_sizes_figure(runs), "sizes-single"), *charts]


def speed_blocks(runs: Runs) -> list[Block]:
    """How fast the runs were."""
    return _chart(speed_figure(runs), "speed-chart")


def _chart(figure: Figure | None, name: str) -> list[Block]:
    return [] if figure is None else [Chart(figure, name)]
