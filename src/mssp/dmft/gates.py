"""Gates over a whole population of experts.

    sigmoid   a = σ(ψ)
    top-K     a = σ(ψ) where ψ is among the K/M largest of the population, else 0
    softmax   a = exp ψ / ⟨exp ψ⟩, M times a finite model's gate

A gate's derivative occurs twice, and under top-K it is not the same. Gradient descent takes the choice of experts as
given: its slope is that of the chosen. But a source that moves ψ also moves experts over the threshold, which changes
a by a whole gate for the few that are there: a point mass, smoothed here over a narrow window (``_WINDOW``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.dmft.pointwise import sigmoid

_WINDOW = 0.4  # of the standard deviation of ψ: results do not move from 0.15 on, and noise does


@dataclass(frozen=True)
class Gates:
    """Gates of a population, [P, experts, 1, 1], and how they change with ψ.

    Args:
        value: a.
        slope: a', as backpropagation sees it.
        response: by how much a changes with a source on ψ.
        slope_response: by how much ``slope`` does.
        shares: whether they are shares of a whole, so that a gate's gradient is relative to the others'.
    """

    value: Tensor
    slope: Tensor
    response: Tensor
    slope_response: Tensor
    shares: bool = False

    def router_gradient(self, r: Tensor) -> Tensor:
        """gψ = M ∂f/∂ψ from r = M ∂f/∂a."""
        return self.slope * self._relative(r)

    def equal_time_response(self, r: Tensor) -> Tensor:
        """∂gψ/∂ψ at the same time and input."""
        return self.slope_response * self._relative(r)

    def _relative(self, r: Tensor) -> Tensor:
        return r - (self.value * r).mean(1, keepdim=True) if self.shares else r


def gates(kind: str, psi: Tensor, active_share: float = 1.0) -> Gates:
    """The gates of logits ψ, [P, experts, 1, 1].

    >>> found = gates("sigmoid", torch.zeros(1, 2, 1, 1))
    >>> found.value.flatten().tolist(), found.slope.flatten().tolist()
    ([0.5, 0.5], [0.25, 0.25])
    """
    if kind == "softmax":
        value = torch.softmax(psi, 1) * psi.shape[1]
        return Gates(value, value, value, value, shares=True)
    bent = sigmoid(psi)
    if active_share == 1:
        return Gates(bent.value, bent.slope, bent.slope, bent.curvature)
    passed_over = psi.shape[1] - max(round(active_share * psi.shape[1]), 1)
    below, above = (psi.kthvalue(max(rank, 1), dim=1, keepdim=True).values for rank in (passed_over, passed_over + 1))
    threshold = (below + above) / 2
    chosen = (psi > threshold).to(psi.dtype)
    # Experts near the threshold, as a density per unit of ψ.
    width = _WINDOW * psi.std(1, keepdim=True) + 1e-300
    near = torch.exp(-0.5 * ((psi - threshold) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    there = sigmoid(threshold)
    return Gates(
        value=chosen * bent.value,
        slope=chosen * bent.slope,
        response=chosen * bent.slope + near * there.value,
        slope_response=chosen * bent.curvature + near * there.slope,
    )
