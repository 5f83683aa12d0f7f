"""Trains replicas on a dataset, as many at a time as fit on the device, and returns the curves and scores of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mssp._constraints import (
    a_device,
    a_program,
    at_least,
    function,
    kind_of,
    one_of,
    optional,
    positive_int,
    several,
    takes,
)
from mssp.data.dataset import Dataset, Split, subset
from mssp.nn.experts.backend import runs_triton
from mssp.planning.setting import Optimizer
from mssp.replicas.lockstep import PRECISIONS, Lockstep
from mssp.replicas.program import Program, Replica, check_alike

Curve = npt.NDArray[np.float32]
_MEMORY_SHARE = 0.8  # the share of free memory to use: allocators and matrix products need the rest
_FLOAT = 4  # bytes
_LARGEST_EVALUATION = 1000  # examples at once; more is no faster


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        # Memory that torch has reserved and does not use is free too.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    try:  # Linux: the memory that is available without swapping, caches included
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def bytes_per_replica(program: Program, optimizer: Optimizer, batch: int, device: torch.device) -> int:
    """The memory of one replica in training: parameters, moments, gradients and activations."""
    sizes = [torch.Size(shape).numel() for shape in program.shapes.values()]
    copies = 1 + optimizer.moments
    floats = copies * sum(sizes) + batch * program.floats_per_example()
    if not runs_triton(device.type, torch.float32):
        floats += sum(sizes) + 2 * max(sizes)  # gradients, and intermediate results of elementwise operations
    return floats * _FLOAT


def replicas_that_fit(
    program: Program, optimizer: Optimizer, batch: int, device: torch.device, *, what: str = "one replica"
) -> int:
    """How many replicas a device has room for. If there is none for a single one, ``what`` is refused."""
    needed = bytes_per_replica(program, optimizer, batch, device)
    check_memory(what, needed, device)
    return int(_MEMORY_SHARE * free_bytes(device) // needed)


def check_memory(what: str, needed: int, device: torch.device) -> None:
    """Refuse what needs more memory than a device has free. Asked for at once, it would end in a killed process."""
    free = free_bytes(device)
    if needed > _MEMORY_SHARE * free:
        raise ValueError(f"{what} needs {_in_gib(needed)} GiB, and {device} has {_in_gib(free)} free")


def _in_gib(count: int) -> str:
    return f"{count / 2**30:.1f}" if count < 2**60 else f"{count / 2**30:.0e}"


def examples_that_fit(program: Program, replicas: int, device: torch.device) -> int:
    """How many examples all replicas can be evaluated on at once."""
    return max(1, int(_MEMORY_SHARE / 2 * free_bytes(device) // (replicas * program.floats_per_example() * _FLOAT)))


def even_parts(count: int, largest: int) -> list[slice]:
    """Splits ``count`` items into as few slices as possible, of nearly equal size and at most ``largest`` items.

    >>> even_parts(10, 4)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    parts = -(-count // largest)
    ends = [-(-count * part // parts) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


@takes(steps=positive_int, batch=positive_int, validate_at=several(at_least(0)), validation=optional(positive_int))
@dataclass(frozen=True)
class Schedule:
    """The length of a training run, its batch size, and when to evaluate on the validation set.

    Args:
        validate_at: numbers of updates after which to evaluate, in addition to the end.
        validation: how many validation examples to use; None for all.
    """

    steps: int
    batch: int
    validate_at: tuple[int, ...] = ()
    validation: int | None = None

    def __post_init__(self) -> None:
        for step in self.validate_at:
            if not 0 <= step <= self.steps:
                raise ValueError(f"validate_at lies within the {self.steps} steps of training, got {step}")


@dataclass(frozen=True)
class Trained:
    """The results of training one replica.

    Args:
        curves: the program's metrics, by name, on every step's batch before its update; NaN once the replica diverged.
        validation: the metrics on the validation set at the end.
        validations: the metrics on the validation set by number of updates, for those in ``validate_at``.
        diverged_at: the number of updates after which the loss was not finite; None if it is finite.
    """

    curves: dict[str, Curve]
    validation: dict[str, float]
    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    diverged_at: int | None = None


@takes(data=kind_of("mssp.data.dataset.Dataset"), device=a_device)
class Feed:
    """A dataset on a device, which gives batches. Bytes stay bytes on the device, and each batch is normalised.

    Inputs keep the shape that they have in the dataset; a program flattens them if its model needs them flat.
    """

    def __init__(self, data: Dataset, device: str | torch.device = "cpu") -> None:
        self.data, self.device = data, torch.device(device)
        shape = data.train.inputs.shape[1:]
        self._scale, self._shift = (
            torch.from_numpy(array).to(self.device).view(shape) for array in data.scale_and_shift()
        )
        self._train = self._moved(data.train)

    def batches(self, seeds: Sequence[int], schedule: Schedule) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of G seeds: for every step, inputs [G, B, ...] and targets [G, B]."""
        orders = [self.data.batches(seed, schedule.batch, schedule.steps) for seed in seeds]
        inputs, targets = self._train
        for examples in torch.from_numpy(np.stack(orders, axis=1)).to(self.device):
            yield self._normalised(inputs[examples]), targets[examples]

    def validation(self, count: int | None) -> tuple[Tensor, Tensor]:
        """All validation examples, or ``count`` of them, the same for every replica."""
        inputs, targets = self._moved(self.data.validation if count is None else subset(self.data.validation, count))
        return self._normalised(inputs), targets

    def _normalised(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self._shift, inputs.to(torch.float32), self._scale)

    def _moved(self, split: Split) -> tuple[Tensor, Tensor]:
        # torch warns of arrays that it cannot write to, and arrays in memory shared by processes are read-only.
        arrays = (np.require(array, requirements=("C", "W")) for array in (split.inputs, split.targets))
        inputs, targets = (torch.from_numpy(array).to(self.device) for array in arrays)
        return inputs, targets


@takes(
    program=a_program,
    replicas=several(kind_of(Replica)),
    feed=kind_of(Feed),
    schedule=kind_of(Schedule),
    precision=one_of(PRECISIONS),
    largest=optional(positive_int),
    on_step=optional(function),
)
def train(
    program: Program,
    replicas: Sequence[Replica],
    feed: Feed,
    schedule: Schedule,
    *,
    precision: str = "float32",
    largest: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> list[Trained]:
    """Trains every replica in a single pass over the data, in the order that its seed gives.

    Replicas are trained in parts that are estimated to fit into memory. A part that does not fit is halved.

    Args:
        largest: the largest number of replicas at a time.
        on_step: called after every step with the number of replicas that took it.
    """
    check_alike(replicas)
    fitting = replicas_that_fit(program, replicas[0].plan.setting.optimizer, schedule.batch, feed.device)

    def together(part: Sequence[Replica]) -> list[Trained]:
        try:
            return _train_together(
                Lockstep(program, part, device=feed.device, precision=precision), feed, schedule, on_step
            )
        except torch.OutOfMemoryError:
            if len(part) == 1:
                raise
        torch.cuda.empty_cache()
        halves = even_parts(len(part), -(-len(part) // 2))
        return [trained for half in halves for trained in together(part[half])]

    parts = even_parts(len(replicas), min(fitting, largest or fitting))
    return [trained for part in parts for trained in together(replicas[part])]


def _train_together(
    lockstep: Lockstep, feed: Feed, schedule: Schedule, on_step: Callable[[int], None] | None
) -> list[Trained]:
    R, metrics = len(lockstep.replicas), lockstep.program.metrics
    curves = torch.full((schedule.steps, R, len(metrics)), torch.nan, device=feed.device)
    validation = feed.validation(schedule.validation)
    examples_at_once = min(_LARGEST_EVALUATION, examples_that_fit(lockstep.program, R, feed.device))
    validations: dict[int, Tensor] = {}
    for step, (x, targets) in enumerate(feed.batches(lockstep.seeds, schedule)):
        if step in schedule.validate_at:
            validations[step] = lockstep.evaluate(*validation, examples_at_once)
        curves[step] = lockstep.step(x, targets)
        if on_step is not None:
            on_step(R)
    last = lockstep.evaluate(*validation, examples_at_once)
    if schedule.steps in schedule.validate_at:
        validations[schedule.steps] = last
    # Numbers are read from the device at the end only, because each read waits for it.
    numbers = curves.permute(1, 2, 0).cpu().numpy()
    last_scores = last.tolist()
    scores_at = {step: scores.tolist() for step, scores in validations.items()}
    return [
        Trained(
            curves={name: np.ascontiguousarray(numbers[r, index]) for index, name in enumerate(metrics)},
            validation=dict(zip(metrics, last_scores[r], strict=True)),
            validations={step: dict(zip(metrics, scores[r], strict=True)) for step, scores in scores_at.items()},
            diverged_at=diverged_at,
        )
        for r, diverged_at in enumerate(lockstep.diverged_at)
    ]
