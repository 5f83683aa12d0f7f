"""What a host calls its parameters, and what a plan says of each: the table that every export is written from.

A :class:`Parameter` is a name pattern with its role and its axes. :func:`planned_parameters` puts a plan's numbers
beside it, for the matrix's own input side, and :func:`groups_of` gathers the parameters whose numbers agree.

A plan knows the width and the expert width, but a ``hidden`` matrix follows its own input side. In the output
projection of attention, in a dense FFN, in a shared expert and behind a low rank that is another size. :class:`Sizes`
holds what the user says of such sizes, and what is assumed of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mssp._constraints import mapping, positive_int, takes
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS

if TYPE_CHECKING:
    from mssp.planning.plans import Plan, Values

# The sides that a plan does not know, by the name of their flag, in words.
SIDES = {
    "attention_width": "query heads x head size, the input of attention's output projection",
    "ffn_width": "the hidden units of dense FFN blocks",
    "shared_width": "the hidden units of shared experts, all together",
    "q_rank": "the low rank of queries in multi-head latent attention",
    "kv_rank": "the low rank of keys and values in multi-head latent attention",
}
# Ranks stay where they are as a model grows; the others grow with the width unless said otherwise.
FIXED = frozenset({"q_rank", "kv_rank"})


@dataclass(frozen=True)
class Side:
    """One side at the target and at the base; ``known`` says whether the target's size was given or follows."""

    target: int
    base: int | None
    known: bool


@takes(target=mapping, base=mapping)
@dataclass(frozen=True)
class Sizes:
    """The sizes of :data:`SIDES` that the user gives, at the target and at the base.

    >>> Sizes(target={"ffn_width": 8192}, base={"ffn_width": 1024}).target["ffn_width"]
    8192
    """

    target: Mapping[str, int] = field(default_factory=dict)
    base: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for which, sizes in (("target", self.target), ("base", self.base)):
            for name, size in sizes.items():
                if name not in SIDES:
                    raise ValueError(f"unknown size {name!r}: use one of {', '.join(SIDES)}")
                positive_int(f"{which}.{_flag(name)}", size)
        for name in self.base:
            if name not in self.target:
                raise ValueError(f"base.{_flag(name)} is given without target.{_flag(name)}: say both")

    def check(self, plan: Plan) -> None:
        """Refuse sizes that contradict the plan."""
        if self.base and plan.base is None:
            raise ValueError(f"base.{_flag(next(iter(self.base)))} is given, but the plan has no base")
        for name in self.target:
            self.side(name, plan)

    def side(self, name: str, plan: Plan) -> Side | None:
        """A side by its name, which may be ``width``; None for a rank that has to be given and was not."""
        width, base_width = plan.target.width, None if plan.base is None else plan.base.width
        if name == "width":
            return Side(width, base_width, known=True)
        size = self.target.get(name)
        if size is None:
            if name in FIXED:
                # With a base only the ratio to it counts, which is 1. Without one the size itself would.
                return None if base_width is None else Side(width, width, known=False)
            return Side(width, base_width, known=base_width is None)
        if base_width is None:
            return Side(size, None, known=True)
        if name in self.base or name in FIXED:
            return Side(size, self.base.get(name, size), known=True)
        if size * base_width % width:
            raise ValueError(
                f"target.{_flag(name)} {size} cannot have grown in proportion to the width, {base_width} to {width}: "
                f"say base.{_flag(name)} too"
            )
        return Side(size, size * base_width // width, known=True)

    def assumptions(self, plan: Plan) -> list[str]:
        """One line for each side, with the size that it is taken to have."""
        lines = []
        for name in SIDES:
            side = self.side(name, plan)
            if side is None:
                text = "not said: such parameters are left out"
            elif name not in self.target and name in FIXED:
                text = "taken to be fixed"
            elif name not in self.target:
                text = "taken to grow with the width" if plan.base else f"taken to be the width, {side.target}"
            else:
                text = f"{side.base} -> {side.target}" if side.base is not None else str(side.target)
                text += "" if name in self.base or plan.base is None else " (the base's is assumed)"
            lines.append(f"{_flag(name)}: {text}")
        return lines


def _flag(name: str) -> str:
    return name.replace("_", "-")


Way = Literal["normal", "own fan-in", "tied", "zeros", "ones"]
# What an axis of a tensor has to be: this size, one that grows as the width does, or any.
Axis = int | Literal["grows"] | None


@dataclass(frozen=True)
class Parameter:
    """Parameters of one kind.

    Args:
        pattern: a name; ``*`` stands for anything.
        role: one of ``mssp.planning.rules.ROLES``.
        axes: the tensor's axes in order. Each is a size by name (``width``, ``experts``, ``2*expert_width``), ``any``,
            or a product of sizes where a host lays them along one axis. A ``hidden`` matrix has its input side last.
        rows: the output side of a ``hidden`` matrix whose first axis is ``any``.
    """

    pattern: str
    role: str
    axes: str
    rows: str = "width"

    @property
    def fan_in(self) -> str:
        return self.axes.split()[-1] if self.role == "hidden" else "width"

    @property
    def fan_out(self) -> str:
        first = self.axes.split()[0]
        return self.rows if first == "any" else first


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter with the plan's numbers.

    ``std`` is its standard deviation. Where the way to start is ``own fan-in``, it is the constant before fan_in^-1/2,
    and ``in_axis`` is the axis of the input side.
    """

    parameter: Parameter
    values: Values
    way: Way
    std: float
    shape: tuple[Axis, ...]
    in_axis: int | None = None


@dataclass(frozen=True)
class Group:
    """Planned parameters of one role that share their numbers."""

    values: Values
    members: Sequence[PlannedParameter]

    @property
    def patterns(self) -> list[str]:
        return [member.parameter.pattern for member in self.members]


def planned_parameters(plan: Plan, vocabulary: Sequence[Parameter], sizes: Sizes) -> list[PlannedParameter]:
    """The plan's numbers for a host's parameters, without those that need a rank which was not given."""
    sizes.check(plan)
    planned = (_planned(plan, parameter, sizes) for parameter in vocabulary)
    return [parameter for parameter in planned if parameter is not None]


def groups_of(planned: Sequence[PlannedParameter]) -> list[Group]:
    """Parameters of one role with equal learning rate, eps and decay in one group, in order of their first."""
    alike: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for member in planned:
        values = member.values
        key = (values.role, values.lr, values.eps, values.weight_decay, values.grad_scale)
        alike.setdefault(key, []).append(member)
    return [Group(members[0].values, members) for members in alike.values()]


def _planned(plan: Plan, parameter: Parameter, sizes: Sizes) -> PlannedParameter | None:
    role = parameter.role
    shape = tuple(_axis(plan, axis, sizes) for axis in parameter.axes.split())
    if role != "hidden":
        values = plan.roles[role]
        way: Way = "ones" if role in GAINS else "zeros" if values.zero else "tied" if values.starts_equal else "normal"
        return PlannedParameter(parameter, values, way, values.init_std, shape)
    into, out = (_side(plan, side, sizes) for side in (parameter.fan_in, parameter.fan_out))
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
        return PlannedParameter(parameter, values, "normal", values.init_std, shape)
    # The host knows the size when it builds the model. In every scheme the rule is std = constant x fan_in^-1/2.
    constant = values.init_std * into.target**0.5
    return PlannedParameter(parameter, values, "own fan-in", constant, shape, in_axis=len(shape) - 1)


def _side(plan: Plan, text: str, sizes: Sizes) -> Side | None:
    """A side such as ``ffn_width``, or a multiple of one: ``2*width``."""
    count, star, name = text.rpartition("*")
    side = sizes.side(name, plan)
    if side is None or not star:
        return side
    return replace(side, target=int(count) * side.target, base=None if side.base is None else int(count) * side.base)


def _axis(plan: Plan, text: str, sizes: Sizes) -> Axis:
    """What is known of an axis from the plan and from the sizes that were given."""
    if text == "any":
        return None
    size = 1
    for factor in text.split("*"):
        if factor.isdecimal():
            size *= int(factor)
        elif factor in ("width", "expert_width", "experts"):
            size *= getattr(plan.target, factor)
        else:
            side = sizes.side(factor, plan)
            if side is None or not side.known:
                grown = plan.base is not None and plan.base.width != plan.target.width
                return "grows" if grown and factor not in FIXED else None
            size *= side.target
    return size
