"""How far finite networks are from the limit, and how fast they come closer.

The mean over networks of one width differs from the limit by the finite width's bias and by the noise of few seeds. The
``deviation`` is the size of the difference, both together; its ``error`` is the size that the noise alone would have.
The exponent of the bias is fitted to its part along one direction, the bias at the smallest width, which is linear in
what was measured: noise has mean zero there, where it only adds to a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mssp._estimates import Estimate
from mssp._numbers import positive_int
from mssp.dmft.finite import trained
from mssp.dmft.observables import MAIN, Array, Averaged, Observables, averaged, relative
from mssp.dmft.solution import Solution

FALLS = -0.7  # an exponent of the bias that says: it falls about as 1/N
_STEEPEST, _FINENESS = 4.0, 0.005
_SURE = 3.0  # standard errors: with less, the smallest width's bias has no direction to speak of
_ZERO = 1e-12  # all quantities are of order one: what is smaller is rounding
_HALF_WIDTH = 3.84  # by how much χ² rises at the ends of a 95 % interval


@dataclass(frozen=True)
class AtWidth:
    """Networks of one width against the limit: by name, relative to the limit's size."""

    width: int
    networks: Averaged
    deviation: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """A limit beside finite networks; exponents of their bias by name, NaN where noise hides it."""

    solution: Solution
    widths: Sequence[AtWidth]
    exponents: Mapping[str, Estimate]

    @property
    def verdict(self) -> str:
        """``converges``, ``slow`` (more slowly than about 1/N, beyond the exponent's own error) or ``unclear``."""
        if self.slow:
            return "slow"
        known = [each for name, each in self.exponents.items() if name in MAIN and each.value + each.ci < 0]
        return "converges" if known else "unclear"

    @property
    def slow(self) -> list[str]:
        """What comes closer more slowly than it should."""
        known = {name: self.exponents[name] for name in MAIN if name in self.exponents}
        return [name for name, exponent in known.items() if exponent.value - exponent.ci > FALLS]

    @property
    def largest(self) -> AtWidth:
        return self.widths[-1]


def compare(
    solution: Solution,
    widths: Sequence[int],
    *,
    seeds: int = 40,
    device: str | torch.device = "cpu",
    on_width: Callable[[], None] | None = None,
) -> Comparison:
    """Train finite networks of some widths, and compare them with the limit.

    Args:
        seeds: networks of the largest width. A smaller one has more, in proportion, which makes the noise of their
            means the same.
        on_width: called after each width.
    """
    experiment, counts = solution.experiment, networks(widths, seeds)
    device = torch.device(device)
    found = {}
    for width, count in counts.items():
        found[width] = trained(experiment, width, range(count), device)
        if on_width is not None:
            on_width()
    return compared(solution, found)


def networks(widths: Sequence[int], seeds: int) -> dict[int, int]:
    """How many networks of each width are trained.

    >>> networks([64, 16], seeds=10)
    {16: 40, 64: 10}
    """
    seeds = positive_int("seeds", seeds)
    wide = sorted({positive_int("width", width) for width in widths})
    return {width: seeds * wide[-1] // width for width in wide}


def compared(solution: Solution, networks: Mapping[int, Sequence[Observables]]) -> Comparison:
    """The same, for what every network of a width has shown."""
    widths = [_at_width(solution, width, networks[width]) for width in sorted(networks)]
    names = [name for name in solution.mean if np.abs(solution.mean[name]).max() > _ZERO]
    exponents = {name: _exponent(solution, networks, name) for name in names}
    return Comparison(solution, widths, exponents)


def _at_width(solution: Solution, width: int, draws: Sequence[Observables]) -> AtWidth:
    found, limit = averaged(draws), solution.mean
    return AtWidth(
        width,
        found,
        deviation={name: relative(found.mean[name] - limit[name], limit[name]) for name in limit},
        error={name: relative(found.error[name], limit[name]) for name in limit},
    )


def _exponent(solution: Solution, networks: Mapping[int, Sequence[Observables]], name: str) -> Estimate:
    """Of the bias b(N) = C·N^p along its direction at the smallest width.

    Half of the smallest networks give the direction, the other half the bias: their own noise would lie along it.
    """
    unknown = Estimate(float("nan"), float("nan"))
    widths, limit = sorted(networks), solution.mean[name]
    smallest = networks[widths[0]]
    if len(widths) < 2 or min(len(solution.draws), len(smallest) // 2, *map(len, networks.values())) < 2:
        return unknown
    direction = np.mean([draw[name] for draw in smallest[::2]], 0) - limit
    measured = {**networks, widths[0]: smallest[1::2]}
    along = {width: _projected([draw[name] - limit for draw in measured[width]], direction) for width in widths}
    bias = np.array([along[width].mean() for width in widths])
    noise = np.array([_squared_error(along[width]) for width in widths])
    # All widths are compared with one solution, whose error they share.
    shared = _squared_error(_projected([draw[name] - limit for draw in solution.draws], direction))
    if not bias[0] > _SURE * np.sqrt(noise[0] + shared):
        return unknown
    return _fitted(np.array(widths, dtype=np.float64), bias, np.diag(noise) + shared)


def _projected(differences: Sequence[Array], direction: Array) -> Array:
    return np.array([float((each * direction).sum()) for each in differences])


def _squared_error(values: Array) -> float:
    return float(values.var(ddof=1)) / len(values)


def _fitted(widths: Array, bias: Array, covariance: Array) -> Estimate:
    """The p of b = C·N^p by generalised least squares; its interval is where χ² is near its minimum."""
    weights = np.linalg.inv(covariance)
    exponents = np.arange(-_STEEPEST, _STEEPEST, _FINENESS)
    misfits = []
    for exponent in exponents:
        shape = (widths / widths[0]) ** exponent
        rest = bias - shape * (shape @ weights @ bias) / (shape @ weights @ shape)
        misfits.append(rest @ weights @ rest)
    misfit = np.array(misfits)
    near = exponents[misfit < misfit.min() + _HALF_WIDTH * max(1.0, misfit.min() / max(len(widths) - 2, 1))]
    if near[0] == exponents[0] or near[-1] == exponents[-1]:
        return Estimate(float("nan"), float("nan"))  # no end to it within reach
    return Estimate(round(float(exponents[misfit.argmin()]), 3), round(float(near[-1] - near[0]) / 2, 4))
