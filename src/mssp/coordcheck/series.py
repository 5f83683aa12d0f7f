"""The measured values of every quantity for every size, step and seed, and the exponents fitted to them.

Exponents are least-squares slopes in log-log. Their intervals come from the seeds. At a finite size a term of order
N^α is c N^α (1 + b/N + ...), and over affordable widths b/N bends the line: the slope from 64 to 512 may be off α by
0.2, and the slope from 512 to 2048 by 0.03. So every exponent is fitted twice: as the plain slope, which a plot shows,
and as the slope of a fit with a further term in 1/N, which is noisier and less biased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mssp._estimates import Estimate, mean_of, quantile, weighted_sum
from mssp.measure.quantities import (
    AGGREGATE,
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
        paired: whether a seed means the same at all sizes, as where it draws the data too. Otherwise models of one seed
            at two sizes are independent, and each size's scatter counts by itself: of three seeds, three slopes can lie
            close to each other by chance while the models that they were paired from do not.
    """

    sizes: tuple[int, ...]
    values: Mapping[str, Numbers]
    paired: bool = True

    @classmethod
    def of(cls, by_size: Mapping[int, Mapping[str, Numbers]], optimizer: Optimizer, *, paired: bool = True) -> Series:
        """The series of values [steps + 1, seeds] at each size; a quantity that some size lacks is left out."""
        sizes = tuple(sorted(by_size))
        at_first_size = map(Quantity.named, by_size[sizes[0]])
        names = [name for name in at_first_size if all(name in by_size[size] for size in sizes)]
        measured = {name: np.stack([by_size[size][name] for size in sizes]) for name in names}
        with np.errstate(invalid="ignore", over="ignore"):
            return cls(sizes, dict([*measured.items(), *_derived(measured, optimizer)]), paired)

    def of_seeds(self, chosen: slice) -> Series:
        """The series of some of the seeds."""
        return Series(self.sizes, {name: values[..., chosen] for name, values in self.values.items()}, self.paired)

    def diverged(self) -> tuple[int, int] | None:
        """The size that diverged first, and after how many updates; None if all values are finite."""
        first_steps = []
        for name, values in self.values.items():
            not_finite = ~np.isfinite(
                values[:, :-1] if name == LOSS() else values
            )  # the last update is followed by no loss
            for size, at_size in zip(self.sizes, not_finite, strict=True):
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
    """The quantities that are ratios of measured ones."""
    entering, summed = measured.get(INPUT("aggregate")), measured.get(AGGREGATE("effective"))
    if entering is not None and summed is not None:
        yield ALIGNMENT_P("aggregate"), _ratio(summed, measured[UPDATE("expert_out")] * entering)
    for role in [name.of for name in measured if name.kind is UPDATE]:
        update = measured[UPDATE(role)]
        layer_input, effective = measured.get(INPUT(role)), measured.get(EFFECTIVE(role))
        if layer_input is not None and effective is not None:
            # Divided by the size of the input, an effective update shows the learning rate of its own layer alone.
            yield NORMALISED(role), _ratio(effective, layer_input)
            yield ALIGNMENT_P(role), _ratio(effective, update * layer_input)
        propagating, change = measured.get(PROPAGATING(role)), measured.get(INPUT_CHANGE(role))
        if propagating is not None and change is not None:
            yield ALIGNMENT_Q(role), _ratio(propagating, measured[WEIGHTS(role)] * change)
        gradient_sum = measured.get(GRADIENT_SUM(role))
        if not optimizer.follows_gradients:
            yield RATE(role), update  # Adam's updates are as large as its learning rate
        elif gradient_sum is not None:
            yield RATE(role), _ratio(update, gradient_sum)  # SGD's updates are learning rate times gradient
        eps, gradient = measured.get(EPS(role)), measured.get(GRADIENT(role))
        if eps is not None and gradient is not None:
            yield FAITHFULNESS(role), _ratio(eps, gradient)


def _ratio(numerator: Numbers, denominator: Numbers) -> Numbers:
    """The ratio; zero where the denominator is zero, as before the first update."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


_FEWEST_SIZES_FOR_BEND = 4  # a line with a bend passes through any three points


def slopes(sizes: Sequence[int], values: Numbers, *, bent: bool = False) -> Numbers:
    """The slopes of values [sizes, ...] in log-log; NaN where a value is zero or not finite.

    >>> sizes = [64, 128, 256, 512]
    >>> values = np.array([[n**0.5 * np.exp(8 / n)] for n in sizes])
    >>> round(float(slopes(sizes, values)[0]), 2), round(float(slopes(sizes, values, bent=True)[0]), 2)
    (0.45, 0.5)

    Args:
        bent: fit a term in 1/size along with the slope.
    """
    return np.asarray(np.tensordot(_weights(sizes, bent=bent), _logs(values), axes=1))


def _weights(sizes: Sequence[int], *, bent: bool) -> Numbers:
    """The slope is the sum of logarithms with these weights."""
    n = np.asarray(sizes, dtype=np.float64)
    terms = [np.ones_like(n), np.log(n), *([n.min() / n] if bent else [])]
    weights: Numbers = np.linalg.pinv(np.stack(terms, axis=1))[1]
    return weights


def _logs(values: Numbers) -> Numbers:
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Numbers = np.log(values)
    logs[~np.isfinite(logs)] = np.nan
    return logs


def estimate(sizes: Sequence[int], values: Numbers, *, paired: bool = True, bent: bool = False) -> Estimate:
    """The exponent of values [sizes, seeds], or of [sizes, steps, seeds] as a mean over steps, with its interval.

    The interval comes from the scatter of the seeds' slopes or, where seeds are not ``paired``, from that of the models
    at each size. A seed whose slope is not finite is left out. The interval of a single seed is from its residuals.
    """
    by_size = _logs(values).reshape(len(sizes), -1, values.shape[-1]).mean(1)
    weights = _weights(sizes, bent=bent)
    by_seed = weights @ by_size
    if len(by_seed) == 1 and not bent:
        return Estimate(float(by_seed[0]), _scatter(sizes, values))
    usable = by_size[:, np.isfinite(by_seed)]
    if paired or usable.shape[1] < 2:
        return mean_of(by_seed.tolist())
    return weighted_sum(weights.tolist(), usable.tolist())


def bent_estimate(sizes: Sequence[int], values: Numbers, *, paired: bool = True) -> Estimate | None:
    """The exponent of a fit with a further term in 1/size; None for too few sizes."""
    return None if len(sizes) < _FEWEST_SIZES_FOR_BEND else estimate(sizes, values, paired=paired, bent=True)


def _scatter(sizes: Sequence[int], values: Numbers) -> float:
    """The half-width of a slope's 95 % interval, from its residuals; NaN for two sizes, through which a line passes."""
    freedom = len(sizes) - 2
    if not freedom or not values.all():
        return float("nan")
    logs = np.log(values).reshape(len(sizes), -1).mean(1)
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x = x - x.mean()
    residuals = logs - logs.mean() - x * (x @ logs) / (x @ x)
    return float(quantile(0.975, freedom) * np.sqrt(residuals @ residuals / freedom / (x @ x)))
