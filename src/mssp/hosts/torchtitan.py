"""torchtitan: ``param_init`` callables, one per parameter, and ``ParamGroupConfig`` by regular expression.

These are facts of torchtitan 0.3.0. A model's config holds ``param_init``, and the module that is built from it keeps
it. One config may build several modules (the norms of queries and keys), so an export sets ``param_init`` on the
modules, by their names. A parameter belongs to the first pattern that is found in its name. A pattern that finds
nothing in the part of the model that a process holds is an error, which pipeline parallelism would always cause: the
exported container leaves such patterns out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter
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
    Parameter("layers.*.attention.qkv_linear.wqkv.weight", "hidden", "any width", rows="attention_width", like="query"),
    Parameter("layers.*.attention.qkv_linear.wq.weight", "hidden", "attention_width width", like="query"),
    # Fewer key heads are another output side, which counts under SGD alone: torchtitan does not offer it.
    Parameter("layers.*.attention.qkv_linear.wk.weight", "hidden", "any width", like="key"),
    Parameter("layers.*.attention.qkv_linear.wv.weight", "hidden", "any width", like="value"),
    Parameter("layers.*.attention.wo.weight", "hidden", "width attention_width", like="attention output"),
    # Multi-head latent attention: with a rank for queries, or without.
    Parameter("layers.*.attention.wq.weight", "hidden", "any width", rows="attention_width", like="query"),
    Parameter("layers.*.attention.wq_a.weight", "hidden", "q_rank width", like="query to rank"),
    Parameter("layers.*.attention.wq_b.weight", "hidden", "any q_rank", rows="attention_width", like="query from rank"),
    Parameter("layers.*.attention.wkv_a.weight", "hidden", "any width", rows="kv_rank", like="key to rank"),
    Parameter("layers.*.attention.wkv_b.weight", "hidden", "any kv_rank", rows="attention_width", like="key from rank"),
    Parameter("layers.*.attention.q_norm.weight", "qk_norm", "any", like="query or rank norm"),
    Parameter("layers.*.attention.k_norm.weight", "qk_norm", "any", like="key norm"),
    Parameter("layers.*.attention.kv_norm.weight", "qk_norm", "any", like="key rank norm"),
    Parameter("layers.*.attention.qkv_linear.wqkv.bias", "bias", "any"),
    Parameter("layers.*.attention.wo.bias", "bias", "width"),
    # A vector with one logit per head, whose gradient is that of a bias.
    Parameter("layers.*.attention.sinks", "bias", "any"),
    Parameter("layers.*.feed_forward.w1.weight", "hidden", "ffn_width width", like="dense input"),
    Parameter("layers.*.feed_forward.w3.weight", "hidden", "ffn_width width", like="dense input"),
    Parameter("layers.*.feed_forward.w2.weight", "hidden", "width ffn_width", like="dense output"),
    Parameter("layers.*.moe.shared_experts.w1.weight", "hidden", "shared_width width", like="shared input"),
    Parameter("layers.*.moe.shared_experts.w3.weight", "hidden", "shared_width width", like="shared input"),
    Parameter("layers.*.moe.shared_experts.w2.weight", "hidden", "width shared_width", like="shared output"),
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
    Parameter("layers.*.eh_proj.weight", "hidden", "width 2*width"),
    Parameter("layers.*.mtp_norm.weight", "final_norm", "width"),
    Parameter("norm.weight", "final_norm", "width"),
    Parameter("lm_head.weight", "readout", "any width"),
]


def regex(pattern: str) -> str:
    r"""The regular expression for a name pattern, which also finds names under wrappers and in ``mtp_layers``.

    >>> regex("layers.*.attention.wo.weight")
    'layers\\..*\\.attention\\.wo\\.weight$'
    >>> regex("norm.weight")
    '^norm\\.weight$'
    """
    inside = ".*".join(re.escape(part) for part in pattern.split("*"))
    return f"{inside}$" if pattern.startswith("layers.") else f"^{inside}$"


def write(plan: Plan, sizes: Sizes) -> str:
    """The Python file for torchtitan."""
    instructions = [
        "optimizer=OPTIMIZER in the Trainer.Config. Its schedule is a factor on every group's lr and needs nothing.",
        "plan_model(model) first in the model_spec's parallelize_fn, on the model as it is built: "
        "`def planned(model, **rest): plan_model(model); return parallelize_qwen3(model, **rest)`. It replaces "
        "param_init, multiplies the router's route_scale where gates do not sum to one (sigmoid without route_norm), "
        "and hooks the residual factor, for which torchtitan has no setting.",
        "There is no load-balancing loss: load_balance_coeff is the step of what is added to a router's scores when "
        "experts are chosen. It stays as tuned where scores are sigmoids. Those of a softmax are of order 1/M: there "
        f"multiply it by {_share_of_an_expert(plan)}.",
        "enable_weight_tying=False: embedding and readout are planned apart.",
    ]
    constants = [*writing.constants_of(plan), *writing.factors(plan), writing.kind_of_gates(plan)]
    return writing.file_text(
        plan, sizes, VOCABULARY, NAME, "torchtitan", instructions, constants,
        groups_name="PARAM_GROUPS", write_group=_group, write_pattern=_raw_regex,
    )  # fmt: skip


def _share_of_an_expert(plan: Plan) -> str:
    """What softmax scores of one expert are, of all: relative to the base, if there is one."""
    experts_at_base = 1 if plan.base is None else plan.base.experts
    return writing.literal(experts_at_base / plan.target.experts)


def _raw_regex(pattern: str) -> str:
    """The regular expression of a pattern, as a raw string."""
    return f"r{regex(pattern)!r}".replace("\\\\", "\\")


def _group(plan: Plan, group: Group, _: int) -> str:
    entries = writing.numbers_of(plan, group)
    if plan.weight_decay and not group.values.weight_decay:
        entries["weight_decay"] = ("0.0", "0 for gains and biases")
    patterns = '|"\n'.join(f'            r"{regex(pattern)}' for pattern in group.patterns)
    return f"""\
    ParamGroupConfig(
        # {writing.label_of(group)}
        pattern=(
{patterns}"
        ),
        optimizer_name="{plan.setting.optimizer.title}",
        optimizer_kwargs={{
{writing.assignment_lines('            "{}": {},', entries)}
        }},
    ),"""
