"""Training of Transformer MoEs by a plan: one run, on one device or many, that can be stopped and goes on exactly.

    RunSettings  ->  Training  ->  run folder: log, checkpoints, plan

It imports the prescription, models, data and measurements. Large runs go on in the trainers of ``mssp.hosts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.train.loop import Ended, Step, Training
    from mssp.train.settings import (
        DataSettings,
        RunSettings,
        TrainingSettings,
        WatchSettings,
        listed_recipes,
        read_recipe,
    )
    from mssp.train.trained_model import load_model, save_pretrained

_HOMES = {
    "loop": ("Ended", "Step", "Training"),
    "settings": ("DataSettings", "RunSettings", "TrainingSettings", "WatchSettings", "listed_recipes", "read_recipe"),
    "trained_model": ("load_model", "save_pretrained"),
}
__all__ = [
    "DataSettings", "Ended", "RunSettings", "Step", "Training", "TrainingSettings", "WatchSettings",
    "listed_recipes", "load_model", "read_recipe", "save_pretrained",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
