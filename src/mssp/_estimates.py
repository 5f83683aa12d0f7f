"""Means over a few seeds with their 95 % confidence intervals: Student's t, without a dependency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev


@dataclass(frozen=True)
class Estimate:
    """A number and the half-width of its 95 % confidence interval, which is NaN where there was only one value."""

    value: float
    ci: float

    def text(self, digits: int = 3) -> str:
        """The estimate as people read it, with a minus sign instead of a hyphen.

        >>> Estimate(-0.0001, 0.25).text(2), Estimate(-1.5, math.nan).text(1)
        ('0.00 ± 0.25', '−1.5')
        """
        rounded = round(self.value, digits) + 0.0  # adding zero turns -0.0 into 0.0
        ci = "" if math.isnan(self.ci) else f" ± {self.ci:.{digits}f}"
        return f"{rounded:.{digits}f}{ci}".replace("-", "−")

    def __str__(self) -> str:
        return self.text()

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the confidence interval."""
        return abs(self.value) > self.ci


def finite(value: float) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have.

    >>> finite(0.5), finite(math.nan)
    (0.5, None)
    """
    return value if math.isfinite(value) else None


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean over seeds with its confidence interval; values that are not finite are left out.

    >>> print(mean_of([1.0, 2.0, 3.0]))
    2.000 ± 2.484
    """
    numbers = [value for value in values if math.isfinite(value)]
    if len(numbers) < 2:
        return Estimate(numbers[0] if numbers else math.nan, math.nan)
    half_width = quantile(0.975, len(numbers) - 1) * stdev(numbers) / math.sqrt(len(numbers))
    return Estimate(fmean(numbers), half_width)


def weighted_sum(weights: Sequence[float], samples: Sequence[Sequence[float]]) -> Estimate:
    """The weighted sum of the means of independent samples, with its interval by Welch and Satterthwaite.

    >>> print(weighted_sum([-1.0, 1.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    3.000 ± 2.267
    """
    value = math.fsum(weight * fmean(sample) for weight, sample in zip(weights, samples, strict=True))
    variances = [(weight * stdev(sample)) ** 2 / len(sample) for weight, sample in zip(weights, samples, strict=True)]
    if not sum(variances):
        return Estimate(value, 0.0)
    # Quantiles are found by search, and kept for each number: down to a quarter there are few.
    freedom = math.floor(4 * _freedom(variances, samples)) / 4
    return Estimate(value, quantile(0.975, freedom) * math.sqrt(sum(variances)))


def _freedom(variances: Sequence[float], samples: Sequence[Sequence[float]]) -> float:
    """The degrees of freedom of the sum of these variances of means: at least those of the smallest sample."""
    parts = [variance**2 / (len(sample) - 1) for variance, sample in zip(variances, samples, strict=True)]
    return max(sum(variances) ** 2 / sum(parts), min(map(len, samples)) - 1)


def slope_of(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of the least-squares line through points (x, y).

    >>> slope_of([0, 1, 2], [1.0, 3.0, 5.0])
    2.0
    """
    mean_x = fmean(xs)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    if not spread:
        raise ValueError("a slope needs at least two different places")
    return math.fsum((x - mean_x) * y for x, y in zip(xs, ys, strict=True)) / spread


def p_greater(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of Welch's one-sided test that the mean of ``first`` is greater than that of ``second``.

    >>> round(p_greater([2.1, 2.0, 2.2], [1.0, 1.1, 0.9]), 4)
    0.0001
    """
    if min(len(first), len(second)) < 2:
        return math.nan
    difference = fmean(first) - fmean(second)
    samples = (first, second)
    variances = [stdev(sample) ** 2 / len(sample) for sample in samples]  # of the two means
    if not sum(variances):
        return 0.0 if difference > 0 else 1.0
    return 1 - cdf(difference / math.sqrt(sum(variances)), _freedom(variances, samples))


_AS_MANY_AS_NONE = 1e8  # degrees of freedom, beyond which the distribution is the normal one to seven digits


def cdf(t: float, freedom: float) -> float:
    """Student's distribution function at t, for this number of degrees of freedom.

    >>> round(cdf(2.0, 3), 5)
    0.93034
    """
    freedom = min(freedom, _AS_MANY_AS_NONE)
    tail = 0.5 * _beta_share(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1 - tail if t > 0 else tail


@cache
def quantile(share: float, freedom: float) -> float:
    """The t at which Student's distribution function is ``share``, found by bisection.

    >>> round(quantile(0.975, 4), 3)
    2.776
    """
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # the fraction converges slowly there, and that of 1 - x fast
        return 1 - _beta_share(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    )
    # The fraction is computed from the inside out; for the arguments of a t test a hundred terms are enough.
    fraction = 1.0
    for m in range(100, 0, -1):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        fraction = 1 + even / (1 + odd / fraction)
    first = -(a + b) * x / (a + 1)
    return front / (1 + first / fraction)
