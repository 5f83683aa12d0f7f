"""The table that exports are written from: a host's parameters, with the numbers that a plan has for them.

A host is a training framework. A :class:`Parameter` is a pattern of its names with a role and axes.
:func:`planned_vocabulary` adds the numbers of a plan, and :func:`groups_of` puts parameters with equal numbers into
groups.

The numbers of a ``hidden`` matrix follow from its own input side (and output side, under SGD). In the output projection
of attention, in a dense FFN, in a shared expert and behind a low rank that is another size than the width. A plan over
configs has all of them (:mod:`mssp.hosts.planned_sides`). Of a plan over sizes alone, :class:`Sizes` holds those that
the user gives, and assumes the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mssp._constraints import mapping, positive_int, takes
from mssp.hosts.planned_sides import PARTS, planned_side, sides_like
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS
from mssp.planning.sides import Sides

if TYPE_CHECKING:
    from mssp.planning.plans import Plan, Values

# The sides of matrices that a plan over sizes alone does not know, by the name of their flag, in words.
SIDES = {
    "attention_width": "query heads x head size, the input of attention's output projection",
    "ffn_width": "the hidden units of dense FFN blocks",
    "shared_width": "the hidden units of shared experts, all together",
    "q_rank": "the low rank of queries in multi-head latent attention",
    "kv_rank": "the low rank of keys and values in multi-head latent attention",
}
# Ranks stay the same as a model grows; the other sides grow with the width, unless the user says otherwise.
FIXED = frozenset({"q_rank", "kv_rank"})


@dataclass(frozen=True)
class Side:
    """The size of one side at the target, and at the base if the plan has one.

    ``known`` is False where the target's size is a guess: then exports read the real size off the host's tensors.
    """

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
        """A side by its name, which may be ``width``.

        None for a rank that the user had to give and did not, and for a side that no matrix of the plan's model has.
        """
        width, base_width = plan.target.width, None if plan.base is None else plan.base.width
        if name == "width":
            return Side(width, base_width, known=True)
        return self._planned(name, plan) if plan.sides else self._said(name, width, base_width)

    def _said(self, name: str, width: int, base_width: int | None) -> Side | None:
        """A side as the user says it, or as it is assumed."""
        size = self.target.get(name)
        if size is None:
            if name in FIXED:
                # With a base only the ratio to the base's size counts, which is 1. Without one the size itself counts.
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

    def _planned(self, name: str, plan: Plan) -> Side | None:
        """A side as the plan has it; what the user says of it must be the same."""
        known = planned_side(plan, name)
        for which, given in (("target", self.target), ("base", self.base)):
            size = None if known is None else known[which == "base"]
            if name in given and given[name] != size:
                planned = "has no such side" if known is None else f"has {size}"
                raise ValueError(
                    f"{which}.{_flag(name)} {given[name]} contradicts the plan's configs: the model {planned}"
                )
        return None if known is None else Side(*known, known=True)

    def guessed(self, plan: Plan) -> str:
        """Which sides an export guesses, in words; empty where it guesses none, or the guess does not matter."""
        if plan.sides or plan.base is None or plan.base.width == plan.target.width:
            return ""
        unsaid = [name for name in SIDES if name not in self.target]
        growing, fixed = ([_flag(name) for name in unsaid if (name in FIXED) == is_fixed] for is_fixed in (False, True))
        guesses = [f"{' and '.join(growing)} grow with the width"] if growing else []
        guesses += [f"{' and '.join(fixed)} stay"] if fixed else []
        if not guesses:
            return ""
        flag = _flag(unsaid[0])
        return (
            f"the plan is over sizes alone, and these are guesses: {', '.join(guesses)}; say --target.{flag} and "
            f"--base.{flag} and the like, or plan over configs"
        )

    def assumptions(self, plan: Plan) -> list[str]:
        """One line for each side of :data:`SIDES`, with its size or with what is assumed."""
        lines = []
        for name in SIDES:
            side = self.side(name, plan)
            if plan.sides:
                sizes = [] if side is None else [str(size) for size in (side.base, side.target) if size is not None]
                text = " -> ".join(sizes) or "none in the configs: such parameters are left out"
            elif side is None:
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


# How a parameter starts: random (two kinds), random and equal in all experts, or constant.
Way = Literal["normal", "own fan-in", "tied", "zeros", "ones"]
# What the size of a tensor's axis has to be: this number, one that grows with the width, or any (None).
Axis = int | Literal["grows"] | None


@dataclass(frozen=True)
class Parameter:
    """The parameters of a host whose names match a pattern.

    Args:
        pattern: a name, in which ``*`` stands for anything.
        role: one of ``mssp.planning.rules.ROLES``.
        axes: the tensor's axes in order. Each is a size by name (``width``, ``experts``, ``2*expert_width``), ``any``,
            or a product of sizes that a host keeps along one axis. The input side of a ``hidden`` matrix is last.
        rows: the output side of a ``hidden`` matrix whose first axis is ``any``.
        like: the matrix or gain of Hugging Face models that it is, by the names of ``planned_sides.LIKE``.
    """

    pattern: str
    role: str
    axes: str
    rows: str = "width"
    like: str = ""

    @property
    def fan_in(self) -> str:
        return self.axes.split()[-1] if self.role == "hidden" else "width"

    @property
    def part(self) -> str | None:
        """The part of ``hidden`` that it is."""
        return PARTS.get(self.like) if self.role == "hidden" else None

    @property
    def fan_out(self) -> str:
        first = self.axes.split()[0]
        return self.rows if first == "any" else first


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter with the plan's numbers.

    Args:
        way: how the parameter starts.
        std: the standard deviation of its initial values; for ``own fan-in``, the constant before fan_in^-1/2.
        in_axis: the axis of the input side, for ``own fan-in``.
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


def planned_vocabulary(plan: Plan, vocabulary: Sequence[Parameter], sizes: Sizes) -> list[PlannedParameter]:
    """The parameters of a host with the plan's numbers, except those that need a rank which the user did not give."""
    sizes.check(plan)
    planned = (_planned_parameter(plan, parameter, sizes) for parameter in vocabulary)
    return [parameter for parameter in planned if parameter is not None]


def groups_of(planned: Sequence[PlannedParameter]) -> list[Group]:
    """Parameters of one role with equal numbers in one group; groups are in the order of their first parameters."""
    members_of: dict[tuple[object, ...], list[PlannedParameter]] = {}
    for member in planned:
        values = member.values
        key = (values.role, values.part, values.lr, values.eps, values.weight_decay, values.grad_scale)
        members_of.setdefault(key, []).append(member)
    return [Group(members[0].values, members) for members in members_of.values()]


def _planned_parameter(plan: Plan, parameter: Parameter, sizes: Sizes) -> PlannedParameter | None:
    shape = tuple(_axis(plan, axis, sizes) for axis in parameter.axes.split())
    if parameter.role != "hidden":
        role = _role(plan, parameter)
        values = plan.roles[role]
        way: Way = "ones" if role in GAINS else "zeros" if values.zero else "tied" if values.starts_equal else "normal"
        return PlannedParameter(parameter, values, way, values.init_std, shape)
    if plan.sides and parameter.like:
        return _from_configs(plan, parameter, shape)
    inputs, outputs = (_side(plan, side, sizes) for side in (parameter.fan_in, parameter.fan_out))
    if inputs is None or outputs is None:
        return None
    values = _resolved(plan, parameter, Sides(
        fan_in=inputs.target, fan_out=outputs.target, base_fan_in=inputs.base, base_fan_out=outputs.base
    ))  # fmt: skip
    scales_tuned_std = plan.base is not None and bool({"all", "hidden", parameter.part} & set(plan.init_std))
    if inputs.known or scales_tuned_std:
        return PlannedParameter(parameter, values, "normal", values.init_std, shape)
    # The host knows the size when it builds the model. In every scheme the rule is std = constant x fan_in^-1/2.
    constant = values.init_std * inputs.target**0.5
    return PlannedParameter(parameter, values, "own fan-in", constant, shape, in_axis=len(shape) - 1)


def _role(plan: Plan, parameter: Parameter) -> str:
    """The role of a parameter: a gain on a head or on a low rank whose size grows is planned as one on the stream."""
    grows = any(sides.base_fan_out not in (None, sides.fan_out) for sides in sides_like(plan, parameter.like))
    return "norm" if parameter.role == "qk_norm" and grows else parameter.role


def _from_configs(plan: Plan, parameter: Parameter, shape: tuple[Axis, ...]) -> PlannedParameter | None:
    """A hidden matrix with the numbers that it has in the plan's own model; None if that has no such matrix."""
    found = {_resolved(plan, parameter, sides) for sides in sides_like(plan, parameter.like)}
    if len(found) > 1:
        raise ValueError(
            f"{parameter.pattern} stands for matrices whose sizes and numbers differ from block to block in the plan's "
            "configs: a file for a host has one number for all blocks"
        )
    return PlannedParameter(parameter, values := found.pop(), "normal", values.init_std, shape) if found else None


def _resolved(plan: Plan, parameter: Parameter, sides: Sides) -> Values:
    info = ParamInfo("hidden", name=parameter.pattern, part=parameter.part, **asdict(sides))
    return plan.resolve([info])[parameter.pattern]


def _side(plan: Plan, text: str, sizes: Sizes) -> Side | None:
    """A side such as ``ffn_width``, or a multiple of one: ``2*width``."""
    count, star, name = text.rpartition("*")
    side = sizes.side(name, plan)
    if side is None or not star:
        return side
    return replace(side, target=int(count) * side.target, base=None if side.base is None else int(count) * side.base)


def _axis(plan: Plan, text: str, sizes: Sizes) -> Axis:
    """What the size of an axis has to be, by the plan and by the sizes that the user gives."""
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
                if plan.sides:
                    return None
                width_grows = plan.base is not None and plan.base.width != plan.target.width
                return "grows" if width_grows and factor not in FIXED else None
            size *= side.target
    return size
