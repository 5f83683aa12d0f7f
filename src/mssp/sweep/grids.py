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
    rates = {role: point[role] for role in TUNED_ROLES}
    return replace(trial, init_mult=point[INIT], lr_mult=rates)


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
    """``count`` combinations at random, none twice; all of them where there are no more."""
    sizes = [len(each) for each in grid.values()]
    total = int(np.prod(sizes))
    chosen = np.random.default_rng(seed).choice(total, min(count, total), replace=False)
    indexes = np.stack(np.unravel_index(chosen, sizes), axis=1)
    return [
        {name: values[index] for (name, values), index in zip(grid.items(), row, strict=True)}
        for row in indexes.tolist()
    ]


def planes(grid: Mapping[str, Sequence[float]], centre: Point) -> list[dict[str, float]]:
    """All pairs of multipliers over the grid, the others at the centre."""
    found = []
    for first, second in combinations(grid, 2):
        for x, y in product(grid[first], grid[second]):
            found.append({**centre, first: x, second: y})
    return found


def at_edge(grid: Mapping[str, Sequence[float]], point: Point) -> list[str]:
    """The multipliers whose best value is the first or last of its axis."""
    return [name for name, values in grid.items() if len(values) > 1 and point[name] in (min(values), max(values))]


def lies_on(grid: Mapping[str, Sequence[float]], point: Point) -> bool:
    return all(any(math.isclose(point[name], value) for value in values) for name, values in grid.items())


def near(
    best: Trial, tried: Iterable[tuple[Trial, float]], grid: Mapping[str, Sequence[float]] | None = None
) -> list[tuple[Point, float]]:
    """Points with their scores that were tried at the best one's learning rate, those of a grid or all."""
    axes = None if grid is None else {name: [*values, point_of(best)[name]] for name, values in grid.items()}
    return [
        (point_of(trial), score)
        for trial, score in tried
        if trial.lr == best.lr and (axes is None or lies_on(axes, point_of(trial)))
    ]


def unique(points: Iterable[Point]) -> list[Point]:
    """Points in their order, each once."""
    return list({tuple(sorted(point.items())): point for point in points}.values())
