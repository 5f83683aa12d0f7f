"""The interface between models and the loop that trains R replicas of them, and what the two exchange.

A replica is a plan and a seed, and R replicas are tensors with a leading axis R. Replicas may differ in everything that
a plan sets, such as learning rates, multipliers and weight decays. A sweep of any of these is a list of plans.

Shapes: R replicas, G groups of consecutive replicas that share their batches, B batch, C classes, O outputs and I
inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from mssp._constraints import a_plan, takes, whole
from mssp.apply.initial_weights import draw
from mssp.measure.magnitudes import Sizes
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values

Constants = Mapping[str, Tensor]  # tensors of replicas that are not trained: multipliers, buffers
Probe = Callable[[Mapping[str, Tensor]], Sizes]  # from parameters to the size of every term by name, [R] each


@dataclass(frozen=True)
class Batch:
    """The data of one step: inputs ``x`` [G, B, ...] and targets [R, B, ...].

    Inputs have the shape that they have in the dataset; a model that needs them flat flattens them. Everything random
    in a step depends on the groups' seeds, [G], and the number of the step alone.
    """

    x: Tensor
    targets: Tensor
    seeds: Sequence[int]
    step: int


@dataclass(frozen=True)
class Step:
    """The results of a forward and a backward pass: losses [R], outputs [R, B, ..., C], a gradient per parameter."""

    losses: Tensor
    outputs: Tensor
    gradients: Mapping[str, Gradient]


class Program(Protocol):
    """A model for any number of replicas, as training, evaluation and measurements use it.

    ``metrics`` are the names of the :meth:`scores`; the loss comes first.
    """

    infos: Sequence[ParamInfo]
    shapes: Mapping[str, tuple[int, ...]]
    metrics: tuple[str, ...]

    @property
    def recordable(self) -> bool:
        """Whether every step runs the same operations, so that a CUDA graph can replay them."""

    def check(self, plan: Plan) -> None:
        """Refuses a plan that does not go with the model."""

    def setup(
        self, replicas: Sequence[Replica], values: Mapping[str, Sequence[Values]], device: torch.device
    ) -> tuple[dict[str, Tensor], Constants]:
        """Initial parameters [R, ...] and constants; a plan that does not go with the model is refused."""

    def outputs(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor) -> Tensor: ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each replica, [R], from outputs [R, B, ..., C] and targets [R, B, ...]."""

    def scores(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metrics, [R, metrics], from losses [R], outputs [R, B, ..., C] and targets [R, B, ...]."""

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step: ...

    def probe(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, targets: Tensor) -> Probe:
        """A function that measures every term of later parameters against these, on inputs and targets [G, T, ...].

        A model whose terms are not known is refused.
        """

    def factors(self, constants: Constants) -> Mapping[str, Tensor]:
        """The factors of the forward pass that a check of scaling needs, by name, [R] each."""

    def floats_per_example(self) -> int:
        """An estimate of how many numbers one example keeps in memory during a forward and a backward pass."""


@dataclass(frozen=True)
class Factored:
    """The gradient of a matrix as a product that is not computed yet: rowsᵀ columns, a sum over the batch.

    ``rows`` are [R, B, O], and ``columns`` [R, B, I], or [G, B, I] where groups of replicas share them. Of a
    parameter with more axes, the last axis is I, and all others together are O.
    """

    rows: Tensor
    columns: Tensor

    def product(self) -> Tensor:
        return self.rows.mT @ per_replica(self.columns, len(self.rows))


Gradient = Tensor | Factored


DEFAULT_BETAS = (0.9, 0.999)


@takes(plan=a_plan, seed=whole)
@dataclass(frozen=True)
class Replica:
    """One model to train: its hyperparameters, and the seed of its initial weights and its order of data."""

    plan: Plan
    seed: int = 0


@dataclass(frozen=True)
class Rates:
    """The settings of an optimizer for one parameter, one number per replica: [R], float64."""

    lr: Tensor
    eps: Tensor
    weight_decay: Tensor
    grad_scale: Tensor


def check_alike(replicas: Sequence[Replica]) -> None:
    """Refuses replicas that differ in shape, optimizer or betas, which one program cannot train together."""
    if not replicas:
        raise ValueError("no replicas to train")
    first = replicas[0].plan
    for replica in replicas:
        plan = replica.plan
        for name, value, of_first in (
            ("shape", plan.target, first.target),
            ("optimizer", plan.optimizer, first.optimizer),
            ("betas", plan.recipe.betas, first.recipe.betas),
        ):
            if value != of_first:
                raise ValueError(f"replicas in lockstep have one {name}, got {of_first} and {value}")
        if isinstance(replica.seed, bool) or not isinstance(replica.seed, int):
            raise ValueError(f"seed must be a whole number, got {replica.seed!r}")


def resolved(replicas: Sequence[Replica], infos: Sequence[ParamInfo]) -> dict[str, list[Values]]:
    """The numbers of the plans by parameter: for each, a list in the order of the replicas."""
    by_plan = {id(replica.plan): replica.plan for replica in replicas}
    values = {key: plan.resolve(infos) for key, plan in by_plan.items()}
    return {info.name: [values[id(replica.plan)][info.name] for replica in replicas] for info in infos}


def rates(values: Sequence[Values], device: torch.device) -> Rates:
    """The optimizer's settings for one parameter, from the numbers of each replica's plan."""
    rows = [(planned.lr, planned.eps or 0.0, planned.weight_decay, planned.grad_scale) for planned in values]
    return Rates(*torch.tensor(rows, dtype=torch.float64, device=device).T.contiguous())


def initial_weights(
    replicas: Sequence[Replica], info: ParamInfo, shape: tuple[int, ...], values: Sequence[Values], device: torch.device
) -> Tensor:
    """The initial weights of all replicas, [R, *shape], equal to those that :func:`mssp.initialize` gives one model.

    Random numbers depend on the seed and the parameter's name alone. Replicas of one seed share them, and differ in the
    standard deviation by which they are multiplied.
    """
    stack = torch.zeros(len(replicas), *shape, device=device)
    all_entries = tuple(slice(0, size) for size in shape)
    sharing: dict[tuple[int, float], list[int]] = {}  # replicas that share their random numbers
    for index, (replica, planned) in enumerate(zip(replicas, values, strict=True)):
        if not planned.zero:
            sharing.setdefault((replica.seed, planned.shared_weights), []).append(index)
    for (seed, _), members in sharing.items():
        unit = replace(values[members[0]], init_std=1.0)
        normals = draw(shape, all_entries, info, unit, seed, torch.float32).to(device)
        for index in members:  # one at a time: the product of all of them would need their memory a second time
            torch.mul(normals, values[index].init_std, out=stack[index])
    return stack


def shared_seeds(replicas: Sequence[Replica]) -> list[int]:
    """The seeds of groups of consecutive replicas that see the same batches, where the groups are equally large.

    >>> from mssp import Shape, plan
    >>> small = plan(Shape(8, 8, 2, 2, 1), regime="I", lr=1.0)
    >>> shared_seeds([Replica(small, seed) for seed in (0, 0, 1, 1)]), shared_seeds([Replica(small, 3)] * 5)
    ([0, 1], [3])

    Otherwise every replica is a group of its own, and has its own copy of the inputs.
    """
    seeds = [replica.seed for replica in replicas]
    groups = [(seed, len(list(group))) for seed, group in groupby(seeds)]
    return [seed for seed, _ in groups] if len({size for _, size in groups}) == 1 else seeds


def stacked(numbers: Sequence[Mapping[str, float]], device: torch.device) -> dict[str, Tensor]:
    """Factors of the forward pass by name, [R, 1, 1], which multiply activations [R, batch, ...]."""
    stacks = {name: [factors[name] for factors in numbers] for name in numbers[0]}
    return {name: torch.tensor(stack, device=device).view(-1, 1, 1) for name, stack in stacks.items()}


def per_replica(groups: Tensor, replicas: int) -> Tensor:
    """Repeats each group's entry for all of its replicas: [G, ...] to [R, ...]."""
    return groups if len(groups) == replicas else groups.repeat_interleave(replicas // len(groups), 0)
