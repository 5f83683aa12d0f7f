"""What an export for a hand-written loop does with its numbers: groups, learning rates, initial values, factors."""

import hashlib
import re
from fnmatch import fnmatch

import torch

from mssp.hosts.exported.constants import AGGREGATION, AGGREGATION_OF_SUMMING_GATES, GROUPS, RESIDUAL
from mssp.hosts.exported.starts import _clean, _draw, _start


def configure_optimizers(model, **options):
    """The optimizer with the plan's groups; ``options`` go to it (``fused=True``)."""
    named = {_clean(name): p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        _start(name, tuple(parameter.shape))
    groups = []
    for group in GROUPS:
        params = [p for name, p in named.items() if any(fnmatch(name, pattern) for pattern in group["patterns"])]
        if params:
            groups.append({**{key: value for key, value in group.items() if key != "patterns"}, "params": params})
    return torch.optim.AdamW(groups, **options)


def set_lr(optimizer, lr):
    """Give every group its part of the learning rate that the schedule came to."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


@torch.no_grad()
def initialize(model):
    """Give every parameter its initial value, in place."""
    names = [_clean(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(model.parameters())):
        raise ValueError("two names for one parameter: embedding and readout are planned apart, untie lm_head.weight")
    named = {_clean(name): parameter for name, parameter in model.named_parameters()}
    starts = {name: _start(name, tuple(parameter.shape)) for name, parameter in named.items()}
    for name, parameter in named.items():
        way, std = starts[name]
        if way in ("ones", "zeros"):
            parameter.fill_(1.0 if way == "ones" else 0.0)
        else:
            shape = tuple(parameter.shape)
            # Tied: one matrix, which is copied into every expert.
            parameter.copy_(_draw(name, shape[1:] if way == "tied" else shape) * std)


def install_multipliers(model, gates_sum_to_one):
    """Scale each block's branches and the experts' outputs by hooks, where the forward pass is not written for it."""
    aggregation = AGGREGATION_OF_SUMMING_GATES if gates_sum_to_one else AGGREGATION
    handles = []
    for name, module in model.named_modules():
        if RESIDUAL != 1.0 and re.search(r"transformer\.h\.\d+\.(attn|mlp)$", _clean(name)):
            handles.append(module.register_forward_hook(lambda module, inputs, output: RESIDUAL * output))
        if aggregation != 1.0 and re.search(r"transformer\.h\.\d+\.mlp\.experts$", _clean(name)):
            handles.append(module.register_forward_hook(lambda module, inputs, output: aggregation * output))
    return handles
