"""A sweep's results as tables for people and as JSON for programs, and how that JSON is read back.

The package carries one such file: the sweep over all regimes on TinyImageNet, which took a GPU minutes, so that the
results of a laptop on embedded data can stand beside it (records/2026-11-16-transfer-tinyimagenet.md).
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

_TREND = {
    "yes": "yes",
    "no": "no: some wider model is significantly worse",
    "stalls": "stalls: the widest is not significantly better than the narrowest",
    "unclear": "unclear: it takes two widths and two seeds, the narrowest of which trains",
}


def lines(outcomes: Mapping[Contender, Outcome]) -> list[str]:
    text: list[str] = []
    for contender, outcome in outcomes.items():
        text += [""] if text else []
        text += [heading(contender, outcome), "", *align(cells(outcome)), "", *verdicts(outcome)]
    return text


def markdown(outcomes: Mapping[Contender, Outcome]) -> list[str]:
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
    """A header and a row per width."""
    base = outcome.summaries[0].width
    header = ["N", "best lr", "log2 best lr", "best", f"at N={base}'s lr", "regret", "largest stable lr"]
    return [header, *map(_row, outcome.summaries)]


def _row(summary: WidthSummary) -> list[str]:
    edge = " (edge)" if summary.at_edge else ""
    return [
        str(summary.width),
        f"{2**summary.best_lr.value:.3g}{edge}" if math.isfinite(summary.best_lr.value) else "none",
        number(replace(summary.best_lr, ci=math.nan) if summary.at_edge else summary.best_lr, 2),
        number(summary.best, 4),
        number(summary.transferred, 4),
        number(summary.regret, 4),
        "none" if summary.largest_stable_lr is None else f"{summary.largest_stable_lr:.4g}",
    ]


def number(estimate: Estimate, digits: int) -> str:
    if math.isnan(estimate.value):
        return "-"
    return "diverges" if math.isinf(estimate.value) else estimate.text(digits)


def verdicts(outcome: Outcome) -> list[str]:
    drift = f"{number(outcome.drift, 2)} doublings per doubling of N"
    return [
        f"best lr {outcome.drift_verdict}: {outcome.why_unclear or drift}",
        f"wider is better, each at its own best lr: {_TREND[outcome.wider_is_better]}",
        f"wider is better, all at the narrowest's lr: {_TREND[outcome.wider_is_better_transferred]}",
    ]


def as_json(outcomes: Mapping[Contender, Outcome]) -> list[dict[str, Any]]:
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
    """A sweep that a file keeps.

    Args:
        experiment: the data, steps and batch.
        made: when and on which device, in words; empty where the file does not say.
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
    """1,792 runs on one H200.

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
        # A regret without a number is that of a rate that diverged.
        Estimate(math.inf, math.nan) if math.isnan(regret.value) else regret,
        numbers["largest_stable_lr"],
        numbers["diverged"],
    )


def _estimate(numbers: Mapping[str, float | None]) -> Estimate:
    return Estimate(*(math.nan if (value := numbers[name]) is None else value for name in ("value", "ci")))
