"""Grids of points for a search: a point is a value for each multiplier, and values lie in powers of a ratio.

The multipliers are those of the initial weights and of the learning rates of the roles that are tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from mssp.ladders.tuned import TUNED_ROLES
from mssp.sweep.trial import Trial

INIT = "init"
MULTIPLIERS = (INIT, *TUNED_ROLES)
Point = Mapping[str, float]  # a value for each of MULTIPLIERS
_FARTHEST = 100  # powers of ten from 1: a plan multiplies three such numbers, and floats end at 1e308


def with_multipliers(trial: Trial, point: Point) -> Trial:
    """The trial with the multipliers of a point."""
    return replace(trial, init_mult=point[INIT], lr_mult={role: point[role] for role in TUNED_ROLES})


def point_of(trial: Trial) -> dict[str, float]:
    """The multipliers of a trial."""
    return {INIT: trial.init_mult, **{role: trial.lr_mult.get(role, 1.0) for role in TUNED_ROLES}}


def levels(centre: float, points: int, ratio: float) -> list[float]:
    """``points`` numbers a factor ``ratio`` apart, ``centre`` in the middle.

    >>> levels(1.0, 5, 4.0)
    [0.0625, 0.25, 1.0, 4.0, 16.0]
    """
    check_range("a grid", centre, (points - 1) / 2, ratio)
    return [centre * ratio ** (k - (points - 1) / 2) for k in range(points)]


def check_range(what: str, centre: float, steps: float, ratio: float = 1.0) -> None:
    """Refuse numbers ``steps`` factors of ``ratio`` to either side of a centre, if products of them could overflow.

    >>> check_range("--lrs", 1e300, 0)
    Traceback (most recent call last):
        ...
    ValueError: --lrs would reach 1e+300: numbers to search must lie from 1e-100 to 1e+100
    """
    middle, distance = math.log10(centre), steps * math.log10(ratio)
    farthest = middle + math.copysign(distance, middle)
    if abs(farthest) > _FARTHEST:
        needed = f"numbers to search must lie from 1e-{_FARTHEST} to 1e+{_FARTHEST}"
        raise ValueError(f"{what} would reach 1e{farthest:+.0f}: {needed}")


def axes(centre: Point, points: int, ratio: float) -> dict[str, list[float]]:
    """The values of each multiplier on a grid around a point."""
    return {name: levels(centre[name], points, ratio) for name in MULTIPLIERS}


def all_points(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of the grid's values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def random_points(grid: Mapping[str, Sequence[float]], count: int, seed: int) -> list[dict[str, float]]:
    """``count`` different combinations at random; every combination if the grid has no more than ``count``."""
    sizes = [len(values) for values in grid.values()]
    total = math.prod(sizes)
    chosen = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
    indexes = np.stack(np.unravel_index(chosen, sizes), axis=1)
    return [
        {name: values[index] for (name, values), index in zip(grid.items(), row, strict=True)}
        for row in indexes.tolist()
    ]


def pair_points(grid: Mapping[str, Sequence[float]], centre: Point) -> list[dict[str, float]]:
    """For each pair of multipliers every combination of their values, with the other multipliers at the centre."""
    return [
        {**centre, first: x, second: y}
        for first, second in combinations(grid, 2)
        for x, y in product(grid[first], grid[second])
    ]


def at_edge(grid: Mapping[str, Sequence[float]], point: Point) -> list[str]:
    """The multipliers whose value at a point is the smallest or largest of the grid."""
    return [name for name, values in grid.items() if len(values) > 1 and point[name] in (min(values), max(values))]


def points_at_best_lr(
    best: Trial, tried: Iterable[tuple[Trial, float]], grid: Mapping[str, Sequence[float]] | None = None
) -> list[tuple[Point, float]]:
    """The points that were tried at the best trial's learning rate, with their scores; with a grid, only its points."""
    centre = point_of(best)

    def lies_on_grid(point: Point) -> bool:
        return grid is None or all(
            any(math.isclose(point[name], value) for value in (*values, centre[name])) for name, values in grid.items()
        )

    points = [(point_of(trial), score) for trial, score in tried if trial.lr == best.lr]
    return [(point, score) for point, score in points if lies_on_grid(point)]


def unique(points: Iterable[Point]) -> list[Point]:
    """The points without repeats, in their order."""
    return list({tuple(sorted(point.items())): point for point in points}.values())
