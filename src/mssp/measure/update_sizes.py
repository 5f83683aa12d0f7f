"""Sizes of updates over what a plan says that they are: how far one step moves each parameter over its learning rate.

Adam moves an entry by its learning rate where gradients agree from step to step, and by a quarter of it where they are
noise. So the root mean square over the entries of a parameter, over the planned learning rate times the schedule's
factor, is of order one at every width. What makes it small: another learning rate than the plan's, an eps that is not
small beside the gradient, no gradient at all, a precision that rounds updates away.

A few thousand entries of each parameter are looked at, so that a step costs a small part of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mssp.apply.sharding import is_sharded
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values

# At the very ends of a schedule steps are so small that float32 rounds them.
_LEAST_FACTOR = 0.01
_ENTRIES = 4096  # of each parameter, by which a root mean square is known to one or two percent


@dataclass(frozen=True)
class UpdateSize:
    """One step of one parameter.

    Args:
        size: the root mean square of the step, without weight decay, over the planned learning rate.
        rate: the group's learning rate over the planned one; both ratios are after the schedule's factor.
        decay: the group's weight decay over the planned one; 1 where none is planned and none is there.
        eps: Adam's eps over the root mean square of the gradient; None where there is no eps, or no gradient.
        coarse: whether the parameter has fewer digits than float32, so that small steps are rounded away.
    """

    name: str
    role: str
    size: float
    rate: float
    decay: float
    eps: float | None
    coarse: bool


@dataclass(frozen=True, eq=False)
class _Tracked:
    info: ParamInfo
    values: Values
    parameter: Tensor
    group: dict[str, Any]
    decoupled: bool


class UpdateSizes:
    """Measures single steps of an optimizer: :meth:`before` and :meth:`after` it, then :meth:`read`.

    Learning rates and decay are those of the step: schedules may change the groups right after it.
    """

    def __init__(self, planned: Sequence[tuple[ParamInfo, Tensor, Values]], plan: Plan, optimizer: Optimizer) -> None:
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        self._tracked = [
            _Tracked(info, values, parameter, group_of[id(parameter)], decoupled)
            for info, parameter, values in planned
            if id(parameter) in group_of and _entries(parameter).numel()
        ]
        self.follows_rates = {
            info.role for info, _, _ in planned if not plan.setting.optimizer_of(info.role).follows_gradients
        }
        self._rate_of_group = {id(each.group): (each.group, each.values.lr) for each in self._tracked}.values()
        self._before: list[Tensor] = []
        self._rates: list[tuple[Any, float]] = []
        self._sizes: Tensor | None = None

    def before(self) -> None:
        """Keep what the step is compared with."""
        self._rates = [(_kept(each.group["lr"]), float(each.group.get("weight_decay", 0.0))) for each in self._tracked]
        self._before = [_entries(each.parameter).clone() for each in self._tracked]

    @torch.no_grad()
    def after(self) -> None:
        """Measure the step: numbers stay on the device."""
        if not self._before:
            return
        sizes: list[Tensor] = []
        for each, old, (lr, decay) in zip(self._tracked, self._before, self._rates, strict=True):
            decayed = old.double() if not each.decoupled else old.double() * (1 - lr * decay)
            moved = (_entries(each.parameter).double() - decayed).square().mean()
            gradient = each.parameter.grad
            felt = torch.zeros_like(moved) if gradient is None else _entries(gradient).double().square().mean()
            sizes.append(torch.stack([moved, felt]))
        self._sizes = torch.stack([size.to(sizes[0].device) for size in sizes]).flatten()
        self._before = []

    @property
    def pending(self) -> Tensor | None:
        """The numbers that :meth:`read` takes, on the device; None where there was no step."""
        return self._sizes

    def factor_now(self) -> float | None:
        """The factor by which the schedule scales the planned rates of most groups; None if asking would wait."""
        if any(
            isinstance(group["lr"], Tensor) and group["lr"].device.type != "cpu" for group, _ in self._rate_of_group
        ):
            return None
        return median_low([float(group["lr"]) / planned for group, planned in self._rate_of_group] or [0.0])

    def read(self, numbers: Sequence[float]) -> list[UpdateSize]:
        """The sizes of the step; none at the ends of a schedule, where its factor is nearly zero."""
        self._sizes = None
        factor = median_low(
            [float(lr) / each.values.lr for each, (lr, _) in zip(self._tracked, self._rates, strict=True)]
        )
        if not factor > _LEAST_FACTOR:
            return []
        found = []
        for index, (each, (lr, decay)) in enumerate(zip(self._tracked, self._rates, strict=True)):
            moved, felt = numbers[2 * index : 2 * index + 2]
            eps, planned_decay = each.group.get("eps"), each.values.weight_decay
            found.append(
                UpdateSize(
                    each.info.name,
                    each.info.role,
                    math.sqrt(moved) / (each.values.lr * factor),
                    float(lr) / (each.values.lr * factor),
                    decay / planned_decay if planned_decay else 1.0 + decay,
                    float(eps) / math.sqrt(felt) if eps is not None and felt > 0 else None,
                    torch.finfo(each.parameter.dtype).bits < torch.finfo(torch.float32).bits,
                )
            )
        return found


def by_role(sizes: Sequence[UpdateSize]) -> Mapping[str, list[UpdateSize]]:
    roles: dict[str, list[UpdateSize]] = {}
    for each in sizes:
        roles.setdefault(each.role, []).append(each)
    return roles


def _kept(lr: Any) -> Any:
    return lr.detach().clone() if isinstance(lr, Tensor) else float(lr)


def _entries(tensor: Tensor) -> Tensor:
    """Some entries of a tensor, spread over all of it; of a sharded one, of this process's part."""
    flat = (tensor.to_local() if is_sharded(tensor) else tensor).detach().reshape(-1)
    stride = max(1, flat.numel() // _ENTRIES)
    while math.gcd(stride, flat.numel()) > 1:  # or they would all stand in a few columns
        stride += 1
    return flat[::stride]
