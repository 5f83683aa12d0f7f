"""What an export for Megatron-core does with its numbers: overrides, initial values, the residual factor."""

import hashlib
import re
from fnmatch import fnmatch

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import ParamKey
from megatron.core.optimizer_param_scheduler import ParamGroupOverride

from mssp.hosts.exported.constants import EXPERT_WIDTH, EXPERTS, GROUPS, RESIDUAL
from mssp.hosts.exported.starts import _draw, _start


def config_overrides(min_lr_ratio=0.0):
    """What ``get_megatron_optimizer`` takes; every group ends its schedule at this part of its learning rate."""
    overrides = {}
    for key, group in GROUPS:
        lr, decay = group["max_lr"], group["weight_decay"]
        overrides[key] = ParamGroupOverride(
            **group, lr=lr, min_lr=min_lr_ratio * lr, start_wd=decay, end_wd=decay, wd_mult=1.0
        )
    return overrides


@torch.no_grad()
def initialize(model):
    """Give every parameter of a model chunk its initial value, in place."""
    chunk = model
    while hasattr(chunk, "module"):
        chunk = chunk.module
    if getattr(chunk, "share_embeddings_and_output_weights", False):
        raise ValueError("share_embeddings_and_output_weights: embedding and readout are planned apart, set it False")
    gated = chunk.config.gated_linear_unit
    fills = []
    for name, parameter in chunk.named_parameters():
        if parameter.requires_grad:
            shape, part, size, rank = _whole(name, parameter)
            way, std = _start(name, shape)
            if _is_expert(name) and "linear_fc1." in name and shape[0] != (1 + gated) * EXPERT_WIDTH:
                raise ValueError(f"{name} has {shape[0]} rows, this export is for experts of width {EXPERT_WIDTH}")
            fills.append((_global_name(chunk, name, way), parameter, shape, part, size, rank, way, std))
    for name, parameter, shape, part, size, rank, way, std in fills:
        if way in ("ones", "zeros"):
            parameter.fill_(1.0 if way == "ones" else 0.0)
            continue
        whole = _draw(name, shape) * std
        if size > 1:
            # Gate and up are halves of a first matrix, and each rank holds a part of both.
            halves = 2 if gated and "linear_fc1." in name else 1
            cut = [half.chunk(size, part)[rank] for half in whole.chunk(halves, 0)]
            whole = torch.cat(cut, 0)
        parameter.copy_(whole)


def _whole(name, parameter):
    """The whole shape of a parameter, the axis it is cut along, in how many parts, and which this rank has."""
    expert = _is_expert(name)
    state = parallel_state
    size = state.get_expert_tensor_parallel_world_size() if expert else state.get_tensor_model_parallel_world_size()
    rank = state.get_expert_tensor_parallel_rank() if expert else state.get_tensor_model_parallel_rank()
    shape = list(parameter.shape)
    if not getattr(parameter, "tensor_model_parallel", False) or size == 1:
        return tuple(shape), 0, 1, 0
    axis = parameter.partition_dim
    shape[axis] *= size
    return tuple(shape), axis, size, rank


def _is_expert(name):
    return ".mlp.experts." in name


def _global_name(chunk, name, way):
    """The name with the layer's and the expert's number in the whole model; tied experts share one."""
    layer = re.search(r"decoder\.layers\.(\d+)\.", name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number - 1
        name = name.replace(layer[0], f"decoder.layers.{number}.", 1)
    expert = re.search(r"\.local_experts\.(\d+)\.|\.(?:weight|bias)(\d+)$", name) if _is_expert(name) else None
    if not expert:
        return name
    local = int(expert[1] or expert[2])
    held = EXPERTS // parallel_state.get_expert_model_parallel_world_size()
    number = "all" if way == "tied" else parallel_state.get_expert_model_parallel_rank() * held + local
    matrix = "linear_fc1." if "linear_fc1." in name else "linear_fc2."
    return f"{name.partition('.experts.')[0]}.experts.{number}.{matrix}"


def install_multipliers(model):
    """Scale what each layer adds to the residual stream, by a hook on its attention and its MLP."""
    if RESIDUAL == 1.0:
        return []
    branch = re.compile(r"decoder\.layers\.\d+\.(self_attention|mlp)$")
    branches = [module for name, module in model.named_modules() if branch.search(name)]
    if not branches:
        raise ValueError("no decoder.layers.N.self_attention or decoder.layers.N.mlp in the model")

    def scale(module, inputs, output):
        if isinstance(output, tuple):  # an output and a bias that is added later
            return tuple(part if part is None else RESIDUAL * part for part in output)
        return RESIDUAL * output

    return [one.register_forward_hook(scale) for one in branches]
