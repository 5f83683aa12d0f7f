"""Train replicas a few steps, and measure every term of their dynamics after each."""

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
_EAGER_CALLS = 1  # before a GPU records one


def watch(
    lockstep: Lockstep,
    probe: tuple[Tensor, Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    on_step: Callable[[], None] | None = None,
) -> Measured:
    """Every size by name, [steps + 1, R]: at the start, and after each update.

    With them the training ``loss``, which belongs to the batch of the next update and has no value after the last;
    ``gradient-sum/ROLE``, the sum of the sizes of the gradients that were trained on; and what the optimizer and the
    forward pass were told: ``eps/ROLE``, and by name the factors of the program.

    Args:
        probe: inputs [G, T, ...] and targets [G, T, ...] for groups of replicas, as a batch has them.
    """
    program = lockstep.program
    measure = _Measurement(program.probe(lockstep.parameters, lockstep.constants, *probe), lockstep)
    told = _told(lockstep, program.infos)
    passed = {info.name: torch.zeros(len(lockstep.replicas), device=lockstep.device) for info in program.infos}
    rows, losses = [measure() | _by_role(passed, program.infos)], []
    for x, targets in batches:
        losses.append(lockstep.step(x, targets)[:, 0])
        passed = {name: before + lockstep.gradient_sizes[name] for name, before in passed.items()}
        rows.append(measure() | _by_role(passed, program.infos))
        if on_step is not None:
            on_step()
    # One transfer: asking for a number earlier would have waited for the device.
    found = {name: torch.stack([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
    unknown = torch.full_like(losses[0], torch.nan) if losses else torch.full((len(lockstep.replicas),), torch.nan)
    found[LOSS()] = torch.stack([*losses, unknown]).double().cpu().numpy()
    return found | {name: np.tile(value.cpu().numpy(), (len(rows), 1)) for name, value in told.items()}


class _Measurement:
    """A probe of parameters that change in place, with the sizes of one moment in one tensor: a GPU records that."""

    def __init__(self, probe: Probe, lockstep: Lockstep) -> None:
        self._probe, self._parameters = probe, lockstep.parameters
        self._record_or_replay = Recorder(_EAGER_CALLS if lockstep.device.type == "cuda" else 0)
        self._names: tuple[str, ...] = ()

    def __call__(self) -> Sizes:
        sizes = self._record_or_replay(self._stacked)
        return dict(zip(self._names, sizes, strict=True))

    def _stacked(self) -> Tensor:
        found = self._probe(self._parameters)
        self._names = tuple(found)
        return torch.stack(list(found.values()))


def _by_role(passed: Mapping[str, Tensor], infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    pool = Pool()
    for info in infos:
        pool.add(GRADIENT_SUM(info.role), passed[info.name])
    return pool.sizes()


def _told(lockstep: Lockstep, infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    told = dict(lockstep.program.told(lockstep.constants))
    if lockstep.replicas[0].plan.setting.optimizer.eps is not None:
        # A role's parameters share their eps where they have one shape, as those of equal blocks do.
        rates = {info.role: lockstep.rates[info.name] for info in infos}
        # Scaling gradients up is, to Adam, scaling eps down.
        told |= {EPS(role): each.eps / each.grad_scale for role, each in rates.items()}
    return told
