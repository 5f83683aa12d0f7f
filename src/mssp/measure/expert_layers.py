"""Weights of one MoE layer under which its experts put out known numbers for one token, whatever its layout is.

Shapes: N width, M experts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mssp.measure.modules import Described
from mssp.planning.parameter import ParamInfo, parse_layout

Weights = Mapping[str, Tensor]


class UnclearError(Exception):
    """Something cannot be measured; the message says why."""


@dataclass(frozen=True)
class Seen:
    """What enters the router and the experts of a layer for the token that is looked at, [N] each."""

    by_router: Tensor
    by_experts: Tensor


@dataclass(frozen=True)
class Layer:
    """The parameters of one MoE layer, by their names in the model; experts of their own stand in their order.

    Args:
        module: the module that has router and experts, as far as names say; empty where it is the model.
    """

    module: str
    router: tuple[str, ParamInfo]
    first: Sequence[tuple[str, ParamInfo]]
    second: Sequence[tuple[str, ParamInfo]]

    @property
    def name(self) -> str:
        return self.module or self.second[0][0]

    @property
    def experts(self) -> int:
        return self.second[0][1].experts or 1

    def weights(self, logits: Tensor, some: range, seen: Seen, like: Weights, put_out: float) -> Weights:
        """Weights under which ``some`` experts put out a number, each in the coordinate of its place among them.

        ``logits`` [M] are those of the token. The number is ``put_out`` times what hidden units make of 1.
        """
        router, info = self.router
        weights = {router: torch.zeros_like(like[router])}
        _by_sides(weights[router], info, "out", "in").copy_(logits[:, None] * _dual(seen.by_router))
        for name, info in self.first:
            weights[name] = torch.zeros_like(like[name])
            matrices = _by_sides(weights[name], info, "in")
            matrices.copy_(_dual(seen.by_experts).view(-1, *[1] * (matrices.dim() - 1)))
        for number, (name, info) in enumerate(self.second):
            weights[name] = torch.zeros_like(like[name])
            matrices = _by_sides(weights[name], info, "in", "out")
            stack = matrices.unsqueeze(-1) if info.expert_axis is None else matrices
            for index in range(stack.shape[-1]):
                expert = number if info.expert_axis is None else index
                if expert in some:
                    stack[:, expert - some.start, index] = put_out / len(stack)
        return weights


def _dual(x: Tensor) -> Tensor:
    """The vector whose product with x is 1."""
    return x / x.square().sum()


def _by_sides(tensor: Tensor, info: ParamInfo, *sides: str) -> Tensor:
    """A view of a parameter whose first axes are these sides of its matrices; an axis of experts is the last."""
    experts = None if info.expert_axis is None else info.expert_axis % tensor.dim()
    if experts is not None and info.is_flat(tensor.dim()):
        tensor = tensor.unflatten(experts, (info.experts or 1, -1))
    axes = [axis for axis in range(tensor.dim()) if axis != experts]
    if info.layout is None:
        sizes = {"in": info.fan_in, "out": info.fan_out}
        fitting = {side: [axis for axis in axes if tensor.shape[axis] == sizes[side]] for side in sides}
        by_side = {side: found[0] for side, found in fitting.items() if len(found) == 1}
    else:
        by_side = {side: axis for (side, _), axis in zip(parse_layout(info.layout), axes, strict=True)}
    if not set(sides) <= by_side.keys():
        raise UnclearError(f"which axes of {info.name} are which is not known: say its layout")
    first = [by_side[side] for side in sides]
    return tensor.permute(
        *first, *(axis for axis in axes if axis not in first), *([] if experts is None else [experts])
    )


def layers_of(described: Described, raw: Mapping[nn.Parameter, str]) -> Iterator[Layer]:
    """Every MoE layer: a router, and the experts whose names have most in common with the router's."""
    of_role: dict[str, list[tuple[str, ParamInfo]]] = defaultdict(list)
    for info, parameter in described:
        of_role[info.role].append((raw[parameter], info))
    routers = [name for name, _ in of_role["router"]]
    mine: dict[str, dict[str, list[tuple[str, ParamInfo]]]] = {name: defaultdict(list) for name in routers}
    for role in ("expert_in", "expert_out"):
        for name, info in of_role[role]:
            shared = {router: len(_common([router, name])) for router in routers}
            nearest = [router for router in routers if shared[router] == max(shared.values())]
            if len(nearest) != 1:
                raise ValueError(
                    f"a probe needs the router of every expert: {name} has as much in common with "
                    f"{len(nearest)} of them ({', '.join(nearest[:2])})"
                )
            mine[nearest[0]][role].append((name, info))
    for router, info in of_role["router"]:
        first, second = mine[router]["expert_in"], mine[router]["expert_out"]
        if first and second:
            module = ".".join(_common([router, *(name for name, _ in (*first, *second))]))
            yield Layer(module, (router, info), first, second)


def _common(names: Sequence[str]) -> list[str]:
    """The modules that parameters have in common, from the outermost."""
    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    common = []
    for alike in parts:
        if len(set(alike)) > 1:
            break
        common.append(alike[0])
    return common
