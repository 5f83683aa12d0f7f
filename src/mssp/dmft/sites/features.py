"""The site of the features: the equations of one neuron of the first layer, in all regimes.

    h¹_μ(t)  = u¹_μ + η c₁ Σ_{s<t,ν} Δ_ν(s) Φ⁰_μν g¹_ν(s)                     u¹ ~ GP(σ₁² Φ⁰), once
    z¹(k)    = b¹(k) + Σ_{s≤t} D(k,l) φ¹(l) + drive(k)                       b¹ ~ GP(K¹)
    g¹       = s'(h¹) z¹,    φ¹ = s(h¹)

    Φ¹(k,l) = ⟨φ¹(k) φ¹(l)⟩,   G¹(k,l) = ⟨g¹(k) g¹(l)⟩,   A¹(k,l) = ⟨∂φ¹(k)/∂b¹(l)⟩, l before k

The covariance K¹ and the memory D come from the experts and the router. There is a drive in Regime I under muP only:
the initial router then has a fixed number of rows, and a neuron's overlap with them does not average out.
"""

from __future__ import annotations

from torch import Tensor

from mssp.dmft.fields import Field, History, Source, chained, pairing
from mssp.dmft.kernels import Kernel
from mssp.dmft.processes import GaussianProcess, Population
from mssp.dmft.run import Solving
from mssp.dmft.sites.pointwise import activation_with_derivatives

_KIND = "feature"


class Features:
    """The population of features. Their fields have one expert, and the neurons are its units.

    ``pulled`` is the present ⟨φ¹_μ z¹_ν⟩, which :meth:`backward` sets.
    """

    pulled: Tensor

    def __init__(self, run: Solving) -> None:
        self._run, times = run, run.times
        self._population = Population("features", run.samples.features, run.seed, run.device)
        sizes = (1, 1, self._population.members)
        self._b = Source("b1", _KIND, self._population, sizes, times.rows)
        u = GaussianProcess("u1", self._population, times.inputs)
        self._h = Field(u.extended(run.constants.variance["embedding"] * run.input_kernel).view(-1, *sizes))
        self._phi = History(times, sizes, {_KIND: sizes}, run.device)
        self._g = History(times, sizes, {}, run.device)
        self.kernel = Kernel(times, run.device)  # Φ¹
        self.gradient_kernel = Kernel(times, run.device)  # G¹
        self.response = Kernel(times, run.device)  # A¹

    def static_row(self, name: str) -> Tensor:
        """A normal number for each neuron, which does not change with time, [1, members]."""
        return self._population.pool(name, 1).grow(1)

    def forward(self) -> None:
        """Computes the present features, their kernel and their response."""
        self._units = activation_with_derivatives(self._run.experiment.activation, self._h.value)
        phi = chained(self._units.value, [(self._units.slope, self._h)])
        self._phi.append(phi)
        self.kernel.set(self._phi.kernel())
        self.response.set_past(self._b.response_of(phi, self._run.times.past.stop))

    def overlap(self, row: Tensor) -> Tensor:
        """⟨row · φ¹⟩ at present, [P]."""
        return self._phi.values[self._run.times.now] @ row[0] / row.shape[1]

    def backward(self, noise: Tensor, memory: Tensor, drive: Tensor | None) -> None:
        """Computes the features' gradients from the present K¹ and D, [P, rows so far], and takes their step."""
        run = self._run
        z = self._b.drawn(noise) + self._phi.remembered(memory)
        if drive is not None:
            z = z + Field(drive.view(-1, 1, 1, self._population.members))
        g = chained(self._units.slope * z.value, [(self._units.curvature * z.value, self._h), (self._units.slope, z)])
        self.pulled = pairing(Field(self._units.value), z)
        self._g.append(g)
        self.gradient_kernel.set(self._g.kernel())
        step = run.constants.rate["embedding"] * run.input_kernel * run.errors_now
        self._h = self._h + g.mixed(step).aged()
