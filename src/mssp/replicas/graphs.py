"""CUDA graphs: hundreds of small operations are launched as one, where launching takes longer than computing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorder:
    """Calls one function: as it is at first, then by replaying what a GPU recorded of it.

    The function takes tensors and returns a new one; otherwise it only changes tensors in place, and takes the same
    path every time. It is given at each call and not kept, so that an object can hold a recorder of its own methods and
    still be freed, with all its memory, by its last reference.

    >>> half = Recorder(eager=0)
    >>> half(lambda x: x / 2, torch.tensor([2.0]))
    tensor([1.])

    Args:
        eager: after how many calls the function is recorded; 0 if it never is, as on a CPU. The first calls compile
            kernels and set libraries up, which a recording cannot do.
    """

    def __init__(self, eager: int) -> None:
        self._eager, self._calls = eager, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """What the function returns; inputs of other shapes than those recorded are computed as they are."""
        if self._graph is not None and self._fits(inputs):
            for recorded, given in zip(self._inputs, inputs, strict=True):
                recorded.copy_(given)
            self._graph.replay()
            return self._output.clone()
        found = function(*inputs)
        self._calls += 1
        if self._calls == self._eager:
            self._record(function, inputs)
        return found

    def _record(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Computes nothing: what the function changes has its old values until the first replay."""
        self._inputs = tuple(each.clone() for each in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = function(*self._inputs)
        self._graph = graph

    def _fits(self, inputs: tuple[Tensor, ...]) -> bool:
        return [each.shape for each in inputs] == [each.shape for each in self._inputs]
