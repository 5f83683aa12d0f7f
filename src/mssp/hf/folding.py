"""``fold`` multiplies factors of the forward pass into weights: inference engines need the model without hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from mssp._constraints import a_module, takes
from mssp.apply.description import name_cleaner, unwrapped
from mssp.hf.adaptation import release
from mssp.hf.balancing import leave_coefficients
from mssp.hf.config_factors import leave_numbers
from mssp.hf.experts import FusedExperts, is_fused
from mssp.hf.factors import EMBEDDINGS, FACTOR_ATTRIBUTE, LOGITS, factor_of, is_tied, label_of
from mssp.hf.kept_plan import own_config
from mssp.hf.probing import neutral_gain
from mssp.hf.vocabulary import BIAS_SUFFIX, Place, is_kernel, names


@takes(model=a_module)
def fold(model: nn.Module) -> None:
    """Multiply every factor of a trained model into its weights, in place, and remove the hooks.

    The folded model computes what the adapted model did, and is a checkpoint like any other. The plan no longer
    describes it: keep the unfolded model for further training. :func:`save_pretrained` with ``folded=True`` writes the
    folded checkpoint of a model that stays as it is.
    """
    model = unwrapped(model)
    changes = _changes(model)
    with torch.no_grad():
        for parameter, factor, shift in changes:
            parameter.add_(shift).mul_(factor).sub_(shift)
    own_config(model)  # before anything is set in it
    leave_coefficients(model)
    leave_numbers(model)
    release(model)


def folded_state(model: nn.Module, apart: Collection[nn.Module] = ()) -> dict[str, Tensor]:
    """What ``state_dict`` of the folded model would be. The model stays as it is: what takes a factor is copied.

    Factors of the modules in ``apart`` are left out.
    """
    folded: dict[int, Tensor] = {}
    with torch.no_grad():
        for parameter, factor, shift in _changes(model, apart):
            if id(parameter) not in folded:
                folded[id(parameter)] = parameter.detach().clone()
            folded[id(parameter)].add_(shift).mul_(factor).sub_(shift)
    held = model.state_dict(keep_vars=True).items()
    return {name: folded[id(tensor)] if id(tensor) in folded else tensor.detach() for name, tensor in held}


def _changes(model: nn.Module, apart: Collection[nn.Module] = ()) -> list[tuple[Tensor, float, float]]:
    """The parameters that take factors, with the factor, and the number that their module adds to them."""
    clean = name_cleaner(model)
    changes: list[tuple[Tensor, float, float]] = []
    for path, module in model.named_modules():
        factor = factor_of(module)
        if FACTOR_ATTRIBUTE not in module.__dict__ or factor == 1.0 or module in apart:
            continue
        parameters = list(_last_parameters(model, module, clean(path)))
        if any(is_fused(each) and FusedExperts.of(each, "").has_spare_slices for each in module.modules()):
            raise ValueError(
                f"{clean(path)} has a factor of {factor}, and experts that hand on their input: no weight could take it"
            )
        if not parameters:
            raise ValueError(f"{clean(path)} has a factor of {factor} and no last matrix that could take it")
        changes += [(parameter, factor, shift) for parameter, shift in parameters]
        if label_of(module) == EMBEDDINGS.label and is_tied(model):
            # The readout is the embedding: what it would multiply the logits by goes out of them in the norm before.
            changes += [(parameter, 1 / factor, shift) for parameter, shift in _of_final_norm(model)]
    return changes


def _of_final_norm(model: nn.Module) -> Iterator[tuple[nn.Parameter, float]]:
    for path, norm in model.named_modules():
        if Place.of(f"{path}.weight").block is None and path.rpartition(".")[2] in names().final_norms:
            yield from _last_parameters(model, norm, path)


def _last_parameters(model: nn.Module, module: nn.Module, name: str) -> Iterator[tuple[nn.Parameter, float]]:
    """The parameters that a module's output is proportional to, each with the number that the module adds to it.

    A norm that multiplies by 1 + weight adds 1; other modules add 0.
    """
    if label_of(module) == LOGITS.label:
        # The embedding must stay as it is, so the factor of a tied readout goes into the norm before it.
        yield from _of_final_norm(model)
    elif "weight" in module._parameters:  # a norm, or a matrix by itself
        for local, parameter in module.named_parameters(recurse=False):
            neutral = neutral_gain(module, name) if local == "weight" and parameter.dim() == 1 else 1.0
            yield parameter, 1.0 - neutral
    else:
        for local, parameter in _what_it_adds_to(model, module, name).named_parameters():
            owner, _, kind = local.rpartition(".")
            last = owner.rpartition(".")[2] if kind in ("weight", "bias") else kind.removesuffix(BIAS_SUFFIX)
            if last in names().last_matrices:
                yield parameter, 0.0


def _what_it_adds_to(model: nn.Module, module: nn.Module, name: str) -> nn.Module:
    """The module that a convolution stands after, whose output it adds to; any other module itself."""
    if not all(is_kernel(f"{name}.{local}") for local, _ in module.named_parameters()):
        return module
    after_attention = name.rpartition(".")[2] in names().norms_after_attention
    before = names().attentions if after_attention else names().mlps
    block = next(block for block in model.modules() if module in block.children())
    return next(child for local, child in block.named_children() if local in before)
