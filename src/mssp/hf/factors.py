"""Factors of the forward pass in Hugging Face models: which outputs are multiplied, and the hook that does it.

A plan has factors on the sum over experts, on what is added to the residual stream, on the logits of a tied readout,
which is the embedding used again, and on embeddings that a model multiplies by the root of its width. They are relative
to the base, the small model that was tuned: what an output is multiplied by there counts as 1.

A factor is a plain number on the module, and the hook a plain function that reads it. So both are copied with the
module, compiled with it and kept by FSDP, and can be removed with :func:`detach`. A model that ``from_pretrained``
builds has no factors and no hooks; its config has the plan, by which :func:`mssp.hf.adapt` attaches them again. Where
numbers of the config can hold all factors, the checkpoint has them there instead (``config_factors``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from mssp.hf import vocabulary
from mssp.hf.probing import SIGMOID
from mssp.hf.text_parts import path_of_text_model
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

if TYPE_CHECKING:
    from mssp.hf.experts import MoE

FACTOR_ATTRIBUTE = "mssp_factor"
RULE_ATTRIBUTE = "plan_multipliers"
_NEUTRAL = 1.0


@dataclass(frozen=True)
class PlannedFactor:
    """Computes a module's factor from a plan; :func:`mssp.initialize` and :func:`mssp.verify` call it.

    ``label`` is what people read.
    """

    label: str
    value: Callable[[Plan], float]

    def __call__(self, plan: Plan) -> Mapping[str, float]:
        return {FACTOR_ATTRIBUTE: self.value(plan)}

    def times(self, other: PlannedFactor) -> PlannedFactor:
        """Both factors on one output, under the label of the first."""
        return PlannedFactor(self.label, partial(_product, (self, other)))


def scaled_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """A forward hook: multiplies the output, or the first entry of a tuple, by the module's factor."""
    factor = factor_of(module)
    if factor == _NEUTRAL:
        return output
    if isinstance(output, tuple):
        return (output[0] * factor, *output[1:])
    return output * factor


def attach(module: nn.Module, planned_factor: PlannedFactor) -> None:
    """Multiply a module's output by a factor, which is 1 until a plan sets it.

    >>> layer = nn.Identity()
    >>> attach(layer, PlannedFactor("residual", lambda plan: plan.multiplier("residual", relative=True)))
    >>> layer.mssp_factor = 0.5
    >>> import torch
    >>> layer(torch.tensor([4.0]))
    tensor([2.])
    >>> detach(layer)
    >>> layer(torch.tensor([4.0]))
    tensor([4.])
    """
    if hasattr(module, FACTOR_ATTRIBUTE):
        raise ValueError(f"a {type(module).__name__} has a factor already: detach it first")
    setattr(module, FACTOR_ATTRIBUTE, _NEUTRAL)
    setattr(module, RULE_ATTRIBUTE, planned_factor)
    module.register_forward_hook(scaled_output)


def detach(module: nn.Module) -> None:
    """Remove the factor and its hook, if the module has them."""
    for key, hook in list(module._forward_hooks.items()):
        if hook is scaled_output:
            del module._forward_hooks[key]
    for name in (FACTOR_ATTRIBUTE, RULE_ATTRIBUTE):
        module.__dict__.pop(name, None)


def factor_of(module: nn.Module) -> float:
    """The factor on a module's output, which is 1 if it has none."""
    factor: float = module.__dict__.get(FACTOR_ATTRIBUTE, _NEUTRAL)
    return factor


def label_of(module: nn.Module) -> str:
    """What the factor on a module's output is called, if it has one."""
    planned_factor = module.__dict__.get(RULE_ATTRIBUTE)
    return planned_factor.label if isinstance(planned_factor, PlannedFactor) else ""


def warn_of_factors(model: nn.Module) -> None:
    """Warn that a checkpoint computes something else without ``mssp``, where a factor is not 1."""
    multiplied = [(name, factor_of(each)) for name, each in model.named_modules() if factor_of(each) != _NEUTRAL]
    if multiplied:
        name, factor = multiplied[0]
        message = (
            f"without mssp this checkpoint computes something else: {len(multiplied)} outputs are multiplied, as that "
            f"of {name} by {factor:.4g}, which is not in its weights or its config; after from_pretrained call "
            "mssp.hf.adapt(model), or write it for others by mssp.hf.save_pretrained(model, folder, folded=True)"
        )
        warnings.warn(message, PlanWarning, stacklevel=3)


def factors_for(model: nn.Module, gates: Mapping[MoE, str]) -> Iterator[tuple[nn.Module, PlannedFactor]]:
    """Every module whose output a plan multiplies, with its factor.

    ``gates`` maps each MoE layer to the kind of its gates.
    """
    for moe, kind in gates.items():
        for module in moe.summed_modules:
            yield module, AGGREGATION if kind == SIGMOID else TUNED_AGGREGATION
    for block in blocks_of(model):
        writers = stream_writers(block)
        for writer in writers or (block,):
            yield writer, RESIDUAL if writers else UNKNOWN_RESIDUAL
    if is_tied(model):
        _refuse_bias_of_tied_readout(model)
        yield model.get_output_embeddings(), LOGITS  # type: ignore[operator]


def _refuse_bias_of_tied_readout(model: nn.Module) -> None:
    """Refuse a bias that is added to logits before they are multiplied: the factor is meant for the embedding alone."""
    if getattr(model.get_output_embeddings(), "bias", None) is not None:  # type: ignore[operator]
        raise ValueError(
            "the readout is the embedding, and has a bias: a plan multiplies the logits of such a readout, and would "
            "multiply its bias too; build the model without the bias, or with a readout of its own"
        )


def together(
    planned: Iterator[tuple[nn.Module, PlannedFactor]], more: Mapping[nn.Module, PlannedFactor]
) -> dict[nn.Module, PlannedFactor]:
    """The factor of each module; one that has two is multiplied by both."""
    factors = dict(planned)
    for module, factor in more.items():
        factors[module] = factor if module not in factors else factors[module].times(factor)
    return factors


def is_tied(model: nn.Module) -> bool:
    """Whether the readout is the embedding."""
    readout, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    return readout is not None and embedding is not None and readout.weight is embedding.weight


def _relative(which: Literal["aggregation", "residual", "tied_readout", "scaled_embedding"], plan: Plan) -> float:
    return plan.multiplier(which, relative=True)


def _product(factors: Sequence[PlannedFactor], plan: Plan) -> float:
    return math.prod(factor.value(plan) for factor in factors)


def _tuned_aggregation(plan: Plan) -> float:
    return plan.aggregation_mult


def _unknown_residual(plan: Plan) -> float:
    """The factor of a block of unknown structure: 1 at the base's depth, an error at any other."""
    if _relative("residual", plan) != 1.0:
        raise ValueError(
            "the plan's residual factor is not 1, and which modules of a block write to the residual stream is not "
            "known for this model: plan with the base's depth"
        )
    return 1.0


AGGREGATION = PlannedFactor("aggregation", partial(_relative, "aggregation"))
# Gates that sum to 1 need no scaling factor, only the aggregation multiplier that was tuned.
TUNED_AGGREGATION = PlannedFactor("aggregation", _tuned_aggregation)
RESIDUAL = PlannedFactor("residual", partial(_relative, "residual"))
UNKNOWN_RESIDUAL = PlannedFactor("residual", _unknown_residual)
LOGITS = PlannedFactor("tied readout", partial(_relative, "tied_readout"))
EMBEDDINGS = PlannedFactor("scaled embedding", partial(_relative, "scaled_embedding"))


def blocks_of(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a model, in order."""
    for path, module in model.get_submodule(path_of_text_model(model)).named_modules():
        if isinstance(module, nn.ModuleList) and path.rpartition(".")[2] in vocabulary.names().blocks:
            yield from module


def stream_writers(block: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a block whose outputs are added to the residual stream.

    Empty if a child of the block has parameters and a name that the vocabulary does not contain. With all of them
    multiplied by zero a block is the identity, which is tested for every family.
    """
    names = vocabulary.names()
    children = [(name, child) for name, child in _parts(block) if any(True for _ in child.parameters())]
    if not {name for name, _ in children} <= names.children_of_blocks:
        return ()

    def present(candidates: Sequence[str]) -> list[nn.Module]:
        return [child for candidate in candidates for name, child in children if name == candidate]

    # A norm after a module writes to the stream in its place. Llama's name for the norm before the MLP,
    # post_attention_layernorm, is a norm after attention in a block that has another norm before the MLP, and in one
    # whose norms all stand after modules, which shows in that none stands before attention.
    norms_after_attention = present(names.norms_after_attention)
    if present(names.norms_before_mlp) or not present(names.norms_before_attention):
        norms_after_attention += present(names.norms_after_attention_or_before_mlp)
    return (
        *(norms_after_attention or present(names.attentions)),
        *(present(names.norms_after_mlp) or [_norm_inside(mlp) or mlp for mlp in present(names.mlps)]),
    )


def _norm_inside(mlp: nn.Module) -> nn.Module | None:
    """The norm after an MoE layer, where it is a part of the layer itself."""
    return next((child for name, child in mlp.named_children() if name in vocabulary.names().norms_after_mlp), None)


def _parts(block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a block by name, those in lists and containers in place of these."""
    for name, child in block.named_children():
        if isinstance(child, nn.ModuleList):
            yield from ((name, each) for each in child)
        elif name in vocabulary.names().containers:
            yield from _parts(child)
        else:
            yield name, child
