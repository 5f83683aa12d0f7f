"""Trains replicas for a few steps, and measures every term of their dynamics after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mssp.measure.magnitudes import Pool, Sizes
from mssp.measure.quantities import EPS, GRADIENT_SUM, LOSS
from mssp.planning.parameter import ParamInfo
from mssp.replicas.graphs import Recorder
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.program import Probe

Measured = dict[str, npt.NDArray[np.float64]]
_EAGER_CALLS = 1  # plain calls before the measurement is captured as a CUDA graph


def watch(
    lockstep: Lockstep,
    probe: tuple[Tensor, Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    on_step: Callable[[], None] | None = None,
) -> Measured:
    """Trains on the batches, and returns every size by name, [steps + 1, R]: at the start, and after each update.

    The result also has the training ``loss`` on the batch of the next update, which is NaN after the last update;
    ``gradient-sum/ROLE``, the sum over all updates of the sizes of gradients; ``eps/ROLE`` of the optimizer; and the
    program's factors by name.

    Args:
        probe: inputs [G, T, ...] and targets [G, T, ...] for groups of replicas, as a batch has them.
    """
    program = lockstep.program
    measure = _recorded(program.probe(lockstep.parameters, lockstep.constants, *probe), lockstep)
    constants = _constants(lockstep, program.infos)
    gradient_sums = {info.name: torch.zeros(len(lockstep.replicas), device=lockstep.device) for info in program.infos}
    rows, losses = [measure() | _by_role(gradient_sums, program.infos)], []
    for x, targets in batches:
        losses.append(lockstep.step(x, targets)[:, 0])
        gradient_sums = {name: total + lockstep.gradient_sizes[name] for name, total in gradient_sums.items()}
        rows.append(measure() | _by_role(gradient_sums, program.infos))
        if on_step is not None:
            on_step()
    # Numbers are read from the device at the end only, because each read waits for it.
    measured = {name: torch.stack([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
    unknown = torch.full((len(lockstep.replicas),), torch.nan, device=lockstep.device)
    measured[LOSS()] = torch.stack([*losses, unknown]).double().cpu().numpy()
    return measured | {name: np.tile(value.cpu().numpy(), (len(rows), 1)) for name, value in constants.items()}


def _recorded(probe: Probe, lockstep: Lockstep) -> Callable[[], Sizes]:
    """A function that measures the present parameters. All sizes are in one tensor, so that a CUDA graph can do it."""
    record_or_replay = Recorder(_EAGER_CALLS if lockstep.device.type == "cuda" else 0)
    names: list[str] = []

    def stacked() -> Tensor:
        sizes = probe(lockstep.parameters)
        names[:] = sizes
        return torch.stack(list(sizes.values()))

    return lambda: dict(zip(names, record_or_replay(stacked), strict=True))


def _by_role(gradient_sums: Mapping[str, Tensor], infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    """Combines the gradient sums of all parameters of a role."""
    pool = Pool()
    for info in infos:
        pool.add(GRADIENT_SUM(info.role), gradient_sums[info.name])
    return pool.sizes()


def _constants(lockstep: Lockstep, infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    """The program's factors, and the optimizer's eps if it has one."""
    constants = dict(lockstep.program.factors(lockstep.constants))
    if lockstep.replicas[0].plan.setting.optimizer.eps is not None:
        # Parameters of one role have equal shapes in all blocks, and so one eps: the last one stands for all.
        role_rates = {info.role: lockstep.rates[info.name] for info in infos}
        # To Adam, larger gradients are the same as a smaller eps.
        constants |= {EPS(role): rates.eps / rates.grad_scale for role, rates in role_rates.items()}
    return constants
