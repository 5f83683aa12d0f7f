"""The model of a run that was trained: read from its newest checkpoint, and written as other programs read it."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from mssp._constraints import path, switch, takes
from mssp.apply.initial_weights import initialize
from mssp.train.checkpoints import FOLDER, Checkpoints, load
from mssp.train.language_models import language_model
from mssp.train.processes import Processes
from mssp.train.run_folder import Kept


@takes(folder=path)
def load_model(folder: str | Path) -> tuple[nn.Module, str]:
    """The model of a run's folder on the CPU, with the weights of its newest checkpoint, and the name of its tokenizer.

    Args:
        folder: the ``--out`` of ``mssp train``.
    """
    folder = Path(folder)
    kept = Kept.read(folder)
    model = language_model(kept.settings, kept.plan)
    initialize(model.module, kept.plan, seed=kept.settings.training.seed)
    checkpoint = Checkpoints(folder, kept.settings.training.keep, Processes()).newest()
    if checkpoint is None:
        raise ValueError(f"{folder / FOLDER} has no whole checkpoint: train longer, or with a smaller --save-every")
    load(checkpoint, model.module, None, Processes())
    return model.module.eval(), str(kept.data["tokenizer"])


@takes(folder=path, target=path, folded=switch)
def save_pretrained(folder: str | Path, target: str | Path, folded: bool = False) -> None:
    """Write the Hugging Face model of a run's folder as ``from_pretrained`` reads it.

    Args:
        target: the folder to write to.
        folded: multiply the plan's factors into the weights, so that the model computes the same without ``mssp``.
    """
    from mssp import hf

    model, _ = load_model(folder)
    if not hasattr(model, "save_pretrained"):
        raise ValueError(f"{folder} must hold a Hugging Face model, got one of mssp.nn: mssp generate reads it")
    hf.save_pretrained(model, target, folded=folded)
