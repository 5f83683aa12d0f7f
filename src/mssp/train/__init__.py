"""Training of Transformer MoEs by a plan: one run, on one device or many, that can be stopped and goes on exactly.

    RunSettings  ->  Training  ->  run folder: log, checkpoints, plan

It imports the prescription, models, data and measurements. Large runs go on in the trainers of ``mssp.hosts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.train.layouts import accumulating, clip_, spread, total_norm
    from mssp.train.loop import Ended, Step, Training
    from mssp.train.settings import (
        DataSettings,
        RunSettings,
        TrainingSettings,
        WatchSettings,
        listed_recipes,
        read_recipe,
    )
    from mssp.train.step_comparison import same_step
    from mssp.train.step_result import SameStep
    from mssp.train.steps import StepReport
    from mssp.train.trained_model import load_model, save_pretrained

_HOMES = {
    "layouts": ("accumulating", "clip_", "spread", "total_norm"),
    "loop": ("Ended", "Step", "Training"),
    "settings": ("DataSettings", "RunSettings", "TrainingSettings", "WatchSettings", "listed_recipes", "read_recipe"),
    "step_comparison": ("same_step",),
    "step_result": ("SameStep",),
    "steps": ("StepReport",),
    "trained_model": ("load_model", "save_pretrained"),
}
__all__ = [
    "DataSettings", "Ended", "RunSettings", "SameStep", "Step", "StepReport", "Training", "TrainingSettings",
    "WatchSettings", "accumulating", "clip_", "listed_recipes", "load_model", "read_recipe", "same_step",
    "save_pretrained", "spread", "total_norm",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
