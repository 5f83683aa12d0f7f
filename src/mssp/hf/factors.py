"""Factors of the forward pass in Hugging Face models: where they go, and the hook that multiplies what a module
returns.

A plan has factors on the sum over experts, on what is added to the residual stream, and on the logits of a tied
readout; each is relative to what the model does at the base.

The factor is a plain number on the module, and the hook a plain function that reads it. So both are copied with the
module, compiled with it, kept by FSDP and taken off again; nothing is attached to a parameter. A model that is built
anew from a checkpoint has neither: attach them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    """What :func:`mssp.initialize` and :func:`mssp.verify` ask a module with a factor: its value by a plan.

    ``what`` the factor is, for people.
    """

    what: str
    value: Callable[[Plan], float]

    def __call__(self, plan: Plan) -> Mapping[str, float]:
        return {FACTOR: self.value(plan)}


def scaled_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """A forward hook: the output times the module's factor; of a tuple, its first entry."""
    factor = factor_of(module)
    if factor == _NEUTRAL:
        return output
    if isinstance(output, tuple):
        return (output[0] * factor, *output[1:])
    return output * factor


def attach(module: nn.Module, by_plan: FromPlan) -> None:
    """Multiply a module's output by a factor, 1 until a plan sets it.

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
    """Take the factor and its hook off again; nothing where there is none."""
    for key, hook in list(module._forward_hooks.items()):
        if hook is scaled_output:
            del module._forward_hooks[key]
    for name in (FACTOR, BY_PLAN):
        module.__dict__.pop(name, None)


def factor_of(module: nn.Module) -> float:
    """The factor on a module's output; 1 where it has none."""
    factor: float = module.__dict__.get(FACTOR, _NEUTRAL)
    return factor


Factor = tuple[nn.Module, FromPlan]


def factors_for(model: nn.Module, gates: Mapping[MoE, str]) -> Iterator[Factor]:
    """Every module whose output a plan multiplies, with the factor by the plan; ``gates`` are those of MoE layers."""
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
    head, lookup = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    return head is not None and lookup is not None and head.weight is lookup.weight


def _relative(which: Literal["aggregation", "residual", "tied_readout"], plan: Plan) -> float:
    return plan.multiplier(which, relative=True)


def _tuned_aggregation(plan: Plan) -> float:
    return plan.aggregation_mult


def _unknown_residual(plan: Plan) -> float:
    """For blocks of unknown structure: right only where the depth does not change."""
    if _relative("residual", plan) != 1.0:
        raise ValueError(
            "the plan's residual factor is not 1, and which modules of a block write to the residual stream is not "
            "known for this model: plan with the base's depth"
        )
    return 1.0


AGGREGATION = FromPlan("aggregation", partial(_relative, "aggregation"))
# Gates that are shares of one need no factor but what was tuned.
TUNED_AGGREGATION = FromPlan("aggregation", _tuned_aggregation)
RESIDUAL = FromPlan("residual", partial(_relative, "residual"))
UNKNOWN_RESIDUAL = FromPlan("residual", _unknown_residual)
LOGITS = FromPlan("tied readout", partial(_relative, "tied_readout"))


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and path.rpartition(".")[2] in names().blocks:
            yield from module


def stream_writers(block: nn.Module) -> tuple[nn.Module, ...]:
    """The modules of a block whose outputs are added to the residual stream; empty where its parts are not all known.

    With all of them multiplied by zero the block is the identity, which the tests hold every family to.
    """
    parts = {name: child for name, child in block.named_children() if any(True for _ in child.parameters())}
    words = names()
    if not set(parts) <= words.parts_of_blocks:
        return ()
    another_before_mlp = any(name in parts for name in words.norms_before_mlp)
    one_before_attention = any(name in parts for name in words.norms_before_attention)
    either = words.norms_of_either if another_before_mlp or not one_before_attention else ()
    found = []
    for written, norms in (
        (words.attentions, (*words.norms_after_attention, *either)),
        (words.mlps, words.norms_after_mlp),
    ):
        after = [parts[name] for name in norms if name in parts]
        found += after or [parts[name] for name in written if name in parts]
    return tuple(found)
