"""One expert and its units, in all regimes: outputs, gradients, and their responses to sources.

    φ² = s(h²),   x = a φ²                    the output of a unit, times the expert's gate
    g² = a s'(h²) z                           the gradient at its pre-activation
    r  = Σ_units z φ²                         the gradient at the gate (a mean if units are infinitely many)
    gψ = a'(ψ) r                              the gradient at the router's logit

ψ is [P, experts, 1, 1] and h² is [P, experts, groups, units]. z is the gradient at the expert's output, which comes
through the weights behind it; it is the same for all inputs, [1, experts, groups, units].

The gates of a population of experts are

    sigmoid   a = σ(ψ)
    top-K     a = σ(ψ) where ψ is among the K/M largest of the population, else 0
    softmax   a = exp ψ / ⟨exp ψ⟩, M times a finite model's gate

A gate's derivative occurs in two places, and under top-K the two differ. Gradient descent takes the choice of experts
as fixed, and sees the slope of the chosen gates. But a source that moves ψ also moves experts over the threshold. There
a jumps from 0 to a whole gate: its derivative is a point mass, smoothed here over a narrow window (``_WINDOW``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.dmft.fields import Field, chained, pairing
from mssp.dmft.run import Passed, Solving
from mssp.dmft.sites.pointwise import ValueAndDerivatives, activation_with_derivatives, sigmoid

_WINDOW = 0.4  # standard deviations of ψ: beyond 0.15, a wider window changes no results, and lowers the noise


@dataclass(frozen=True)
class Gates:
    """The gates of a population, [P, experts, 1, 1], and their derivatives by ψ.

    Args:
        value: a.
        slope: a', as backpropagation sees it.
        response: the derivative of a by a source on ψ.
        slope_response: the derivative of ``slope`` by a source on ψ.
        shares: whether gates sum to a constant, so that the mean gradient over experts is subtracted from each.
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

    >>> both = gates("sigmoid", torch.zeros(1, 2, 1, 1))
    >>> both.value.flatten().tolist(), both.slope.flatten().tolist()
    ([0.5, 0.5], [0.25, 0.25])
    """
    if kind == "softmax":
        value = torch.softmax(psi, 1) * psi.shape[1]
        return Gates(value, value, value, value, shares=True)
    soft = sigmoid(psi)
    if active_share == 1:
        return Gates(soft.value, soft.slope, soft.slope, soft.curvature)
    unchosen = psi.shape[1] - max(round(active_share * psi.shape[1]), 1)
    below, above = (psi.kthvalue(max(rank, 1), dim=1, keepdim=True).values for rank in (unchosen, unchosen + 1))
    threshold = (below + above) / 2
    chosen = (psi > threshold).to(psi.dtype)
    # The density of the threshold's window at ψ, which stands for the point mass.
    width = _WINDOW * psi.std(1, keepdim=True) + 1e-300
    near = torch.exp(-0.5 * ((psi - threshold) / width) ** 2) / (width * math.sqrt(2 * math.pi))
    at_threshold = sigmoid(threshold)
    return Gates(
        value=chosen * soft.value,
        slope=chosen * soft.slope,
        response=chosen * soft.slope + near * at_threshold.value,
        slope_response=chosen * soft.curvature + near * at_threshold.slope,
    )


@dataclass(frozen=True)
class ExpertState:
    """The present state of a population of experts."""

    psi: Field
    h: Field
    gates: Gates
    units: ValueAndDerivatives

    @classmethod
    def at(cls, run: Solving, psi: Field, h: Field) -> ExpertState:
        """The state of experts whose logits are ψ and whose pre-activations are h²."""
        experiment = run.experiment
        share = experiment.plan.target.active / experiment.plan.target.experts
        units = activation_with_derivatives(experiment.activation, h.value)
        return cls(psi, h, gates(experiment.gate, psi.value, share), units)

    def outputs(self) -> Field:
        """x."""
        a, phi = self.gates, self.units
        return chained(a.value * phi.value, [(a.response * phi.value, self.psi), (a.value * phi.slope, self.h)])

    def gradients(self, z: Field) -> Field:
        """g²."""
        a, phi = self.gates, self.units
        return chained(
            a.value * phi.slope * z.value,
            [
                (a.response * phi.slope * z.value, self.psi),
                (a.value * phi.curvature * z.value, self.h),
                (a.value * phi.slope, z),
            ],
        )

    def pulls(self, z: Field) -> Field:
        """z φ²; its sum over units is r."""
        phi = self.units
        return chained(z.value * phi.value, [(z.value * phi.slope, self.h), (phi.value, z)])

    def router_gradients(self, r: Field) -> Field:
        """gψ."""
        a = self.gates
        return chained(a.router_gradient(r.value), [(a.equal_time_response(r.value), self.psi), (a.slope, r)])

    def passed(self, z: Field, g2: Field, g_psi: Field, units: float) -> Passed:
        """⟨Σ x z⟩ and ⟨Σ h² g²⟩ + ⟨ψ gψ⟩, with sums over so many units; the layers around them compute the same."""
        x = Field(self.gates.value * self.units.value)
        return Passed(
            outputs=units * pairing(x, z)[:, 0],
            features=units * pairing(self.h, g2) + pairing(self.psi, g_psi),
        )

    # At equal times no input responds to another, so these responses are derivatives and need no probes.

    def gradient_response(self, z: Field) -> Tensor:
        """⟨∂g²/∂h²⟩ at one time, [P, P]."""
        return torch.diag((self.gates.value * self.units.curvature * z.value).flatten(1).mean(1))

    def router_response(self, r: Field) -> Tensor:
        """⟨∂gψ/∂ψ⟩ at one time, [P, P]."""
        return torch.diag(self.gates.equal_time_response(r.value).flatten(1).mean(1))
