"""The contract of a program: replicas in lockstep are the models alone, and everything that they say has its form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mssp.measure.quantities import Quantity
from mssp.planning.plans import Plan
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.program import Program, Replica, resolved

SEEDS = (0, 1)
STEPS = 6


class ProgramContract(ABC):
    """A program of replicas: inherit it, and say what is below.

    Attributes:
        measured: whether it measures every term of its dynamics; one that does not refuses to.
        rtol: how far the numbers of a replica among others may be from those of the same one alone.
    """

    measured = True
    rtol = 1e-5

    @abstractmethod
    def program(self) -> Program:
        """A new one, each time."""

    @abstractmethod
    def plans(self) -> Sequence[Plan]:
        """At least two plans that go with the program, with learning rates at which it trains."""

    @abstractmethod
    def foreign_plan(self) -> Plan | None:
        """A plan for a model of another shape; None where the program cannot know its own."""

    @abstractmethod
    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of several examples, as one model takes them."""

    def _replicas(self) -> list[Replica]:
        """Seeds in groups that follow one another, so that some share their batches and their initial weights."""
        return [Replica(plan, seed) for seed in SEEDS for plan in self.plans()]

    def _lockstep(self, replicas: Sequence[Replica], *, measured: bool = False) -> Lockstep:
        return Lockstep(self.program(), replicas, measure_gradients=measured)

    def _step(self, lockstep: Lockstep, step: int) -> Tensor:
        batches = [self.batch(100 * step + seed) for seed in lockstep.seeds]
        return lockstep.step(torch.stack([x for x, _ in batches]), torch.stack([targets for _, targets in batches]))

    def test_initial_parameters_have_the_shapes_that_it_says(self) -> None:
        replicas = self._replicas()
        lockstep = self._lockstep(replicas)
        shapes = lockstep.program.shapes
        assert set(lockstep.parameters) == set(shapes) == {info.name for info in lockstep.program.infos}
        for name, stack in lockstep.parameters.items():
            assert stack.shape == (len(replicas), *shapes[name]), name
        assert lockstep.program.floats_per_example() > 0

    def test_replicas_in_lockstep_are_each_alone(self) -> None:
        replicas = self._replicas()
        together = self._lockstep(replicas)
        scores = [self._step(together, step) for step in range(STEPS)]
        for index, replica in enumerate(replicas):
            alone = self._lockstep([replica])
            for step in range(STEPS):
                torch.testing.assert_close(
                    self._step(alone, step)[0], scores[step][index], rtol=self.rtol, atol=self.rtol, equal_nan=True
                )
            for name, stack in alone.parameters.items():
                torch.testing.assert_close(together.parameters[name][index], stack[0], rtol=self.rtol, atol=self.rtol)

    def test_it_trains(self) -> None:
        """On one batch over and over, the loss falls."""
        lockstep = self._lockstep([Replica(plan) for plan in self.plans()])
        losses = torch.stack([self._step(lockstep, 0)[:, 0] for _ in range(4 * STEPS)])
        assert losses.isfinite().all()
        assert (losses[-1] < losses[0]).all()

    def test_a_foreign_plan_is_refused(self) -> None:
        for plan in self.plans():
            self.program().check(plan)
        foreign = self.foreign_plan()
        if foreign is not None:
            with pytest.raises(ValueError, match="plan"):
                self.program().check(foreign)
            with pytest.raises(ValueError, match="plan"):
                self._lockstep([Replica(foreign)])

    def test_metrics_are_scores_with_the_loss_first(self) -> None:
        replicas = self._replicas()
        lockstep = self._lockstep(replicas)
        program = lockstep.program
        x, targets = self.batch(seed=0)
        outputs = program.outputs(lockstep.parameters, lockstep.constants, x.unsqueeze(0))
        shared = targets.expand(len(replicas), *targets.shape)
        losses = program.losses(outputs, shared)
        scores = program.scores(losses, outputs, shared)
        assert program.metrics[0] == "loss"
        assert losses.shape == (len(replicas),)
        assert scores.shape == (len(replicas), len(program.metrics))
        assert torch.equal(scores[:, 0], losses.to(scores.dtype))
        evaluated = lockstep.evaluate(x, targets, batch=len(x))
        torch.testing.assert_close(evaluated, scores, rtol=self.rtol, atol=self.rtol)

    def test_a_replica_that_diverges_leaves_its_neighbours_alone(self) -> None:
        replicas = self._replicas()
        lockstep, untouched = self._lockstep(replicas), self._lockstep(replicas)
        with torch.no_grad():
            for stack in lockstep.parameters.values():
                stack[0] = torch.nan
        for step in range(STEPS):
            scores, expected = self._step(lockstep, step), self._step(untouched, step)
        assert lockstep.diverged_at == [0] + [None] * (len(replicas) - 1)
        assert scores[0].isnan().all()
        torch.testing.assert_close(scores[1:], expected[1:], rtol=self.rtol, atol=self.rtol)

    def test_it_measures_known_quantities_or_refuses_to(self) -> None:
        replicas = self._replicas()
        lockstep = self._lockstep(replicas, measured=True)
        batches = [self.batch(seed) for seed in lockstep.seeds]
        probed = torch.stack([x for x, _ in batches]), torch.stack([targets for _, targets in batches])
        if not self.measured:
            with pytest.raises(ValueError, match="not measured"):
                lockstep.program.probe(lockstep.parameters, lockstep.constants, *probed)
            return
        probe = lockstep.program.probe(lockstep.parameters, lockstep.constants, *probed)
        for step in range(2):
            self._step(lockstep, step)
        sizes = {**probe(lockstep.parameters), **lockstep.program.factors(lockstep.constants)}
        assert sizes
        for name, size in sizes.items():
            Quantity.named(name)  # it refuses a name of no kind
            assert size.shape == (len(replicas),), name
            assert (size >= 0).all(), name
        assert set(lockstep.gradient_sizes) == set(lockstep.parameters)

    def test_numbers_of_the_plan_reach_every_parameter(self) -> None:
        replicas = self._replicas()
        lockstep = self._lockstep(replicas)
        values = resolved(replicas, lockstep.program.infos)
        assert set(lockstep.rates) == set(values)
        for name, rates in lockstep.rates.items():
            assert rates.lr.tolist() == [of_replica.lr for of_replica in values[name]], name
            for index, of_replica in enumerate(values[name]):
                if of_replica.zero:
                    assert not lockstep.parameters[name][index].any(), name
