"""The state that all sites of a solution share: the experiment, its constants, time, errors, numbers of samples.

A site is the equations of one layer's neurons, or of the experts. The solver goes through the sites in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mssp.dmft.constants import Constants
from mssp.dmft.experiment import Experiment
from mssp.dmft.kernels import Times


@dataclass(frozen=True)
class Samples:
    """The number of members of each population that are sampled.

    Args:
        features: neurons of the first layer.
        experts, units: in Regime I one expert stands for all; in Regime II each expert has its own N_e units, and
            ``units`` is not used; in Regime III every expert meets every unit.
    """

    features: int
    experts: int
    units: int


class Seen(NamedTuple):
    """What a site receives from other sites: the covariance of its noise, and the weights of its memory of the past."""

    noise: Tensor
    memory: Tensor


class Passed(NamedTuple):
    """Overlaps that the sites before and after a layer of weights W both compute, and that agree: Wx · y = x · Wᵀy.

    Args:
        outputs: v·h³/N, which is f, [P].
        features: φ¹_μ · N ∂f_ν/∂φ¹, per neuron, [P, P].
    """

    outputs: Tensor
    features: Tensor


class Solving:
    """The shared state of a solution in progress."""

    def __init__(
        self, experiment: Experiment, constants: Constants, samples: Samples, seed: int, device: torch.device
    ) -> None:
        self.experiment, self.constants, self.samples = experiment, constants, samples
        self.seed, self.device = seed, device
        self.times = Times(len(experiment.all_inputs), experiment.steps)
        inputs = torch.from_numpy(experiment.all_inputs).to(device)
        self.input_kernel = inputs @ inputs.T / inputs.shape[1]  # Φ⁰
        # Δ_ν(s) = (y − f)/P, the negative derivative of the loss by f; 0 for inputs that are not trained on.
        self.errors = torch.zeros(self.times.rows, dtype=torch.float64, device=device)
        trained = len(experiment.inputs)
        self._trained = torch.arange(self.times.inputs, device=device) < trained
        self._targets = torch.zeros(self.times.inputs, dtype=torch.float64, device=device)
        self._targets[:trained] = torch.from_numpy(experiment.targets)

    def set_errors(self, f: Tensor) -> None:
        """Sets the present errors, from the present outputs [P]."""
        share = self._trained / self._trained.sum()
        self.errors[self.times.now] = (self._targets - f) * share

    @property
    def errors_now(self) -> Tensor:
        return self.errors[self.times.now]

    def learned(self, role: str, kernel_rows: Tensor) -> Tensor:
        """η c Δ_ν(s) K(k, l), s < t: what gradient descent has added to a layer's weights, as weights of a memory."""
        errors = self.errors[: kernel_rows.shape[1]].clone()
        errors[self.times.past.stop :] = 0.0  # present errors change the weights of the next step
        return self.constants.rate[role] * errors * kernel_rows

    def over_inputs(self, memory: Tensor) -> Tensor:
        """A memory summed over the inputs of each time: [P, rows] as [P, steps]."""
        return memory.view(len(memory), -1, self.times.inputs).sum(2)

    def loss(self, f: Tensor) -> Tensor:
        """The loss that is trained on, of outputs [..., P]."""
        return 0.5 * (self._targets - f)[..., self._trained].square().mean(-1)
