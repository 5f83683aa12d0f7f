"""Compares finite networks with the limit of their experiment: how far they are from it, and how fast they approach it.

The networks are planned, initialised and trained by the code that users run. The mean over networks of one width
differs from the limit by the bias of the finite width and by the noise of few seeds. The ``deviation`` is the size of
this difference; its ``error`` is the size that the noise alone would have. Noise always adds to a size. The exponent of
the bias is therefore fitted to the component of the difference along one direction, that of the bias at the smallest
width: a component is linear in what was measured, and noise in it has mean zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mssp._constraints import a_device, function, kind_of, optional, positive_int, several, takes
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
from mssp.replicas.training import bytes_per_replica, check_memory, even_parts, replicas_that_fit

# Memory of networks that train together. It is the same on every machine, so that results agree to the last digit.
_BYTES_AT_ONCE = {"cpu": 2 << 30, "cuda": 24 << 30}

_KEPT_KERNELS = 3  # of a network, over all pairs of rows: Φ¹, Φ³ and G¹


def trained(experiment: Experiment, width: int, seeds: Sequence[int], device: torch.device) -> list[Observables]:
    """Trains one network of that width for every seed, and returns the observables of each."""
    program, plan = MLPProgram(experiment.config(width)), experiment.member(width)
    needs = program, plan.setting.optimizer, len(experiment.all_inputs), device
    at_once = max(1, min(_BYTES_AT_ONCE[device.type] // bytes_per_replica(*needs), replicas_that_fit(*needs)))
    observables: list[Observables] = []
    for part in even_parts(len(seeds), at_once):
        lockstep = Lockstep(program, [Replica(plan, seed) for seed in seeds[part]], device=device)
        observables += _observed(experiment, lockstep)
    return observables


def _observed(experiment: Experiment, lockstep: Lockstep) -> list[Observables]:
    """Trains the networks of a lockstep, and returns the observables of each."""
    device, replicas = lockstep.device, len(lockstep.replicas)
    count = len(experiment.inputs)
    x = torch.from_numpy(experiment.all_inputs).float().to(device)
    y = torch.from_numpy(experiment.targets).float().to(device)
    groups = len(lockstep.seeds)
    batch, targets = x[:count].expand(groups, -1, -1), y.view(1, -1, 1).expand(groups, -1, -1)
    states = []
    for step in range(experiment.steps + 1):
        states.append(_state(experiment, lockstep, x))
        if step < experiment.steps:
            lockstep.step(batch, targets)
    fields = {name: torch.stack([state[name] for state in states], 1) for name in states[0]}  # [R, steps + 1, ...]
    f = fields["f"]
    loss = 0.5 * (f[:, :, :count] - y).square().mean(-1)
    kernels = {
        "phi1": _gram(fields["features"].flatten(1, 2)),
        "phi3": _gram(fields["aggregate"].flatten(1, 2)),
        "g1": _gram(fields["feature_gradient"].flatten(1, 2)),
        "g3": _gram(fields["readout"]),
    }
    names = ("phi2", "g2", "router_gradient", "router_mean", "router_variance")
    observables = {"f": f, "loss": loss, **kernels, **{name: fields[name] for name in names}}
    arrays = {name: tensor.double().cpu().numpy() for name, tensor in observables.items()}
    return [{name: array[index] for name, array in arrays.items()} for index in range(replicas)]


def _state(experiment: Experiment, lockstep: Lockstep, x: Tensor) -> dict[str, Tensor]:
    """The present activations and gradients of all networks, scaled to order one as in the equations."""
    program = lockstep.program
    assert isinstance(program, MLPProgram)
    config, width = program.config, program.config.width
    leaves = {name: parameter.detach() for name, parameter in lockstep.parameters.items()}
    leaves["embedding"].requires_grad_()  # so that autograd computes gradients of every layer's output
    factors = mlp.Multipliers(lockstep.constants["aggregation"], 1.0)
    acts = mlp.forward(leaves, x, config, factors)
    names = ("embedding", "blocks.0.router", "blocks.0.expert_in")
    # The outputs of different inputs do not depend on each other, so their sum has the gradients of each.
    feature_grad, router_grad, unit_grad = torch.autograd.grad(acts["readout"].sum(), [acts[name] for name in names])
    leaves["embedding"].requires_grad_(False)
    acts = {name: act.detach() for name, act in acts.items()}
    psi, units = acts["blocks.0.router"], activation(config.activation)(acts["blocks.0.expert_in"])
    gate = acts["blocks.0.gates"] * (config.experts if config.gate == "softmax" else 1)
    expert_growth = 1 if experiment.plan.setting.regime is II else width  # a factor of N where N_e grows with it
    return {
        "f": acts["readout"][..., 0],
        "features": acts["features"],
        "aggregate": acts["blocks.0.aggregate"],
        "feature_gradient": feature_grad * width,
        "readout": leaves["readout"][:, 0].clone() * width,
        "phi2": _gram((gate.unsqueeze(-1) * units).flatten(2)),
        "g2": _gram(unit_grad.flatten(2) * config.experts * expert_growth),
        "router_gradient": _gram(router_grad * config.experts),
        "router_mean": psi.mean(-1),
        # The unbiased estimate, of the variance over infinitely many experts; a single expert has none.
        "router_variance": psi.var(-1) if psi.shape[-1] > 1 else torch.zeros_like(psi[..., 0]),
    }


def _gram(vectors: Tensor) -> Tensor:
    """The inner products of vectors [R, rows, size], divided by their size: [R, rows, rows]."""
    return vectors @ vectors.mT / vectors.shape[-1]


FALLS = -0.7  # a bias whose exponent is larger falls more slowly than about 1/N
_LARGEST_EXPONENT, _EXPONENT_STEP = 4.0, 0.005  # of the grid on which the exponent is fitted
_CLEAR = 3.0  # standard errors; a smaller bias at the smallest width has no clear direction
_ZERO = 1e-12  # smaller values are rounding errors, because all quantities are of order one
_CHI_SQUARED = 3.84  # how much χ² rises from its minimum to the ends of a 95 % interval


@dataclass(frozen=True)
class AtWidth:
    """The mean over networks of one width, and its deviation from the limit by name, relative to the limit's size."""

    width: int
    networks: Averaged
    deviation: Mapping[str, float]
    error: Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """A limit and finite networks, with the exponents of their bias by name, NaN where noise hides the bias."""

    solution: Solution
    widths: Sequence[AtWidth]
    exponents: Mapping[str, Estimate]

    @property
    def verdict(self) -> str:
        """``converges``, ``slow`` (more slowly than about 1/N, beyond the exponent's error) or ``unclear``."""
        if self.slow:
            return "slow"
        return "converges" if self.falling else "unclear"

    @property
    def main(self) -> dict[str, Estimate]:
        """The exponents that the verdict is about."""
        return {name: self.exponents[name] for name in MAIN if name in self.exponents}

    @property
    def slow(self) -> list[str]:
        """The observables whose bias falls more slowly than about 1/N."""
        return [name for name, exponent in self.main.items() if exponent.value - exponent.ci > FALLS]

    @property
    def falling(self) -> list[str]:
        """The observables whose bias falls, beyond the exponent's error."""
        return [name for name, exponent in self.main.items() if exponent.value + exponent.ci < 0]

    @property
    def largest(self) -> AtWidth:
        return self.widths[-1]


@takes(
    solution=kind_of(Solution),
    widths=several(positive_int),
    seeds=positive_int,
    device=a_device,
    on_width=optional(function),
)
def compare(
    solution: Solution,
    widths: Sequence[int],
    *,
    seeds: int = 40,
    device: str | torch.device = "cpu",
    on_width: Callable[[], None] | None = None,
) -> Comparison:
    """Trains finite networks of some widths, and compares them with the limit.

    Args:
        seeds: the number of networks of the largest width. Smaller widths have proportionally more networks, which
            makes the noise of their means the same.
        on_width: called after each width.
    """
    device = torch.device(device)
    check_networks(solution.experiment, widths, seeds, device)
    observables = {}
    for width, count in network_counts(widths, seeds).items():
        observables[width] = trained(solution.experiment, width, range(count), device)
        if on_width is not None:
            on_width()
    return compared(solution, observables)


def check_networks(experiment: Experiment, widths: Sequence[int], seeds: int, device: torch.device) -> None:
    """Refuse networks that do not fit on a device, and more of them than there is memory for their observables."""
    counts = network_counts(widths, seeds)
    for width in counts:
        program, optimizer = MLPProgram(experiment.config(width)), experiment.plan.setting.optimizer
        examples = len(experiment.all_inputs)
        replicas_that_fit(program, optimizer, examples, device, what=f"one network of width {width} (--compare)")
    rows, networks = len(experiment.all_inputs) * (experiment.steps + 1), sum(counts.values())
    what = f"a comparison with {networks:,} networks (--compare, --seeds)"
    check_memory(what, networks * _KEPT_KERNELS * 8 * rows**2, torch.device("cpu"))


def network_counts(widths: Sequence[int], seeds: int) -> dict[int, int]:
    """How many networks of each width are trained.

    >>> network_counts([64, 16], seeds=10)
    {16: 40, 64: 10}
    """
    return {width: seeds * max(widths) // width for width in sorted(set(widths))}


def compared(solution: Solution, networks: Mapping[int, Sequence[Observables]]) -> Comparison:
    """Compares the observables of trained networks, by width, with the limit."""
    widths = [_at_width(solution, width, networks[width]) for width in sorted(networks)]
    names = [name for name in solution.mean if np.abs(solution.mean[name]).max() > _ZERO]
    exponents = {name: _exponent(solution, networks, name) for name in names}
    return Comparison(solution, widths, exponents)


def _at_width(solution: Solution, width: int, draws: Sequence[Observables]) -> AtWidth:
    networks, limit = averaged(draws), solution.mean
    return AtWidth(
        width,
        networks,
        deviation={name: relative(networks.mean[name] - limit[name], limit[name]) for name in limit},
        error={name: relative(networks.error[name], limit[name]) for name in limit},
    )


def _exponent(solution: Solution, networks: Mapping[int, Sequence[Observables]], name: str) -> Estimate:
    """The exponent p of the bias b(N) = C·N^p along its direction at the smallest width.

    Half of the networks of the smallest width give the direction, and the other half give the bias at this width. The
    noise of the first half points along the direction, and would add to the bias.
    """
    unknown = Estimate(float("nan"), float("nan"))
    widths, limit = sorted(networks), solution.mean[name]
    smallest = networks[widths[0]]
    if len(widths) < 2 or min(len(solution.draws), len(smallest) // 2, *map(len, networks.values())) < 2:
        return unknown
    direction = np.mean([draw[name] for draw in smallest[::2]], 0) - limit
    measured = {**networks, widths[0]: smallest[1::2]}
    components = {width: _projected([draw[name] - limit for draw in measured[width]], direction) for width in widths}
    bias = np.array([components[width].mean() for width in widths])
    noise = np.array([_squared_error(components[width]) for width in widths])
    # All widths are compared with one solution, so its error is common to all of them.
    limit_noise = _squared_error(_projected([draw[name] - limit for draw in solution.draws], direction))
    if not bias[0] > _CLEAR * np.sqrt(noise[0] + limit_noise):
        return unknown
    return _fitted(np.array(widths, dtype=np.float64), bias, np.diag(noise) + limit_noise)


def _projected(differences: Sequence[Array], direction: Array) -> Array:
    return np.array([float((difference * direction).sum()) for difference in differences])


def _squared_error(values: Array) -> float:
    """The square of the mean's standard error."""
    return float(values.var(ddof=1)) / len(values)


def _fitted(widths: Array, bias: Array, covariance: Array) -> Estimate:
    """The p of b = C·N^p by generalised least squares, with the interval in which χ² is near its minimum."""
    weights = np.linalg.inv(covariance)
    exponents = np.arange(-_LARGEST_EXPONENT, _LARGEST_EXPONENT, _EXPONENT_STEP)
    misfits = []
    for exponent in exponents:
        shape = (widths / widths[0]) ** exponent
        residual = bias - shape * (shape @ weights @ bias) / (shape @ weights @ shape)
        misfits.append(residual @ weights @ residual)
    misfit = np.array(misfits)
    interval = exponents[misfit < misfit.min() + _CHI_SQUARED * max(1.0, misfit.min() / max(len(widths) - 2, 1))]
    if interval[0] == exponents[0] or interval[-1] == exponents[-1]:
        return Estimate(float("nan"), float("nan"))  # the interval is not within the grid
    return Estimate(round(float(exponents[misfit.argmin()]), 3), round(float(interval[-1] - interval[0]) / 2, 4))
