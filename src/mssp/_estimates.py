"""Means over a few seeds, with what their scatter leaves open: Student's t, without a dependency."""

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
        """For people, with a minus sign that is one.

        >>> Estimate(-0.0001, 0.25).text(2), Estimate(-1.5, math.nan).text(1)
        ('0.00 ± 0.25', '−1.5')
        """
        rounded = round(self.value, digits) + 0.0  # adding zero makes minus zero a plain one
        ci = "" if math.isnan(self.ci) else f" ± {self.ci:.{digits}f}"
        return f"{rounded:.{digits}f}{ci}".replace("-", "−")

    def __str__(self) -> str:
        return self.text()

    @property
    def excludes_zero(self) -> bool:
        return abs(self.value) > self.ci


def finite(value: float) -> float | None:
    """For JSON, which has no NaN and no infinity.

    >>> finite(0.5), finite(math.nan)
    (0.5, None)
    """
    return value if math.isfinite(value) else None


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean over seeds with its confidence interval; values that are not finite count as missing.

    >>> print(mean_of([1.0, 2.0, 3.0]))
    2.000 ± 2.484
    """
    present = [value for value in values if math.isfinite(value)]
    if len(present) < 2:
        return Estimate(present[0] if present else math.nan, math.nan)
    half = quantile(0.975, len(present) - 1) * stdev(present) / math.sqrt(len(present))
    return Estimate(fmean(present), half)


def slope_of(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The least-squares slope.

    >>> slope_of([0, 1, 2], [1.0, 3.0, 5.0])
    2.0
    """
    middle = fmean(xs)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    if not spread:
        raise ValueError("a slope needs at least two different places")
    return math.fsum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / spread


def p_greater(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of Welch's one-sided test that the mean of ``first`` is greater than that of ``second``.

    >>> round(p_greater([2.1, 2.0, 2.2], [1.0, 1.1, 0.9]), 4)
    0.0001
    """
    if min(len(first), len(second)) < 2:
        return math.nan
    difference = fmean(first) - fmean(second)
    parts = [stdev(sample) ** 2 / len(sample) for sample in (first, second)]
    if not sum(parts):
        return 0.0 if difference > 0 else 1.0
    weighted = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, (first, second), strict=True))
    return 1 - cdf(difference / math.sqrt(sum(parts)), sum(parts) ** 2 / weighted)


def cdf(t: float, freedom: float) -> float:
    """Student's distribution function.

    >>> round(cdf(2.0, 3), 5)
    0.93034
    """
    tail = 0.5 * _beta_share(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1 - tail if t > 0 else tail


@cache
def quantile(share: float, freedom: float) -> float:
    """Where Student's distribution function reaches ``share``, by bisection.

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
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image is fast
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
