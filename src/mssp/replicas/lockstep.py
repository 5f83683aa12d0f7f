"""How well replicas predict, each by itself: loss, accuracy, top-5."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mssp.replicas.optimizers import Optimizer, size_of
from mssp.replicas.program import (
    Batch,
    Program,
    Rates,
    Replica,
    betas_of,
    check_alike,
    per_replica,
    rates,
    resolved,
    shared_seeds,
)

NAMES = ("loss", "accuracy", "top5")
_TOP = 5


def ranks(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many classes come before the right one: [..., C] and [...] to [...].

    Equal outputs rank by class, so that a model which says the same of all classes is right as often as chance, not
    always.

    >>> ranks(torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([1, 1])
    """
    right = outputs.gather(-1, targets.unsqueeze(-1))
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets.unsqueeze(-1)
    return ((outputs > right) | ((outputs == right) & earlier)).sum(-1)


def measured(losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
    """[R, 3]: loss, accuracy and top-5 of outputs [R, ..., C]; NaN where the loss is not a finite number.

    Targets that are numbers, not classes, have a loss alone.
    """
    loss = losses.detach().float()
    if targets.is_floating_point():
        found = torch.stack([loss, *[torch.full_like(loss, torch.nan)] * 2], dim=-1)
    else:
        places = ranks(outputs.detach(), targets.expand(outputs.shape[:-1])).flatten(1)
        found = torch.stack([loss, _share(places < 1), _share(places < _TOP)], dim=-1)
    return torch.where(losses.isfinite().unsqueeze(-1), found, torch.nan)


def _share(right: Tensor) -> Tensor:
    return right.float().mean(-1)


def mean_over(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The mean of measurements [R, 3] over batches of several sizes."""
    weights = torch.tensor(sizes, dtype=parts[0].dtype, device=parts[0].device) / sum(sizes)
    return (torch.stack(list(parts)) * weights.view(-1, 1, 1)).sum(0)


PRECISIONS = ("float32", "tf32")
_EAGER_STEPS = 3  # before a GPU records one: kernels are compiled and libraries set up by then


class Lockstep:
    """The state of R replicas in training.

    >>> import mssp
    >>> from mssp.nn import MLPConfig
    >>> from mssp.replicas.mlp import MLPProgram
    >>> config = MLPConfig(inputs=4, outputs=3, width=8, expert_width=8, experts=2)
    >>> plans = [mssp.plan(config.shape, regime="I", optimizer="sgd", lr=lr) for lr in (0.1, 0.2)]
    >>> both = Lockstep(MLPProgram(config), [Replica(plan) for plan in plans])
    >>> both.step(torch.randn(1, 5, 4), torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([2, 3])

    Inputs are [G, B, ...] and targets [G, B, ...] for the G seeds in ``seeds``: groups of consecutive replicas share
    their batches. A replica whose loss is not a finite number is frozen: ``diverged_at`` says at which step. With
    ``measure_gradients``, ``gradient_sizes`` holds the RMS of the last step's gradients by parameter, [R].
    """

    def __init__(
        self,
        program: Program,
        replicas: Sequence[Replica],
        *,
        device: str | torch.device = "cpu",
        precision: str = "float32",
        measure_gradients: bool = False,
    ) -> None:
        check_alike(replicas)
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: use one of {', '.join(PRECISIONS)}")
        self.program, self.replicas, self.device = program, tuple(replicas), torch.device(device)
        self.seeds = shared_seeds(replicas)
        self.steps = 0
        self.gradient_sizes: dict[str, Tensor] = {}
        self._measures_gradients = measure_gradients
        self._tf32 = precision == "tf32" and self.device.type == "cuda"
        values = resolved(replicas, program.infos)
        self.parameters, self.constants = program.setup(replicas, values, self.device)
        self._optimizer = Optimizer(
            replicas[0].plan.setting.optimizer,
            self.parameters,
            {name: rates(each, self.device) for name, each in values.items()},
            betas_of(replicas),
            self._tf32,
        )
        self._alive = torch.ones(len(replicas), dtype=torch.bool, device=self.device)
        self._diverged_at = torch.full((len(replicas),), -1, device=self.device)
        self._updates = torch.zeros((), dtype=torch.long, device=self.device)
        self._eager_steps = _EAGER_STEPS if self.device.type == "cuda" and program.recordable else 0
        self._recorded: _Recorded | None = None
        self._recorded_sizes: dict[str, Tensor] = {}

    def step(self, x: Tensor, targets: Tensor) -> Tensor:
        """One update of every replica; its loss, accuracy and top-5 before the update, [R, 3]."""
        if self._recorded is not None and self._recorded.fits(x, targets):
            found = self._recorded.replay(x, targets)
            self.gradient_sizes = self._recorded_sizes
        else:
            found = self._step(x, targets)
            if self._eager_steps and self.steps == self._eager_steps:
                sizes = self.gradient_sizes
                self._recorded = _Recorded(self._step, x, targets)
                # Recording computes nothing: what it left has no values before it is replayed.
                self._recorded_sizes, self.gradient_sizes = self.gradient_sizes, sizes
        self.steps += 1
        return found

    def _step(self, x: Tensor, targets: Tensor) -> Tensor:
        """Changes nothing but tensors in place, so that a GPU can record it and replay it."""
        targets = per_replica(targets, len(self.replicas))
        with _products_in(self._tf32):
            batch = Batch(x, targets, self.seeds, self.steps)
            done = self.program.gradients(self.parameters, self.constants, batch)
            self._mark_diverged(done.losses)
            if self._measures_gradients:
                self.gradient_sizes = {name: size_of(gradient) for name, gradient in done.gradients.items()}
            with torch.no_grad():
                self._optimizer.step(done.gradients, self._alive)
            self._updates += 1
        found = measured(done.losses, done.outputs, targets)
        return torch.where(self._alive.unsqueeze(-1), found, torch.nan)

    @torch.no_grad()
    def evaluate(self, x: Tensor, targets: Tensor, batch: int) -> Tensor:
        """Loss, accuracy and top-5 on examples that all replicas share, [n, ...], ``batch`` of them at a time: [R, 3].

        A replica whose loss is not finite here has diverged with its last update.
        """
        parts, sizes = [], []
        with _products_in(self._tf32):
            for some, right in zip(x.split(batch), targets.split(batch), strict=True):
                outputs = self.program.outputs(self.parameters, self.constants, some.unsqueeze(0))
                expected = right.expand(len(self.replicas), *right.shape)
                parts.append(measured(self.program.losses(outputs, expected), outputs, expected))
                sizes.append(len(some))
        found = mean_over(parts, sizes)
        self._mark_diverged(found[:, 0])
        return torch.where(self._alive.unsqueeze(-1), found, torch.nan)

    @property
    def rates(self) -> Mapping[str, Rates]:
        """What the optimizer was told, by parameter."""
        return self._optimizer.rates

    @property
    def diverged_at(self) -> list[int | None]:
        """For each replica the number of updates after which its loss was no longer finite, None if it always was."""
        return [None if step < 0 else step for step in self._diverged_at.tolist()]

    def _mark_diverged(self, losses: Tensor) -> None:
        finite = losses.isfinite()
        torch.where(self._alive & ~finite, self._updates, self._diverged_at, out=self._diverged_at)
        self._alive &= finite


class _Recorded:
    """A step as a CUDA graph: a hundred small operations are launched as one, where launching takes longer."""

    def __init__(self, step: Callable[[Tensor, Tensor], Tensor], x: Tensor, targets: Tensor) -> None:
        self._x, self._targets = x.clone(), targets.clone()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._found = step(self._x, self._targets)

    def fits(self, x: Tensor, targets: Tensor) -> bool:
        return (x.shape, targets.shape) == (self._x.shape, self._targets.shape)

    def replay(self, x: Tensor, targets: Tensor) -> Tensor:
        self._x.copy_(x)
        self._targets.copy_(targets)
        self._graph.replay()
        return self._found.clone()


@contextlib.contextmanager
def _products_in(tf32: bool) -> Iterator[None]:
    """Matrix products of float32 in TF32, or not, whatever the process does otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
