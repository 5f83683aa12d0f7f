"""Observables: the arrays by which a finite network and the limit are compared, by name.

    f                              outputs, [steps + 1, inputs]
    loss                           [steps + 1]
    phi1, phi3, g1                 ⟨X(t,μ) X(s,ν)⟩ over all pairs of rows: of features, aggregates, features' gradients
    g3                             ⟨v(t) v(s)⟩ of the readout, over all pairs of times
    phi2, g2, router_gradient      ⟨X(t,μ) X(t,ν)⟩ at equal times: of experts' gated units, of the gradients at their
                                   pre-activations, and of those at the router's logits
    router_mean, router_variance   of the logits over experts, [steps + 1, inputs]

A row is a time and an input, (t, μ); rows are sorted by time. A draw is one network or one solution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Observables = Mapping[str, Array]
OVER_ROWS = ("phi1", "phi3", "g1")
OVER_INPUTS = (*OVER_ROWS, "phi2", "g2", "router_gradient")
MAIN = ("f", "phi1", "phi3", "g1")


@dataclass(frozen=True)
class Averaged:
    """The mean over independent draws, and its standard error (NaN for a single draw)."""

    count: int
    mean: Observables
    error: Observables


def averaged(draws: Sequence[Observables]) -> Averaged:
    """The mean over draws, with its standard error.

    >>> both = averaged([{"f": np.zeros(2)}, {"f": np.ones(2)}])
    >>> both.mean["f"].tolist(), both.error["f"].tolist()
    ([0.5, 0.5], [0.5, 0.5])
    """
    count = len(draws)

    def error(stack: Array) -> Array:
        return stack.std(0, ddof=1) / count**0.5 if count > 1 else np.full(stack.shape[1:], np.nan)

    stacks = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
    mean = {name: stack.mean(0) for name, stack in stacks.items()}
    return Averaged(count, mean, {name: error(stack) for name, stack in stacks.items()})


def relative(array: Array, reference: Array) -> float:
    """The size of an array relative to the size of another, by the Frobenius norm; 0 relative to 0 is 0."""
    size, unit = float(np.linalg.norm(array)), float(np.linalg.norm(reference))
    return size / unit if unit else 0.0 if not size else float("inf")


def blocks(observables: Observables, name: str, inputs: int) -> Array:
    """The blocks of a kernel at equal times, [steps + 1, inputs, inputs]."""
    return equal_times(observables[name], inputs) if name in OVER_ROWS else observables[name]


def traces(observables: Observables, inputs: int) -> dict[str, Array]:
    """The mean over inputs of every kernel's diagonal at equal times, [steps + 1]."""
    return {name: np.trace(blocks(observables, name, inputs), axis1=1, axis2=2) / inputs for name in OVER_INPUTS}


def equal_times(kernel: Array, inputs: int) -> Array:
    """The blocks at equal times of a kernel over all pairs of rows: [steps + 1, inputs, inputs].

    >>> equal_times(np.arange(16.0).reshape(4, 4), inputs=2).tolist()
    [[[0.0, 1.0], [4.0, 5.0]], [[10.0, 11.0], [14.0, 15.0]]]
    """
    steps = len(kernel) // inputs
    return np.stack([kernel[t * inputs : (t + 1) * inputs, t * inputs : (t + 1) * inputs] for t in range(steps)])
