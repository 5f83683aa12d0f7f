"""Factors of the forward pass in models that have no place for them: a hook that multiplies what a module returns.

The factor is a plain number on the module, and the hook a plain function that reads it. So both are copied with the
module, compiled with it, kept by FSDP and taken off again; nothing is attached to a parameter. A model that is built
anew from a checkpoint has neither: attach them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

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
