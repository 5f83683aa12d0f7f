"""The solved limit: means over a few independent solutions, their errors, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, gcd

import numpy as np
import torch

from mssp._constraints import a_device, function, kind_of, optional, positive_int, takes, whole
from mssp.dmft.constants import Constants, constants
from mssp.dmft.experiment import Experiment
from mssp.dmft.kernels import bytes_of_kernels
from mssp.dmft.observables import MAIN, Averaged, Observables, averaged, relative
from mssp.dmft.run import Samples
from mssp.dmft.solver import Marched, march
from mssp.planning.setting import II, III, ZERO, I
from mssp.replicas.training import check_memory

SAMPLES, SOLVES = 80_000, 6
# In Regime III, where every expert has all units: the usual and the largest number of experts, and features per unit.
_EXPERTS_IN_GRID, _MOST_EXPERTS, _FEATURES_PER_UNIT = 24, 256, 8
_FEWEST_PER_ROW = 10  # samples for each pair of a time and an input, so that probes are orthogonal
_LARGE_ERROR = 0.05  # relative to the result; larger errors are warned of
_MOST_SOLVES = 10_000  # they take minutes at the least, and their error falls with the root of their number only
_MEMORY = {"cpu": 4 << 30, "cuda": 32 << 30}  # bytes for one solution


@dataclass(frozen=True)
class Solution:
    """The solved limit of an experiment.

    Args:
        samples: the number of members of each population in one solution.
        found: the mean observables with their standard errors, by the names in ``observables.py``.
        draws: the observables of each independent solution.
        contradictions: by how much ``outputs`` and ``features`` differ between the two sides of a layer of weights,
            relative to their size over all times; an exact solution would have zeros.
        warnings: one line for each reason to doubt the solution.
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
        """The size of an array's standard error, relative to the array."""
        return relative(self.found.error[name], self.found.mean[name])


@takes(
    experiment=kind_of(Experiment),
    samples=positive_int,
    solves=positive_int,
    seed=whole,
    device=a_device,
    memory=optional(positive_int),
    on_solved=optional(function),
)
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
    """Solves the limit of an experiment.

    >>> from mssp.dmft.examples import example
    >>> limit = solve(example("II", "mssp", inputs=2, steps=4), samples=2000, solves=2)
    >>> limit.mean["loss"].shape, bool(limit.mean["loss"][-1] < limit.mean["loss"][0])
    ((5,), True)

    Args:
        samples: the number of members of each population in one solution.
        solves: the number of independent solutions, whose spread is the error.
        seed: of the noise. Experiments with the same seed have the same noise, so that their solutions differ smoothly.
        memory: bytes for one solution. If the samples do not fit, there are more solutions of fewer samples.
        on_solved: called after each solution.
    """
    device, limit_constants = torch.device(device), constants(experiment)
    rows = len(experiment.all_inputs) * (experiment.steps + 1)
    if samples < _FEWEST_PER_ROW * rows:
        raise ValueError(
            f"{samples} samples are too few for {len(experiment.all_inputs)} inputs at {experiment.steps + 1} times: "
            f"use at least {_FEWEST_PER_ROW * rows}"
        )
    budget = _MEMORY[device.type] if memory is None else memory
    parts = ceil(_bytes(_sizes(experiment, samples), experiment) / budget)
    sizes = _sizes(experiment, max(ceil(samples / parts), _FEWEST_PER_ROW * rows))
    if solves * parts > _MOST_SOLVES:
        raise ValueError(
            f"{samples:,} samples (--samples), {solves:,} times (--solves), are {solves * parts:,} solutions of "
            f"{budget / 2**30:.1f} GiB: at most {_MOST_SOLVES:,} are solved"
        )
    needed = _bytes(sizes, experiment) + bytes_of_kernels(rows)
    check_memory(f"one solution for {rows:,} pairs of an input and a time (--inputs, --steps)", needed, device)
    draws: list[Marched] = []
    for index in range(solves * parts):
        # Solutions have seeds far apart, so that calls with neighbouring seeds have no solution in common.
        draws.append(march(experiment, limit_constants, sizes, seed + 1_000_003 * index, device))
        if on_solved is not None:
            on_solved()
    observables = tuple(draw.observables for draw in draws)
    found, contradictions = averaged(observables), averaged([draw.contradictions for draw in draws])
    solution = Solution(experiment, limit_constants, sizes, found, observables, contradictions, warnings=())
    heavy_from = min((draw.heavy_from for draw in draws if draw.heavy_from is not None), default=None)
    return replace(solution, warnings=tuple(_warnings(solution, samples, heavy_from)))


def _sizes(experiment: Experiment, samples: int) -> Samples:
    regime, shape = experiment.plan.setting.regime, experiment.plan.target
    if regime is I:
        return Samples(samples, 1, samples)
    if regime is II:
        return Samples(samples, max(samples // shape.expert_width, 1), 1)
    experts = round(_EXPERTS_IN_GRID * max(samples / SAMPLES, 1.0) ** 0.5)
    # Under top-K a whole number of the sampled experts has to be active: their number is a multiple of this.
    least = shape.experts // gcd(shape.experts, shape.active)
    if least > _MOST_EXPERTS:
        share = f"{shape.active} of {shape.experts} experts active"
        raise ValueError(f"{share} is too fine a share for regime III: use a multiple of 1/{_MOST_EXPERTS} or coarser")
    experts = ceil(experts / least) * least
    return Samples(samples, experts, max(samples // _FEATURES_PER_UNIT, 1))


def _bytes(sizes: Samples, experiment: Experiment) -> int:
    """An estimate of the memory of one solution: histories, tangents, normal numbers and probes of every member."""
    regime = experiment.plan.setting.regime
    units = experiment.plan.target.expert_width if regime is II else sizes.units
    expert_units = (6 if regime is III else 4) * sizes.experts * units
    features_and_experts = 5 * sizes.features + 4 * sizes.experts
    noise = 2 * (sizes.experts * units if regime is II else 3 * sizes.units)
    return 8 * len(experiment.all_inputs) * (experiment.steps + 1) * (expert_units + features_and_experts + noise)


def _warnings(solution: Solution, samples: int, heavy_from: int | None) -> Iterator[str]:
    plan = solution.experiment.plan
    if not np.any(solution.mean["f"]):
        why = (
            "a zero readout has nothing to start from"
            if plan.readout == ZERO
            else "what the experts put out and what they learn vanishes"
        )
        yield f"the limit is trivial: under {plan.scheme} in regime {plan.regime} {why}, and f stays 0"
    elif solution.found.count > 1:
        worst = max(MAIN, key=solution.relative_error)
        error = solution.relative_error(worst)
        if error > _LARGE_ERROR:
            yield f"too few samples: {worst} is known to {error:.0%} only; try {4 * samples}"
    else:
        yield "one solution says nothing of its error: use two or more"
    off = max(float(np.linalg.norm(contradiction)) for contradiction in solution.contradictions.mean.values())
    if off > _LARGE_ERROR:
        yield f"too few samples: what passes through a layer of weights differs by {off:.0%} between its sides"
    if solution.experiment.gate == "softmax" and plan.setting.regime is not I:
        yield "softmax gates are not bounded: strictly there is no limit as experts become many (docs/dmft.md)"
    if heavy_from is not None:
        yield (
            f"heavy tail from step {heavy_from} on: one of {solution.samples.experts} experts carries much of the "
            "router's gradient, and averages over experts do not settle; use sigmoid gates or a smaller lr"
        )
