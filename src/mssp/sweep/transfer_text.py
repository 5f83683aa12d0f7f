"""A sweep's results as tables for people and as JSON for programs, and how that JSON is read back.

The package contains one such file, the sweep over all regimes on TinyImageNet, so that reports can show it beside the
results of small runs (records/2026-11-16-transfer-tinyimagenet.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from mssp._estimates import Estimate, finite
from mssp._tables import align, markdown_table
from mssp.planning.setting import Setting
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Outcome, RecordedTransfer, WidthSummary

_TREND_SENTENCES = {
    "yes": "yes",
    "no": "no: some wider model is significantly worse",
    "stalls": "stalls: the widest is not significantly better than the narrowest",
    "unclear": "unclear: it takes two widths and two seeds, the narrowest of which trains",
}


def lines(outcomes: Mapping[Contender, Outcome]) -> list[str]:
    """Results for a terminal: for each contender a heading, a table and the verdicts."""
    text: list[str] = []
    for contender, outcome in outcomes.items():
        text += [""] if text else []
        text += [heading(contender, outcome), "", *align(cells(outcome)), "", *verdicts(outcome)]
    return text


def markdown(outcomes: Mapping[Contender, Outcome]) -> list[str]:
    """The text of :func:`lines` as Markdown."""
    text: list[str] = []
    for contender, outcome in outcomes.items():
        header, *body = cells(outcome)
        text += [""] if text else []
        text += [f"### {heading(contender, outcome)}", "", *markdown_table(header, body), ""]
        text += [f"- {verdict}" for verdict in verdicts(outcome)]
    return text


def heading(contender: Contender, outcome: Outcome) -> str:
    seeds = f"{outcome.seeds} seed{'s' if outcome.seeds > 1 else ''}"
    return f"{contender}: {outcome.metric.label}, {seeds}, mean ± 95% CI"


def cells(outcome: Outcome) -> list[list[str]]:
    """The table of one contender: a header and a row per width."""
    narrowest = outcome.summaries[0].width
    header = ["N", "best lr", "log2 best lr", "best", f"at N={narrowest}'s lr", "regret", "largest stable lr"]
    return [header, *map(_row, outcome.summaries)]


def _row(summary: WidthSummary) -> list[str]:
    edge = " (edge)" if summary.at_edge else ""
    return [
        str(summary.width),
        f"{2**summary.best_lr.value:.3g}{edge}" if math.isfinite(summary.best_lr.value) else "none",
        estimate_text(replace(summary.best_lr, ci=math.nan) if summary.at_edge else summary.best_lr, 2),
        estimate_text(summary.best, 4),
        estimate_text(summary.transferred, 4),
        estimate_text(summary.regret, 4),
        "none" if summary.largest_stable_lr is None else f"{summary.largest_stable_lr:.4g}",
    ]


def estimate_text(estimate: Estimate, digits: int) -> str:
    """The estimate with its interval; ``-`` for NaN, ``diverges`` for infinity."""
    if math.isnan(estimate.value):
        return "-"
    return "diverges" if math.isinf(estimate.value) else estimate.text(digits)


def verdicts(outcome: Outcome) -> list[str]:
    """The three answers about one contender, a sentence each."""
    drift = f"{estimate_text(outcome.drift, 2)} doublings per doubling of N"
    return [
        f"best lr {outcome.drift_verdict}: {outcome.why_unclear or drift}",
        f"wider is better, each at its own best lr: {_TREND_SENTENCES[outcome.wider_is_better]}",
        f"wider is better, all at the narrowest's lr: {_TREND_SENTENCES[outcome.wider_is_better_transferred]}",
    ]


def as_json(outcomes: Mapping[Contender, Outcome]) -> list[dict[str, Any]]:
    """A JSON object for each contender, which :func:`read` reads back."""
    documents = []
    for contender, outcome in outcomes.items():
        words = contender.setting.words() | {"active": contender.active}
        documents.append(
            {
                **{name: words[name] for name in ("optimizer", "regime", "scheme", "active", "readout")},
                "metric": outcome.metric.name,
                "seeds": outcome.seeds,
                "widths": {str(summary.width): _summary_json(summary) for summary in outcome.summaries},
                "drift": _estimate_json(outcome.drift),
                "drift_verdict": outcome.drift_verdict,
                "why_unclear": outcome.why_unclear or None,
                "wider_is_better": outcome.wider_is_better,
                "wider_is_better_transferred": outcome.wider_is_better_transferred,
            }
        )
    return documents


def _summary_json(summary: WidthSummary) -> dict[str, Any]:
    return {
        "log2_best_lr": _estimate_json(summary.best_lr),
        "best_grid_lr": summary.best_grid_lr,
        "at_edge": summary.at_edge,
        "best": _estimate_json(summary.best),
        "transferred": _estimate_json(summary.transferred),
        "regret": _estimate_json(summary.regret),
        "largest_stable_lr": summary.largest_stable_lr,
        "diverged": summary.diverged,
    }


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {"value": finite(estimate.value), "ci": finite(estimate.ci)}


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that was read from a file.

    Args:
        experiment: the data, steps and batch, in words.
        made: when and on which device it was made, in words; empty where the file does not say.
        command: the command that made it; empty where the file does not say.
    """

    experiment: str
    outcomes: Mapping[Contender, RecordedTransfer]
    made: str = ""
    command: str = ""


def read(document: Mapping[str, Any]) -> RecordedSweep:
    """The sweep that ``mssp sweep --json`` wrote; ValueError for other documents."""
    try:
        outcomes = {_contender(entry): _outcome(entry) for entry in document["settings"]}
        return RecordedSweep(document["experiment"], outcomes, document.get("made", ""), document.get("command", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no result of mssp sweep --json: {type(error).__name__}, {error}") from None


@cache
def tinyimagenet() -> RecordedSweep:
    """The recorded sweep on TinyImageNet: 1,792 runs on one H200.

    >>> tinyimagenet().outcomes[Contender(Setting.of("mup", "II", "sgd"))].drift_verdict
    'drifts up'
    """
    return read(json.loads(files("mssp.sweep").joinpath("tinyimagenet.json").read_text(encoding="utf-8")))


def _contender(entry: Mapping[str, Any]) -> Contender:
    words = {name: entry[name] for name in ("scheme", "regime", "optimizer", "readout")}
    return Contender(Setting.of(**words), entry["active"])


def _outcome(entry: Mapping[str, Any]) -> RecordedTransfer:
    return RecordedTransfer(
        METRICS[entry["metric"]],
        entry["seeds"],
        [_summary(int(width), numbers) for width, numbers in entry["widths"].items()],
        _estimate(entry["drift"]),
        entry["drift_verdict"],
        entry["why_unclear"] or "",
        entry["wider_is_better"],
        entry["wider_is_better_transferred"],
    )


def _summary(width: int, numbers: Mapping[str, Any]) -> WidthSummary:
    regret = _estimate(numbers["regret"])
    return WidthSummary(
        width,
        _estimate(numbers["log2_best_lr"]),
        math.nan if numbers["best_grid_lr"] is None else numbers["best_grid_lr"],
        numbers["at_edge"],
        _estimate(numbers["best"]),
        _estimate(numbers["transferred"]),
        # JSON has no infinity: a regret without a number belongs to a rate at which training diverged.
        Estimate(math.inf, math.nan) if math.isnan(regret.value) else regret,
        numbers["largest_stable_lr"],
        numbers["diverged"],
    )


def _estimate(numbers: Mapping[str, float | None]) -> Estimate:
    return Estimate(*(math.nan if (value := numbers[name]) is None else value for name in ("value", "ci")))
