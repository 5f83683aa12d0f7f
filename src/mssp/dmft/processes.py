"""Gaussian processes that are sampled step by step, for all members of a population at once.

The covariance of a process is known up to the present only. Each step computes the next rows of the covariance, its
kernel, and then needs values that have this covariance with all earlier values. The Cholesky factor grows row by row,
so a new value is a combination of the normal numbers of earlier values and one new normal number.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mssp.apply.random_numbers import key_of, normals

# Bounds on the share of a row's variance that earlier rows do not explain:
_NEW = 1e-8  # a smaller share is a rounding error, and the row is a combination of earlier rows
_NEGATIVE = -1e-4  # a share below it is more than rounding, even though small pivots enlarge rounding a thousandfold


class Population:
    """Members with one distribution (neurons or experts), and rows of normal numbers for them, drawn when needed.

    A row holds one number per member. Rows have mean 0 and mean square 1 over the population, and are orthogonal. As
    long as there are enough members this holds exactly, so that sums over members have the moments of infinitely many
    members. A row depends on the seed and its name alone, so that solutions of similar experiments differ smoothly.
    """

    def __init__(self, name: str, members: int, seed: int, device: torch.device) -> None:
        self.name, self.members, self.seed, self.device = name, members, seed, device
        self._pools: list[RowPool] = []

    def pool(self, name: str, rows: int) -> RowPool:
        """An empty pool for so many rows of one name."""
        pool = RowPool(self, name, torch.empty(rows, self.members, dtype=torch.float64, device=self.device))
        self._pools.append(pool)
        return pool

    def drawn(self, name: str, first: int, count: int) -> Tensor:
        """New rows of one name, [count, members]."""
        rows = self._normals(f"{self.name}.{name}", first, count)
        rows -= rows.mean(1, keepdim=True)
        # The number of earlier rows to be orthogonal to: with more, little would be left of the new rows.
        most = self.members // 2
        for pool in self._pools:
            earlier = pool.rows[: min(len(pool.rows), most)]
            most -= len(earlier)
            rows -= (rows @ earlier.T / self.members) @ earlier
        if most <= len(rows):
            rows /= rows.square().mean(1, keepdim=True).sqrt()
            return rows
        overlaps = torch.linalg.cholesky(rows @ rows.T / self.members)
        orthogonal: Tensor = torch.linalg.solve_triangular(overlaps, rows, upper=False)
        return orthogonal

    def _normals(self, name: str, first: int, count: int) -> Tensor:
        if self.device.type == "cpu":
            numbers = normals(self.seed, name, first * self.members, (first + count) * self.members)
            return torch.from_numpy(numbers).to(torch.float64).view(count, self.members)
        # A GPU draws its own, other numbers: waiting for the CPU's would take ten times as long as all computation.
        generator = torch.Generator(self.device).manual_seed(key_of(self.seed, f"{name}.{first}") % 2**63)
        size = (count, self.members)
        return torch.randn(size, generator=generator, dtype=torch.float64, device=self.device)


class RowPool:
    """Rows of a population that are contiguous in memory."""

    def __init__(self, population: Population, name: str, room: Tensor) -> None:
        self._population, self._name, self._room, self._count = population, name, room, 0

    @property
    def rows(self) -> Tensor:
        """The rows that were drawn so far, [rows, members]."""
        return self._room[: self._count]

    def grow(self, count: int) -> Tensor:
        """Draws so many more rows, and returns them, [count, members]."""
        if count:
            self._room[self._count : self._count + count] = self._population.drawn(self._name, self._count, count)
            self._count += count
        return self._room[self._count - count : self._count]


class GaussianProcess:
    """A Gaussian process of mean zero for all members of a population, whose kernel is given row by row.

    >>> members = Population("example", 1000, seed=0, device=torch.device("cpu"))
    >>> field = GaussianProcess("u", members, most=3)
    >>> first = field.extended(torch.tensor([[4.0]]))
    >>> second = field.extended(torch.tensor([[2.0, 1.0], [2.0, 1.0]])[:1])  # follows from the first
    >>> torch.allclose(second, first / 2), round(float(first.square().mean()), 6)
    (True, 4.0)
    """

    def __init__(self, name: str, population: Population, most: int) -> None:
        self.name = name
        self._pool = population.pool(name, most)
        self._factor = torch.zeros(most, most, dtype=torch.float64)  # on the CPU: it is small
        self._pivots: list[int] = []  # rows of the kernel that have a normal number of their own
        self._count = 0

    def extended(self, kernel_rows: Tensor) -> Tensor:
        """Draws the next values, [rows, members], from their covariances with all values, [rows, earlier + rows]."""
        before, drawn = self._count, len(self._pivots)
        for row in kernel_rows.to("cpu", torch.float64):
            self._extend(row)
        self._pool.grow(len(self._pivots) - drawn)
        weights = self._factor[before : self._count, : len(self._pivots)]
        return weights.to(self._pool.rows.device) @ self._pool.rows

    def _extend(self, row: Tensor) -> None:
        """Adds a row to the Cholesky factor. A combination of earlier rows gets no normal number of its own."""
        index, pivots = self._count, self._pivots
        variance = float(row[index])
        if not bool(row[: index + 1].isfinite().all()):
            raise FloatingPointError(f"the kernel of {self.name} is not finite")
        own = self._factor[index]
        triangle = self._factor[pivots, : len(pivots)]
        own[: len(pivots)] = torch.linalg.solve_triangular(triangle, row[pivots].unsqueeze(1), upper=False)[:, 0]
        unexplained = variance - float(own.square().sum())
        if unexplained < _NEGATIVE * abs(variance) or variance < 0:
            raise ValueError(
                f"the kernel of {self.name} is not positive: row {index} has variance {variance:.6g}, "
                f"of which earlier rows explain {variance - unexplained:.6g}"
            )
        if unexplained > _NEW * variance:
            own[len(pivots)] = math.sqrt(unexplained)
            pivots.append(index)
        self._count += 1
