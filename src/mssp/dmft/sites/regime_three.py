"""Regime III: width, expert width and the number of experts grow together, M = κ N and N_e = ι N.

Experts i and units j are two populations, and every expert has every unit. Under MSSP all experts start equal. The
units j of all experts then share their noise (u²_j, b³_j) and a process χ_j, the paper's shared expert-hidden process.
The averages over experts, m_j and ḡ_j, enter ζ_j and χ_j; averages over units enter ψ_i.

    ψ_i(k)   = u^ψ_i(k) + Σ_{s<t} [ (σ_Q²/κ) A¹(k,l) + η c_Q Δ_l Φ¹(k,l) ] gψ_i(l)        u^ψ_i ~ GP(σ_Q² Φ¹)
    χ_j(k)   = u²_j(k)  + τ Σ_{s<t} σ₂² A¹(k,l) ḡ_j(l)                                    u²_j ~ GP(σ₂² Φ¹)
    h²_ij(k) = χ_j(k)   + Σ_{s<t} η c₂ Δ_l Φ¹(k,l) g²_ij(l)
    ζ_j(t)   = b³_j(t)  + τ Σ_{s<t} (σ₃²/ι) B³(t,l) m_j(l)                                b³_j ~ GP((σ₃²/ι) G³)
    z_ij(t)  = ζ_j(t)   + Σ_{s<t} η c₃ Δ_l G³(t,s) x_ij(l)
    r_i      = ι ⟨z_ij φ²_ij⟩_j,      m_j = ⟨x_ij⟩_i,      ḡ_j = ⟨g²_ij⟩_i

    K³ = τ σ₃² ⟨m_j m_j⟩         M³(k,s) = σ₃² A³(k,s) + η c₃ ι Σ_ν Δ_ν(s) Φ̄²(k,l)
    K¹ = τ σ₂² ι ⟨ḡ_j ḡ_j⟩ + (σ_Q²/κ) G^ψ
    D  = σ₂² ι B² + σ_Q² B^ψ + η Δ_l (c₂ ι Ḡ² + c_Q G^ψ)

τ is 1 for experts that start equal (MSSP) and 0 for experts that start different (muP). The noise of different experts
averages out, so that only the distribution of (u², b³) matters, and experts share the draws of it here too.

There are two kinds of sources: a source on one unit does not move ψ_i, which is an average over all units, and a source
on one expert's ψ does not move χ_j and ζ_j.
"""

from __future__ import annotations

import math

from mssp.dmft.fields import EXPERTS, UNITS, History, Source
from mssp.dmft.kernels import Kernel
from mssp.dmft.processes import Population
from mssp.dmft.run import Seen, Solving
from mssp.dmft.sites.experts import ExpertState
from mssp.dmft.sites.features import Features
from mssp.dmft.sites.readout import Readout

_EXPERT, _UNIT = "expert", "unit"
_GROUPS = 16  # groups of units, each with a probe of its own, which measure the response to an expert's ψ


class RegimeThree:
    """The site of the experts in Regime III."""

    def __init__(self, run: Solving) -> None:
        self._run = run
        times, samples, device = run.times, run.samples, run.device
        experts = Population("experts", samples.experts, run.seed, device)
        units = Population("units", samples.units, run.seed, device)
        groups = math.gcd(samples.units, _GROUPS)
        in_group = samples.units // groups
        of_experts, of_groups = (samples.experts, 1, 1), (samples.experts, groups, 1)
        of_units, grid = (1, groups, in_group), (samples.experts, groups, in_group)
        self._u_psi = Source("router", _EXPERT, experts, of_experts, times.rows, groups)
        self._u2 = Source("u2", _UNIT, units, of_units, times.rows)
        self._b3 = Source("b3", _UNIT, units, of_units, times.steps + 1)
        self.g_psi = History(times, of_experts, {_EXPERT: of_groups}, device)
        self._g2 = History(times, grid, {_EXPERT: grid, _UNIT: grid}, device)
        self._x = History(times, grid, {_EXPERT: grid, _UNIT: grid}, device)
        self._g2_mean = History(times, of_units, {_UNIT: of_units}, device)  # ḡ_j
        self._x_mean = History(times, of_units, {_UNIT: of_units}, device)  # m_j
        self.output_kernel = Kernel(times, device)  # Φ̄²
        self.gradient_kernel = Kernel(times, device)  # Ḡ²
        self.router_kernel = Kernel(times, device)  # G^ψ
        self._shared_outputs = Kernel(times, device)  # ⟨m_j m_j⟩
        self._shared_gradients = Kernel(times, device)  # ⟨ḡ_j ḡ_j⟩

    def forward(self, features: Features) -> Seen:
        """Computes the experts' outputs. The readout receives K³ of all rows and M³ of the present."""
        run, constants = self._run, self._run.constants
        kappa, iota = constants.experts_per_width, constants.expert_width_ratio
        var, tied = constants.variance, float(constants.tied)
        phi1, a1 = features.kernel, features.response
        psi = self._u_psi.drawn(var["router"] * phi1.so_far) + self.g_psi.remembered(
            var["router"] / kappa * a1.past + run.learned("router", phi1.past)
        )
        chi = self._u2.drawn(var["expert_in"] * phi1.so_far) + self._g2_mean.remembered(
            tied * var["expert_in"] * a1.past
        )
        h2 = chi + self._g2.remembered(run.learned("expert_in", phi1.past))
        self.experts = ExpertState.at(run, psi, h2)
        x = self.experts.outputs()
        x_mean = x.mean(EXPERTS, keeps=_UNIT)
        self._x.append(x)
        self._x_mean.append(x_mean)
        self.output_kernel.set(self._x.kernel())
        self._shared_outputs.set(self._x_mean.kernel())
        a3 = self._b3.response_of(x_mean, run.times.step)
        learned = run.over_inputs(run.learned("expert_out", self.output_kernel.past))
        return Seen(
            noise=tied * var["expert_out"] * self._shared_outputs.matrix,
            memory=var["expert_out"] * a3 + iota * learned,
        )

    def backward(self, readout: Readout) -> Seen:
        """Computes the experts' gradients. The features receive the present K¹ and D."""
        run, constants = self._run, self._run.constants
        kappa, iota = constants.experts_per_width, constants.expert_width_ratio
        var, tied = constants.variance, float(constants.tied)
        zeta = self._b3.drawn(var["expert_out"] / iota * readout.gradient_so_far) + self._x_mean.remembered(
            tied * var["expert_out"] / iota * readout.response_past
        )
        z = zeta + self._x.remembered(run.learned("expert_out", readout.gradient_past))
        g2 = self.experts.gradients(z)
        g2_mean = g2.mean(EXPERTS, keeps=_UNIT)
        r = self.experts.pulls(z).mean(UNITS, keeps=_EXPERT) * iota
        g_psi = self.experts.router_gradients(r)
        self._g2.append(g2)
        self._g2_mean.append(g2_mean)
        self.g_psi.append(g_psi)
        self.passed = self.experts.passed(z, g2, g_psi, iota)
        self.gradient_kernel.set(self._g2.kernel())
        self.router_kernel.set(self.g_psi.kernel())
        self._shared_gradients.set(self._g2_mean.kernel())
        b_psi = self._u_psi.response_so_far(g_psi, self.experts.router_response(r))
        b2 = self._u2.response_so_far(g2_mean, self.experts.gradient_response(z))
        return Seen(
            noise=tied * var["expert_in"] * iota * self._shared_gradients.so_far
            + var["router"] / kappa * self.router_kernel.so_far,
            memory=var["expert_in"] * iota * b2
            + var["router"] * b_psi
            + iota * run.learned("expert_in", self.gradient_kernel.so_far)
            + run.learned("router", self.router_kernel.so_far),
        )

    def drive(self) -> None:
        """Nothing: the initial router has many rows, and overlaps with them average out."""
