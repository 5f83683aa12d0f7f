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

from mssp.dmft.finite import trained
from mssp.dmft.observables import Array, Averaged, Observables, averaged, relative
from mssp.dmft.solution import Solution
from mssp.shape import positive_int
from mssp.statistics import Estimate

_STEEPEST, _FINENESS = 4.0, 0.005
_SURE = 3.0  # standard errors: with less, the smallest width's bias has no direction to speak of
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
    def largest(self) -> AtWidth:
        return self.widths[-1]


def compare(
    solution: Solution,
    widths: Sequence[int],
    *,
    seeds: int = 40,
    device: str | torch.device = "cpu",
    on_step: Callable[[], None] | None = None,
) -> Comparison:
    """Train finite networks of some widths, and compare them with the limit.

    Args:
        seeds: networks of the largest width. A smaller one has more, in proportion, which makes the noise of their
            means the same.
    """
    experiment, counts = solution.experiment, networks(widths, seeds)
    device = torch.device(device)
    return compared(
        solution,
        {width: trained(experiment, width, range(count), device, on_step) for width, count in counts.items()},
    )


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
    names = [name for name in solution.mean if np.any(solution.mean[name])]
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
    """Of the bias b(N) = C·N^p along its direction at the smallest width."""
    widths = sorted(networks)
    limit = solution.mean[name]
    direction = np.mean([draw[name] for draw in networks[widths[0]]], 0) - limit
    along = {width: _projected([draw[name] - limit for draw in networks[width]], direction) for width in widths}
    of_limit = _projected([draw[name] - limit for draw in solution.draws], direction)
    bias = np.array([along[width].mean() for width in widths])
    noise = np.array([_squared_error(along[width]) for width in widths])
    shared = _squared_error(of_limit)  # all widths are compared with one solution
    if len(widths) < 2 or not np.isfinite(noise).all() or not np.isfinite(shared):
        return Estimate(float("nan"), float("nan"))
    if not bias[0] > _SURE * np.sqrt(noise[0] + shared):
        return Estimate(float("nan"), float("nan"))
    return _fitted(np.array(widths, dtype=np.float64), bias, np.diag(noise) + shared)


def _projected(differences: Sequence[Array], direction: Array) -> Array:
    return np.array([float((each * direction).sum()) for each in differences])


def _squared_error(values: Array) -> float:
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else float("nan")


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
    return Estimate(float(exponents[misfit.argmin()]), float(near[-1] - near[0]) / 2)
