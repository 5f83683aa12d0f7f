"""The site of the readout: the equations of one neuron of the last layer, in all regimes.

    h³(k)    = u³(k) + Σ_{s<t} M³(k,s) v(s)                                   u³ ~ GP(K³)
    v(t+1)   = v(t) + η c₄ Σ_μ Δ_μ(t) h³_μ(t)                                 v(0) ~ N(0, σ₄²)
    f_μ(t)   = ⟨v(t) h³_μ(t)⟩

    G³(t,s) = ⟨v(t) v(s)⟩,   Φ³(k,l) = ⟨h³(k) h³(l)⟩,   B³(t,l) = ∂v(t)/∂u³(l)

The site is linear in its noise, so nothing is sampled: h³ and v are kept as combinations of u³ and v(0), and averages
are quadratic forms in K³ and σ₄².
"""

from __future__ import annotations

import torch
from torch import Tensor

from mssp.dmft.run import Solving


class Readout:
    """The neurons of the last layer, as combinations of their noise u³ and their initial weight v(0)."""

    def __init__(self, run: Solving) -> None:
        self._run = run
        rows, steps = run.times.rows, run.times.steps + 1

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(*sizes, dtype=torch.float64, device=run.device)

        self._h_by_u, self._h_by_v0 = zeros(rows, rows), zeros(rows)
        self._v_by_u, self._v_by_v0 = zeros(steps + 1, rows), zeros(steps + 1)
        self._v_by_v0[0] = 1.0
        self._noise = zeros(rows, rows)  # K³
        self.f = zeros(steps, run.times.inputs)
        self.kernel = zeros(rows, rows)  # Φ³
        self.gradient_kernel = zeros(steps, steps)  # G³

    def forward(self, noise: Tensor, memory: Tensor) -> None:
        """Computes the present outputs, from all of K³, [rows, rows], and the present M³, [P, past steps]."""
        times, t = self._run.times, self._run.times.step
        self._noise = noise
        self._h_by_u[times.now] = memory @ self._v_by_u[:t]
        self._h_by_u[times.now, times.now] += torch.eye(times.inputs, dtype=torch.float64, device=noise.device)
        self._h_by_v0[times.now] = memory @ self._v_by_v0[:t]
        self.f[t] = self._overlap(self._v_by_u[t], self._v_by_v0[t], self._h_by_u[times.now], self._h_by_v0[times.now])
        self._run.set_errors(self.f[t])
        with_earlier = self._overlap(self._v_by_u[t], self._v_by_v0[t], self._v_by_u[: t + 1], self._v_by_v0[: t + 1])
        self.gradient_kernel[t, : t + 1] = self.gradient_kernel[: t + 1, t] = with_earlier
        so_far = times.so_far
        present_rows = [
            self._overlap(self._h_by_u[row], self._h_by_v0[row], self._h_by_u[so_far], self._h_by_v0[so_far])
            for row in range(times.now.start, times.now.stop)
        ]
        self.kernel[times.now, so_far] = torch.stack(present_rows)
        self.kernel[so_far, times.now] = torch.stack(present_rows).T

    def step(self) -> None:
        """Takes the step of v."""
        times, t = self._run.times, self._run.times.step
        moved = self._run.constants.rate["readout"] * self._run.errors_now
        self._v_by_u[t + 1] = self._v_by_u[t] + moved @ self._h_by_u[times.now]
        self._v_by_v0[t + 1] = self._v_by_v0[t] + moved @ self._h_by_v0[times.now]

    @property
    def gradient_past(self) -> Tensor:
        """G³(t, s) at the past rows (s, ν), [1, past rows]; it is the same for all inputs ν."""
        t = self._run.times.step
        return self.gradient_kernel[t, :t].repeat_interleave(self._run.times.inputs).unsqueeze(0)

    @property
    def gradient_so_far(self) -> Tensor:
        """G³(t, s) at the steps so far, [1, steps so far]."""
        t = self._run.times.step
        return self.gradient_kernel[t, : t + 1].unsqueeze(0)

    @property
    def response_past(self) -> Tensor:
        """B³(t, l) at the past rows l, [1, past rows]."""
        return self._v_by_u[self._run.times.step, self._run.times.past].unsqueeze(0)

    def _overlap(self, by_u: Tensor, by_v0: Tensor, others_by_u: Tensor, others_by_v0: Tensor) -> Tensor:
        """⟨X Y⟩ of a combination X with several combinations Y."""
        variance = self._run.constants.variance["readout"]
        return others_by_u @ (self._noise @ by_u) + variance * by_v0 * others_by_v0
