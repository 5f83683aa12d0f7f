"""When a function is computed as it is, and when what was recorded of it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from mssp.replicas.graphs import Recorder


class Counted:
    """The sum of two tensors, and how often Python was asked for it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return x + y


class Replayed:
    """A CUDA graph of :class:`Counted`, as a CPU can play it: it reads its inputs and writes its output in place."""

    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self) -> None:
        torch.add(*self.inputs, out=self.output)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    found: list[Replayed] = []

    def graph() -> Replayed:
        found.append(Replayed())
        return found[-1]

    @contextmanager
    def recording(graph: Replayed) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return found


def recorded_by(recorder: Recorder, graph: Replayed) -> None:
    """The graph is told where its inputs and its output lie, which a real one learns while it records."""
    graph.inputs, graph.output = recorder._inputs, recorder._output


def called(recorder: Recorder, function: Callable[..., Tensor], value: float, size: int = 2) -> list[float]:
    found: list[float] = recorder(function, torch.full((size,), value), torch.ones(size)).tolist()
    return found


def test_a_cpu_computes_every_call() -> None:
    recorder, function = Recorder(eager=0), Counted()
    assert [called(recorder, function, value) for value in (1.0, 2.0, 3.0)] == [[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert function.calls == 3


def test_a_gpu_records_after_the_eager_calls_and_replays(graphs: list[Replayed]) -> None:
    recorder, function = Recorder(eager=2), Counted()
    assert called(recorder, function, 1.0) == [2.0, 2.0]
    assert not graphs
    assert called(recorder, function, 2.0) == [3.0, 3.0]
    assert function.calls == 3  # the last of them was recorded
    (graph,) = graphs
    recorded_by(recorder, graph)
    assert called(recorder, function, 5.0) == [6.0, 6.0]
    assert called(recorder, function, 6.0) == [7.0, 7.0]
    assert function.calls == 3


def test_other_shapes_are_computed_as_they_are(graphs: list[Replayed]) -> None:
    recorder, function = Recorder(eager=1), Counted()
    called(recorder, function, 1.0)
    recorded_by(recorder, graphs[0])
    assert called(recorder, function, 3.0, size=1) == [4.0]
    assert function.calls == 3
    assert called(recorder, function, 4.0) == [5.0, 5.0]
    assert function.calls == 3
    assert len(graphs) == 1


def test_inputs_and_outputs_stay_the_callers(graphs: list[Replayed]) -> None:
    recorder, function = Recorder(eager=1), Counted()
    x, y = torch.zeros(2), torch.ones(2)
    recorder(function, x, y)
    recorded_by(recorder, graphs[0])
    first = recorder(function, x, y)
    second = recorder(function, x + 1, y)
    assert (first.tolist(), second.tolist(), x.tolist()) == ([1.0, 1.0], [2.0, 2.0], [0.0, 0.0])
