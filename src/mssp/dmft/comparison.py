"""Finite networks of the same experiment, how far they are from the limit, and how fast they come closer.

The networks are planned, initialised and trained by the code that users run. The mean over networks of one width
differs from the limit by the finite width's bias and by the noise of few seeds. The ``deviation`` is the size of the
difference, both together; its ``error`` is the size that the noise alone would have. The exponent of the bias is
fitted to its part along one direction, the bias at the smallest width, which is linear in what was measured: noise
has mean zero there, where it only adds to a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mssp._constraints import positive_int
from mssp._estimates import Estimate
from mssp.dmft.experiment import Experiment
from mssp.dmft.observables import MAIN, Array, Averaged, Observables, averaged, relative
from mssp.dmft.solution import Solution
from mssp.nn import mlp
from mssp.nn.activations import activation
from mssp.planning.setting import II
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.program import Replica
from mssp.replicas.training import bytes_per_replica, even_parts, replicas_that_fit

# What networks trained together may take: the same for every machine of a kind, so that their last digits are too.
_BYTES_AT_ONCE = {"cpu": 2 << 30, "cuda": 24 << 30}


def trained(experiment: Experiment, width: int, seeds: Sequence[int], device: torch.device) -> list[Observables]:
    """What each network of that width shows in training, one for every seed."""
    program = MLPProgram(experiment.config(width))
    plan = experiment.member(width)
    each = bytes_per_replica(program, plan.setting.optimizer, len(experiment.all_inputs), device)
    fitting = replicas_that_fit(program, plan.setting.optimizer, len(experiment.all_inputs), device)
    at_once = max(1, min(_BYTES_AT_ONCE[device.type] // each, fitting))
    found: list[Observables] = []
    for part in even_parts(len(seeds), at_once):
        lockstep = Lockstep(program, [Replica(plan, seed) for seed in seeds[part]], device=device)
        found += _watched(experiment, lockstep)
    return found


def _watched(experiment: Experiment, lockstep: Lockstep) -> list[Observables]:
    device, replicas = lockstep.device, len(lockstep.replicas)
    trained = len(experiment.inputs)
    x = torch.from_numpy(experiment.all_inputs).float().to(device)
    y = torch.from_numpy(experiment.targets).float().to(device)
    batch, targets = x[:trained].unsqueeze(0), y.view(1, -1, 1).expand(len(lockstep.seeds), -1, -1)
    batch = batch.expand(len(lockstep.seeds), -1, -1)
    states = []
    for step in range(experiment.steps + 1):
        states.append(_state(experiment, lockstep, x))
        if step < experiment.steps:
            lockstep.step(batch, targets)
    fields = {name: torch.stack([state[name] for state in states], 1) for name in states[0]}  # [R, steps + 1, ...]
    f = fields["f"]
    loss = 0.5 * (f[:, :, :trained] - y).square().mean(-1)
    kernels = {
        "phi1": _gram(fields["features"].flatten(1, 2)),
        "phi3": _gram(fields["aggregate"].flatten(1, 2)),
        "g1": _gram(fields["feature_gradient"].flatten(1, 2)),
        "g3": _gram(fields["readout"]),
    }
    others = ("phi2", "g2", "router_gradient", "router_mean", "router_variance")
    found = {"f": f, "loss": loss, **kernels, **{name: fields[name] for name in others}}
    arrays = {name: each.double().cpu().numpy() for name, each in found.items()}
    return [{name: each[index] for name, each in arrays.items()} for index in range(replicas)]


def _state(experiment: Experiment, lockstep: Lockstep, x: Tensor) -> dict[str, Tensor]:
    """Activations and gradients of all networks now, scaled to order one as the equations have them."""
    program = lockstep.program
    assert isinstance(program, MLPProgram)
    config, width = program.config, program.config.width
    leaves = {name: each.detach() for name, each in lockstep.parameters.items()}
    leaves["embedding"].requires_grad_()  # so that autograd keeps what comes back to every layer
    factors = mlp.Multipliers(lockstep.constants["aggregation"], 1.0)
    acts = mlp.forward(leaves, x, config, factors)
    names = ("embedding", "blocks.0.router", "blocks.0.expert_in")
    # Outputs of different inputs do not depend on each other: one sum differentiates them all.
    back = torch.autograd.grad(acts["readout"].sum(), [acts[name] for name in names])
    leaves["embedding"].requires_grad_(False)
    acts = {name: each.detach() for name, each in acts.items()}
    psi, units = acts["blocks.0.router"], activation(config.activation)(acts["blocks.0.expert_in"])
    gate = acts["blocks.0.gates"] * (config.experts if config.gate == "softmax" else 1)
    wide_experts = 1 if experiment.plan.setting.regime is II else width
    return {
        "f": acts["readout"][..., 0],
        "features": acts["features"],
        "aggregate": acts["blocks.0.aggregate"],
        "feature_gradient": back[0] * width,
        "readout": leaves["readout"][:, 0].clone() * width,
        "phi2": _gram((gate.unsqueeze(-1) * units).flatten(2)),
        "g2": _gram(back[2].flatten(2) * config.experts * wide_experts),
        "router_gradient": _gram(back[1] * config.experts),
        "router_mean": psi.mean(-1),
        "router_variance": psi.var(-1),  # as an estimate of that over all experts there could be
    }


def _gram(vectors: Tensor) -> Tensor:
    """Overlaps of vectors [R, rows, size] per entry, [R, rows, rows]."""
    return vectors @ vectors.mT / vectors.shape[-1]


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
