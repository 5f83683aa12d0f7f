"""What an export for torchtitan does with its numbers: ``param_init``, groups, factors.

The layout is that of exported files (see :mod:`mssp.hosts.exported`), which ruff would format otherwise.
"""

# fmt: off

import hashlib
import re
import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.models.common.moe import MoE

from mssp.hosts.exported.constants import (
    AGGREGATION, AGGREGATION_OF_SUMMING_GATES, EXPERTS, GATES_SUM_TO_ONE, PARAM_GROUPS, RESIDUAL, STARTS,
)
from mssp.hosts.exported.starts import _draw, _start


class PlannedOptimizers(OptimizersContainer):
    """torchtitan's container, which leaves out the groups of which a part of the model has no parameter."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _build_param_groups(model, param_group_configs, impl_kwargs):
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        found = {name: next((g for g in param_group_configs if re.search(g.pattern, name)), None) for name in names}
        unclaimed = [name for name, group in found.items() if group is None]
        if unclaimed:
            raise ValueError(f"no pattern of this export finds {', '.join(unclaimed[:3])}")
        used = [group for group in param_group_configs if any(group is one for one in found.values())]
        return OptimizersContainer._build_param_groups(model, used, impl_kwargs)


OPTIMIZER = PlannedOptimizers.Config(param_groups=PARAM_GROUPS)


def plan_model(model):
    """Set how every parameter starts, and scale the sum over experts and what blocks add to the residual stream.

    Call it once on a model (or a part of one) as it is built, before it is sharded, wrapped or compiled.
    """
    if getattr(model, "enable_weight_tying", False):
        raise ValueError("enable_weight_tying: embedding and readout are planned apart, set it to False")
    starts = {name: _start(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        own = [name for name, _ in module.named_parameters(recurse=False)]
        names = {name: f"{path}.{name}" if path else name for name in own}
        if own:  # where torchtitan's own `param_init` of a config ends up
            module._param_init = {name: _Initial(full, *starts[full]) for name, full in names.items()}
    for path, module in model.named_modules():
        if isinstance(module, MoE):
            sums_to_one = module.router.score_func == "softmax" or module.router.route_norm
            module.router.route_scale *= AGGREGATION_OF_SUMMING_GATES if sums_to_one else AGGREGATION
            if sums_to_one and not GATES_SUM_TO_ONE and any(way == "tied" for way, _ in starts.values()):
                warnings.warn(f"{path}: experts start equal, and under gates that sum to one the router's gradient is "
                              "how they differ: plan with gates_sum_to_one=True", stacklevel=2)
        if RESIDUAL != 1.0 and re.search(r"layers\.\d+\.(attention|feed_forward|moe)$", path):
            module.register_forward_hook(lambda module, inputs, output: RESIDUAL * output)


class _Initial:
    """One parameter's initial value, as torchtitan's ``param_init`` calls it."""

    def __init__(self, name, way, std):
        self.name, self.way, self.std = name, way, std

    def __repr__(self):
        return f"{self.way}(std={self.std:.4g})"

    @torch.no_grad()
    def __call__(self, parameter):
        if self.way == "ones":
            nn.init.ones_(parameter)
        elif self.way == "zeros":
            nn.init.zeros_(parameter)
        elif self.way == "normal":
            nn.init.normal_(parameter, std=self.std)
        else:
            self.tie(parameter)

    def tie(self, parameter):
        """One matrix for all experts, drawn by the seed and the name: the same on every rank, whichever it holds."""
        wanted = next(line[3] for line in STARTS if _matches(line[0], self.name))
        if tuple(parameter.shape[1:]) != wanted[1:] or EXPERTS % parameter.shape[0]:
            raise ValueError(f"{self.name}: a shard {tuple(parameter.shape)} of {wanted}: shard experts only")
        experts = (_draw(self.name, wanted[1:]) * self.std).to(device=parameter.device, dtype=parameter.dtype)
        experts = experts.expand(parameter.shape)
        if isinstance(parameter, DTensor):
            # Every rank holds the same whole, so that nothing is sent.
            experts = distribute_tensor(experts, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.copy_(experts)


def _matches(pattern, name):
    return re.search(pattern, name) is not None
