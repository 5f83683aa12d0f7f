"""The MLP MoE over widths, with the multipliers that were tuned for it."""

from __future__ import annotations

from mssp.coordcheck.mlp_runs import Run, Sizes, calm
from mssp.data.dataset import Dataset
from mssp.sweep.learning_rates import Setting
from mssp.tuned import tuned


def runs_of(setting: Setting, widths: tuple[int, ...], data: Dataset) -> dict[int, Run]:
    found = tuned("clusters", setting.optimizer, setting.regime, setting.scheme)
    return Sizes(widths).runs(setting, calm(found, setting.optimizer), data)
