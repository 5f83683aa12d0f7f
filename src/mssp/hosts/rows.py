"""What a host calls its parameters, and what a plan says of each: the table every export is written from.

A :class:`Parameter` is a name pattern with its role and its axes. :func:`rows` puts a plan's numbers beside it,
with the matrix's own input side, and :func:`groups` gathers the rows whose numbers agree.

Some sides a plan does not know. It knows the width and the expert width; a ``hidden`` matrix follows its own input
side, which in the output projection of attention, in a dense FFN, in a shared expert and behind a low rank is another
size. :class:`Sizes` holds what the user says of them, and what is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mssp._constraints import positive_int
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS

if TYPE_CHECKING:
    from mssp.planning.plans import Plan, Values

# By the name of the flag, and in words.
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
    """One side at the target and at the base; ``known`` is whether the target's size was said or follows."""

    target: int
    base: int | None
    known: bool


@dataclass(frozen=True)
class Sizes:
    """The sizes of :data:`SIDES` that were said, at the target and at the base.

    >>> Sizes(target={"ffn_width": 8192}, base={"ffn_width": 1024}).target["ffn_width"]
    8192
    """

    target: Mapping[str, int] = field(default_factory=dict)
    base: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for which, said in (("target", self.target), ("base", self.base)):
            for name, size in said.items():
                if name not in SIDES:
                    raise ValueError(f"unknown size {name!r}: use one of {', '.join(SIDES)}")
                positive_int(f"{which}.{_flag(name)}", size)
        for name in self.base:
            if name not in self.target:
                raise ValueError(f"base.{_flag(name)} is given without target.{_flag(name)}: say both")

    def check(self, plan: Plan) -> None:
        """Refuse what does not go with the plan."""
        if self.base and plan.base is None:
            raise ValueError(f"base.{_flag(next(iter(self.base)))} is given, but the plan has no base")
        for name in self.target:
            self.side(name, plan)

    def side(self, name: str, plan: Plan) -> Side | None:
        """A side by its name, ``width`` among them; None for a rank that has to be said and was not."""
        width, base_width = plan.target.width, None if plan.base is None else plan.base.width
        if name == "width":
            return Side(width, base_width, known=True)
        said = self.target.get(name)
        if said is None:
            if name in FIXED:
                # Only its ratio to the base matters, and that is 1; without a base it is the size itself.
                return None if base_width is None else Side(width, width, known=False)
            return Side(width, base_width, known=base_width is None)
        if base_width is None or name in FIXED:
            return Side(said, self.base.get(name, said) if base_width is not None else None, known=True)
        if name in self.base:
            return Side(said, self.base[name], known=True)
        if said * base_width % width:
            raise ValueError(
                f"target.{_flag(name)} {said} cannot have grown in proportion to the width, {base_width} to {width}: "
                f"say base.{_flag(name)} too"
            )
        return Side(said, said * base_width // width, known=True)

    def assumptions(self, plan: Plan) -> list[str]:
        """One line per side: what it is taken to be."""
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
        how: How = "ones" if role in GAINS else "zeros" if values.zero else "tied" if values.starts_equal else "normal"
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
