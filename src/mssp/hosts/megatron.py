"""Megatron-core: ``{ParamKey: ParamGroupOverride}`` for the optimizer, and initial values written after the build.

These are facts of megatron-core 0.16.1. All keys that match a parameter are merged, and keys that contradict each other
are refused. Entries that the scheduler does not know are kept in the optimizer's groups, so that each group can have
its own eps. Checkpoints distinguish groups by ``wd_mult`` and ``lr_mult`` alone, and give groups that share both each
other's numbers. So each group gets a ``lr_mult`` of its own, which nothing else reads. Megatron's ``init_method`` gets
a tensor without its name, so the exported ``initialize`` fills the model instead. Queries, keys and values are one
matrix, which takes the queries' learning rate under SGD, where the output side counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter
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
    # A norm is a module of its own, or part of the matrix behind it with Transformer Engine.
    Parameter(f"{_LAYER}.input_layernorm.weight", "norm", "width"),
    Parameter(f"{_LAYER}.pre_mlp_layernorm.weight", "norm", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.layer_norm_weight", "norm", "width"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.layer_norm_weight", "norm", "width"),
    Parameter(f"{_LAYER}.input_layernorm.bias", "bias", "width"),
    Parameter(f"{_LAYER}.pre_mlp_layernorm.bias", "bias", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.layer_norm_bias", "bias", "width"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.layer_norm_bias", "bias", "width"),
    Parameter(f"{_ATTENTION}.linear_qkv.weight", "hidden", "any width", rows="attention_width", like="query"),
    Parameter(f"{_ATTENTION}.linear_qkv.bias", "bias", "any"),
    Parameter(f"{_ATTENTION}.linear_proj.weight", "hidden", "width attention_width", like="attention output"),
    Parameter(f"{_ATTENTION}.linear_proj.bias", "bias", "width"),
    # Multi-head latent attention: with a rank for queries, or without.
    Parameter(f"{_ATTENTION}.linear_q_proj.weight", "hidden", "any width", rows="attention_width", like="query"),
    Parameter(f"{_ATTENTION}.linear_q_down_proj.weight", "hidden", "q_rank width", like="query to rank"),
    Parameter(
        f"{_ATTENTION}.linear_q_up_proj.weight", "hidden", "any q_rank", rows="attention_width", like="query from rank"
    ),
    Parameter(f"{_ATTENTION}.linear_kv_down_proj.weight", "hidden", "any width", rows="kv_rank", like="key to rank"),
    Parameter(
        f"{_ATTENTION}.linear_kv_up_proj.weight", "hidden", "any kv_rank", rows="attention_width", like="key from rank"
    ),
    Parameter(f"{_ATTENTION}.linear_q_up_proj.layer_norm_weight", "qk_norm", "any", like="query rank norm"),
    Parameter(f"{_ATTENTION}.linear_kv_up_proj.layer_norm_weight", "qk_norm", "any", like="key rank norm"),
    Parameter(f"{_ATTENTION}.q_layernorm.weight", "qk_norm", "any", like="query or rank norm"),
    Parameter(f"{_ATTENTION}.k_layernorm.weight", "qk_norm", "any", like="key norm"),
    Parameter(f"{_ATTENTION}.kv_layernorm.weight", "qk_norm", "any", like="key rank norm"),
    # The rows of a gated first matrix are twice its hidden units.
    Parameter(f"{_LAYER}.mlp.linear_fc1.weight", "hidden", "any width", rows="ffn_width", like="dense input"),
    Parameter(f"{_LAYER}.mlp.linear_fc1.bias", "bias", "any"),
    Parameter(f"{_LAYER}.mlp.linear_fc2.weight", "hidden", "width ffn_width", like="dense output"),
    Parameter(f"{_LAYER}.mlp.linear_fc2.bias", "bias", "width"),
    Parameter(
        f"{_LAYER}.mlp.shared_experts.linear_fc1.weight",
        "hidden",
        "any width",
        rows="shared_width",
        like="shared input",
    ),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc1.bias", "bias", "any"),
    Parameter(f"{_LAYER}.mlp.shared_experts.linear_fc2.weight", "hidden", "width shared_width", like="shared output"),
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
    residual = writing.literal(plan.multiplier("residual", relative=True))
    decayed = "" if plan.setting.optimizer is SGD else f", decoupled_weight_decay={plan.setting.optimizer.decays}"
    instructions = [
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
        f"moe_aux_loss_coeff and moe_z_loss_coeff as tuned, times {residual}, as the residual branches beside them: "
        "the first is of a loss that is 1 at uniform routing for any K and M, and both are added up over layers.",
    ]
    if plan.setting.optimizer is SGD:
        instructions.append(writing.fused_note("linear_qkv"))
    if plan.roles["expert_in"].starts_equal and not plan.gates_sum_to_one:
        instructions.append(
            "Experts start equal here, and under gates that sum to one the router's gradient is how they differ: plan "
            "with gates_sum_to_one=True, by which the router's eps follows it."
        )
    constants = [*writing.constants_of(plan), f"EXPERT_WIDTH = {plan.target.expert_width}", writing.factors(plan)[-1]]
    return writing.file_text(
        plan, sizes, VOCABULARY, NAME, "megatron", instructions, constants, groups_name="GROUPS", write_group=_group
    )


def _group(plan: Plan, group: Group, number: int) -> str:
    entries = writing.numbers_of(plan, group)
    entries = {"max_lr": entries.pop("lr"), **entries}
    entries["lr_mult"] = (f"{1 + 1e-6 * (number + 1):.6f}", "tells groups apart in checkpoints, and no more")
    return f"""\
    (
        # {writing.label_of(group)}
        ParamKey(
            name=(
{writing.pattern_lines('                "{}",', group.patterns)}
            ),
        ),
        dict(
{writing.assignment_lines("            {}={},", entries)}
        ),
    ),"""
