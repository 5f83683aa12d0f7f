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
_EAGER_CALLS = 1  # calls before a GPU records one


def watch(
    lockstep: Lockstep,
    probe: tuple[Tensor, Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    on_step: Callable[[], None] | None = None,
) -> Measured:
    """Every size by name, [steps + 1, R]: at the start, and after each update.

    Beside the sizes there are the training ``loss``, which belongs to the batch of the next update and has no value
    after the last; ``gradient-sum/ROLE``, the sum of the sizes of the gradients that were trained on; ``eps/ROLE`` of
    the optimizer; and the program's factors by name.

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
        gradient_sums = {name: before + lockstep.gradient_sizes[name] for name, before in gradient_sums.items()}
        rows.append(measure() | _by_role(gradient_sums, program.infos))
        if on_step is not None:
            on_step()
    # All numbers are asked for at the end, because the program would wait for the device at each of them.
    measured = {name: torch.stack([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
    unknown = torch.full((len(lockstep.replicas),), torch.nan, device=lockstep.device)
    measured[LOSS()] = torch.stack([*losses, unknown]).double().cpu().numpy()
    return measured | {name: np.tile(value.cpu().numpy(), (len(rows), 1)) for name, value in constants.items()}


def _recorded(probe: Probe, lockstep: Lockstep) -> Callable[[], Sizes]:
    """Measures parameters that change in place. A GPU records it, because all sizes are put into one tensor."""
    record_or_replay = Recorder(_EAGER_CALLS if lockstep.device.type == "cuda" else 0)
    names: list[str] = []

    def stacked() -> Tensor:
        sizes = probe(lockstep.parameters)
        names[:] = sizes
        return torch.stack(list(sizes.values()))

    return lambda: dict(zip(names, record_or_replay(stacked), strict=True))


def _by_role(gradient_sums: Mapping[str, Tensor], infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    pool = Pool()
    for info in infos:
        pool.add(GRADIENT_SUM(info.role), gradient_sums[info.name])
    return pool.sizes()


def _constants(lockstep: Lockstep, infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    """The program's factors, and the optimizer's eps if it has one."""
    constants = dict(lockstep.program.factors(lockstep.constants))
    if lockstep.replicas[0].plan.setting.optimizer.eps is not None:
        # Parameters of one role share their eps where they have one shape, as in equal blocks.
        rates_of = {info.role: lockstep.rates[info.name] for info in infos}
        # Adam sees gradients scaled up as eps scaled down.
        constants |= {EPS(role): rates.eps / rates.grad_scale for role, rates in rates_of.items()}
    return constants
