"""OLMo-core: ``OptimGroupOverride`` by glob, and initial values written over ``init_weights``.

Read in ai2-olmo-core 3.0.0, for the blocks ``moe`` and ``moe_reordered_norm`` and their hybrids, with dense ones
between. A parameter that two overrides match would be trained twice, a glob that matches nothing is an error, and a
parameter that none matches gets the optimizer's defaults without a word. Names are matched with what wrappers put into
them. So the exported function names all that the model has, as it has it, and nothing else. Router and expert weights
are flattened there, so that no shape tells their input side. A shared expert is averaged with the routed ones by
1 / (K + 1) and K / (K + 1); as K grows that silences it, and two factors put it back to where it was at the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp.hosts import writing
from mssp.hosts.rows import Group, Parameter, groups, rows
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
    Parameter("blocks.*.attention.w_q.weight", "hidden", "attention_width width", fan_out="attention_width"),
    # Fewer key heads are another output side, which counts under SGD alone: OLMo-core does not offer it.
    Parameter("blocks.*.attention.w_k.weight", "hidden", "any width"),
    Parameter("blocks.*.attention.w_v.weight", "hidden", "any width"),
    Parameter("blocks.*.attention.w_out.weight", "hidden", "width attention_width", fan_in="attention_width"),
    Parameter("blocks.*.attention.w_?.bias", "bias", "any"),
    Parameter("blocks.*.attention.w_out.bias", "bias", "width"),
    Parameter("blocks.*.feed_forward.w1.weight", "hidden", "ffn_width width", fan_out="ffn_width"),
    Parameter("blocks.*.feed_forward.w3.weight", "hidden", "ffn_width width", fan_out="ffn_width"),
    Parameter("blocks.*.feed_forward.w2.weight", "hidden", "width ffn_width", fan_in="ffn_width"),
    Parameter("blocks.*.feed_forward.w?.bias", "bias", "any"),
    Parameter(f"{_MOE}.shared_mlp.w1.weight", "hidden", "shared_width width", fan_out="shared_width"),
    Parameter(f"{_MOE}.shared_mlp.w3.weight", "hidden", "shared_width width", fan_out="shared_width"),
    Parameter(f"{_MOE}.shared_mlp.w2.weight", "hidden", "width shared_width", fan_in="shared_width"),
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
        Parameter("blocks.*.attention.q_norm.weight", "qk_norm", "any"),
        Parameter("blocks.*.attention.k_norm.weight", "qk_norm", "any"),
    ],
}


def write(plan: Plan, sizes: Sizes, qk_norm: str = "full") -> str:
    """The Python file for OLMo-core."""
    if qk_norm not in QK_NORMS:
        raise ValueError(f"unknown qk_norm {qk_norm!r}: use one of {', '.join(QK_NORMS)}")
    planned = rows(plan, [*VOCABULARY, *QK_NORMS[qk_norm]], sizes)
    residual = writing.literal(plan.multiplier("residual", relative=True))
    config = f"{plan.setting.optimizer.title}Config"
    by_hand = [
        f"{config}(lr={writing.literal(plan.lr)}, group_overrides=group_overrides(model)) as the train module's optim, "
        "where model is built for its names only (init_device='meta' will do) and wrapped as the one that trains: "
        "activation checkpointing of selected modules changes names. Schedulers scale every group's initial_lr, as "
        "they should.",
        "initialize(model) after model.init_weights(...), before the optimizer is built.",
        "install_multipliers(model) after that, before the model is compiled: the residual factor, "
        f"{residual}; the aggregation factor for sigmoid gates; and the two factors of a shared expert.",
        "tie_word_embeddings=False: embedding and readout are planned apart.",
        f"Norms of queries and keys are taken to be over {'the full width' if qk_norm == 'full' else 'one head'} "
        "(--qk-norm full|head).",
    ]
    lines = [
        *writing.head(plan, sizes, NAME, by_hand),
        _IMPORTS,
        *writing.sizes_of_plan(plan),
        f"WIDTH, EXPERT_WIDTH, ACTIVE = {plan.target.width}, {plan.target.expert_width}, {plan.target.active}",
        *_multipliers(plan, residual),
        f"HEAD_NORMS = {qk_norm == 'head'}",
        "",
        "GROUP_OVERRIDES = [",
        *(line for group in groups(planned) for line in _group(plan, group)),
        "]",
        "",
        *writing.table(plan, planned, [f'"{row.parameter.pattern}"' for row in planned]),
        "",
        "",
        _CODE.replace("@FIND@", writing.FIND).replace("@CLEAN@", writing.CLEAN),
    ]
    return "\n".join(lines)


def _multipliers(plan: Plan, residual: str) -> list[str]:
    now = plan.target.active
    # At the base the host's own factors; without one, the paper's: a shared expert whole, the routed sum times K^-1.
    shared, routed = (1.0, 1.0) if plan.base is None else _averaged(plan.base.active)
    shared_now, routed_now = _averaged(now)
    undoes = "undoes {}" if plan.base is None else "undoes how {} changed since the base"
    return [
        f"AGGREGATION = {writing.literal(plan.multiplier('aggregation', relative=True))}"
        f"  # {writing.factor(plan, 'aggregation')}, for gates that do not sum to one",
        f"AGGREGATION_OF_SUMMING_GATES = {writing.literal(plan.aggregation_mult)}",
        f"SHARED = {writing.literal(shared / shared_now)}  # {undoes.format('1 / (K + 1)')}",
        f"ROUTED_BESIDE_SHARED = {writing.literal(routed / routed_now)}  # {undoes.format('K / (K + 1)')}",
        f"RESIDUAL = {residual}  # {writing.factor(plan, 'residual')}",
    ]


def _averaged(active: int) -> tuple[float, float]:
    """The factors OLMo-core puts on a shared expert and on the routed sum beside it."""
    return 1 / (active + 1), active / (active + 1)


def _group(plan: Plan, group: Group) -> list[str]:
    power = writing.powers(plan, group)
    lines = ["    OptimGroupOverride(", f"        # {writing.label(group)}", "        params=["]
    lines += [*(f'            "{pattern}",' for pattern in group.patterns), "        ],", "        opts=dict("]
    lines += [f"            lr={writing.literal(group.values.lr)},  # {power['lr']}"]
    if group.values.eps is not None:
        lines += [f"            eps={writing.literal(group.values.eps)},  # {power['eps']}"]
    if plan.setting.optimizer is ADAMW:
        decay = group.values.weight_decay
        lines += [
            f"            weight_decay={writing.literal(decay)},{'  # ' + power['weight_decay'] if decay else ''}"
        ]
    lines += [f"            betas={plan.recipe.betas},"] if plan.recipe.betas is not None else []
    return [*lines, "        ),", "    ),"]


_IMPORTS = """
import hashlib
import re
import warnings
from fnmatch import fnmatch

import torch
from olmo_core.optim import OptimGroupOverride
from torch.distributed.tensor import DTensor, distribute_tensor
"""

_CODE = '''
def group_overrides(model):
    """The overrides whose parameters this model has, as OLMo-core's strict matching wants them.

    OLMo-core matches names with all that wrappers put into them: one that hides from its pattern so is named in full.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        _start(_clean(name), tuple(parameter.shape))
    used = []
    for group in GROUP_OVERRIDES:
        params = [
            pattern if fnmatch(name, pattern) else name
            for pattern in group.params
            for name in trained
            if fnmatch(_clean(name), pattern)
        ]
        if params:
            used.append(OptimGroupOverride(params=list(dict.fromkeys(params)), opts=dict(group.opts)))
    return used


@torch.no_grad()
def initialize(model):
    """Give every parameter its initial value, in place; also when it is sharded."""
    if getattr(model, "tie_word_embeddings", False):
        raise ValueError("tie_word_embeddings: embedding and readout are planned apart, set it to False")
    starts = {name: _start(_clean(name), tuple(parameter.shape)) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        _check_experts(_clean(name), tuple(parameter.shape))
        if HEAD_NORMS and re.search(r"attention\\.[qk]_norm", name) and parameter.numel() % WIDTH == 0:
            raise ValueError(f"{name} is as wide as the model: export with --qk-norm full")
    for name, parameter in model.named_parameters():
        way, std = starts[name]
        if way in ("ones", "zeros"):
            parameter.fill_(1.0 if way == "ones" else 0.0)
        elif way == "normal":
            # Each rank draws the whole by seed and name, and keeps its part, as OLMo-core does.
            _copy(parameter, _draw(_clean(name), tuple(parameter.shape)) * std)
        else:
            # One matrix, drawn by the seed and the name, as often as there are experts.
            rows = parameter.shape[0] // EXPERTS
            matrix = _draw(_clean(name), (rows, parameter.shape[1])) * std
            _copy(parameter, matrix.expand(EXPERTS, *matrix.shape).reshape(parameter.shape))


def _copy(parameter, whole):
    whole = whole.to(device=parameter.device, dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)


def _check_experts(name, shape):
    if ".experts.mlp.w1" in name or ".experts.mlp.w3" in name:
        forms = (EXPERTS * WIDTH, EXPERT_WIDTH), (EXPERTS * EXPERT_WIDTH, WIDTH)
        if shape not in forms:
            raise ValueError(f"{name} has shape {shape}, this export is for {forms[0]} or {forms[1]}")


def install_multipliers(model):
    """Scale the sum over experts, a shared expert, and what each block adds to the residual stream, by hooks."""
    handles = []
    for name, block in model.blocks.items():
        if hasattr(block, "attention_residual_stream"):  # a dense block, with a setting for it
            block.attention_residual_stream.alpha *= RESIDUAL
            block.feed_forward_residual_stream.alpha *= RESIDUAL
            continue
        # Every branch of these blocks ends in their one dropout, which does nothing where none is asked for.
        if RESIDUAL != 1.0:
            handles.append(block.dropout.register_forward_hook(lambda module, inputs, output: RESIDUAL * output))
        router, shared = block.feed_forward_moe.router, block.feed_forward_moe.shared_mlp
        norm = router.normalize_expert_weights
        if norm not in (None, 1.0):
            raise ValueError(f"blocks.{name}: gates normalised by their {norm}-norm do not sum to one: use 1.0 or None")
        sums_to_one = norm == 1.0 or str(router.gating_function) != "sigmoid"
        factor = AGGREGATION_OF_SUMMING_GATES if sums_to_one else AGGREGATION
        if sums_to_one and any(line[1] == "tied" for line in STARTS):
            warnings.warn(f"blocks.{name}: experts start equal, and gates that sum to one give the router no gradient "
                          "until they differ: use sigmoid gates", stacklevel=2)
        if shared is not None:
            factor *= ROUTED_BESIDE_SHARED
            handles.append(shared.register_forward_hook(lambda module, inputs, output: SHARED * output))
        if factor != 1.0:
            handles.append(router.register_forward_hook(
                lambda module, inputs, output, factor=factor: (factor * output[0], *output[1:])
            ))
    return handles


@FIND@


@CLEAN@


def _matches(pattern, name):
    return fnmatch(name, pattern)
'''.lstrip("\n")
