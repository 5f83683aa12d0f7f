"""OLMo-core: ``OptimGroupOverride`` by glob, and initial values written over ``init_weights``.

These are facts of ai2-olmo-core 3.0.0, for the blocks ``moe`` and ``moe_reordered_norm`` and their hybrids, with dense
blocks between. A parameter that two overrides match would be trained twice, a glob that matches nothing is an error,
and a parameter that none matches silently gets the optimizer's defaults. Globs are matched against names that wrappers
have changed. So the exported function lists exactly the parameters of a model, by the names that they have in it.
Router and expert weights are flattened, so that no shape shows their input side. A shared expert is averaged with the
routed ones by 1 / (K + 1) and K / (K + 1), so that its share vanishes as K grows; two factors restore the shares that
they had at the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter
from mssp.planning.setting import ADAM, ADAMW

if TYPE_CHECKING:
    from mssp.hosts.rows import Sizes
    from mssp.planning.plans import Plan

NAME = "OLMo-core"
OPTIMIZERS = (ADAM, ADAMW)
_MOE = "blocks.*.feed_forward_moe"
VOCABULARY = [
    Parameter("embeddings.weight", "embedding", "any width"),
    Parameter("blocks.*.attention_norm.weight", "norm", "width"),
    Parameter("blocks.*.feed_forward_norm.weight", "norm", "width"),
    Parameter("blocks.*.feed_forward_moe_norm.weight", "norm", "width"),
    Parameter("blocks.*.attention.w_q.weight", "hidden", "attention_width width", like="query"),
    # Fewer key heads are another output side, which counts under SGD alone: OLMo-core does not offer it.
    Parameter("blocks.*.attention.w_k.weight", "hidden", "any width", like="key"),
    Parameter("blocks.*.attention.w_v.weight", "hidden", "any width", like="value"),
    Parameter("blocks.*.attention.w_out.weight", "hidden", "width attention_width", like="attention output"),
    Parameter("blocks.*.attention.w_?.bias", "bias", "any"),
    Parameter("blocks.*.attention.w_out.bias", "bias", "width"),
    Parameter("blocks.*.feed_forward.w1.weight", "hidden", "ffn_width width", like="dense input"),
    Parameter("blocks.*.feed_forward.w3.weight", "hidden", "ffn_width width", like="dense input"),
    Parameter("blocks.*.feed_forward.w2.weight", "hidden", "width ffn_width", like="dense output"),
    Parameter("blocks.*.feed_forward.w?.bias", "bias", "any"),
    Parameter(f"{_MOE}.shared_mlp.w1.weight", "hidden", "shared_width width", like="shared input"),
    Parameter(f"{_MOE}.shared_mlp.w3.weight", "hidden", "shared_width width", like="shared input"),
    Parameter(f"{_MOE}.shared_mlp.w2.weight", "hidden", "width shared_width", like="shared output"),
    Parameter(f"{_MOE}.shared_mlp.w?.bias", "bias", "any"),
    Parameter(f"{_MOE}.router.weight", "router", "experts*width"),
    # [experts x width, hidden] with dropped tokens, [experts x hidden, width] without: the same name.
    Parameter(f"{_MOE}.experts.mlp.w1", "expert_in", "any any"),
    Parameter(f"{_MOE}.experts.mlp.w3", "expert_in", "any any"),
    Parameter(f"{_MOE}.experts.mlp.w2", "expert_out", "experts*expert_width width"),
    Parameter("lm_head.norm.weight", "final_norm", "width"),
    Parameter("lm_head.w_out.weight", "readout", "any width"),
]
# OLMo-core has norms of queries and keys over the full width, or over one head.
QK_NORMS = {
    "full": [
        Parameter("blocks.*.attention.q_norm.weight", "norm", "attention_width"),
        Parameter("blocks.*.attention.k_norm.weight", "norm", "any"),
    ],
    "head": [
        Parameter("blocks.*.attention.q_norm.weight", "qk_norm", "any", like="query or rank norm"),
        Parameter("blocks.*.attention.k_norm.weight", "qk_norm", "any", like="key norm"),
    ],
}


def write(plan: Plan, sizes: Sizes, qk_norm: str = "full") -> str:
    """The Python file for OLMo-core."""
    target = plan.target
    residual = writing.literal(plan.multiplier("residual", relative=True))
    config = f"{plan.setting.optimizer.title}Config"
    instructions = [
        f"{config}(lr={writing.literal(plan.lr)}, group_overrides=group_overrides(model)) as the train module's optim, "
        "where model is built for its names only (init_device='meta' will do) and wrapped as the one that trains: "
        "activation checkpointing of selected modules changes names. Schedulers scale every group's initial_lr, as "
        "they should.",
        "initialize(model) after model.init_weights(...), before the optimizer is built.",
        "install_multipliers(model) after that, before the model is compiled: the residual factor, "
        f"{residual}; the aggregation factor for sigmoid gates; and the two factors of a shared expert.",
        "lb_loss_weight and z_loss_weight stay as tuned: the first is of a loss that is 1 at uniform routing for any K "
        "and M, and scale_loss_by_num_layers (True unless set) makes both means over layers. Where it is False, "
        f"multiply both by {residual}.",
        "tie_word_embeddings=False: embedding and readout are planned apart.",
        f"Norms of queries and keys are taken to be over {'the full width' if qk_norm == 'full' else 'one head'} "
        "(--qk-norm full|head).",
    ]
    *aggregation, residual_line = writing.factors(plan)
    constants = [
        *writing.constants_of(plan),
        f"WIDTH, EXPERT_WIDTH, ACTIVE = {target.width}, {target.expert_width}, {target.active}",
        *aggregation,
        *_shared_factors(plan),
        residual_line,
        f"HEAD_NORMS = {qk_norm == 'head'}",
        writing.kind_of_gates(plan),
    ]
    vocabulary = [*VOCABULARY, *QK_NORMS[qk_norm]]
    return writing.file_text(
        plan, sizes, vocabulary, NAME, "olmo_core", instructions, constants,
        groups_name="GROUP_OVERRIDES", write_group=_group,
    )  # fmt: skip


def _shared_factors(plan: Plan) -> list[str]:
    """The lines of the factors that restore the shares which a shared expert and the routed sum had at the base.

    Without a base they restore those of the paper: 1 for a shared expert, and K^-1 for the routed sum.
    """
    base_shared, base_routed = (1.0, 1.0) if plan.base is None else _shares(plan.base.active)
    shared, routed = _shares(plan.target.active)
    undoes = "undoes {}" if plan.base is None else "undoes how {} changed since the base"
    return [
        f"SHARED = {writing.literal(base_shared / shared)}  # {undoes.format('1 / (K + 1)')}",
        f"ROUTED_BESIDE_SHARED = {writing.literal(base_routed / routed)}  # {undoes.format('K / (K + 1)')}",
    ]


def _shares(active: int) -> tuple[float, float]:
    """The factors by which OLMo-core multiplies a shared expert and the routed sum next to it."""
    return 1 / (active + 1), active / (active + 1)


def _group(plan: Plan, group: Group, _: int) -> str:
    entries = writing.numbers_of(plan, group)
    if plan.setting.optimizer is not ADAMW:
        del entries["weight_decay"]
    return f"""\
    OptimGroupOverride(
        # {writing.label_of(group)}
        params=[
{writing.pattern_lines('            "{}",', group.patterns)}
        ],
        opts=dict(
{writing.assignment_lines("            {}={},", entries)}
        ),
    ),"""
