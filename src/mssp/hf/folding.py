"""Factors of the forward pass multiplied into weights: the same model without hooks, as inference engines need it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mssp._constraints import a_module, takes
from mssp.apply.description import name_cleaner, unwrapped
from mssp.hf.adaptation import release
from mssp.hf.factors import BY_PLAN, FACTOR, LOGITS, FromPlan, factor_of
from mssp.hf.probing import neutral_gain
from mssp.hf.vocabulary import BIAS_SUFFIX, Place, names


@takes(model=a_module)
def fold(model: nn.Module) -> None:
    """Multiply every factor of a trained model into its weights, in place, and take the hooks off.

    The folded model computes what the adapted model did, and is a checkpoint like any other. The plan no longer
    describes it: keep the unfolded model for further training.
    """
    model = unwrapped(model)
    clean = name_cleaner(model)
    changes: list[tuple[Tensor, float, float]] = []
    for path, module in model.named_modules():
        factor = factor_of(module)
        if FACTOR not in module.__dict__ or factor == 1.0:
            continue
        linear_in = list(_linear_in(model, module, clean(path)))
        if not linear_in:
            raise ValueError(f"{clean(path)} has a factor of {factor} and no last matrix that could take it")
        changes += [(parameter, factor, shift) for parameter, shift in linear_in]
    with torch.no_grad():
        for parameter, factor, shift in changes:
            parameter.add_(shift).mul_(factor).sub_(shift)
    release(model)


def _linear_in(model: nn.Module, module: nn.Module, name: str) -> Iterator[tuple[nn.Parameter, float]]:
    """The parameters that a module's output is linear in, each with the number that the module adds to it."""
    by_plan = module.__dict__.get(BY_PLAN)
    if isinstance(by_plan, FromPlan) and by_plan.what == LOGITS.what:
        # The embedding must stay as it is, so the factor of a tied readout goes into the norm before it.
        for path, other in model.named_modules():
            if Place.of(f"{path}.weight").block is None and path.rpartition(".")[2] in names().final_norms:
                yield from _linear_in(model, other, path)
    elif "weight" in module._parameters:  # a norm, or a matrix by itself
        for local, parameter in module.named_parameters(recurse=False):
            neutral = neutral_gain(module, name) if local == "weight" and parameter.dim() == 1 else 1.0
            yield parameter, 1.0 - neutral
    else:
        for local, parameter in module.named_parameters():
            owner, _, kind = local.rpartition(".")
            last = owner.rpartition(".")[2] if kind in ("weight", "bias") else kind.removesuffix(BIAS_SUFFIX)
            if last in names().last_matrices:
                yield parameter, 0.0
