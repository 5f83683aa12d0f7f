"""Activations and gates, evaluated element by element together with their first two derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.nn.activations import activation


@dataclass(frozen=True)
class ValueAndDerivatives:
    """The value, slope and curvature of a function at many points."""

    value: Tensor
    slope: Tensor
    curvature: Tensor


def activation_with_derivatives(name: str, points: Tensor) -> ValueAndDerivatives:
    """The activation of that name at some points; autograd differentiates those that have no closed form below.

    >>> tanh = activation_with_derivatives("tanh", torch.zeros(1, dtype=torch.float64))
    >>> tanh.value.item(), tanh.slope.item(), tanh.curvature.item()
    (0.0, 1.0, -0.0)
    """
    return _CLOSED_FORM[name](points) if name in _CLOSED_FORM else with_autograd_derivatives(activation(name), points)


def with_autograd_derivatives(function: Callable[[Tensor], Tensor], points: Tensor) -> ValueAndDerivatives:
    """A function, which autograd must be able to differentiate twice, at some points."""
    with torch.enable_grad():
        points = points.detach().requires_grad_()
        value = function(points)
        slope = _derivative(value, points)
        curvature = _derivative(slope, points)
    return ValueAndDerivatives(value.detach(), slope.detach(), curvature.detach())


def _derivative(values: Tensor, points: Tensor) -> Tensor:
    if not values.requires_grad:  # the values do not depend on the points, like the slope of a straight line
        return torch.zeros_like(points)
    (derivative,) = torch.autograd.grad(values.sum(), points, create_graph=True, materialize_grads=True)
    return derivative


def _gelu(x: Tensor) -> ValueAndDerivatives:
    cdf = torch.special.ndtr(x)
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return ValueAndDerivatives(x * cdf, cdf + x * density, (2 - x * x) * density)


def _identity(x: Tensor) -> ValueAndDerivatives:
    return ValueAndDerivatives(x, torch.ones_like(x), torch.zeros_like(x))


def sigmoid(x: Tensor) -> ValueAndDerivatives:
    """The sigmoid of gates, in closed form. It is no activation of experts, so the table below does not name it."""
    value = torch.sigmoid(x)
    slope = value * (1 - value)
    return ValueAndDerivatives(value, slope, slope * (1 - 2 * value))


# Autograd takes some ten times as long, and solving one limit evaluates these functions tens of millions of times.
_CLOSED_FORM: dict[str, Callable[[Tensor], ValueAndDerivatives]] = {"gelu": _gelu, "identity": _identity}
