"""Figures of training runs, in whose panels all runs are: losses, gradients, routers, single sizes, speed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mssp.measure.alarms import KINDS as ALARMS
from mssp.measure.quantities import KINDS
from mssp.report.colours import MUTED
from mssp.report.figure import DASHED, DOTTED, Figure, Json, Panel, Series, mark
from mssp.report.figures.run_lines import THIN, Runs, ends, figure_of, last_step, line, looks_of_runs, panel
from mssp.train.logged_run import LoggedRun

_WORST: Json = {"mode": "lines", "dash": DOTTED, "width": 1.5, "in_legend": False}
_CLIPPED: Json = {"name": "clipped above", "legend": "", "in_legend": False, "mode": "lines", "colour": MUTED}
_CLIPPED |= {"dash": DASHED, "width": 1.5}
_FAR = 30  # times the smallest number of a panel: from here on its axis is logarithmic
# Panels of the routers' health: their headings, the number of each, and the alarm whose limit is the same for all.
_HEALTH = {
    "load of the fullest, over a fair one": ("routers/load", ""),
    "share of starved experts": ("routers/starved", "dead"),
    "entropy of scores, 1 if all are equal": ("routers/entropy", ""),
    "size of logits": ("routers/logits", "logits"),
    "spread of a token’s logits": ("routers/spread", "uniform"),
    "how much gates follow logits": ("routers/sensitivity", "saturated"),
    "z-loss": ("routers/z", ""),
    "size of weights": ("routers/weights", ""),
    "weights over what the plan allows": ("routers/weights over bound", "weights"),
    "how far experts are apart": ("routers/apart", "experts alike"),
}
# Panels of speed: their headings, the number of each, and what it is multiplied by.
_SPEED = {
    "tokens per second": ("tokens_per_second", 1.0),
    "share of the peak operations (MFU)": ("mfu", 1.0),
    "largest memory, GiB": ("memory", 2.0**-30),
}


def loss_figure(runs: Runs) -> Figure | None:
    """Training losses as thin lines and validation losses as points, of all runs in one panel; None if there are none.

    Of a monitored run there is the loss on the probe batch.
    """
    series: list[Series] = []
    for name, run, look in looks_of_runs(runs):
        series.append(line(run.numbers.get("loss", {}), name, "training", **look | THIN))
        series.append(line(run.validation, name, "validation", **look, size=7))
        if not run.numbers.get("loss"):
            series.append(line(run.numbers.get("probe/loss", {}), name, "probe batch", **look))
    shown = panel("", series, title="loss, nats per token")
    if not shown.series:
        return None
    marks = {
        "training": mark("training", mode="lines", width=1),
        "validation": mark("validation", size=7),
        "probe batch": mark("on the probe batch"),
    }
    parts = {each.part for each in shown.series}
    return figure_of(
        runs,
        "Loss",
        "training and validation losses",
        ends(runs, lambda run: {"training loss": run.numbers.get("loss", {}), "validation loss": run.validation}),
        [shown],
        columns=1,
        height=320,
        heading_room=12,
        marks=[marks[part] for part in marks if part in parts],
    )


def norms_figure(runs: Runs) -> Figure | None:
    """The norm of all gradients before they were clipped, and the share of steps that were; None if it is not known."""
    norms, shares = [], []
    for name, run, look in looks_of_runs(runs):
        norms.append(line(run.numbers.get("norm", {}), name, **look | THIN))
        shares.append(line(run.numbers.get("clipped", {}), name, **look | {"mode": "lines"}))
    if not any(each.x for each in norms):
        return None
    clips = sorted({run.clip for run in runs.values() if run.clip is not None})
    limits = [
        Series(x=[0, last_step(runs)], y=[clip] * 2, hover=f"clipped above {clip:g}", **_CLIPPED) for clip in clips
    ]
    return figure_of(
        runs,
        "Gradients",
        "the norm of all gradients, and the share of steps so far in which they were clipped,",
        ends(runs, lambda run: {"norm": run.numbers.get("norm", {}), "clipped": run.numbers.get("clipped", {})}),
        [
            panel("norm of the gradients", [*limits, *norms], logarithmic=True),
            panel("share of clipped steps, so far", shares, look={"range": [-0.04, 1.04], "tickformat": ".0%"}),
        ],
        columns=2,
        height=220,
        marks=[mark("clipped above", mode="lines", dash=DASHED, width=1.5)] if limits else [],
    )


def routers_figure(runs: Runs) -> Figure | None:
    """The health of the routers: the mean over layers, and the worst layer dotted; None if nobody looked."""
    panels = [shown for heading, (number, alarm) in _HEALTH.items() if (shown := _health(runs, heading, number, alarm))]
    if not panels:
        return None
    return figure_of(
        runs,
        "Routers",
        "the health of the routers, over layers in the mean and in the worst layer,",
        ends(runs, lambda run: {name: run.numbers.get(name, {}) for name, _ in _HEALTH.values()}),
        panels,
        columns=3,
        height=180,
        marks=[mark("worst layer", mode="lines", dash=DOTTED, width=1.5)],
    )


def _health(runs: Runs, heading: str, number: str, alarm: str) -> Panel | None:
    series = []
    for name, run, look in looks_of_runs(runs):
        series.append(line(run.numbers.get(number, {}), name, **look | {"mode": "lines"}))
        series.append(line(run.numbers.get(f"{number}/worst", {}), name, "worst layer", **look | _WORST))
    kind = ALARMS.get(alarm)
    limit = f"alarm {'above' if kind.above else 'below'} {kind.limit:g}" if kind is not None else ""
    far = _is_far_apart(series)
    return panel(heading, series, subtitle=limit, logarithmic=far) if any(each.x for each in series) else None


def _is_far_apart(series: Sequence[Series]) -> bool:
    """Whether a run's numbers would look like zero beside those of another."""
    sizes = [y for each in series for y in each.y if y is not None]
    return bool(sizes) and min(sizes) > 0 and max(sizes) > _FAR * min(sizes)


def speed_figure(runs: Runs) -> Figure | None:
    """Tokens per second, and on GPUs the share of the peak and the memory; None if it is not known."""
    panels = []
    for heading, (number, unit) in _SPEED.items():
        series = []
        for name, run, look in looks_of_runs(runs):
            curve = {s: None if value is None else value * unit for s, value in run.speed.get(number, {}).items()}
            series.append(line(curve, name, **look | THIN))
        shown = panel(heading, series, look={"rangemode": "tozero"})
        panels += [shown] if shown.series else []
    if not panels:
        return None
    rates = {name: rate for name, run in runs.items() if (rate := median_rate(run)) is not None}
    return figure_of(
        runs,
        "Speed",
        "the speed",
        " ".join(f"{name}: {rate:,.0f} tokens per second in the median." for name, rate in rates.items()),
        panels,
        columns=3,
        height=220,
    )


def median_rate(run: LoggedRun) -> float | None:
    """Tokens per second in the median over steps, which the first steps do not slow down; None if it is not known."""
    rates = [rate for rate in run.speed.get("tokens_per_second", {}).values() if rate is not None]
    return median(rates) if rates else None


def single_sizes_figure(runs: Runs) -> Figure | None:
    """Measured sizes of which a model has but one, such as how far features have moved; None if there are none."""
    names = [kind() for kind in KINDS if kind.is_single and kind.section]
    panels = []
    for quantity in names:
        series = [line(run.sizes.get(quantity, {}), name, **look, size=4) for name, run, look in looks_of_runs(runs)]
        panels += [panel(quantity, series)] if any(each.x for each in series) else []
    if not panels:
        return None
    shown = {each.heading for each in panels}
    return figure_of(
        runs,
        "Measured sizes: the whole model",
        "sizes that a model has one of, over the steps",
        " ".join(f"{quantity}: {quantity.kind.meaning}" for quantity in names if quantity in shown),
        panels,
        columns=3,
        height=180,
    )
