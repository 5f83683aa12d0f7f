"""One expert and its units: what it puts out, what comes back to it, and how both respond; in all regimes.

    φ² = s(h²),   x = a φ²                    what a unit puts out, times the expert's gate
    g² = a s'(h²) z                           what comes back to its pre-activation
    r  = Σ_units z φ²                         what comes back to the gate (a mean where units are many)
    gψ = a'(ψ) r                              what comes back to the router's logit

ψ is [P, experts, 1, 1] and h² is [P, experts, groups, units]. z is what comes back to the expert's output through its
weights; it is the same for all inputs, [1, experts, groups, units].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.dmft.fields import Field, chained, pairing
from mssp.dmft.gates import Gates, gates
from mssp.dmft.pointwise import Bent, activated
from mssp.dmft.run import Passed, Run


@dataclass(frozen=True)
class Experts:
    """The present of a population of experts."""

    psi: Field
    h: Field
    gates: Gates
    bent: Bent

    @classmethod
    def at(cls, run: Run, psi: Field, h: Field) -> Experts:
        experiment = run.experiment
        share = experiment.plan.target.active / experiment.plan.target.experts
        return cls(psi, h, gates(experiment.gate, psi.value, share), activated(experiment.activation, h.value))

    def outputs(self) -> Field:
        """x."""
        a, phi = self.gates, self.bent
        return chained(a.value * phi.value, [(a.response * phi.value, self.psi), (a.value * phi.slope, self.h)])

    def gradients(self, z: Field) -> Field:
        """g²."""
        a, phi = self.gates, self.bent
        return chained(
            a.value * phi.slope * z.value,
            [
                (a.response * phi.slope * z.value, self.psi),
                (a.value * phi.curvature * z.value, self.h),
                (a.value * phi.slope, z),
            ],
        )

    def pulls(self, z: Field) -> Field:
        """z φ², whose sum over units is r."""
        phi = self.bent
        return chained(z.value * phi.value, [(z.value * phi.slope, self.h), (phi.value, z)])

    def router_gradients(self, r: Field) -> Field:
        """gψ."""
        a = self.gates
        return chained(a.router_gradient(r.value), [(a.equal_time_response(r.value), self.psi), (a.slope, r)])

    def passed(self, z: Field, g2: Field, g_psi: Field, units: float) -> Passed:
        """⟨Σ x z⟩ and ⟨Σ h² g²⟩ + ⟨ψ gψ⟩, sums over so many units: what the layers around the experts must find too."""
        x = Field(self.gates.value * self.bent.value)
        return Passed(
            outputs=units * pairing(x, z)[:, 0],
            features=units * pairing(self.h, g2) + pairing(self.psi, g_psi),
        )

    # Responses at one time and input, which need no probes.

    def gradient_response(self, z: Field) -> Tensor:
        """⟨∂g²/∂h²⟩, [P, P]: no input responds to another at the same time."""
        return torch.diag((self.gates.value * self.bent.curvature * z.value).flatten(1).mean(1))

    def router_response(self, r: Field) -> Tensor:
        """⟨∂gψ/∂ψ⟩, [P, P]."""
        return torch.diag(self.gates.equal_time_response(r.value).flatten(1).mean(1))
