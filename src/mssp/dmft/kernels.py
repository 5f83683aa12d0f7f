"""Matrices over pairs of rows, kernels and responses, where a row is a time and an input: k = t·P + μ.

A solution moves forward in time and never changes what it has computed. In step t it fills the rows of time t, and
their columns are all rows up to time t.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MATRICES = 12  # kernels, responses and Cholesky factors of a solution, in the regime that has most of them


def bytes_of_kernels(rows: int) -> int:
    """An estimate of the memory of all matrices over pairs of rows in one solution."""
    return 8 * _MATRICES * rows**2


class Times:
    """The present time of a solution, and the rows that are past, present, or both."""

    def __init__(self, inputs: int, steps: int) -> None:
        self.inputs, self.steps, self.step = inputs, steps, 0

    @property
    def rows(self) -> int:
        return self.inputs * (self.steps + 1)

    @property
    def past(self) -> slice:
        return slice(0, self.step * self.inputs)

    @property
    def now(self) -> slice:
        return slice(self.step * self.inputs, (self.step + 1) * self.inputs)

    @property
    def so_far(self) -> slice:
        """The past and present rows."""
        return slice(0, (self.step + 1) * self.inputs)


class Kernel:
    """A matrix over pairs of rows, filled step by step."""

    def __init__(self, times: Times, device: torch.device) -> None:
        self._times = times
        self.matrix = torch.zeros(times.rows, times.rows, dtype=torch.float64, device=device)

    @property
    def past(self) -> Tensor:
        """The entries of the present with the past, [P, past rows]."""
        return self.matrix[self._times.now, self._times.past]

    @property
    def so_far(self) -> Tensor:
        """The entries of the present with past and present, [P, rows so far]."""
        return self.matrix[self._times.now, self._times.so_far]

    def set(self, rows: Tensor) -> None:
        """Sets the present rows, [P, rows so far], of a kernel K(k, l) = K(l, k)."""
        now, so_far = self._times.now, self._times.so_far
        self.matrix[now, so_far] = rows
        block = self.matrix[now, now]
        self.matrix[now, now] = (block + block.T) / 2
        self.matrix[so_far, now] = self.matrix[now, so_far].T.clone()

    def set_past(self, rows: Tensor) -> None:
        """Sets the present rows, [P, past rows], of a response K(k, l), which is zero for later l."""
        self.matrix[self._times.now, self._times.past] = rows
