"""What a sweep found, as tables for people and as JSON for programs.

What a sweep came to is read back from the ``settings`` of ``mssp sweep --json``.

The package carries one such file, the sweep over all regimes on TinyImageNet that a GPU took minutes for, so that what
a laptop finds on embedded data can stand beside it (records/2026-11-16-transfer-tinyimagenet.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from mssp._estimates import Estimate
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


def lines(found: Mapping[Contender, Outcome]) -> list[str]:
    text: list[str] = []
    for contender, transfer in found.items():
        text += [
            *([""] if text else []),
            heading(contender, transfer),
            "",
            *align(cells(transfer)),
            "",
            *verdicts(transfer),
        ]
    return text


def markdown(found: Mapping[Contender, Outcome]) -> list[str]:
    text: list[str] = []
    for contender, transfer in found.items():
        header, *body = cells(transfer)
        text += [""] if text else []
        text += [f"### {heading(contender, transfer)}", "", *markdown_table(header, body), ""]
        text += [f"- {verdict}" for verdict in verdicts(transfer)]
    return text


def heading(contender: Contender, transfer: Outcome) -> str:
    seeds = f"{transfer.seeds} seed{'s' if transfer.seeds > 1 else ''}"
    return f"{contender}: {transfer.metric.label}, {seeds}, mean ± 95% CI"


def cells(transfer: Outcome) -> list[list[str]]:
    """A header and a row per width."""
    base = transfer.summaries[0].width
    head = ["N", "best lr", "log2 best lr", "best", f"at N={base}'s lr", "regret", "largest stable lr"]
    return [head, *(_row(summary) for summary in transfer.summaries)]


def _row(summary: WidthSummary) -> list[str]:
    edge = " (edge)" if summary.at_edge else ""
    stable = "none" if summary.largest_stable_lr is None else f"{summary.largest_stable_lr:.4g}"
    return [
        str(summary.width),
        f"{2**summary.best_lr.value:.3g}{edge}" if math.isfinite(summary.best_lr.value) else "none",
        number(replace(summary.best_lr, ci=math.nan) if summary.at_edge else summary.best_lr, 2),
        number(summary.best, 4),
        number(summary.transferred, 4),
        number(summary.regret, 4),
        stable,
    ]


def verdicts(transfer: Outcome) -> list[str]:
    drift = f"{number(transfer.drift, 2)} doublings per doubling of N"
    return [
        f"best lr {transfer.drift_verdict}: {transfer.why_unclear or drift}",
        f"wider is better, each at its own best lr: {_TREND[transfer.wider_is_better]}",
        f"wider is better, all at the narrowest's lr: {_TREND[transfer.wider_is_better_transferred]}",
    ]


def as_json(found: Mapping[Contender, Outcome]) -> list[dict[str, Any]]:
    return [
        {
            **_words(contender),
            "metric": transfer.metric.name,
            "seeds": transfer.seeds,
            "widths": {str(summary.width): _width_json(summary) for summary in transfer.summaries},
            "drift": _json(transfer.drift),
            "drift_verdict": transfer.drift_verdict,
            "why_unclear": transfer.why_unclear or None,
            "wider_is_better": transfer.wider_is_better,
            "wider_is_better_transferred": transfer.wider_is_better_transferred,
        }
        for contender, transfer in found.items()
    ]


def _words(contender: Contender) -> dict[str, Any]:
    words = contender.setting.words()
    optimizer, regime, scheme, readout = (words[name] for name in ("optimizer", "regime", "scheme", "readout"))
    return {
        "optimizer": optimizer, "regime": regime, "scheme": scheme, "active": contender.active, "readout": readout
    }  # fmt: skip


def _width_json(summary: WidthSummary) -> dict[str, Any]:
    return {
        "log2_best_lr": _json(summary.best_lr),
        "best_grid_lr": summary.best_grid_lr,
        "at_edge": summary.at_edge,
        "best": _json(summary.best),
        "transferred": _json(summary.transferred),
        "regret": _json(summary.regret),
        "largest_stable_lr": summary.largest_stable_lr,
        "diverged": summary.diverged,
    }


def _json(estimate: Estimate) -> dict[str, float | None]:
    return {
        name: number if math.isfinite(number) else None
        for name, number in (("value", estimate.value), ("ci", estimate.ci))
    }


def number(estimate: Estimate, digits: int) -> str:
    if math.isnan(estimate.value):
        return "-"
    if math.isinf(estimate.value):
        return "diverges"
    return estimate.text(digits)


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that a file keeps.

    Args:
        experiment: the data, steps and batch.
        made: when and on what, for people; empty where the file does not say.
    """

    experiment: str
    outcomes: Mapping[Contender, RecordedTransfer]
    made: str = ""
    command: str = ""


def read(found: Mapping[str, Any]) -> RecordedSweep:
    """What ``mssp sweep --json`` wrote; ValueError where it is something else."""
    try:
        outcomes = {_contender(each): _outcome(each) for each in found["settings"]}
        return RecordedSweep(found["experiment"], outcomes, found.get("made", ""), found.get("command", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no result of mssp sweep --json: {type(error).__name__}, {error}") from None


@cache
def tinyimagenet() -> RecordedSweep:
    """1,792 runs on one H200.

    >>> tinyimagenet().outcomes[Contender(Setting.of("mup", "II", "sgd"))].drift_verdict
    'drifts up'
    """
    return read(json.loads(files("mssp.sweep").joinpath("tinyimagenet.json").read_text(encoding="utf-8")))


def _contender(found: Mapping[str, Any]) -> Contender:
    words = {name: found[name] for name in ("scheme", "regime", "optimizer", "readout")}
    return Contender(Setting.of(**words), found["active"])


def _outcome(found: Mapping[str, Any]) -> RecordedTransfer:
    return RecordedTransfer(
        METRICS[found["metric"]],
        found["seeds"],
        tuple(_summary(int(width), each) for width, each in found["widths"].items()),
        _estimate(found["drift"]),
        found["drift_verdict"],
        found["why_unclear"] or "",
        found["wider_is_better"],
        found["wider_is_better_transferred"],
    )


def _summary(width: int, found: Mapping[str, Any]) -> WidthSummary:
    regret = _estimate(found["regret"])
    return WidthSummary(
        width,
        _estimate(found["log2_best_lr"]),
        math.nan if found["best_grid_lr"] is None else found["best_grid_lr"],
        found["at_edge"],
        _estimate(found["best"]),
        _estimate(found["transferred"]),
        # What has no number there has diverged.
        Estimate(math.inf, math.nan) if math.isnan(regret.value) else regret,
        found["largest_stable_lr"],
        found["diverged"],
    )


def _estimate(found: Mapping[str, float | None]) -> Estimate:
    return Estimate(*(math.nan if (value := found[name]) is None else value for name in ("value", "ci")))
