"""Train replicas of the MLP MoE a few steps, and measure every term of their dynamics after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mssp.measure.magnitudes import Pool, Sizes
from mssp.measure.mlp import MLPProbe
from mssp.nn.mlp import Multipliers
from mssp.planning.parameter import ParamInfo
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram

Measured = dict[str, npt.NDArray[np.float64]]
_EAGER_CALLS = 1  # before a GPU records one: libraries are set up by then


def watch(
    lockstep: Lockstep,
    probe: tuple[Tensor, Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    on_step: Callable[[], None] | None = None,
) -> Measured:
    """Every size by name, [steps + 1, R]: at the start, and after each update.

    With them the training ``loss``, which belongs to the batch of the next update and has no value after the last;
    ``gradient-sum/ROLE``, the sum of the sizes of the gradients that were trained on; and what the optimizer and the
    forward pass were told: ``eps/ROLE`` and ``aggregation``.

    Args:
        probe: inputs [T, D] and targets [T] that all replicas share, or [G, T, D] and [G, T] for groups of them.
    """
    program = lockstep.program
    assert isinstance(program, MLPProgram)
    constants = lockstep.constants
    factors = Multipliers(constants["aggregation"], constants.get("residual", 1.0))
    measure = _Measurement(MLPProbe(program.config, factors, lockstep.parameters, *probe), lockstep)
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
    found["loss"] = torch.stack([*losses, unknown]).double().cpu().numpy()
    return found | {name: np.tile(value.cpu().numpy(), (len(rows), 1)) for name, value in told.items()}


class _Measurement:
    """A probe of parameters that change in place; on a GPU its hundreds of small operations are launched as one."""

    def __init__(self, probe: MLPProbe, lockstep: Lockstep) -> None:
        self._probe, self._parameters = probe, lockstep.parameters
        self._eager_calls = _EAGER_CALLS if lockstep.device.type == "cuda" else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recorded: tuple[list[str], Tensor] = [], torch.empty(0)

    def __call__(self) -> Sizes:
        if self._graph is not None:
            self._graph.replay()
            names, sizes = self._recorded
            return dict(zip(names, sizes.clone(), strict=True))
        found = self._probe(self._parameters)
        if self._eager_calls is not None:
            self._eager_calls -= 1
            if not self._eager_calls:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    again = self._probe(self._parameters)
                    self._recorded = list(again), torch.stack(list(again.values()))
        return found


def _by_role(passed: Mapping[str, Tensor], infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    pool = Pool()
    for info in infos:
        pool.add(f"gradient-sum/{info.role}", passed[info.name])
    return pool.sizes()


def _told(lockstep: Lockstep, infos: Iterable[ParamInfo]) -> dict[str, Tensor]:
    told = {"aggregation": lockstep.constants["aggregation"].flatten().double()}
    if lockstep.replicas[0].plan.setting.optimizer.eps is not None:
        # A role's parameters share their eps: those of an MLP's blocks have one shape.
        rates = {info.role: lockstep.rates[info.name] for info in infos}
        # Scaling gradients up is, to Adam, scaling eps down.
        told |= {f"eps/{role}": each.eps / each.grad_scale for role, each in rates.items()}
    return told
