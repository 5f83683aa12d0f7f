"""Factors of the forward pass in Hugging Face models: where they go, and the hook that multiplies an output.

A plan has factors on the sum over experts, on what is added to the residual stream, and on the logits of a tied
readout. Each is relative to what the model does at the base.

The factor is a plain number on the module, and the hook a plain function that reads it. So both are copied with the
module, compiled with it, kept by FSDP and taken off again, and nothing is attached to a parameter. A model that is
built from a checkpoint has neither: attach them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from mssp.hf.probing import SIGMOID
from mssp.hf.vocabulary import names
from mssp.planning.plans import Plan

if TYPE_CHECKING:
    from mssp.hf.experts import MoE

FACTOR = "mssp_factor"
BY_PLAN = "plan_multipliers"
_NEUTRAL = 1.0


@dataclass(frozen=True)
class FromPlan:
    """A module's factor by a plan, which :func:`mssp.initialize` and :func:`mssp.verify` ask for.

    ``what`` names the factor for people.
    """

    what: str
    value: Callable[[Plan], float]

    def __call__(self, plan: Plan) -> Mapping[str, float]:
        return {FACTOR: self.value(plan)}


def scaled_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """A forward hook: multiplies the output, or the first entry of a tuple, by the module's factor."""
    factor = factor_of(module)
    if factor == _NEUTRAL:
        return output
    if isinstance(output, tuple):
        return (output[0] * factor, *output[1:])
    return output * factor


def attach(module: nn.Module, by_plan: FromPlan) -> None:
    """Multiply a module's output by a factor, which is 1 until a plan sets it.

    >>> layer = nn.Identity()
    >>> attach(layer, FromPlan("residual", lambda plan: plan.multiplier("residual", relative=True)))
    >>> layer.mssp_factor = 0.5
    >>> import torch
    >>> layer(torch.tensor([4.0]))
    tensor([2.])
    >>> detach(layer)
    >>> layer(torch.tensor([4.0]))
    tensor([4.])
    """
    if hasattr(module, FACTOR):
        raise ValueError(f"a {type(module).__name__} has a factor already: detach it first")
    setattr(module, FACTOR, _NEUTRAL)
    setattr(module, BY_PLAN, by_plan)
    module.register_forward_hook(scaled_output)


def detach(module: nn.Module) -> None:
    """Take the factor and its hook off again, if the module has them."""
    for key, hook in list(module._forward_hooks.items()):
        if hook is scaled_output:
            del module._forward_hooks[key]
    for name in (FACTOR, BY_PLAN):
        module.__dict__.pop(name, None)


def factor_of(module: nn.Module) -> float:
    """The factor on a module's output, which is 1 if it has none."""
    factor: float = module.__dict__.get(FACTOR, _NEUTRAL)
    return factor


def factors_for(model: nn.Module, gates: Mapping[MoE, str]) -> Iterator[tuple[nn.Module, FromPlan]]:
    """Every module whose output a plan multiplies, with its factor; ``gates`` are the kinds of gates of MoE layers."""
    for moe, kind in gates.items():
        for summed in moe.summed:
            yield summed, AGGREGATION if kind == SIGMOID else TUNED_AGGREGATION
    for block in _blocks(model):
        writers = stream_writers(block)
        for writer in writers or (block,):
            yield writer, RESIDUAL if writers else UNKNOWN_RESIDUAL
    if is_tied(model):
        yield model.get_output_embeddings(), LOGITS  # type: ignore[operator]


def is_tied(model: nn.Module) -> bool:
    """Whether the readout is the embedding."""
    readout, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    return readout is not None and embedding is not None and readout.weight is embedding.weight


def _relative(which: Literal["aggregation", "residual", "tied_readout"], plan: Plan) -> float:
    return plan.multiplier(which, relative=True)


def _tuned_aggregation(plan: Plan) -> float:
    return plan.aggregation_mult


def _unknown_residual(plan: Plan) -> float:
    """The factor of a block whose structure is not known: there is none unless the depth changes."""
    if _relative("residual", plan) != 1.0:
        raise ValueError(
            "the plan's residual factor is not 1, and which modules of a block write to the residual stream is not "
            "known for this model: plan with the base's depth"
        )
    return 1.0


AGGREGATION = FromPlan("aggregation", partial(_relative, "aggregation"))
# Gates that are shares of one need no factor but the tuned one.
TUNED_AGGREGATION = FromPlan("aggregation", _tuned_aggregation)
RESIDUAL = FromPlan("residual", partial(_relative, "residual"))
UNKNOWN_RESIDUAL = FromPlan("residual", _unknown_residual)
LOGITS = FromPlan("tied readout", partial(_relative, "tied_readout"))


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and path.rpartition(".")[2] in names().blocks:
            yield from module


def stream_writers(block: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a block whose outputs are added to the residual stream; none if a part of the block is not known.

    With all of them multiplied by zero a block is the identity, which is tested for every family.
    """
    parts = {name: child for name, child in block.named_children() if any(True for _ in child.parameters())}
    words = names()
    if not set(parts) <= words.parts_of_blocks:
        return ()

    def present(names: Sequence[str]) -> list[nn.Module]:
        return [parts[name] for name in names if name in parts]

    norms_after_attention = present(words.norms_after_attention)
    if present(words.norms_before_mlp) or not present(words.norms_before_attention):
        norms_after_attention += present(words.norms_of_either)
    return (
        *(norms_after_attention or present(words.attentions)),
        *(present(words.norms_after_mlp) or present(words.mlps)),
    )
