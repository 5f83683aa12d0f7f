"""Models in one call: built on the meta device, given memory where it is needed, initialized by a plan and adapted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mssp._constraints import a_config, a_device, a_plan, function, one_of, optional, positive, takes, whole
from mssp.apply.initial_weights import initialize
from mssp.hf.adaptation import adapt, release
from mssp.hf.config_plans import plan as plan_of_configs
from mssp.hf.factors import is_tied
from mssp.hf.meta import config_of, on_meta
from mssp.hf.parameters import title_of
from mssp.hf.probing import GATE_KINDS
from mssp.planning.plans import Plan


@takes(
    config=a_config,
    plan=optional(a_plan),
    base=optional(a_config),
    lr=optional(positive),
    seed=whole,
    device=optional(a_device),
    gate=optional(one_of(GATE_KINDS)),
    shard=optional(function),
)
def from_config(
    config: Any,
    plan: Plan | None = None,
    *,
    base: Any = None,
    lr: float | None = None,
    seed: int = 0,
    device: Any = None,
    gate: str | None = None,
    shard: Callable[[nn.Module], object] | None = None,
    **settings: Any,
) -> nn.Module:
    """A model of a config with the initial weights of a plan, adapted and ready to be trained.

    It is built without memory, so that no weights are drawn twice: what it takes is the model itself and the largest
    of its tensors once more. Its parameters are float32, whatever the config says that a checkpoint had.

    Args:
        config, base: the configs of the model and of the small one that was tuned.
        plan: a plan for this model. Without it, one is made from the two configs, ``lr`` and ``settings``.
        lr, settings: those of :func:`mssp.plan`.
        seed: that of :func:`mssp.initialize`.
        device: where the weights are, such as ``cuda``; the CPU if left out.
        gate: that of :func:`adapt`.
        shard: a function that shards the model while it has no memory, as by FSDP2's ``fully_shard``: every process
            then holds and draws its own shards alone.
    """
    if plan is not None and (lr is not None or settings):
        raise ValueError(f"a plan has all numbers: leave out {', '.join(['lr'] * (lr is not None) + [*settings])}")
    if plan is None and (base is None or lr is None):
        raise ValueError("say by what to initialize: a plan, or the base's config and lr, from which one is made")
    target = config_of(config)
    planned = plan_of_configs(target, base, lr=lr, **settings) if plan is None else plan
    model = on_meta(target)
    release(model)  # from a plan that the config of a checkpoint keeps
    model.float()
    adapt(model, base, gate=gate)
    if shard is not None:
        if is_tied(model):
            raise ValueError(
                f"{title_of(model)} has a readout that is tied to the embedding, which fully_shard takes apart on the "
                "meta device: leave out shard, and shard the model that this returns"
            )
        shard(model)
    model.to_empty(device=torch.device("cpu") if device is None else device)
    model.tie_weights()  # type: ignore[operator]
    initialize(model, planned, seed=seed)
    return model
