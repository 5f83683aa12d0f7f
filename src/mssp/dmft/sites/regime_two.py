"""Regime II: width and the number of experts grow together, M = κ N; an expert keeps its N_e units.

An expert is one member of a population. It has its own router noise u^ψ and, for each of its units j, u²_j and b³_j:

    ψ(k)   = u^ψ(k)  + Σ_{s<t} [ (σ_Q²/κ) A¹(k,l) + η c_Q Δ_l Φ¹(k,l) ] gψ(l)             u^ψ ~ GP(σ_Q² Φ¹)
    h²_j(k) = u²_j(k) + Σ_{s<t} [ (σ₂²/κ) A¹(k,l) + η c₂ Δ_l Φ¹(k,l) ] g²_j(l)            u²_j ~ GP(σ₂² Φ¹)
    z_j(t) = b³_j(t) + Σ_{s<t} [ (σ₃²/N_e) B³(t,l) + η c₃ Δ_l G³(t,s) ] x_j(l)            b³_j ~ GP((κ σ₃²/N_e) G³)
    r      = Σ_j z_j φ²_j

The two layers around the experts receive:

    K³ = σ₃² Φ̄²           M³(k,s) = κ σ₃² A³(k,s) + η c₃ N_e Σ_ν Δ_ν(s) Φ̄²(k,l)
    K¹ = (σ_Q² G^ψ + σ₂² N_e Ḡ²)/κ
    D  = σ_Q² B^ψ + σ₂² N_e B² + η Δ_l (c_Q G^ψ + c₂ N_e Ḡ²)

Under muP σ₃² vanishes in the limit: initial experts average out, and nothing passes through their initial weights,
neither forward (K³, A³) nor back (b³, B³). Under MSSP σ₃² stays.
"""

from __future__ import annotations

from mssp.dmft.fields import UNITS, History, Source
from mssp.dmft.kernels import Kernel
from mssp.dmft.processes import Population
from mssp.dmft.run import Seen, Solving
from mssp.dmft.sites.experts import ExpertState
from mssp.dmft.sites.features import Features
from mssp.dmft.sites.readout import Readout

_KIND = "expert"  # the only kind of sources: a source on one part of an expert moves all of its parts


class RegimeTwo:
    """The site of the experts in Regime II."""

    def __init__(self, run: Solving) -> None:
        self._run = run
        times, samples, device = run.times, run.samples, run.device
        units_per_expert = run.constants.expert_width
        experts = Population("experts", samples.experts, run.seed, device)
        units = Population("units", samples.experts * units_per_expert, run.seed, device)
        of_experts, of_units = (samples.experts, 1, 1), (samples.experts, 1, units_per_expert)
        self._u_psi = Source("router", _KIND, experts, of_experts, times.rows)
        self._u2 = Source("u2", _KIND, units, of_units, times.rows)
        self._b3 = Source("b3", _KIND, units, of_units, times.steps + 1)
        self.g_psi = History(times, of_experts, {_KIND: of_experts}, device)
        self._g2 = History(times, of_units, {_KIND: of_units}, device)
        self._x = History(times, of_units, {_KIND: of_units}, device)
        self.output_kernel = Kernel(times, device)  # Φ̄²
        self.gradient_kernel = Kernel(times, device)  # Ḡ²
        self.router_kernel = Kernel(times, device)  # G^ψ

    def forward(self, features: Features) -> Seen:
        """Computes the experts' outputs. The readout receives K³ of all rows and M³ of the present."""
        run, constants = self._run, self._run.constants
        kappa, var, units = constants.experts_per_width, constants.variance, constants.expert_width
        phi1, a1 = features.kernel, features.response
        psi = self._u_psi.drawn(var["router"] * phi1.so_far) + self.g_psi.remembered(
            var["router"] / kappa * a1.past + run.learned("router", phi1.past)
        )
        h2 = self._u2.drawn(var["expert_in"] * phi1.so_far) + self._g2.remembered(
            var["expert_in"] / kappa * a1.past + run.learned("expert_in", phi1.past)
        )
        self.experts = ExpertState.at(run, psi, h2)
        x = self.experts.outputs()
        self._x.append(x)
        self.output_kernel.set(self._x.kernel())
        a3 = self._b3.response_of(x, run.times.step)
        learned = run.over_inputs(run.learned("expert_out", self.output_kernel.past))
        return Seen(
            noise=var["expert_out"] * self.output_kernel.matrix,
            memory=kappa * var["expert_out"] * a3 + units * learned,
        )

    def backward(self, readout: Readout) -> Seen:
        """Computes the experts' gradients. The features receive the present K¹ and D."""
        run, constants = self._run, self._run.constants
        kappa, var, units = constants.experts_per_width, constants.variance, constants.expert_width
        z = self._b3.drawn(kappa * var["expert_out"] / units * readout.gradient_so_far) + self._x.remembered(
            var["expert_out"] / units * readout.response_past + run.learned("expert_out", readout.gradient_past)
        )
        g2 = self.experts.gradients(z)
        r = self.experts.pulls(z).mean(UNITS, keeps=_KIND) * units
        g_psi = self.experts.router_gradients(r)
        self._g2.append(g2)
        self.g_psi.append(g_psi)
        self.passed = self.experts.passed(z, g2, g_psi, units)
        self.gradient_kernel.set(self._g2.kernel())
        self.router_kernel.set(self.g_psi.kernel())
        b_psi = self._u_psi.response_so_far(g_psi, self.experts.router_response(r))
        b2 = self._u2.response_so_far(g2, self.experts.gradient_response(z))
        g_psi_kernel, g2_kernel = self.router_kernel.so_far, units * self.gradient_kernel.so_far
        return Seen(
            noise=(var["router"] * g_psi_kernel + var["expert_in"] * g2_kernel) / kappa,
            memory=var["router"] * b_psi
            + var["expert_in"] * units * b2
            + run.learned("router", g_psi_kernel)
            + run.learned("expert_in", g2_kernel),
        )

    def drive(self) -> None:
        """Nothing: the initial router has many rows, and overlaps with them average out."""
