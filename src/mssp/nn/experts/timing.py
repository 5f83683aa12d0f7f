"""Measures how long each way of computing experts takes, forward and backward."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mssp.nn.experts.choice import Machine, Timing, Work, device_name
from mssp.nn.experts.paths import PATHS, ExpertWeights, possible_paths

_PAUSE = 8_000_000  # clock cycles, about 4 ms: longer than the launches of one step take
Step = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Problem:
    """Random tokens, routed at random, and random experts."""

    work: Work
    x: Tensor
    gates: Tensor
    chosen: Tensor
    weights: ExpertWeights
    grad: Tensor

    @classmethod
    def random(cls, work: Work, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Problem:
        torch.manual_seed(seed)
        on: dict[str, Any] = {"device": device, "dtype": dtype}
        M, E, N = work.experts, work.expert_width, work.width
        gates, chosen = torch.rand(work.tokens, M, device=device).topk(work.active)
        weights = ExpertWeights(
            (torch.randn(M, 2 * E if work.gated else E, N, **on) * N**-0.5).requires_grad_(),
            (torch.randn(M, E, N, **on) * E**-0.5).requires_grad_(),
        )
        x = torch.randn(work.tokens, N, **on).requires_grad_()
        return cls(work, x, gates.requires_grad_(), chosen, weights, torch.randn(work.tokens, N, **on))

    @property
    def activation(self) -> str:
        return "silu" if self.work.gated else "gelu"

    def step(
        self,
        forward: Callable[[Tensor, Tensor, Tensor, ExpertWeights, str], Tensor],
        leaves: Sequence[Tensor] | None = None,
    ) -> Step:
        """One forward and backward pass, down to the gradients of tokens, gates and weights."""
        leaves = leaves or (self.x, self.gates, self.weights.w_in, self.weights.w_out)

        def run() -> tuple[Tensor, ...]:
            out = forward(self.x, self.gates, self.chosen, self.weights, self.activation)
            return torch.autograd.grad(out, leaves, self.grad)

        return run


def milliseconds(steps: Mapping[str, Step], device: torch.device, seconds: float = 0.3) -> dict[str, float]:
    """The median time of each step. The steps run in turns, so that disturbances affect all of them.

    On a GPU, runs are queued and waited for at the end. Each begins with a pause of the device, so that launching
    overlaps with computing as it does in training.
    """
    runs: dict[str, list[Callable[[], float]]] = {}
    for name, step in steps.items():
        step()  # compiles, allocates
        runs[name] = [_timed(step, device)]
    once = sum(_medians(runs, device).values())
    order = list(steps)
    for _ in range(max(3, min(50, int(seconds * 1000 / max(once, 1e-3))))):
        for name in order:
            runs[name].append(_timed(steps[name], device))
        order = order[1:] + order[:1]  # so that no step always follows the same one
    return _medians(runs, device)


def _timed(step: Step, device: torch.device) -> Callable[[], float]:
    """Runs a step, and returns a function for its milliseconds; on a GPU they are known once it has finished."""
    if device.type != "cuda":
        start = time.perf_counter()
        step()
        ms = (time.perf_counter() - start) * 1e3
        return lambda: ms
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_PAUSE)
    begin.record()
    step()
    end.record()
    return lambda: begin.elapsed_time(end)


def _medians(runs: Mapping[str, Sequence[Callable[[], float]]], device: torch.device) -> dict[str, float]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {name: statistics.median(ms() for ms in of_step) for name, of_step in runs.items()}


def measure(
    device: torch.device, dtype: torch.dtype, works: Sequence[Work], progress: Callable[[str], None] = lambda _: None
) -> Machine:
    """Times of every path at every shape."""
    timings = []
    for number, work in enumerate(works):
        problem = Problem.random(work, device, dtype)
        steps = {path: problem.step(PATHS[path]) for path in possible_paths(device.type, dtype)}
        times = milliseconds(steps, device, seconds=0.05 if device.type == "cuda" else 0.5)
        timings.append(Timing(work, times))
        sizes = f"{work.tokens} tokens, N {work.width}, M {work.experts}, K {work.active}, N_e {work.expert_width}"
        shown = ", ".join(f"{path} {ms:.3g}" for path, ms in times.items())
        progress(f"{number + 1}/{len(works)}  {sizes}: {shown} ms")
    when = f"{datetime.datetime.now(datetime.UTC).date()}, torch {torch.__version__}"
    return Machine(device.type, device_name(device), str(dtype).removeprefix("torch."), when, timings)


def measure_device(device: torch.device, progress: Callable[[str], None] = lambda _: None) -> list[Machine]:
    """Measures the table of a device, for every dtype used in training on it. This takes a few minutes."""
    works = grid(device)
    if device.type != "cuda":
        return [measure(device, torch.float32, works, progress)]
    small = [
        work for work in works[::3] if work.operations("dense") < 3e12
    ]  # without tensor cores, larger ones take long
    return [measure(device, torch.bfloat16, works, progress), measure(device, torch.float32, small, progress)]


def grid(device: torch.device) -> list[Work]:
    """The shapes of a table: sizes that people train, as far as they fit into memory and are quickly computed."""
    axes: tuple[tuple[int, ...], ...]
    if device.type == "cuda":
        axes = (2048, 16384), (512, 1024, 2048, 4096), (8, 32, 128, 256), (1, 2, 4, 16, 64), (32, 128, 512, 2048)
        largest = 3e13
    else:
        axes = (32, 256, 2048), (32, 128, 512), (2, 8, 32, 128), (2, 8, 32), (16, 64, 256)
        largest = 6e9
    works = []
    for number, place in enumerate(product(*(range(len(axis)) for axis in axes))):
        T, N, M, sparsity, E = (axis[index] for axis, index in zip(axes, place, strict=True))
        # Every other point of the grid, like the black squares of a chessboard; a third of them are gated.
        if M % sparsity == 0 and sum(place) % 2 == 0:
            works.append(Work(T, N, M, M // sparsity, E, gated=number % 3 == 2))
    return [work for work in works if work.operations("dense") <= largest]
