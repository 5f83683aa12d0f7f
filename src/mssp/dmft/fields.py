"""Fields of a population, and their responses to small sources.

A field has a value for each member of a population (a neuron, an expert), input and time. The equations need averages
of derivatives, the responses R(k, l) = ⟨∂X(k)/∂u(l)⟩. The source u(l) is added to another field of the same member at
an earlier time. Responses are measured: every source has a random probe ξ(l) of its own, and each field carries its
derivative along the sum of all probes. Probes are orthogonal, so ⟨∂X(k) · ξ(l)⟩ is the response.

A field X at present depends on probes of the past and, directly, on those of the present. The direct part is of order
one and overlaps with earlier probes by chance only, so it would add much noise and nothing else. Therefore responses
are measured by the derivative along probes of the *past*, and later times continue from the *full* derivative.

Sources have kinds, and each kind has derivatives of its own. A mean over infinitely many members does not depend on a
source of one member, so it has no derivatives of that kind.

Fields are [P, experts, groups, units]. An expert has many units, and a part of them is enough to measure how the expert
responds. So each group of its units has a probe of its own, as if there were as many experts. The groups of an expert
differ in derivatives only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mssp.dmft.kernels import Times
from mssp.dmft.processes import GaussianProcess, Population

FieldShape = tuple[int, int, int]  # experts, groups, units: the axes of a field after its inputs

EXPERTS, UNITS = (1,), (2, 3)  # the places of these axes in a field


@dataclass(frozen=True)
class Tangent:
    """The derivatives of a field along the probes of one kind: along those of the past, and along all of them."""

    past: Tensor
    full: Tensor

    def __add__(self, other: Tangent) -> Tangent:
        return Tangent(self.past + other.past, self.full + other.full)

    def map(self, linear: Callable[[Tensor], Tensor]) -> Tangent:
        return Tangent(linear(self.past), linear(self.full))


@dataclass(frozen=True)
class Field:
    """The present values of a field, [P, experts, groups, units] (1 where it has no such axis), and its tangents."""

    value: Tensor
    tangents: Mapping[str, Tangent] = field(default_factory=dict)

    def __add__(self, other: Field) -> Field:
        return Field(self.value + other.value, _summed([self.tangents, other.tangents]))

    def __mul__(self, factor: float) -> Field:
        return self._map(lambda x: x * factor)

    def mixed(self, matrix: Tensor) -> Field:
        """The field multiplied by a matrix over inputs."""
        return self._map(lambda x: (matrix @ x.flatten(1)).view(-1, *x.shape[1:]))

    def aged(self) -> Field:
        """The same field one step later, when all present probes have become past ones."""
        return Field(self.value, {kind: Tangent(tangent.full, tangent.full) for kind, tangent in self.tangents.items()})

    def _map(self, linear: Callable[[Tensor], Tensor]) -> Field:
        return Field(linear(self.value), {kind: tangent.map(linear) for kind, tangent in self.tangents.items()})

    def mean(self, axes: tuple[int, ...], keeps: str) -> Field:
        """The mean over experts or units, with the derivatives of the kind ``keeps`` only.

        Derivatives are averaged over the units of a group.
        """
        tangents = {kind: tangent for kind, tangent in self.tangents.items() if kind == keeps}
        return Field(
            self.value.mean(axes, keepdim=True),
            {kind: tangent.map(lambda x: x.mean(axes[-1], keepdim=True)) for kind, tangent in tangents.items()},
        )


def pairing(first: Field, second: Field) -> Tensor:
    """⟨X_μ Y_ν⟩ at present, [P, P]; or [P, 1] or [1, P], if one field is the same for all inputs."""
    shape = torch.broadcast_shapes(first.value.shape[1:], second.value.shape[1:])
    x, y = (field.value.expand(-1, *shape).flatten(1) for field in (first, second))
    return x @ y.T / x.shape[1]


def chained(value: Tensor, partials: Iterable[tuple[Tensor, Field]]) -> Field:
    """A function of fields by the chain rule, from its value and its partial derivative by each field."""
    return Field(value, _summed([{k: t.map(slope.mul) for k, t in by.tangents.items()} for slope, by in partials]))


def _summed(field_tangents: Iterable[Mapping[str, Tangent]]) -> dict[str, Tangent]:
    sums: dict[str, Tangent] = {}
    for tangents in field_tangents:
        for kind, tangent in tangents.items():
            sums[kind] = sums[kind] + tangent if kind in sums else tangent
    return sums


class History:
    """The values and derivatives of a field at all past and present rows; a row is a time and an input."""

    def __init__(
        self, times: Times, shape: FieldShape, tangents: Mapping[str, FieldShape], device: torch.device
    ) -> None:
        self._times, self._shape, self._tangent_shapes = times, shape, tangents

        def zeros(shape: FieldShape) -> Tensor:
            return torch.zeros(times.rows, math.prod(shape), dtype=torch.float64, device=device)

        self.values = zeros(shape)
        self.tangents = {kind: zeros(tangent_shape) for kind, tangent_shape in tangents.items()}

    def append(self, present: Field) -> None:
        """Adds the present values, once in every step."""
        self.values[self._times.now] = present.value.flatten(1)
        for kind, tangent in self.tangents.items():
            if kind in present.tangents:
                tangent[self._times.now] = present.tangents[kind].full.flatten(1)

    def remembered(self, memory: Tensor) -> Field:
        """Σ_l memory(k, l) X(l), for a memory [P, rows] of the first rows."""

        def summed(rows: Tensor, shape: FieldShape) -> Tensor:
            return (memory @ rows[: memory.shape[1]]).view(len(memory), *shape)

        tangents = {kind: summed(rows, self._tangent_shapes[kind]) for kind, rows in self.tangents.items()}
        return Field(summed(self.values, self._shape), {kind: Tangent(past, past) for kind, past in tangents.items()})

    def kernel(self) -> Tensor:
        """⟨X(k) X(l)⟩ of the present with past and present, [P, rows so far]."""
        values = self.values[self._times.so_far]
        return self.values[self._times.now] @ values.T / values.shape[1]

    def largest_share(self) -> float:
        """The largest share of a single member in the present sum of squares over members, over all inputs."""
        squares = self.values[self._times.now].square()
        return float((squares.amax(1) / squares.sum(1).clamp_min(1e-300)).max())


class Source:
    """A Gaussian process that is added to a field, and the probes that measure responses to it."""

    def __init__(
        self, name: str, kind: str, population: Population, shape: FieldShape, rows: int, groups: int = 1
    ) -> None:
        self._kind, self._shape = kind, shape
        self._process = GaussianProcess(name, population, rows)
        experts, own_groups, units = shape
        self._probe_shape = (experts, groups * own_groups, units)
        self._probes = Population(
            f"{population.name}.{name}.probes", math.prod(self._probe_shape), population.seed, population.device
        ).pool("probe", rows)

    def drawn(self, kernel_rows: Tensor) -> Field:
        """Draws the next values, from their covariances with all values so far."""
        value = self._process.extended(kernel_rows).view(-1, *self._shape)
        probe = self._probes.grow(len(kernel_rows)).view(-1, *self._probe_shape)
        return Field(value, {self._kind: Tangent(torch.zeros_like(probe), probe)})

    def response_of(self, present: Field, count: int) -> Tensor:
        """⟨∂X(k)/∂u(l)⟩ of a present field to the first ``count`` values, all of them past: [P, count]."""
        probes = self._probes.rows[:count]
        if self._kind not in present.tangents:
            return torch.zeros(len(present.value), count, dtype=torch.float64, device=probes.device)
        return present.tangents[self._kind].past.flatten(1) @ probes.T / probes.shape[1]

    def response_so_far(self, present: Field, to_present: Tensor) -> Tensor:
        """The response of a present field to all past values, followed by that to present values, [P, P]."""
        past = len(self._probes.rows) - len(to_present)
        return torch.cat([self.response_of(present, past), to_present], 1)
