"""What sweeps came to, as a file keeps it: the ``settings`` of ``mssp sweep --json``, read back.

The package carries one such file, the sweep over all regimes on TinyImageNet that a GPU took minutes for, so that what
a laptop finds on embedded data can stand beside it (records/2026-11-16-transfer-tinyimagenet.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mssp._estimates import Estimate
from mssp.sweep.learning_rates import METRICS, Setting
from mssp.sweep.transfer import Metric, WidthSummary


@dataclass(frozen=True)
class Recorded:
    """An :class:`mssp.sweep.transfer.Outcome` without the scores that it came from."""

    metric: Metric
    seeds: int
    summaries: tuple[WidthSummary, ...]
    drift: Estimate
    drift_verdict: str
    why_unclear: str
    wider_is_better: str
    wider_is_better_transferred: str


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep that a file keeps.

    Args:
        experiment: the data, steps and batch.
        made: when and on what, for people; empty where the file does not say.
    """

    experiment: str
    outcomes: Mapping[Setting, Recorded]
    made: str = ""
    command: str = ""


def read(found: Mapping[str, Any]) -> RecordedSweep:
    """What ``mssp sweep --json`` wrote; ValueError where it is something else."""
    try:
        outcomes = {_setting(each): _outcome(each) for each in found["settings"]}
        return RecordedSweep(found["experiment"], outcomes, found.get("made", ""), found.get("command", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no result of mssp sweep --json: {type(error).__name__}, {error}") from None


@cache
def tinyimagenet() -> RecordedSweep:
    """1,792 runs on one H200.

    >>> tinyimagenet().outcomes[Setting("sgd", "II", "mup")].drift_verdict
    'drifts up'
    """
    return read(json.loads(files("mssp").joinpath("sweep/tinyimagenet.json").read_text(encoding="utf-8")))


def _setting(found: Mapping[str, Any]) -> Setting:
    return Setting(*(found[name] for name in ("optimizer", "regime", "scheme", "active", "readout")))


def _outcome(found: Mapping[str, Any]) -> Recorded:
    return Recorded(
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
