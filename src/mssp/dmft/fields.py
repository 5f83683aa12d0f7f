"""Fields of a population, with how they respond to small sources.

The equations need averages of derivatives, R(k, l) = ⟨∂X(k)/∂u(l)⟩, where u(l) is a source added to another field of
the same member at an earlier time. They are measured: every source gets a random probe ξ(l) of its own, each field
carries its derivative along all probes together, and since probes do not overlap, ⟨∂X(k) · ξ(l)⟩ is the response.

A field X at present depends on probes of the past and, directly, on those of the present. The direct part is of order
one and has no overlap with earlier probes but by chance, so that it would be noise, and mostly that: what is measured
is the derivative along probes of the *past*, while later times go on from the *full* derivative.

Sources come in kinds, which are differentiated apart. Where a sum over infinitely many members does not notice one of
them, derivatives of that kind end.

Fields are [P, experts, groups, units]. An expert has many units, and a part of them is enough to see how the expert
responds: each group of its units answers to a probe of its own, as if there were as many experts. Values are the same
in all groups, so that groups of units are for derivatives only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mssp.dmft.kernels import Times
from mssp.dmft.processes import GaussianProcess, Population

Sizes = tuple[int, int, int]  # experts, groups, units

EXPERTS, UNITS = (1,), (2, 3)  # axes of a field; the first one is inputs


@dataclass(frozen=True)
class Tangent:
    """A derivative along the probes of one kind: along those of the past, and along all of them."""

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
        """A matrix over inputs, applied."""
        return self._map(lambda x: (matrix @ x.flatten(1)).view(-1, *x.shape[1:]))

    def aged(self) -> Field:
        """The same, one step later: all probes so far are past."""
        return Field(self.value, {kind: Tangent(each.full, each.full) for kind, each in self.tangents.items()})

    def _map(self, linear: Callable[[Tensor], Tensor]) -> Field:
        return Field(linear(self.value), {kind: each.map(linear) for kind, each in self.tangents.items()})

    def mean(self, axes: tuple[int, ...], keeps: str) -> Field:
        """The mean over experts or units, which notices sources of one kind only; units, within their group."""
        found = self._map(lambda x: x.mean(axes[-1], keepdim=True))
        return Field(
            self.value.mean(axes, keepdim=True), {kind: each for kind, each in found.tangents.items() if kind == keeps}
        )


def pairing(first: Field, second: Field) -> Tensor:
    """⟨X_μ Y_ν⟩ at present, [P, P]; where a field is the same for all inputs, [P, 1] or [1, P]."""
    sizes = torch.broadcast_shapes(first.value.shape[1:], second.value.shape[1:])
    x, y = (each.value.expand(-1, *sizes).flatten(1) for each in (first, second))
    return x @ y.T / x.shape[1]


def chained(value: Tensor, parts: Iterable[tuple[Tensor, Field]]) -> Field:
    """A function of fields: its value, and its partial derivative by each of them."""
    return Field(value, _summed([{k: t.map(slope.mul) for k, t in of.tangents.items()} for slope, of in parts]))


def _summed(tangents: Iterable[Mapping[str, Tangent]]) -> dict[str, Tangent]:
    found: dict[str, Tangent] = {}
    for each in tangents:
        for kind, tangent in each.items():
            found[kind] = found[kind] + tangent if kind in found else tangent
    return found


class History:
    """What a field was, and how it responded, at all rows so far."""

    def __init__(self, times: Times, sizes: Sizes, tangents: Mapping[str, Sizes], device: torch.device) -> None:
        self._times, self._sizes = times, {"": sizes, **tangents}

        def room(sizes: Sizes) -> Tensor:
            return torch.zeros(times.rows, math.prod(sizes), dtype=torch.float64, device=device)

        self.values = room(sizes)
        self.tangents = {kind: room(each) for kind, each in tangents.items()}

    def append(self, now: Field) -> None:
        """The present; once in every step."""
        self.values[self._times.now] = now.value.flatten(1)
        for kind, tangent in self.tangents.items():
            if kind in now.tangents:
                tangent[self._times.now] = now.tangents[kind].full.flatten(1)

    def remembered(self, memory: Tensor) -> Field:
        """Σ_l memory(k, l) X(l), where the memory is [P, as many rows as it goes over]."""

        def of(rows: Tensor, kind: str) -> Tensor:
            return (memory @ rows[: memory.shape[1]]).view(len(memory), *self._sizes[kind])

        tangents = {kind: of(rows, kind) for kind, rows in self.tangents.items()}
        return Field(of(self.values, ""), {kind: Tangent(each, each) for kind, each in tangents.items()})

    def kernel(self) -> Tensor:
        """⟨X(k) X(l)⟩ of the present with past and present, [P, rows so far]."""
        values = self.values[self._times.so_far]
        return self.values[self._times.now] @ values.T / values.shape[1]

    def largest_share(self) -> float:
        """Of the mean square at present, what one member holds: the largest of all inputs."""
        squares = self.values[self._times.now].square()
        return float((squares.amax(1) / squares.sum(1).clamp_min(1e-300)).max())


class Source:
    """A Gaussian process that drives a field, and the probes that its responses are measured by."""

    def __init__(self, name: str, kind: str, population: Population, sizes: Sizes, rows: int, groups: int = 1) -> None:
        self._kind, self._sizes = kind, sizes
        self._process = GaussianProcess(name, population, rows)
        experts, own_groups, units = sizes
        self._probe_sizes = (experts, groups * own_groups, units)
        self._probes = Population(
            f"{population.name}.{name}.probes", math.prod(self._probe_sizes), population.seed, population.device
        ).pool("probe", rows)

    def drawn(self, kernel_rows: Tensor) -> Field:
        """The next values, from their covariances with all so far."""
        value = self._process.extended(kernel_rows).view(-1, *self._sizes)
        probe = self._probes.grow(len(kernel_rows)).view(-1, *self._probe_sizes)
        return Field(value, {self._kind: Tangent(torch.zeros_like(probe), probe)})

    def response_of(self, now: Field, count: int) -> Tensor:
        """⟨∂X(k)/∂u(l)⟩ of the present to the first ``count`` values that were drawn, which are past: [P, count]."""
        probes = self._probes.rows[:count]
        if self._kind not in now.tangents:
            return torch.zeros(len(now.value), count, dtype=torch.float64, device=probes.device)
        return now.tangents[self._kind].past.flatten(1) @ probes.T / probes.shape[1]

    def response_so_far(self, now: Field, to_present: Tensor) -> Tensor:
        """The same with the response to the present, [P, P], beside it."""
        drawn = len(self._probes.rows) - len(to_present)
        return torch.cat([self.response_of(now, drawn), to_present], 1)
