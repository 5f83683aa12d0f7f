"""Checkpoints of adapted models: whether they compute the same without ``mssp``, and plain ones with folded factors.

A checkpoint has weights and a config. Where numbers of the config can hold all factors of the forward pass, every
checkpoint has them there. Elsewhere they are in neither: ``adapt`` attaches them again by the plan that the config
keeps, and whoever reads the checkpoint without ``mssp`` has another model, unless the factors are folded.
"""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from mssp._constraints import a_module, path, switch, takes
from mssp.apply.description import unwrapped
from mssp.hf.config_factors import config_factors
from mssp.hf.folding import folded_state
from mssp.hf.kept_plan import without_kept_plan


@takes(model=a_module, folder=path, folded=switch)
def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, folded: bool = False, **settings: Any) -> None:
    """Write a checkpoint of a model of ``transformers``, by its own ``save_pretrained``.

    Args:
        folded: write the factors of the forward pass into the numbers of the config that multiply the same outputs,
            where the family has them, and multiply all others into the weights. ``from_pretrained`` and
            inference engines then compute what the adapted model does, without ``mssp``. The model itself stays as it
            is and can be trained further; the checkpoint has no plan. While it is written, the matrices that take a
            factor (the last ones of attention, of dense layers and of experts) are in memory twice: about a third of
            the weights more. Without it, the checkpoint is the one to resume from. It has the plan, and the factors
            where numbers of the config can hold all of them; ``adapt`` takes them out of these again. Where they
            cannot, a warning says that it computes something else without ``mssp``.
        settings: those of the model's own ``save_pretrained``.
    """
    model = unwrapped(model)
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise ValueError(f"{type(model).__name__} is no model of transformers, and has no save_pretrained")
    if not folded:
        save(folder, **settings)
        return
    if "state_dict" in settings:
        raise ValueError("state_dict goes with factors that are not folded: folded=True writes the model's own weights")
    in_config = config_factors(model)
    state = folded_state(model, in_config.modules)
    with without_kept_plan(model), in_config.set_on(model):
        type(model).save_pretrained(model, folder, state_dict=state, **settings)  # type: ignore[attr-defined]
