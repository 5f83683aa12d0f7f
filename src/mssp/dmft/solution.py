"""The limit, solved: means over a few independent solutions, their errors, and what to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, gcd

import numpy as np
import torch

from mssp._constraints import positive_int
from mssp.dmft.constants import Constants, constants
from mssp.dmft.experiment import Experiment
from mssp.dmft.observables import MAIN, Averaged, Observables, averaged, relative
from mssp.dmft.run import Samples
from mssp.dmft.solver import Marched, march
from mssp.planning.setting import II, III, ZERO, I

SAMPLES, SOLVES = 80_000, 6
_EXPERTS_IN_GRID, _UNITS_SHARE = 24, 8  # Regime III: so many experts meet an eighth as many units as features
_MOST_EXPERTS = 256  # of that grid
_FEWEST_PER_ROW = 10  # members for each pair of a time and an input: responses are told apart by their probes
_LARGE_ERROR = 0.05  # relative, of what is found
_MEMORY = {"cpu": 4 << 30, "cuda": 32 << 30}  # bytes that one solution may take


@dataclass(frozen=True)
class Solution:
    """A limit.

    Args:
        found: by name, with standard errors (``observables.py`` has the names).
        draws: each independent solution.
        contradictions: by how much ``outputs`` and ``features`` differ as the two sides of a layer of weights see them,
            relative to their size over all times: zero but for errors of the solution.
        warnings: what a reader should know, one line each.
    """

    experiment: Experiment
    constants: Constants
    samples: Samples
    found: Averaged
    draws: tuple[Observables, ...]
    contradictions: Averaged
    warnings: tuple[str, ...]

    @property
    def mean(self) -> Observables:
        return self.found.mean

    def relative_error(self, name: str) -> float:
        """The standard error of a whole array, relative to it."""
        return relative(self.found.error[name], self.found.mean[name])


def solve(
    experiment: Experiment,
    *,
    samples: int = SAMPLES,
    solves: int = SOLVES,
    seed: int = 0,
    device: str | torch.device = "cpu",
    memory: int | None = None,
    on_solved: Callable[[], None] | None = None,
) -> Solution:
    """The limit of an experiment.

    >>> from mssp.dmft.examples import example
    >>> limit = solve(example("II", "mssp", inputs=2, steps=4), samples=2000, solves=2)
    >>> limit.mean["loss"].shape, bool(limit.mean["loss"][-1] < limit.mean["loss"][0])
    ((5,), True)

    Args:
        samples: members of each population, in one solution.
        solves: independent solutions, whose spread is the error.
        seed: of the noise; experiments with one seed share it, so that they differ smoothly.
        memory: bytes that one solution may take; where samples do not fit, there are more solutions of fewer.
        on_solved: called after each solution.
    """
    device = torch.device(device)
    of = constants(experiment)
    samples, solves = positive_int("samples", samples), positive_int("solves", solves)
    rows = len(experiment.all_inputs) * (experiment.steps + 1)
    if samples < _FEWEST_PER_ROW * rows:
        raise ValueError(
            f"{samples} samples are too few for {len(experiment.all_inputs)} inputs at {experiment.steps + 1} times: "
            f"use at least {_FEWEST_PER_ROW * rows}"
        )
    budget = _MEMORY[device.type] if memory is None else positive_int("memory", memory)
    parts = ceil(_bytes(_sizes(experiment, samples), experiment) / budget)
    sizes = _sizes(experiment, max(ceil(samples / parts), _FEWEST_PER_ROW * rows))
    draws: list[Marched] = []
    for index in range(solves * parts):
        # Seeds of independent solutions are far apart, so that two calls with neighbouring seeds share none.
        draws.append(march(experiment, of, sizes, seed + 1_000_003 * index, device))
        if on_solved is not None:
            on_solved()
    found = averaged([draw.observables for draw in draws])
    contradictions = averaged([draw.contradictions for draw in draws])
    warnings = _warnings(experiment, found, contradictions, draws, samples)
    return Solution(
        experiment, of, sizes, found, tuple(draw.observables for draw in draws), contradictions, tuple(warnings)
    )


def _sizes(experiment: Experiment, samples: int) -> Samples:
    if experiment.plan.setting.regime is I:
        return Samples(samples, 1, samples)
    if experiment.plan.setting.regime is II:
        return Samples(samples, max(samples // experiment.plan.target.expert_width, 1), 1)
    experts = round(_EXPERTS_IN_GRID * max(samples / SAMPLES, 1.0) ** 0.5)
    # Under top-K a whole number of the few experts has to be active.
    shape = experiment.plan.target
    least = shape.experts // gcd(shape.experts, shape.active)
    if least > _MOST_EXPERTS:
        share = f"{shape.active} of {shape.experts} experts active"
        raise ValueError(f"{share} is too fine a share for regime III: use a multiple of 1/{_MOST_EXPERTS} or coarser")
    experts = ceil(experts / least) * least
    return Samples(samples, experts, max(samples // _UNITS_SHARE, 1))


def _bytes(sizes: Samples, experiment: Experiment) -> int:
    """What one solution keeps: pasts, tangents, normal numbers and probes of every member, roughly."""
    units = experiment.plan.target.expert_width if experiment.plan.setting.regime is II else sizes.units
    kept = 6 if experiment.plan.setting.regime is III else 4
    of_grid = kept * sizes.experts * units
    own = 5 * sizes.features + 4 * sizes.experts
    noise = 2 * (sizes.experts * units if experiment.plan.setting.regime is II else 3 * sizes.units)
    return 8 * len(experiment.all_inputs) * (experiment.steps + 1) * (of_grid + own + noise)


def _warnings(
    experiment: Experiment, found: Averaged, contradictions: Averaged, draws: list[Marched], samples: int
) -> list[str]:
    told = []
    plan = experiment.plan
    if not np.any(found.mean["f"]):
        why = (
            "a zero readout has nothing to start from"
            if plan.readout == ZERO
            else "what the experts put out and what they learn vanishes"
        )
        told.append(f"the limit is trivial: under {plan.scheme} in regime {plan.regime} {why}, and f stays 0")
    elif found.count > 1:
        worst = max(MAIN, key=lambda name: relative(found.error[name], found.mean[name]))
        error = relative(found.error[worst], found.mean[worst])
        if error > _LARGE_ERROR:
            told.append(f"too few samples: {worst} is known to {error:.0%} only; try {4 * samples}")
    else:
        told.append("one solution says nothing of its error: use two or more")
    off = max(float(np.linalg.norm(each)) for each in contradictions.mean.values())
    if off > _LARGE_ERROR:
        told.append(f"too few samples: what passes through a layer of weights differs by {off:.0%} between its sides")
    if experiment.gate == "softmax" and plan.setting.regime is not I:
        told.append("softmax gates are not bounded: strictly there is no limit as experts become many (docs/dmft.md)")
    heavy = [draw.heavy_from for draw in draws if draw.heavy_from is not None]
    if heavy:
        told.append(
            f"heavy tail from step {min(heavy)} on: one of {draws[0].experts} experts carries much of the router's "
            "gradient, and averages over experts do not settle; use sigmoid gates or a smaller lr"
        )
    return told
