"""Functions of one number with their first two derivatives: activations and gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.nn.activations import activation


@dataclass(frozen=True)
class Bent:
    """The value, slope and curvature of a function at many places."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def activated(name: str, at: Tensor) -> Bent:
    """An activation, by name; derivatives that are not written out below come from autograd.

    >>> bent = activated("tanh", torch.zeros(1, dtype=torch.float64))
    >>> bent.value.item(), bent.slope.item(), bent.curvature.item()
    (0.0, 1.0, -0.0)
    """
    return _WRITTEN_OUT[name](at) if name in _WRITTEN_OUT else differentiated(activation(name), at)


def differentiated(function: Callable[[Tensor], Tensor], at: Tensor) -> Bent:
    """Any function that autograd can differentiate twice."""
    with torch.enable_grad():
        place = at.detach().requires_grad_()
        value = function(place)
        slope = _gradient(value, place)
        curvature = _gradient(slope, place)
    return Bent(value.detach(), slope.detach(), curvature.detach())


def _gradient(of: Tensor, place: Tensor) -> Tensor:
    if not of.requires_grad:
        return torch.zeros_like(place)
    (gradient,) = torch.autograd.grad(of.sum(), place, create_graph=True, materialize_grads=True)
    return gradient


def _gelu(x: Tensor) -> Bent:
    below = torch.special.ndtr(x)
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return Bent(x * below, below + x * density, (2 - x * x) * density)


def _identity(x: Tensor) -> Bent:
    return Bent(x, torch.ones_like(x), torch.zeros_like(x))


def sigmoid(x: Tensor) -> Bent:
    value = torch.sigmoid(x)
    slope = value * (1 - value)
    return Bent(value, slope, slope * (1 - 2 * value))


# Autograd takes some ten times as long, and a solution evaluates these functions tens of millions of times.
_WRITTEN_OUT: dict[str, Callable[[Tensor], Bent]] = {"gelu": _gelu, "identity": _identity}
