"""What R replicas compute: the interface between a model and the loop that trains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Values
from mssp.replicas.optimizers import Gradient
from mssp.replicas.replica import Replica

Constants = Mapping[str, Tensor]  # what a replica has beside its parameters: multipliers, buffers


@dataclass(frozen=True)
class Batch:
    """What a step sees: inputs [G, B, ...] for G groups of consecutive replicas, targets [R, B, ...].

    Whatever is random in a step follows from the groups' seeds and the number of the step.
    """

    x: Tensor
    targets: Tensor
    seeds: Sequence[int]
    step: int


@dataclass(frozen=True)
class Step:
    """One pass forward and backward: losses [R], outputs [R, B, ..., C], and a gradient per parameter."""

    losses: Tensor
    outputs: Tensor
    gradients: Mapping[str, Gradient]


class Program(Protocol):
    """A model for any number of replicas."""

    infos: Sequence[ParamInfo]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def recordable(self) -> bool:
        """Whether every step is the same program, which a GPU can record once and replay."""
        ...

    def setup(
        self, replicas: Sequence[Replica], values: Mapping[str, Sequence[Values]], device: torch.device
    ) -> tuple[dict[str, Tensor], Constants]:
        """Initial parameters [R, ...] and constants; a plan that does not go with the model is refused."""
        ...

    def outputs(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor) -> Tensor: ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[R], from outputs [R, B, ..., C] and targets [R, B, ...]."""
        ...

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step: ...

    def floats_per_example(self) -> int: ...
