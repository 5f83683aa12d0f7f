"""The plan and the base that a model's config keeps: ``save_pretrained`` writes them, and ``adapt`` finds them again.

Two models that are built from one config object share it, and everything that is set on it. So a model gets a config of
its own before anything is kept there.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from mssp.hf.meta import config_of
from mssp.planning.configs import FAMILY, STORED, entries_of
from mssp.planning.plans import Plan
from mssp.planning.shape import Shape

_MOST_NAMED = 3  # entries that a message names


def own_config(model: nn.Module) -> None:
    """Give a model a copy of its config that no other model has.

    All modules of a model hold its config, or a part of it (that of a language model, say), and read it while they run.
    They get the copy too.
    """
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if hasattr(value, "to_dict") and hasattr(value, FAMILY) and id(value) in copies:
                vars(module)[name] = copies[id(value)]


def keep(model: nn.Module, plan: Plan, base: Any) -> None:
    """Put the plan and the base's config into the model's config."""
    own_config(model)
    base_entries = {} if base is None else {"base": _entries(base, model)}
    setattr(model.config, STORED, {"plan": json.loads(plan.json()), **base_entries})


def forget(model: nn.Module) -> None:
    """Take plan and base out of the model's config."""
    if STORED in vars(model.config):
        own_config(model)
        del model.config.__dict__[STORED]


@contextmanager
def without_kept_plan(model: nn.Module) -> Iterator[None]:
    """For a while, the model's config has neither plan nor base."""
    held = vars(model.config).pop(STORED, None)
    try:
        yield
    finally:
        if held is not None:
            vars(model.config)[STORED] = held


def given_or_kept(model: nn.Module, base: Any, plan: Plan | None) -> tuple[Any, Plan | None]:
    """The caller's base and plan, and where the caller leaves out the plan or both, those that the config keeps.

    A kept plan is refused where it is for another model or from another base than the caller's.
    """
    kept = getattr(model.config, STORED, None)
    if plan is not None or not isinstance(kept, Mapping) or "plan" not in kept:
        return base, plan
    kept_plan, kept_base = Plan.from_json(json.dumps(kept["plan"])), kept.get("base")
    forgetting = "mssp.hf.release(model) forgets it"
    shape = Shape.from_config(model.config)
    if shape.with_inputs(kept_plan.target.inputs) != kept_plan.target:
        raise ValueError(
            f"the model's config keeps a plan for another model: its target is {kept_plan.target}, the model is "
            f"{shape}; {forgetting}"
        )
    if base is None:
        return kept_base, kept_plan
    given_shape = Shape.from_config(_entries(base, model))
    if kept_plan.base is not None and given_shape.with_inputs(kept_plan.base.inputs) != kept_plan.base:
        raise ValueError(
            f"the model's config keeps a plan from another base, {kept_plan.base}, and the base given is "
            f"{given_shape}: leave out the base to go on with that plan; {forgetting}"
        )
    differing = [] if kept_base is None else _differing(kept_base, _entries(base, model))
    if differing:
        raise ValueError(
            f"the model's config keeps a plan from another base, which differs from the base given in "
            f"{', '.join(differing[:_MOST_NAMED])}: leave out the base to go on with that plan; {forgetting}"
        )
    return base, kept_plan


def _entries(base: Any, model: nn.Module) -> dict[str, Any]:
    """The entries of a base's config as JSON has them, with all defaults of the model's family."""
    entries = json.loads(json.dumps(dict(entries_of(config_of(base, like=model))), default=str))
    return {key: value for key, value in entries.items() if key != STORED}


def _differing(kept: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The entries in which two configs differ, apart from those that all families have and no size depends on."""
    from transformers import PreTrainedConfig

    names = [key for key in {**kept, **given} if key not in PreTrainedConfig().to_dict()]
    return [f"{key} ({kept.get(key)} there, {given.get(key)} here)" for key in names if kept.get(key) != given.get(key)]
