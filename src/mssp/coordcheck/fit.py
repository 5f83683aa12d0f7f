"""Exponents by least squares in log-log, with what seeds leave open, and with finite sizes taken into account.

At a finite size a term of order N^α is c N^α (1 + b/N + ...), and over the widths that one can afford b/N bends the
line: the slope from 64 to 512 may be 0.2 from α, and the one from 512 to 2048 within 0.03. So every exponent is fitted
twice: the plain slope, which is what one sees, and the slope beside a term in 1/N, which is noisier and less biased.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mssp._estimates import Estimate, mean_of, quantile
from mssp.coordcheck.series import Numbers

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
