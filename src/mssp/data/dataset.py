"""Datasets for classification: inputs and their classes, in a part for training and a part for validation.

Inputs stay as they were stored, which for images is bytes. One multiplication and one addition per number normalise
them, so a device can hold the bytes and normalise a batch at a time.

Shapes: n examples, D numbers in one flattened input, C channels (the last axis of an image).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mssp._constraints import an_array, kind_of, positive_int, some_numbers, takes, whole, word
from mssp.data.streams import order, single_pass

PARTS = ("train", "validation")


@takes(inputs=an_array, targets=an_array)
@dataclass(frozen=True, eq=False)
class Split:
    """One part of a dataset.

    Args:
        inputs: uint8 images [n, height, width, C] or float32 vectors [n, D].
        targets: the classes of the inputs, int64 [n].
    """

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)


@takes(
    name=word,
    classes=positive_int,
    train=kind_of(Split),
    validation=kind_of(Split),
    mean=some_numbers,
    std=some_numbers,
    source=word,
)
@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification problem: inputs in two parts, and how they are normalised.

    >>> images = np.full((2, 1, 1, 3), 255, dtype=np.uint8)
    >>> split = Split(images, np.array([0, 1]))
    >>> data = Dataset("white", 2, split, split, mean=(0.5, 0.5, 0.0), std=(0.5, 0.25, 1.0))
    >>> data.inputs, data.prepared(images)[0].tolist()
    (3, [1.0, 2.0, 1.0])

    Args:
        mean, std: inputs are normalised as (x - mean) / std, after bytes were divided by 255. Both are one number, or
            one number per entry of the last axis. The defaults leave float32 inputs as they are.
        source: where the data come from, for people.
    """

    name: str
    classes: int
    train: Split
    validation: Split
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    source: str = ""

    def __post_init__(self) -> None:
        for part in PARTS:
            _check_split(f"{self.name}'s {part}", getattr(self, part), self.classes)
        train_kind, validation_kind = _kind_of(self.train.inputs), _kind_of(self.validation.inputs)
        if train_kind != validation_kind:
            raise ValueError(
                f"{self.name}'s train inputs are {train_kind} and its validation inputs {validation_kind}: "
                "both must be of one kind"
            )
        channels = self.train.inputs.shape[-1]
        for statistic in ("mean", "std"):
            numbers = tuple(float(number) for number in getattr(self, statistic))
            if len(numbers) not in {1, channels}:
                expected = "1 number" if channels == 1 else f"1 or {channels} numbers"
                raise ValueError(f"{self.name}'s {statistic} must be {expected}, got {len(numbers)}")
            if not all(isfinite(number) and (statistic == "mean" or number > 0) for number in numbers):
                needed = "finite" if statistic == "mean" else "positive and finite"
                raise ValueError(f"{self.name}'s {statistic} must be {needed}, got {numbers}")
            object.__setattr__(self, statistic, numbers)
        with np.errstate(all="ignore"):
            normal = all(np.isfinite(numbers).all() for numbers in self.scale_and_shift())
        if not normal:
            raise ValueError(f"{self.name}'s 1 / std and mean / std must be numbers that float32 holds")

    @property
    def inputs(self) -> int:
        """D: the size of one input, flattened."""
        return prod(self.train.inputs.shape[1:])

    @cached_property
    def checksum(self) -> str:
        """16 hexadecimal digits that stand for every number a model can see; the same on every machine."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation):
            update_with_array(digest, split.inputs)
            update_with_array(digest, split.targets)
        for numbers in (self.mean, self.std, (float(self.classes),)):
            update_with_array(digest, np.array(numbers, dtype=np.float64))
        return digest.hexdigest()[:16]

    def scale_and_shift(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Two vectors [D]: a flattened input x, as float32, is normalised by x * scale + shift."""
        shape = self.train.inputs.shape[1:]
        largest_input = 255.0 if self.train.inputs.dtype == np.uint8 else 1.0
        mean, std = np.array(self.mean), np.array(self.std)
        scale, shift = (
            np.broadcast_to(numbers, shape).reshape(-1) for numbers in (1 / (largest_input * std), -mean / std)
        )
        return scale.astype(np.float32), shift.astype(np.float32)

    def prepared(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Inputs [n, ...] as a model takes them: flattened and normalised, float32 [n, D]."""
        expected, kind = _kind_of(self.train.inputs), _kind_of(inputs)
        if kind != expected:
            raise ValueError(f"{self.name}'s inputs are {expected}, got {kind}")
        scale, shift = self.scale_and_shift()
        flat = inputs.reshape(len(inputs), -1).astype(np.float32)  # a copy, which the next lines change in place
        flat *= scale
        flat += shift
        return flat

    def batches(self, seed: int, batch: int, steps: int) -> npt.NDArray[np.int64]:
        """The training examples of each step, [steps, batch]: a single pass, in an order that the seed decides."""
        return single_pass(seed, len(self.train), batch, steps, things="examples", name=self.name)

    def first_classes(self, classes: int) -> Dataset:
        """The same problem with the examples of its first classes only."""
        if positive_int("classes", classes) > self.classes:
            raise ValueError(f"{self.name} has {self.classes} classes, {classes} were asked for")
        if classes == self.classes:
            return self
        train, validation = (_selection(split, split.targets < classes) for split in (self.train, self.validation))
        return replace(self, classes=classes, train=train, validation=validation)


@takes(split=kind_of(Split), count=positive_int, seed=whole)
def subset(split: Split, count: int, seed: int = 0) -> Split:
    """``count`` examples drawn by a seed; a smaller subset is the beginning of a larger one.

    >>> split = Split(np.arange(4, dtype=np.float32).reshape(4, 1), np.arange(4))
    >>> subset(split, 2).targets.tolist() == subset(split, 3).targets.tolist()[:2]
    True
    """
    if count > len(split):
        raise ValueError(f"a subset of {count} examples was asked for, there are {len(split)}")
    return _selection(split, order(len(split), "subset", seed)[:count])


def update_with_array(digest: hashlib._Hash, array: npt.NDArray[Any]) -> None:
    """Add an array's type, shape and numbers to a hash, in the byte order of most machines."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)


def _selection(split: Split, examples: npt.NDArray[Any]) -> Split:
    """The examples of a split with these indices, or for which this mask is true."""
    return Split(split.inputs[examples], split.targets[examples])


def _check_split(name: str, split: Split, classes: int) -> None:
    """Refuse inputs and targets of a wrong type or shape, classes that do not exist, and NaN."""
    inputs, targets = split.inputs, split.targets
    if inputs.dtype not in (np.uint8, np.float32) or inputs.ndim < 2 or not prod(inputs.shape[1:]):
        raise ValueError(
            f"{name} inputs must be uint8 images [n, height, width, channels] or float32 vectors [n, size], "
            f"got {inputs.dtype} {list(inputs.shape)}"
        )
    if targets.dtype != np.int64 or targets.ndim != 1:
        raise ValueError(f"{name} targets must be int64 [n], got {targets.dtype} {list(targets.shape)}")
    if len(inputs) != len(targets):
        raise ValueError(f"{name} has {len(inputs)} inputs and {len(targets)} targets: there must be as many of both")
    if not len(targets):
        raise ValueError(f"{name} is empty: at least one example is needed")
    lowest, highest = int(targets.min()), int(targets.max())
    if lowest < 0 or highest >= classes:
        raise ValueError(f"{name} targets must lie in 0 to {classes - 1}, got {lowest} to {highest}")
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        first = int(np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(1))[0])
        raise ValueError(f"{name} inputs must be finite, example {first} holds NaN or infinity")


def _kind_of(inputs: npt.NDArray[Any]) -> str:
    """The type and the shape of one input, in words."""
    return f"{inputs.dtype} of {' x '.join(map(str, inputs.shape[1:]))}"
