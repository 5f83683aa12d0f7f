"""What is compared: numbers that a finite network and the limit both have, by name.

    f                          outputs, [steps + 1, inputs]
    loss                       [steps + 1]
    phi1, phi3, g1             ⟨X(t,μ) X(s,ν)⟩ of features, aggregate and features' gradients, over all pairs of rows
    g3                         of the readout, over all pairs of times
    phi2, g2, router_gradient  of gated units of experts, what comes back to them and to the router, at equal times
    router_mean                of the logits over experts, [steps + 1, inputs]
    router_variance            the same

Rows are (t, μ), times first. Several networks, or several solutions, are averaged over a leading axis.
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
    """Means over independent draws, and their standard errors (NaN for a single draw)."""

    count: int
    mean: Observables
    error: Observables


def averaged(draws: Sequence[Observables]) -> Averaged:
    """The mean over draws.

    >>> found = averaged([{"f": np.zeros(2)}, {"f": np.ones(2)}])
    >>> found.mean["f"].tolist(), found.error["f"].tolist()
    ([0.5, 0.5], [0.5, 0.5])
    """
    stacks = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
    count = len(draws)
    spread = {
        name: stack.std(0, ddof=1) if count > 1 else np.full(stack.shape[1:], np.nan) for name, stack in stacks.items()
    }
    return Averaged(
        count,
        {name: stack.mean(0) for name, stack in stacks.items()},
        {name: each / count**0.5 for name, each in spread.items()},
    )


def relative(array: Array, reference: Array) -> float:
    """The size of one array relative to another's, by the Frobenius norm; 0 of 0 is 0."""
    size, whole = float(np.linalg.norm(array)), float(np.linalg.norm(reference))
    return size / whole if whole else 0.0 if not size else float("inf")


def blocks(found: Observables, name: str, inputs: int) -> Array:
    """A kernel's blocks at equal times, [steps + 1, inputs, inputs]."""
    return equal_times(found[name], inputs) if name in OVER_ROWS else found[name]


def traces(found: Observables, inputs: int) -> dict[str, Array]:
    """Of every kernel over inputs, the trace at equal times over the number of inputs, [steps + 1]."""
    return {name: np.trace(blocks(found, name, inputs), axis1=1, axis2=2) / inputs for name in OVER_INPUTS}


def equal_times(kernel: Array, inputs: int) -> Array:
    """Of a kernel over all pairs of rows, the blocks at equal times: [steps + 1, inputs, inputs].

    >>> equal_times(np.arange(16.0).reshape(4, 4), inputs=2).tolist()
    [[[0.0, 1.0], [4.0, 5.0]], [[10.0, 11.0], [14.0, 15.0]]]
    """
    steps = len(kernel) // inputs
    return np.stack([kernel[t * inputs : (t + 1) * inputs, t * inputs : (t + 1) * inputs] for t in range(steps)])
