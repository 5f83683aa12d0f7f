"""Regime I: width and expert width grow together, N_e = ι N; the number of experts M stays.

All experts have one distribution, and differ by their noise only. The noise averages out over the many units of an
expert, so that all experts have the same ψ(k), which is not random. For a unit j of any expert:

    ψ(k)    = (σ_Q/√M) ⟨q φ¹(k)⟩ + Σ_{s<t} η c_Q Δ_l Φ¹(k,l) gψ(l)
    h²_j(k) = u²_j(k) + Σ_{s<t} [ (σ₂²/M) A¹(k,l) + η c₂ Δ_l Φ¹(k,l) ] g²_j(l)             u²_j ~ GP(σ₂² Φ¹)
    z_j(t)  = b³_j(t) + Σ_{s<t} [ (σ₃²/(ι M)) B³(t,l) + η c₃ Δ_l G³(t,s) ] x_j(l)          b³_j ~ GP((σ₃²/ι) G³)
    r       = ι ⟨z_j φ²_j⟩_j

    K³ = (σ₃²/M) Φ̄²       M³(k,s) = σ₃² A³(k,s) + η c₃ ι Σ_ν Δ_ν(s) Φ̄²(k,l)
    K¹ = (σ₂² ι/M) Ḡ²     D = σ₂² ι B² + η Δ_l (c₂ ι Ḡ² + c_Q gψ gψ)       drive(k) = (σ_Q/√M) q gψ(k)

q ~ N(0,1) is a neuron's overlap with the M rows of the initial router, (q_1 + … + q_M)/√M. It is zero for zero routers
(MSSP); under muP (router std 1/N) it moves gates away from 1/2. With softmax gates a = 1 and gψ = 0 at all times:
nothing breaks the symmetry of the experts, and the router stays uniform.
"""

from __future__ import annotations

from torch import Tensor

from mssp.dmft.fields import UNITS, Field, History, Source
from mssp.dmft.kernels import Kernel
from mssp.dmft.processes import Population
from mssp.dmft.run import Seen, Solving
from mssp.dmft.sites.experts import ExpertState
from mssp.dmft.sites.features import Features
from mssp.dmft.sites.readout import Readout

_KIND = "unit"


class RegimeOne:
    """The site of the experts in Regime I."""

    def __init__(self, run: Solving, features: Features) -> None:
        self._run = run
        times, device = run.times, run.device
        units = Population("units", run.samples.units, run.seed, device)
        sizes = (1, 1, units.members)
        self._q = features.static_row("q")
        self._u2 = Source("u2", _KIND, units, sizes, times.rows)
        self._b3 = Source("b3", _KIND, units, sizes, times.steps + 1)
        self.g_psi = History(times, (1, 1, 1), {}, device)
        self._g2 = History(times, sizes, {_KIND: sizes}, device)
        self._x = History(times, sizes, {_KIND: sizes}, device)
        self.output_kernel = Kernel(times, device)  # Φ̄²
        self.gradient_kernel = Kernel(times, device)  # Ḡ²
        self.router_kernel = Kernel(times, device)  # gψ gψ

    def forward(self, features: Features) -> Seen:
        """Computes the experts' outputs. The readout receives K³ of all rows and M³ of the present."""
        run, constants = self._run, self._run.constants
        iota, M, var = constants.expert_width_ratio, constants.experts, constants.variance
        phi1, a1 = features.kernel, features.response
        initial = features.overlap(self._q) * (var["router"] / M) ** 0.5
        psi = Field(initial.view(-1, 1, 1, 1)) + self.g_psi.remembered(run.learned("router", phi1.past))
        h2 = self._u2.drawn(var["expert_in"] * phi1.so_far) + self._g2.remembered(
            var["expert_in"] / M * a1.past + run.learned("expert_in", phi1.past)
        )
        self.experts = ExpertState.at(run, psi, h2)
        x = self.experts.outputs()
        self._x.append(x)
        self.output_kernel.set(self._x.kernel())
        a3 = self._b3.response_of(x, run.times.step)
        learned = run.over_inputs(run.learned("expert_out", self.output_kernel.past))
        return Seen(
            noise=var["expert_out"] / M * self.output_kernel.matrix,
            memory=var["expert_out"] * a3 + iota * learned,
        )

    def backward(self, readout: Readout) -> Seen:
        """Computes the experts' gradients. The features receive the present K¹ and D."""
        run, constants = self._run, self._run.constants
        iota, M, var = constants.expert_width_ratio, constants.experts, constants.variance
        z = self._b3.drawn(var["expert_out"] / iota * readout.gradient_so_far) + self._x.remembered(
            var["expert_out"] / (iota * M) * readout.response_past + run.learned("expert_out", readout.gradient_past)
        )
        g2 = self.experts.gradients(z)
        r = self.experts.pulls(z).mean(UNITS, keeps="") * iota  # a mean that depends on no single unit
        g_psi = self.experts.router_gradients(r)
        self._g2.append(g2)
        self.g_psi.append(g_psi)
        self.passed = self.experts.passed(z, g2, g_psi, iota)
        self.gradient_kernel.set(self._g2.kernel())
        self.router_kernel.set(self.g_psi.kernel())
        b2 = self._u2.response_so_far(g2, self.experts.gradient_response(z))
        return Seen(
            noise=var["expert_in"] * iota / M * self.gradient_kernel.so_far,
            memory=var["expert_in"] * iota * b2
            + iota * run.learned("expert_in", self.gradient_kernel.so_far)
            + run.learned("router", self.router_kernel.so_far),
        )

    def drive(self) -> Tensor:
        """The gradients at the features that come through the initial router, [P, features]."""
        scale: float = (self._run.constants.variance["router"] / self._run.constants.experts) ** 0.5
        return self.g_psi.values[self._run.times.now] * self._q * scale
