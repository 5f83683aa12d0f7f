"""Hand-written loops in the style of nanoGPT: groups with an ``lr_scale`` that the loop multiplies.

The names are nanoGPT's (``transformer.h.0.attn.c_attn.weight``), and for experts those of nanoMoE, which stacks them
with their inputs first: ``mlp.router``, ``mlp.experts.c_fc`` [experts, width, hidden], ``mlp.experts.c_proj``.
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

NAME = "nanoGPT"
OPTIMIZERS = (SGD, ADAM, ADAMW)
_BLOCK = "transformer.h.*"
VOCABULARY = [
    Parameter("transformer.wte.weight", "embedding", "any width"),
    Parameter("transformer.wpe.weight", "embedding", "any width"),
    Parameter(f"{_BLOCK}.ln_?.weight", "norm", "width"),
    Parameter(f"{_BLOCK}.ln_?.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.attn.c_attn.weight", "hidden", "any width", fan_out="attention_width"),
    Parameter(f"{_BLOCK}.attn.c_attn.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.attn.c_proj.weight", "hidden", "width attention_width", fan_in="attention_width"),
    Parameter(f"{_BLOCK}.attn.c_proj.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.mlp.c_fc.weight", "hidden", "ffn_width width", fan_out="ffn_width"),
    Parameter(f"{_BLOCK}.mlp.c_fc.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.mlp.c_proj.weight", "hidden", "width ffn_width", fan_in="ffn_width"),
    Parameter(f"{_BLOCK}.mlp.c_proj.bias", "bias", "width"),
    Parameter(f"{_BLOCK}.mlp.shared.c_fc.weight", "hidden", "shared_width width", fan_out="shared_width"),
    Parameter(f"{_BLOCK}.mlp.shared.c_fc.bias", "bias", "any"),
    Parameter(f"{_BLOCK}.mlp.shared.c_proj.weight", "hidden", "width shared_width", fan_in="shared_width"),
    Parameter(f"{_BLOCK}.mlp.shared.c_proj.bias", "bias", "width"),
    # A plain matrix, or nanoMoE's two: logits and the size of their noise.
    Parameter(f"{_BLOCK}.mlp.router.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.w_g.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.w_noise.weight", "router", "experts width"),
    Parameter(f"{_BLOCK}.mlp.router.bias", "router_bias", "experts"),
    Parameter(f"{_BLOCK}.mlp.experts.c_fc", "expert_in", "experts width expert_width"),
    Parameter(f"{_BLOCK}.mlp.experts.c_proj", "expert_out", "experts expert_width width"),
    Parameter(f"{_BLOCK}.mlp.experts.fc_bias", "expert_in_bias", "experts 1 expert_width"),
    Parameter(f"{_BLOCK}.mlp.experts.proj_bias", "expert_out_bias", "experts 1 width"),
    Parameter("transformer.ln_f.weight", "final_norm", "width"),
    Parameter("lm_head.weight", "readout", "any width"),
]


def write(plan: Plan, sizes: Sizes) -> str:
    """The Python file for a loop of one's own."""
    planned = rows(plan, VOCABULARY, sizes)
    by_hand = [
        "optimizer = configure_optimizers(model) in place of the model's own method, and set_lr(optimizer, lr) in the "
        "loop where it sets the learning rate of this iteration: lr is what a schedule makes of LEARNING_RATE, and "
        "every group takes lr * lr_scale.",
        "initialize(model) once the model is built, after its own initialisation.",
        "In the forward pass RESIDUAL on what each block adds, and AGGREGATION on the sum over experts unless its "
        "gates sum to one; or, without touching the model, install_multipliers(model, gates_sum_to_one=...).",
        "The readout's own weight: drop the line that makes lm_head.weight the embedding's. No bias in ln_f.",
    ]
    if plan.setting.optimizer is SGD:
        by_hand.append(writing.fused("c_attn"))
    if plan.grad_scale:
        by_hand.append("scale_gradients(optimizer) once: gradients are scaled where the plan would scale eps.")
    residual = writing.literal(plan.multiplier("residual", relative=True))
    aggregation = writing.literal(plan.multiplier("aggregation", relative=True))
    zero_router = plan.roles["router"].zero and plan.target.active < plan.target.experts
    lines = [
        *writing.head(plan, sizes, NAME, by_hand),
        _IMPORTS,
        f"LEARNING_RATE = {writing.literal(plan.lr)}",
        *writing.sizes_of_plan(plan),
        f"AGGREGATION = {aggregation}  # {writing.factor(plan, 'aggregation')}, for gates that do not sum to one",
        f"AGGREGATION_OF_SUMMING_GATES = {writing.literal(plan.aggregation_mult)}",
        f"RESIDUAL = {residual}  # {writing.factor(plan, 'residual')}",
        f"ZERO_ROUTER = {zero_router}  # with top-K it needs noise, or a random bias, to choose by",
        "",
        "GROUPS = [",
        *(line for group in groups(planned) for line in _group(plan, group)),
        "]",
        "",
        *writing.table(plan, planned, [f'"{row.parameter.pattern}"' for row in planned]),
        "",
        "",
        _CODE.replace("@OPTIMIZER@", plan.setting.optimizer.title)
        .replace("@FIND@", writing.FIND)
        .replace("@CLEAN@", writing.CLEAN),
        *([_SCALE_GRADIENTS] if plan.grad_scale else []),
    ]
    return "\n".join(lines)


def _group(plan: Plan, group: Group) -> list[str]:
    power = writing.powers(plan, group)
    values = group.values
    lines = ["    dict(", f"        # {writing.label(group)}", "        patterns=["]
    lines += [*(f'            "{pattern}",' for pattern in group.patterns), "        ],"]
    lines += [f"        lr={writing.literal(values.lr)},"]
    lines += [f"        lr_scale={writing.literal(values.lr / plan.lr)},  # {power['lr']}"]
    if values.eps is not None:
        lines += [f"        eps={writing.literal(values.eps)},{'' if plan.grad_scale else '  # ' + power['eps']}"]
    if plan.grad_scale:
        lines += [f"        grad_scale={writing.literal(values.grad_scale)},  # ({power['eps']})^-1"]
    note = f"  # {power['weight_decay']}" if values.weight_decay else ""
    lines += [f"        weight_decay={writing.literal(values.weight_decay)},{note}"]
    lines += [f"        betas={plan.recipe.betas},"] if plan.recipe.betas is not None else []
    return [*lines, "    ),"]


_IMPORTS = """
import hashlib
import re
from fnmatch import fnmatch

import torch
"""

_CODE = '''
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
    return torch.optim.@OPTIMIZER@(groups, **options)


def set_lr(optimizer, lr):
    """Give every group its part of the learning rate that the schedule came to."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


@torch.no_grad()
def initialize(model, random_routing=False):
    """Give every parameter its initial value, in place; ``random_routing`` says that the router adds noise."""
    if ZERO_ROUTER and not random_routing:
        raise ValueError("routers start at zero and choose some of the experts: add noise and pass random_routing=True")
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
        if RESIDUAL != 1.0 and re.search(r"transformer\\.h\\.\\d+\\.(attn|mlp)$", _clean(name)):
            handles.append(module.register_forward_hook(lambda module, inputs, output: RESIDUAL * output))
        if aggregation != 1.0 and re.search(r"transformer\\.h\\.\\d+\\.mlp\\.experts$", _clean(name)):
            handles.append(module.register_forward_hook(lambda module, inputs, output: aggregation * output))
    return handles


@FIND@


@CLEAN@


def _matches(pattern, name):
    return fnmatch(name, pattern)
'''.lstrip("\n")

_SCALE_GRADIENTS = '''
def scale_gradients(optimizer):
    """Scale each group's gradients right before every step."""
    def scale(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(group["grad_scale"])
    return optimizer.register_step_pre_hook(scale)
'''
