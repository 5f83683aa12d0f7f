"""The MLP MoE over widths, with the multipliers that were tuned for it."""

from __future__ import annotations

from mssp.coordcheck.ladder_runs import LadderSizes, PlannedProgram, with_safe_lr
from mssp.data.dataset import Dataset
from mssp.ladders.mlp import MLPLadder
from mssp.ladders.tuned import multipliers_for
from mssp.planning.setting import Setting


def runs_of(setting: Setting, widths: tuple[int, ...], data: Dataset) -> dict[int, PlannedProgram]:
    tuned = multipliers_for("clusters", setting)
    return LadderSizes(widths).programs(setting, with_safe_lr(tuned, setting.optimizer), MLPLadder, data)
