"""Many runs: one trial, all of them here or on Ray, learning-rate transfer, the search for multipliers.

It imports planning, data, replicas, ladders and store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.sweep.execution import Job, Local, carry_out
    from mssp.sweep.metrics import METRICS, Metric
    from mssp.sweep.search import Found, Procedure, tune
    from mssp.sweep.transfer import (
        Contender,
        LearningRates,
        Score,
        Transfer,
        WidthSummary,
        transfers,
        trials,
    )
    from mssp.sweep.trial import Trial

_HOMES = {
    "execution": ("Job", "Local", "carry_out"),
    "metrics": ("METRICS", "Metric"),
    "search": ("Found", "Procedure", "tune"),
    "transfer": ("LearningRates", "Score", "Contender", "Transfer", "WidthSummary", "transfers", "trials"),
    "trial": ("Trial",),
}
__all__ = [
    "METRICS", "Contender", "Found", "Job", "LearningRates", "Local", "Metric", "Procedure", "Score", "Transfer",
    "Trial", "WidthSummary", "carry_out", "transfers", "trials", "tune",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
