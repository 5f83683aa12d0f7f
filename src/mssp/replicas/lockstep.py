"""Trains R replicas together: one training step of all of them, and their scores on other data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mssp._constraints import a_device, a_program, kind_of, one_of, several, switch, takes
from mssp.replicas.graphs import Recorder
from mssp.replicas.optimizers import ReplicaOptimizer, size_of
from mssp.replicas.program import (
    DEFAULT_BETAS,
    Batch,
    Program,
    Rates,
    Replica,
    check_alike,
    per_replica,
    rates,
    resolved,
    shared_seeds,
)

PRECISIONS = ("float32", "tf32")
_EAGER_STEPS = 4  # steps before a step is captured as a CUDA graph


@takes(
    program=a_program,
    replicas=several(kind_of(Replica)),
    device=a_device,
    precision=one_of(PRECISIONS),
    measure_gradients=switch,
)
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
    >>> both.program.metrics
    ('loss', 'accuracy', 'top5')

    Inputs are [G, B, ...] and targets [G, B, ...] for the G seeds in ``seeds``: groups of consecutive replicas share
    their batches. A replica whose loss is not a finite number is frozen, and ``diverged_at`` says at which step. With
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
        self.program, self.replicas, self.device = program, tuple(replicas), torch.device(device)
        self.seeds = shared_seeds(replicas)
        self.steps = 0
        self._tf32 = precision == "tf32" and self.device.type == "cuda"
        values = resolved(replicas, program.infos)
        self.parameters, self.constants = program.setup(replicas, values, self.device)
        self._optimizer = ReplicaOptimizer(
            replicas[0].plan.setting.optimizer,
            self.parameters,
            {name: rates(replica_values, self.device) for name, replica_values in values.items()},
            replicas[0].plan.recipe.betas or DEFAULT_BETAS,
            self._tf32,
        )
        self._alive = torch.ones(len(replicas), dtype=torch.bool, device=self.device)
        self._diverged_at = torch.full((len(replicas),), -1, device=self.device)
        self._updates = torch.zeros((), dtype=torch.long, device=self.device)
        self._record_or_replay = Recorder(_EAGER_STEPS if self.device.type == "cuda" and program.recordable else 0)
        self.gradient_sizes: dict[str, Tensor] = {}
        if measure_gradients:
            unknown = torch.full((len(replicas),), torch.nan, dtype=torch.float64, device=self.device)
            self.gradient_sizes = {name: unknown.clone() for name in self.parameters}

    def step(self, x: Tensor, targets: Tensor) -> Tensor:
        """Updates every replica, and returns the scores from before the update, [R, metrics]."""
        scores = self._record_or_replay(self._step, x, targets)
        self.steps += 1
        return scores

    def _step(self, x: Tensor, targets: Tensor) -> Tensor:
        """One step. It only changes tensors in place, so that it can be captured as a CUDA graph."""
        targets = per_replica(targets, len(self.replicas))
        with _products_in(self._tf32):
            batch = Batch(x, targets, self.seeds, self.steps)
            passes = self.program.gradients(self.parameters, self.constants, batch)
            self._mark_diverged(passes.losses)
            for name, size in self.gradient_sizes.items():
                size.copy_(size_of(passes.gradients[name]))
            with torch.no_grad():
                self._optimizer.step(passes.gradients, self._alive)
            self._updates += 1
        scores = self.program.scores(passes.losses, passes.outputs, targets)
        return torch.where(self._alive.unsqueeze(-1), scores, torch.nan)

    @torch.no_grad()
    def evaluate(self, x: Tensor, targets: Tensor, batch: int) -> Tensor:
        """Scores, [R, metrics], on examples [n, ...] that all replicas share, computed ``batch`` examples at a time.

        A replica whose loss is not finite here has diverged with its last update.
        """
        batch_scores, batch_sizes = [], []
        with _products_in(self._tf32):
            for inputs, shared_targets in zip(x.split(batch), targets.split(batch), strict=True):
                outputs = self.program.outputs(self.parameters, self.constants, inputs.unsqueeze(0))
                wanted = shared_targets.expand(len(self.replicas), *shared_targets.shape)
                batch_scores.append(self.program.scores(self.program.losses(outputs, wanted), outputs, wanted))
                batch_sizes.append(len(inputs))
        weights = torch.tensor(batch_sizes, dtype=batch_scores[0].dtype, device=self.device) / sum(batch_sizes)
        scores = (torch.stack(batch_scores) * weights.view(-1, 1, 1)).sum(0)
        self._mark_diverged(scores[:, 0])
        return torch.where(self._alive.unsqueeze(-1), scores, torch.nan)

    @property
    def rates(self) -> Mapping[str, Rates]:
        """The optimizer's learning rates, eps and weight decays, by parameter."""
        return self._optimizer.rates

    @property
    def diverged_at(self) -> list[int | None]:
        """For each replica, how many updates it took until its loss was not finite; None if it is finite."""
        return [None if step < 0 else step for step in self._diverged_at.tolist()]

    def _mark_diverged(self, losses: Tensor) -> None:
        """Freezes the replicas whose loss is not finite, and keeps the number of updates so far for them."""
        finite = losses.isfinite()
        torch.where(self._alive & ~finite, self._updates, self._diverged_at, out=self._diverged_at)
        self._alive &= finite


@contextlib.contextmanager
def _products_in(tf32: bool) -> Iterator[None]:
    """Sets whether products of float32 are computed in TF32, and restores the process's setting afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
