"""Points to try: grids over multipliers, in powers of a ratio around a centre."""

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
Point = Mapping[str, float]  # a factor for each multiplier


def at(trial: Trial, point: Point) -> Trial:
    """A trial with these multipliers."""
    return replace(trial, init_mult=point[INIT], lr_mult={role: point[role] for role in TUNED_ROLES})


def point_of(trial: Trial) -> dict[str, float]:
    return {INIT: trial.init_mult, **{role: trial.lr_mult.get(role, 1.0) for role in TUNED_ROLES}}


def levels(centre: float, points: int, ratio: float) -> list[float]:
    """``points`` numbers a factor ``ratio`` apart, ``centre`` in the middle.

    >>> levels(1.0, 5, 4.0)
    [0.0625, 0.25, 1.0, 4.0, 16.0]
    """
    return [centre * ratio ** (k - (points - 1) / 2) for k in range(points)]


def axes(centre: Point, points: int, ratio: float) -> dict[str, list[float]]:
    return {name: levels(centre[name], points, ratio) for name in MULTIPLIERS}


def full(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def some(grid: Mapping[str, Sequence[float]], count: int, seed: int) -> list[dict[str, float]]:
    """``count`` different combinations at random; all of them where there are no more."""
    sizes = [len(values) for values in grid.values()]
    total = int(np.prod(sizes))
    chosen = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
    indexes = np.stack(np.unravel_index(chosen, sizes), axis=1)
    return [
        {name: values[index] for (name, values), index in zip(grid.items(), row, strict=True)}
        for row in indexes.tolist()
    ]


def planes(grid: Mapping[str, Sequence[float]], centre: Point) -> list[dict[str, float]]:
    """All pairs of multipliers over the grid, the other multipliers at the centre."""
    return [
        {**centre, first: x, second: y}
        for first, second in combinations(grid, 2)
        for x, y in product(grid[first], grid[second])
    ]


def at_edge(grid: Mapping[str, Sequence[float]], point: Point) -> list[str]:
    """The multipliers whose value is the first or last of its axis."""
    return [name for name, values in grid.items() if len(values) > 1 and point[name] in (min(values), max(values))]


def near(
    best: Trial, tried: Iterable[tuple[Trial, float]], grid: Mapping[str, Sequence[float]] | None = None
) -> list[tuple[Point, float]]:
    """The points tried at the learning rate of the best trial, with their scores: all, or those of a grid."""
    centre = point_of(best)

    def lies_on_grid(point: Point) -> bool:
        return grid is None or all(
            any(math.isclose(point[name], value) for value in (*values, centre[name])) for name, values in grid.items()
        )

    points = [(point_of(trial), score) for trial, score in tried if trial.lr == best.lr]
    return [(point, score) for point, score in points if lies_on_grid(point)]


def unique(points: Iterable[Point]) -> list[Point]:
    """Points in their order, each once."""
    return list({tuple(sorted(point.items())): point for point in points}.values())
