"""Megatron-core: ``{ParamKey: ParamGroupOverride}`` for the optimizer, and initial values written after the build.

Read in megatron-core 0.16.1. All keys that match a parameter are merged, and those that contradict are refused. Entries
beyond the scheduler's land in the optimizer's groups, so that eps is a group's own there. Checkpoints tell groups apart
by ``wd_mult`` and ``lr_mult`` alone: groups that share both come back with each other's numbers, so each gets a
``lr_mult`` of its own, which nothing else reads. ``init_method`` sees a tensor without a name; ``initialize`` does.
Queries, keys and values are one matrix, which under SGD, where output sides count, takes the queries' rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter, groups, rows
from mssp.planning.setting import ADAM, ADAMW, SGD

if TYPE_CHECKING:
    from mssp.hosts.rows import Sizes
    from mssp.planning.plans import Plan

NAME = "Megatron-core"
OPTIMIZERS = (SGD, ADAM, ADAMW)
_LAYER = "*decoder.layers.*"
_ATTENTION = f"{_LAYER}.self_attention"
_EXPERTS = f"{_LAYER}.mlp.experts"
VOCABULARY = [
    Parameter("*embedding.word_embeddings.weight", "embedding", "any width"),
    Parameter("*embedding.position_embeddings.weight", "embedding", "any width"),
    # A norm is a module of its own, or with Transformer Engine part of the matrix behind it.
    Parameter(f"{_LAYER}.input_layernorm.weight", "norm", "width"),
    Parameter(f"{_LAYER}.pre_mlp_layernorm.weight", "norm", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.layer_norm_weight", "norm", "width"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.layer_norm_weight", "norm", "width"),
    Parameter(f"{_LAYER}.input_layernorm.bias", "bias", "width"),
    Parameter(f"{_LAYER}.pre_mlp_layernorm.bias", "bias", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.layer_norm_bias", "bias", "width"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.layer_norm_bias", "bias", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.weight", "hidden", "any width", fan_out="attention_width"),
    Parameter(f"{_ATTENTION}.linear_qkv.bias", "bias", "any"),
    Parameter(f"{_ATTENTION}.linear_proj.weight", "hidden", "width attention_width", fan_in="attention_width"),
    Parameter(f"{_ATTENTION}.linear_proj.bias", "bias", "width"),
    # Multi-head latent attention: with a rank for queries, or without.
    Parameter(f"{_ATTENTION}.linear_q_proj.weight", "hidden", "any width", fan_out="attention_width"),
    Parameter(f"{_ATTENTION}.linear_q_down_proj.weight", "hidden", "q_rank width", fan_out="q_rank"),
    Parameter(
        f"{_ATTENTION}.linear_q_up_proj.weight", "hidden", "any q_rank", fan_in="q_rank", fan_out="attention_width"
    ),
    Parameter(f"{_ATTENTION}.linear_kv_down_proj.weight", "hidden", "any width", fan_out="kv_rank"),
    Parameter(
        f"{_ATTENTION}.linear_kv_up_proj.weight", "hidden", "any kv_rank", fan_in="kv_rank", fan_out="attention_width"
    ),
    Parameter(f"{_ATTENTION}.linear_q_up_proj.layer_norm_weight", "qk_norm", "any"),
    Parameter(f"{_ATTENTION}.linear_kv_up_proj.layer_norm_weight", "qk_norm", "any"),
    Parameter(f"{_ATTENTION}.q_layernorm.weight", "qk_norm", "any"),
    Parameter(f"{_ATTENTION}.k_layernorm.weight", "qk_norm", "any"),
    Parameter(f"{_ATTENTION}.kv_layernorm.weight", "qk_norm", "any"),
    # The rows of a gated first matrix are twice its hidden units.
    Parameter(f"{_LAYER}.mlp.linear_fc1.weight", "hidden", "any width", fan_out="ffn_width"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.bias", "bias", "any"),
    Parameter(f"{_LAYER}.mlp.linear_fc2.weight", "hidden", "width ffn_width", fan_in="ffn_width"),
    Parameter(f"{_LAYER}.mlp.linear_fc2.bias", "bias", "width"),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc1.weight", "hidden", "any width", fan_out="shared_width"),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc1.bias", "bias", "any"),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc2.weight", "hidden", "width shared_width", fan_in="shared_width"),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc2.bias", "bias", "width"),
    Parameter(f"{_LAYER}.mlp.shared_experts.gate_weight", "shared_gate", "1 width"),
    Parameter(f"{_LAYER}.mlp.router.weight", "router", "experts width"),
    Parameter(f"{_LAYER}.mlp.router.bias", "router_bias", "experts"),
    # Experts are modules of their own (SequentialMLP), or numbered weights of one (TEGroupedMLP).
    Parameter(f"{_EXPERTS}.local_experts.*.linear_fc1.weight", "expert_in", "any width"),
    Parameter(f"{_EXPERTS}.linear_fc1.weight[0-9]*", "expert_in", "any width"),
    Parameter(f"{_EXPERTS}.local_experts.*.linear_fc1.bias", "expert_in_bias", "any"),
    Parameter(f"{_EXPERTS}.linear_fc1.bias[0-9]*", "expert_in_bias", "any"),
    Parameter(f"{_EXPERTS}.local_experts.*.linear_fc2.weight", "expert_out", "width expert_width"),
    Parameter(f"{_EXPERTS}.linear_fc2.weight[0-9]*", "expert_out", "width expert_width"),
    Parameter(f"{_EXPERTS}.local_experts.*.linear_fc2.bias", "expert_out_bias", "width"),
    Parameter(f"{_EXPERTS}.linear_fc2.bias[0-9]*", "expert_out_bias", "width"),
    Parameter("*decoder.final_layernorm.weight", "final_norm", "width"),
    Parameter("*output_layer.weight", "readout", "any width"),
]


def write(plan: Plan, sizes: Sizes) -> str:
    """The Python file for Megatron-core."""
    planned = rows(plan, VOCABULARY, sizes)
    residual = writing.literal(plan.multiplier("residual", relative=True))
    decayed = "" if plan.setting.optimizer is SGD else f", decoupled_weight_decay={plan.setting.optimizer.decays}"
    by_hand = [
        f'OptimizerConfig(optimizer="{SGD if plan.setting.optimizer is SGD else ADAM}", lr={writing.literal(plan.lr)}'
        f"{decayed}, ...), and get_megatron_optimizer(config, chunks, config_overrides=config_overrides(0.1)) where "
        "0.1 is min_lr over lr; eps is set per group there, adam_eps and weight_decay of the config are not used. "
        "Warm up from lr_warmup_init 0: another start is one number for all groups.",
        "initialize(model) for each model chunk once it is built, before the optimizer copies its weights. It fills "
        "whole parameters by seed and name and keeps this rank's part: tensor, expert and pipeline parallelism change "
        "nothing. Legacy GroupedMLP (weight1, weight2) is not covered.",
        f"install_multipliers(model) after that: the residual factor, {residual}; Megatron has no setting for it.",
        "share_embeddings_and_output_weights=False: embedding and readout are planned apart.",
        "Megatron's gates sum to one over the chosen experts (sigmoid scores are renormalised), which needs no "
        "aggregation factor: moe_router_topk_scaling_factor stays as tuned, times "
        f"{writing.literal(plan.aggregation_mult)}.",
    ]
    if plan.setting.optimizer is SGD:
        by_hand.append(writing.fused("linear_qkv"))
    if plan.roles["expert_in"].starts_equal:
        by_hand.append(
            "Experts start equal here, and gates that sum to one give the router no gradient until they differ, which "
            "they do as soon as tokens are routed apart: expect the router to learn late."
        )
    gathered = groups(planned)
    lines = [
        *writing.head(plan, sizes, NAME, by_hand),
        _IMPORTS,
        *writing.sizes_of_plan(plan),
        f"EXPERT_WIDTH = {plan.target.expert_width}",
        f"RESIDUAL = {residual}  # {writing.factor(plan, 'residual')}",
        "",
        "GROUPS = [",
        *(line for number, group in enumerate(gathered) for line in _group(plan, group, number)),
        "]",
        "",
        *writing.table(plan, planned, [f'"{row.parameter.pattern}"' for row in planned]),
        "",
        "",
        _CODE.replace("@FIND@", writing.FIND),
    ]
    return "\n".join(lines)


def _group(plan: Plan, group: Group, number: int) -> list[str]:
    power = writing.powers(plan, group)
    lines = ["    (", f"        # {writing.label(group)}", "        ParamKey("]
    lines += ["            name=(", *(f'                "{pattern}",' for pattern in group.patterns), "            ),"]
    lines += ["        ),", "        dict("]
    lines += [f"            max_lr={writing.literal(group.values.lr)},  # {power['lr']}"]
    if group.values.eps is not None:
        lines += [f"            eps={writing.literal(group.values.eps)},  # {power['eps']}"]
    decay = group.values.weight_decay
    lines += [f"            weight_decay={writing.literal(decay)},{'  # ' + power['weight_decay'] if decay else ''}"]
    lines += [f"            betas={plan.recipe.betas},"] if plan.recipe.betas is not None else []
    lines += [f"            lr_mult={1 + 1e-6 * (number + 1):.6f},  # tells groups apart in checkpoints, and no more"]
    return [*lines, "        ),", "    ),"]


_IMPORTS = """
import hashlib
import re
from fnmatch import fnmatch

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import ParamKey
from megatron.core.optimizer_param_scheduler import ParamGroupOverride
"""

_CODE = '''
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
    layer = re.search(r"decoder\\.layers\\.(\\d+)\\.", name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number - 1
        name = name.replace(layer[0], f"decoder.layers.{number}.", 1)
    expert = re.search(r"\\.local_experts\\.(\\d+)\\.|\\.(?:weight|bias)(\\d+)$", name) if _is_expert(name) else None
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
    branch = re.compile(r"decoder\\.layers\\.\\d+\\.(self_attention|mlp)$")
    branches = [module for name, module in model.named_modules() if branch.search(name)]
    if not branches:
        raise ValueError("no decoder.layers.N.self_attention or decoder.layers.N.mlp in the model")

    def scale(module, inputs, output):
        if isinstance(output, tuple):  # an output and a bias that is added later
            return tuple(part if part is None else RESIDUAL * part for part in output)
        return RESIDUAL * output

    return [one.register_forward_hook(scale) for one in branches]


@FIND@


def _matches(pattern, name):
    return fnmatch(name, pattern)
'''.lstrip("\n")
