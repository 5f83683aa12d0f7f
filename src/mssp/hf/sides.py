"""Reads the sides of every matrix off the models of two configs, which are built without memory."""

from __future__ import annotations

import copy
from typing import Any

from mssp.hf.adaptation import config_of_base
from mssp.hf.meta import config_of, on_meta
from mssp.hf.parameters import BaseShapes, infos_of
from mssp.planning.plans import Plan
from mssp.planning.sides import SidesByPlace, sides_of


def sides_between(plan: Plan, target: Any, base: Any = None) -> SidesByPlace:
    """The sides of the target's matrices, and of the base's.

    Those of the base are read off its config, or are the plan's own, which was extended to this target.
    """
    model = on_meta(config_of(copy.deepcopy(target)))  # transformers adds entries to parts of what it is given
    base_config = None if base is None else config_of_base(model, copy.deepcopy(base))[0]
    infos = infos_of(model, BaseShapes.of(base_config, model))
    fitted = [
        info.fitted(name, tuple(model.get_parameter(name).shape), info.tied_as)
        for name, info in infos.items()
        if info.place
    ]
    return sides_of(plan.completed(fitted))
