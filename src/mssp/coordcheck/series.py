"""What was measured: every quantity for every size, step and seed, and those that follow from others.

Exponents are fitted by least squares in log-log, with what seeds leave open, and with finite sizes taken into
account. At a finite size a term of order N^α is c N^α (1 + b/N + ...), and over the widths that one can afford b/N
bends the line: the slope from 64 to 512 may be 0.2 from α, and the one from 512 to 2048 within 0.03. So every
exponent is fitted twice: the plain slope, which is what one sees, and the slope beside a term in 1/N, which is
noisier and less biased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mssp._estimates import Estimate, mean_of, quantile
from mssp.measure.quantities import (
    ALIGNMENT_P,
    ALIGNMENT_Q,
    EFFECTIVE,
    EPS,
    FAITHFULNESS,
    GRADIENT,
    GRADIENT_SUM,
    INPUT,
    INPUT_CHANGE,
    LOSS,
    NORMALISED,
    PROPAGATING,
    RATE,
    UPDATE,
    WEIGHTS,
    Quantity,
)
from mssp.planning.setting import Optimizer

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Measured values.

    Args:
        sizes: what grows, in order: widths, or depths.
        values: by name, [sizes, steps + 1, seeds]; index t is after t updates.
    """

    sizes: tuple[int, ...]
    values: Mapping[str, Numbers]

    @classmethod
    def of(cls, by_size: Mapping[int, Mapping[str, Numbers]], optimizer: Optimizer) -> Series:
        """From what was measured at each size, [steps + 1, seeds]; a quantity that one size lacks is left out."""
        sizes = tuple(sorted(by_size))
        found = map(Quantity.named, by_size[sizes[0]])
        names = [name for name in found if all(name in by_size[size] for size in sizes)]
        measured = {name: np.stack([by_size[size][name] for size in sizes]) for name in names}
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(sizes, dict([*measured.items(), *_derived(measured, optimizer)]))

    def of_seeds(self, chosen: slice) -> Series:
        """The same with some of the seeds."""
        return Series(self.sizes, {name: each[..., chosen] for name, each in self.values.items()})

    def diverged(self) -> tuple[int, int] | None:
        """The size and the update at which something was no longer finite, the earliest; None if nothing was."""
        found = []
        for name, values in self.values.items():
            lost = ~np.isfinite(values[:, :-1] if name == LOSS() else values)  # a loss belongs to an update to come
            for size, at_size in zip(self.sizes, lost, strict=True):
                found += [(int(step), size) for step in at_size.any(1).nonzero()[0][:1]]
        if not found:
            return None
        step, size = min(found)
        return size, step

    @property
    def quantities(self) -> list[Quantity]:
        """What was measured, in order."""
        return [Quantity.named(name) for name in self.values]

    @property
    def steps(self) -> int:
        return int(next(iter(self.values.values())).shape[1]) - 1

    @property
    def seeds(self) -> int:
        return int(next(iter(self.values.values())).shape[2])


def _derived(measured: Mapping[Quantity, Numbers], optimizer: Optimizer) -> Iterator[tuple[Quantity, Numbers]]:
    for role in [name.of for name in measured if name.kind is UPDATE]:
        update = measured[UPDATE(role)]
        entered, effective = measured.get(INPUT(role)), measured.get(EFFECTIVE(role))
        if entered is not None and effective is not None:
            # With the input's own size divided out: what this layer's learning rate does, whatever comes in.
            yield NORMALISED(role), _ratio(effective, entered)
            yield ALIGNMENT_P(role), _ratio(effective, update * entered)
        propagating, change = measured.get(PROPAGATING(role)), measured.get(INPUT_CHANGE(role))
        if propagating is not None and change is not None:
            yield ALIGNMENT_Q(role), _ratio(propagating, measured[WEIGHTS(role)] * change)
        gradient_sum = measured.get(GRADIENT_SUM(role))
        if not optimizer.follows_gradients:
            yield RATE(role), update  # Adam's updates are as large as its learning rate
        elif gradient_sum is not None:
            yield RATE(role), _ratio(update, gradient_sum)  # SGD's are learning rate times gradient
        eps, gradient = measured.get(EPS(role)), measured.get(GRADIENT(role))
        if eps is not None and gradient is not None:
            yield FAITHFULNESS(role), _ratio(eps, gradient)


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Zero where there is nothing to divide by: a term that is not there yet."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


_LEAST_FOR_BEND = 4  # with three, a line with a bend meets every point


def slopes(sizes: Sequence[int], values: Numbers) -> Numbers:
    """Plain slopes of values [sizes, ...] in log-log; NaN where a value is zero or not finite.

    >>> float(slopes([64, 128, 256], np.array([[1.0], [2.0], [4.0]]))[0].round(6))
    1.0
    """
    return _contracted(_weights(sizes, bent=False), values)


def bent_slopes(sizes: Sequence[int], values: Numbers) -> Numbers | None:
    """Slopes beside a term in 1/size; None where there are too few sizes to tell.

    >>> sizes = [64, 128, 256, 512]
    >>> values = np.array([[n**0.5 * np.exp(8 / n)] for n in sizes])
    >>> round(float(slopes(sizes, values)[0]), 2), round(float(bent_slopes(sizes, values)[0]), 2)
    (0.45, 0.5)
    """
    if len(sizes) < _LEAST_FOR_BEND:
        return None
    return _contracted(_weights(sizes, bent=True), values)


def estimate(sizes: Sequence[int], values: Numbers) -> Estimate:
    """The exponent of values [sizes, seeds], or [sizes, steps, seeds] whose steps are averaged, with its interval.

    The interval comes from the seeds; from the scatter about the line where there is one seed.
    """
    by_seed = slopes(sizes, values)
    by_seed = by_seed.mean(0) if by_seed.ndim > 1 else by_seed
    if len(by_seed) > 1:
        return mean_of([float(each) for each in by_seed])
    return Estimate(float(by_seed[0]), _scatter(sizes, values))


def bent_estimate(sizes: Sequence[int], values: Numbers) -> Estimate | None:
    by_seed = bent_slopes(sizes, values)
    if by_seed is None:
        return None
    by_seed = by_seed.mean(0) if by_seed.ndim > 1 else by_seed
    return mean_of([float(each) for each in by_seed])


def _weights(sizes: Sequence[int], *, bent: bool) -> Numbers:
    """What each size's logarithm counts in the slope."""
    n = np.asarray(sizes, dtype=np.float64)
    terms = [np.ones_like(n), np.log(n), *([n.min() / n] if bent else [])]
    found: Numbers = np.linalg.pinv(np.stack(terms, axis=1))[1]
    return found


def _contracted(weights: Numbers, values: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
        logs[~np.isfinite(logs)] = np.nan
        found: Numbers = np.tensordot(weights, logs, axes=1)
    return found


def _scatter(sizes: Sequence[int], values: Numbers) -> float:
    """The 95 % half-width of a slope from its residuals; NaN for two sizes, which a line always meets."""
    freedom = len(sizes) - 2
    if not freedom or not values.all():
        return float("nan")
    logs = np.log(values).reshape(len(sizes), -1).mean(1)
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x = x - x.mean()
    residuals = logs - logs.mean() - x * (x @ logs) / (x @ x)
    return float(quantile(0.975, freedom) * np.sqrt(residuals @ residuals / freedom / (x @ x)))
