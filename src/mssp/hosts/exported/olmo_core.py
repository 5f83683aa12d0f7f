"""What an export for OLMo-core does with its numbers: overrides, initial values, factors.

The layout is that of exported files (see :mod:`mssp.hosts.exported`), which ruff would format otherwise.
"""

# fmt: off

import hashlib
import re
import warnings
from fnmatch import fnmatch

import torch
from olmo_core.optim import OptimGroupOverride
from torch.distributed.tensor import DTensor, distribute_tensor

from mssp.hosts.exported.constants import (
    AGGREGATION, AGGREGATION_OF_SUMMING_GATES, EXPERT_WIDTH, EXPERTS, GATES_SUM_TO_ONE, GROUP_OVERRIDES, HEAD_NORMS,
    RESIDUAL, ROUTED_BESIDE_SHARED, SHARED, STARTS, WIDTH,
)
from mssp.hosts.exported.starts import _clean, _draw, _start


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
        if HEAD_NORMS and re.search(r"attention\.[qk]_norm", name) and parameter.numel() % WIDTH == 0:
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
        if sums_to_one and not GATES_SUM_TO_ONE and any(line[1] == "tied" for line in STARTS):
            warnings.warn(f"blocks.{name}: experts start equal, and under gates that sum to one the router's gradient "
                          "is how they differ: plan with gates_sum_to_one=True", stacklevel=2)
        if shared is not None:
            factor *= ROUTED_BESIDE_SHARED
            handles.append(shared.register_forward_hook(lambda module, inputs, output: SHARED * output))
        if factor != 1.0:
            handles.append(router.register_forward_hook(
                lambda module, inputs, output, factor=factor: (factor * output[0], *output[1:])
            ))
    return handles
