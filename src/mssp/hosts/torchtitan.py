"""torchtitan: ``param_init`` callables, one per parameter, and ``ParamGroupConfig`` by regular expression.

Read in torchtitan 0.3.0. ``param_init`` is given in a model's config and kept by the module that is built from it; one
config may build several (the norms of queries and keys), so it is set on the modules, by their names. The first pattern
that is found in a name wins; a pattern that finds nothing in a part of the model is an error there, which with pipeline
parallelism every pattern would be: the exported container leaves such patterns out of that part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter, groups, rows
from mssp.planning.setting import ADAM, ADAMW

if TYPE_CHECKING:
    from mssp.hosts.rows import Sizes
    from mssp.planning.plans import Plan

NAME = "torchtitan"
OPTIMIZERS = (ADAM, ADAMW)
_EXPERTS = "layers.*.moe.routed_experts.inner_experts"
VOCABULARY = [
    Parameter("tok_embeddings.weight", "embedding", "any width"),
    Parameter("layers.*.attention_norm.weight", "norm", "width"),
    Parameter("layers.*.ffn_norm.weight", "norm", "width"),
    Parameter("layers.*.attention.qkv_linear.wqkv.weight", "hidden", "any width", fan_out="attention_width"),
    Parameter("layers.*.attention.qkv_linear.wq.weight", "hidden", "attention_width width", fan_out="attention_width"),
    # Fewer key heads are another output side, which counts under SGD alone: torchtitan does not offer it.
    Parameter("layers.*.attention.qkv_linear.wk.weight", "hidden", "any width"),
    Parameter("layers.*.attention.qkv_linear.wv.weight", "hidden", "any width"),
    Parameter("layers.*.attention.wo.weight", "hidden", "width attention_width", fan_in="attention_width"),
    # Multi-head latent attention: with a rank for queries, or without.
    Parameter("layers.*.attention.wq.weight", "hidden", "any width", fan_out="attention_width"),
    Parameter("layers.*.attention.wq_a.weight", "hidden", "q_rank width", fan_out="q_rank"),
    Parameter("layers.*.attention.wq_b.weight", "hidden", "any q_rank", fan_in="q_rank", fan_out="attention_width"),
    Parameter("layers.*.attention.wkv_a.weight", "hidden", "any width", fan_out="kv_rank"),
    Parameter("layers.*.attention.wkv_b.weight", "hidden", "any kv_rank", fan_in="kv_rank", fan_out="attention_width"),
    Parameter("layers.*.attention.q_norm.weight", "qk_norm", "any"),
    Parameter("layers.*.attention.k_norm.weight", "qk_norm", "any"),
    Parameter("layers.*.attention.kv_norm.weight", "qk_norm", "any"),
    Parameter("layers.*.attention.qkv_linear.wqkv.bias", "bias", "any"),
    Parameter("layers.*.attention.wo.bias", "bias", "width"),
    # One logit per head: a vector over the heads, whose gradient is that of a bias.
    Parameter("layers.*.attention.sinks", "bias", "any"),
    Parameter("layers.*.feed_forward.w1.weight", "hidden", "ffn_width width", fan_out="ffn_width"),
    Parameter("layers.*.feed_forward.w3.weight", "hidden", "ffn_width width", fan_out="ffn_width"),
    Parameter("layers.*.feed_forward.w2.weight", "hidden", "width ffn_width", fan_in="ffn_width"),
    Parameter("layers.*.moe.shared_experts.w1.weight", "hidden", "shared_width width", fan_out="shared_width"),
    Parameter("layers.*.moe.shared_experts.w3.weight", "hidden", "shared_width width", fan_out="shared_width"),
    Parameter("layers.*.moe.shared_experts.w2.weight", "hidden", "width shared_width", fan_in="shared_width"),
    Parameter("layers.*.moe.router.gate.weight", "router", "experts width"),
    Parameter("layers.*.moe.router.gate.bias", "router_bias", "experts"),
    Parameter(f"{_EXPERTS}.w1_EFD", "expert_in", "experts expert_width width"),
    Parameter(f"{_EXPERTS}.w3_EFD", "expert_in", "experts expert_width width"),
    Parameter(f"{_EXPERTS}.w2_EDF", "expert_out", "experts width expert_width"),
    # GPT-OSS: gate and up interleaved along one axis, and biases.
    Parameter(f"{_EXPERTS}.mlp1_weight_EGD", "expert_in", "experts 2*expert_width width"),
    Parameter(f"{_EXPERTS}.mlp2_weight_EDF", "expert_out", "experts width expert_width"),
    Parameter(f"{_EXPERTS}.mlp1_bias_EG", "expert_in_bias", "experts 2*expert_width"),
    Parameter(f"{_EXPERTS}.mlp2_bias_ED", "expert_out_bias", "experts width"),
    # DeepSeek's multi-token prediction: blocks in `mtp_layers` that first halve the width of two streams.
    Parameter("layers.*.enorm.weight", "norm", "width"),
    Parameter("layers.*.hnorm.weight", "norm", "width"),
    Parameter("layers.*.eh_proj.weight", "hidden", "width 2*width", fan_in="2*width"),
    Parameter("layers.*.mtp_norm.weight", "final_norm", "width"),
    Parameter("norm.weight", "final_norm", "width"),
    Parameter("lm_head.weight", "readout", "any width"),
]


def regex(pattern: str) -> str:
    r"""A name pattern as torchtitan searches for it, also under the wrappers of checkpointing and in ``mtp_layers``.

    >>> regex("layers.*.attention.wo.weight")
    'layers\\..*\\.attention\\.wo\\.weight$'
    >>> regex("norm.weight")
    '^norm\\.weight$'
    """
    inside = ".*".join(re.escape(part) for part in pattern.split("*"))
    return f"{inside}$" if pattern.startswith("layers.") else f"^{inside}$"


def write(plan: Plan, sizes: Sizes) -> str:
    """The Python file for torchtitan."""
    planned = rows(plan, VOCABULARY, sizes)
    by_hand = [
        "optimizer=OPTIMIZER in the Trainer.Config. Its schedule is a factor on every group's lr and needs nothing.",
        "plan_model(model) first in the model_spec's parallelize_fn, on the model as it is built: "
        "`def planned(model, **rest): plan_model(model); return parallelize_qwen3(model, **rest)`. It replaces "
        "param_init, multiplies the router's route_scale where gates do not sum to one (sigmoid without route_norm), "
        "and hooks the residual factor, for which torchtitan has no setting.",
        "enable_weight_tying=False: embedding and readout are planned apart.",
    ]
    lines = [
        *writing.head(plan, sizes, NAME, by_hand),
        _IMPORTS,
        *writing.sizes_of_plan(plan),
        *_multipliers(plan),
        "",
        "PARAM_GROUPS = [",
        *(line for group in groups(planned) for line in _group(plan, group)),
        "]",
        "",
        *writing.table(plan, planned, [f"r{regex(row.parameter.pattern)!r}".replace("\\\\", "\\") for row in planned]),
        "",
        "",
        _CODE.replace("@FIND@", writing.FIND),
    ]
    return "\n".join(lines)


def _multipliers(plan: Plan) -> list[str]:
    return [
        f"AGGREGATION = {writing.literal(plan.multiplier('aggregation', relative=True))}"
        f"  # {writing.factor(plan, 'aggregation')}, for gates that do not sum to one",
        f"AGGREGATION_OF_SUMMING_GATES = {writing.literal(plan.aggregation_mult)}",
        f"RESIDUAL = {writing.literal(plan.multiplier('residual', relative=True))}"
        f"  # {writing.factor(plan, 'residual')}",
    ]


def _group(plan: Plan, group: Group) -> list[str]:
    power = writing.powers(plan, group)
    found = [regex(pattern) for pattern in group.patterns]
    lines = ["    ParamGroupConfig(", f"        # {writing.label(group)}", "        pattern=("]
    lines += [f'            r"{one}{"|" if one is not found[-1] else ""}"' for one in found]
    lines += ["        ),", f'        optimizer_name="{plan.setting.optimizer.title}",']
    lines += ["        optimizer_kwargs={"]
    lines += [f'            "lr": {writing.literal(group.values.lr)},  # {power["lr"]}']
    if group.values.eps is not None:
        lines += [f'            "eps": {writing.literal(group.values.eps)},  # {power["eps"]}']
    decay = f'            "weight_decay": {writing.literal(group.values.weight_decay)},  # {power["weight_decay"]}'
    lines += [decay if plan.weight_decay else f'            "weight_decay": {writing.literal(0.0)},']
    lines += [f'            "betas": {plan.recipe.betas},'] if plan.recipe.betas is not None else []
    return [*lines, "        },", "    ),"]


_IMPORTS = """
import hashlib
import re
import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.models.common.moe import MoE
"""

_CODE = '''
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
            if sums_to_one and any(way == "tied" for way, _ in starts.values()):
                warnings.warn(f"{path}: experts start equal, and gates that sum to one give the router no gradient "
                              "until they differ: use score_func='sigmoid' and route_norm=False", stacklevel=2)
        if RESIDUAL != 1.0 and re.search(r"layers\\.\\d+\\.(attention|feed_forward|moe)$", path):
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


@FIND@


def _matches(pattern, name):
    return re.search(pattern, name) is not None
'''.lstrip("\n")
