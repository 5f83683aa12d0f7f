"""The measured values of every quantity for every size, step and seed, and the exponents fitted to them.

Exponents are least-squares slopes in log-log. Their intervals come from the seeds. At a finite size a term of order
N^α is c N^α (1 + b/N + ...), and over affordable widths b/N bends the line: the slope from 64 to 512 may be 0.2 from
α, and the one from 512 to 2048 within 0.03. So every exponent is fitted twice: the plain slope, which is what a plot
shows, and the slope beside a term in 1/N, which is noisier and less biased.
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
        sizes: the widths or the depths, in order.
        values: by name, [sizes, steps + 1, seeds]; index t is after t updates.
    """

    sizes: tuple[int, ...]
    values: Mapping[str, Numbers]

    @classmethod
    def of(cls, by_size: Mapping[int, Mapping[str, Numbers]], optimizer: Optimizer) -> Series:
        """From the values at each size, [steps + 1, seeds]; a quantity that one size lacks is left out."""
        sizes = tuple(sorted(by_size))
        of_first = map(Quantity.named, by_size[sizes[0]])
        names = [name for name in of_first if all(name in by_size[size] for size in sizes)]
        measured = {name: np.stack([by_size[size][name] for size in sizes]) for name in names}
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(sizes, dict([*measured.items(), *_derived(measured, optimizer)]))

    def of_seeds(self, chosen: slice) -> Series:
        """The values of some of the seeds."""
        return Series(self.sizes, {name: values[..., chosen] for name, values in self.values.items()})

    def diverged(self) -> tuple[int, int] | None:
        """The size at which a value was not finite after the fewest updates, and their number; None if all are."""
        first_steps = []
        for name, values in self.values.items():
            lost = ~np.isfinite(values[:, :-1] if name == LOSS() else values)  # no loss belongs to the last step
            for size, at_size in zip(self.sizes, lost, strict=True):
                first_steps += [(int(step), size) for step in at_size.any(1).nonzero()[0][:1]]
        if not first_steps:
            return None
        step, size = min(first_steps)
        return size, step

    @property
    def quantities(self) -> list[Quantity]:
        """The quantities in the order of measurement."""
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
            # Divided by the input's own size, it shows this layer's learning rate, whatever its input.
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
    """The ratio; zero where the divisor is zero, which is a term that is still to come."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


_LEAST_FOR_BEND = 4  # sizes; a line with a bend passes through any three points


def slopes(sizes: Sequence[int], values: Numbers, *, bent: bool = False) -> Numbers:
    """Slopes of values [sizes, ...] in log-log; NaN where a value is zero or not finite.

    >>> sizes = [64, 128, 256, 512]
    >>> values = np.array([[n**0.5 * np.exp(8 / n)] for n in sizes])
    >>> round(float(slopes(sizes, values)[0]), 2), round(float(slopes(sizes, values, bent=True)[0]), 2)
    (0.45, 0.5)

    Args:
        bent: fit a term in 1/size beside the slope.
    """
    n = np.asarray(sizes, dtype=np.float64)
    terms = [np.ones_like(n), np.log(n), *([n.min() / n] if bent else [])]
    weights = np.linalg.pinv(np.stack(terms, axis=1))[1]  # the slope is the sum of logarithms with these weights
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(values)
        logs[~np.isfinite(logs)] = np.nan
        return np.asarray(np.tensordot(weights, logs, axes=1))


def estimate(sizes: Sequence[int], values: Numbers) -> Estimate:
    """The exponent of values [sizes, seeds], or [sizes, steps, seeds] whose steps are averaged, with its interval.

    The interval comes from the seeds; from the scatter about the line where there is one seed.
    """
    by_seed = _mean_over_steps(slopes(sizes, values))
    return mean_of(by_seed) if len(by_seed) > 1 else Estimate(by_seed[0], _scatter(sizes, values))


def bent_estimate(sizes: Sequence[int], values: Numbers) -> Estimate | None:
    """The exponent beside a term in 1/size; None for too few sizes."""
    if len(sizes) < _LEAST_FOR_BEND:
        return None
    return mean_of(_mean_over_steps(slopes(sizes, values, bent=True)))


def _mean_over_steps(by_seed: Numbers) -> list[float]:
    """Of slopes [seeds] or [steps, seeds]."""
    return [float(slope) for slope in np.atleast_2d(by_seed).mean(0)]


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
