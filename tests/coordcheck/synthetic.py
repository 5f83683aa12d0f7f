"""Series of known exponents, built by hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import mssp
from mssp import Plan, PlanWarning
from mssp.coordcheck.series import Numbers, Series
from mssp.ladders.mlp import family
from mssp.theory.expected import Theory

SIZES = (64, 128, 256)
STEPS = 4
INITIAL = {"embedding": 0.0, "router": -0.5, "expert_in": -0.5, "expert_out": 0.5}
SPREAD = (-0.01, 0.0, 0.01)  # by which the seeds' exponents differ: an interval of ± 0.025


def law(
    power: float,
    *,
    factor: float = 1.0,
    bend: float = 0.0,
    start: int = 0,
    sizes: Sequence[int] = SIZES,
    steps: int = STEPS,
    spread: Sequence[float] = SPREAD,
) -> Numbers:
    """factor · N^power · (1 + bend/N) from ``start`` updates on and zero before, [sizes, steps + 1, seeds]."""
    n = np.asarray(sizes, dtype=np.float64)[:, None, None]
    values = factor * n ** (power + np.asarray(spread)) * (1 + bend / n)
    there = (np.arange(steps + 1) >= start)[None, :, None]
    return np.asarray(values * there)


def series(values: Mapping[str, Numbers], sizes: Sequence[int] = SIZES) -> Series:
    """A series of these values, with the updates and initial weights that are measured along with learning rates."""
    beside: dict[str, Numbers] = {}
    for name, rate in values.items():
        kind, _, role = name.partition("/")
        if kind == "rate":
            beside[f"update/{role}"] = np.ones_like(rate)
            n = np.asarray(sizes, dtype=np.float64)[:, None, None]
            beside[f"weights/{role}"] = n ** INITIAL[role] * np.ones_like(rate) if role in INITIAL else 0 * rate
    return Series(tuple(sizes), {**beside, **values})


def plans(
    regime: str | None = "II", *, sizes: Sequence[int] = SIZES, depth: bool = False, **options: Any
) -> dict[int, Plan]:
    """Plans for the paper's family by width, or by depth at width 64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        shapes = {size: family(regime or "II", 64 if depth else size, 48) for size in sizes}
        return {
            size: mssp.plan(
                replace(shape, depth=size) if depth else shape,
                regime=regime,
                **{"lr": 0.1, "optimizer": "sgd", **options},
            )
            for size, shape in shapes.items()
        }


def theory(regime: str | None = "II", **options: Any) -> Theory:
    return Theory(plans(regime, **options))
