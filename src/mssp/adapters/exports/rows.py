"""What a host calls its parameters, and what a plan says of each: the table every export is written from.

A :class:`Parameter` is a name pattern with its role and its axes. :func:`rows` puts a plan's numbers beside it,
with the matrix's own input side, and :func:`groups` gathers the rows whose numbers agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mssp.adapters.exports.sizes import FIXED, Side, Sizes
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS

if TYPE_CHECKING:
    from mssp.planning.plans import Plan, Values

How = Literal["normal", "own fan-in", "tied", "zeros", "ones"]
# What an axis of a tensor has to be: that size, one that grows as the width does, or any.
Axis = int | Literal["grows"] | None


@dataclass(frozen=True)
class Parameter:
    """Parameters of one kind.

    Args:
        pattern: a name; ``*`` stands for anything.
        role: one of ``mssp.planning.rules.ROLES``.
        axes: the tensor's axes in order, each a size by name (``width``, ``experts``, ``2*expert_width``), ``any``,
            or several multiplied where a host lays them along one axis.
        fan_in, fan_out: the two sides of a ``hidden`` matrix, where they are not the width.
    """

    pattern: str
    role: str
    axes: str
    fan_in: str = "width"
    fan_out: str = "width"


@dataclass(frozen=True)
class Row:
    """A parameter with the plan's numbers.

    ``std`` is the standard deviation, or with ``own fan-in`` the constant before fan_in^-1/2; ``in_axis`` is where the
    input side lies, for those.
    """

    parameter: Parameter
    values: Values
    how: How
    std: float
    shape: tuple[Axis, ...]
    in_axis: int | None = None


@dataclass(frozen=True)
class Group:
    """Rows that share their numbers."""

    role: str
    values: Values
    rows: tuple[Row, ...]

    @property
    def patterns(self) -> list[str]:
        return [row.parameter.pattern for row in self.rows]


def rows(plan: Plan, vocabulary: Sequence[Parameter], sizes: Sizes) -> list[Row]:
    """The plan's numbers for a host's parameters; those whose sides nobody said are left out."""
    sizes.check(plan)
    found = [_row(plan, parameter, sizes) for parameter in vocabulary]
    return [row for row in found if row is not None]


def groups(rows: Sequence[Row]) -> list[Group]:
    """Rows with equal learning rate, eps and decay in one group, in the order in which they first come."""
    gathered: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        numbers = row.values
        key = (row.parameter.role, numbers.lr, numbers.eps, numbers.weight_decay, numbers.grad_scale)
        gathered.setdefault(key, []).append(row)
    return [Group(alike[0].parameter.role, alike[0].values, tuple(alike)) for alike in gathered.values()]


def _row(plan: Plan, parameter: Parameter, sizes: Sizes) -> Row | None:
    role = parameter.role
    shape = tuple(_axis(plan, axis, sizes) for axis in parameter.axes.split())
    if role != "hidden":
        values = plan.roles[role]
        how: How = "ones" if role in GAINS else "zeros" if values.zero else "tied" if values.tied else "normal"
        return Row(parameter, values, how, values.init_std, shape)
    into, out = (_product_side(plan, side, sizes) for side in (parameter.fan_in, parameter.fan_out))
    if into is None or out is None:
        return None
    info = ParamInfo(
        "hidden",
        fan_in=into.target,
        fan_out=out.target,
        base_fan_in=into.base,
        base_fan_out=out.base,
        name=parameter.pattern,
    )
    values = plan.resolve([info])[parameter.pattern]
    by_ratio = plan.base is not None and bool({"all", "hidden"} & set(plan.init_std))
    if into.known or by_ratio:
        return Row(parameter, values, "normal", values.init_std, shape)
    # The size is not known here but will be there: the rule is std = constant x fan_in^-1/2, in every scheme.
    constant = values.init_std * into.target**0.5
    axis = parameter.axes.split().index(parameter.fan_in)
    return Row(parameter, values, "own fan-in", constant, shape, axis)


def _product_side(plan: Plan, text: str, sizes: Sizes) -> Side | None:
    """A side such as ``ffn_width``, or a multiple of one: ``2*width``."""
    count, star, name = text.rpartition("*")
    side = sizes.side(name, plan)
    if side is None or not star:
        return side
    return replace(side, target=int(count) * side.target, base=None if side.base is None else int(count) * side.base)


def _axis(plan: Plan, text: str, sizes: Sizes) -> Axis:
    """What is known of an axis from the plan and from what was said."""
    known: Mapping[str, int] = {
        "width": plan.target.width,
        "expert_width": plan.target.expert_width,
        "experts": plan.target.experts,
    }
    size = 1
    for factor in text.split("*"):
        if factor.isdecimal():
            size *= int(factor)
        elif factor in known:
            size *= known[factor]
        elif factor == "any":
            return None
        else:
            side = sizes.side(factor, plan)
            if side is None or not side.known:
                grown = plan.base is not None and plan.base.width != plan.target.width
                return "grows" if grown and factor not in FIXED else None
            size *= side.target
    return size
