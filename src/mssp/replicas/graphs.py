"""CUDA graphs, which launch hundreds of small operations as one where launching takes longer than computing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Recorder:
    """Calls a function: as it is at first, then by replaying what a GPU recorded of it.

    The function takes tensors and returns a new one; otherwise it only changes tensors in place, and takes the same
    path every time. It is an argument of each call and not kept here, so that an object can hold a recorder of its own
    methods and still be freed, with all its memory, by its last reference.

    >>> half = Recorder(eager=0)
    >>> half(lambda x: x / 2, torch.tensor([2.0]))
    tensor([1.])

    Args:
        eager: after how many calls the function is recorded; 0 for never, as on a CPU. The first calls compile kernels
            and set libraries up, which a recording cannot do.
    """

    def __init__(self, eager: int) -> None:
        self._eager, self._calls = eager, 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output = torch.empty(0)

    def __call__(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """What the function returns; it is called as it is where the shapes of inputs are not those recorded."""
        if self._graph is not None and [x.shape for x in inputs] == [x.shape for x in self._inputs]:
            for recorded, x in zip(self._inputs, inputs, strict=True):
                recorded.copy_(x)
            self._graph.replay()
            return self._output.clone()
        output = function(*inputs)
        self._calls += 1
        if self._calls == self._eager:
            self._record(function, inputs)
        return output

    def _record(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
        """Records and computes nothing: tensors that the function changes keep their values until the first replay."""
        self._inputs = tuple(x.clone() for x in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._output = function(*self._inputs)
        self._graph = graph
