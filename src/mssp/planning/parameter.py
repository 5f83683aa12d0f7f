"""Descriptions of single parameters: the role, the axes, and the two sides of the matrix."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from mssp._constraints import Constraint, kind_of, number, one_of, optional, positive_int, switch, takes, whole, word
from mssp.planning.rules import BIASES, FAN_IN, FAN_OUT, GAINS, PARTS, RARE_ROLES, ROLES, one
from mssp.planning.shape import Shape

_LAYOUT_AXES = re.compile(r"\((\d+) (in|out)\)|\((in|out) (\d+)\)|(in|out|vocab)")
OWN: Literal["own"] = "own"
_PER_EXPERT = frozenset({"expert_in", "expert_in_bias", "expert_out", "expert_out_bias"})


def _start(came: Any) -> Any:
    return came if came == OWN else number.take(came)


_LAYOUT = kind_of(str, what="a text such as 'out in'")
_START = Constraint(f"a number or {OWN!r}", _start)


@takes(
    role=one_of((*ROLES, *RARE_ROLES)),
    fan_in=optional(positive_int),
    fan_out=optional(positive_int),
    expert_axis=optional(whole),
    layout=optional(_LAYOUT),
    name=word,
    base_fan_in=optional(positive_int),
    base_fan_out=optional(positive_int),
    experts=optional(positive_int),
    tied_as=word,
    tied_readout=switch,
    start=optional(_START),
    part=optional(one_of(PARTS)),
    place=word,
)
@dataclass(frozen=True)
class ParamInfo:
    """The description of one parameter, or of all that a name pattern stands for.

    Args:
        role: one of ``ROLES`` or ``RARE_ROLES`` of ``mssp.planning.rules``.
        fan_in, fan_out: the sides of one matrix; read off the axes where ``layout`` names them.
        expert_axis: the axis of a stacked tensor that runs over experts; of a hidden one, over shared experts.
        layout: the other axes in order: ``"out in"`` (torch's Linear), ``"in out"``, ``"vocab out"`` (a lookup: its
            input is of order 1, so fan_in is 1), ``"(2 out) in"`` for gate and up in halves, ``"in (out 2)"``
            interleaved, ``"(3 out) in"`` for a fused qkv.
        base_fan_in, base_fan_out: the sides at the base, where they do not grow as the role's do (fixed ranks, heads).
        tied_as: for experts that are parameters of their own, a name they share, under which tied experts are drawn.
        start: the value a gain or bias starts from where that is not 1 or 0 (a norm that multiplies by 1 + its weight
            starts at 0), or ``own``, with which it keeps the value that the model gave it.
        part: of a hidden matrix, one of ``mssp.planning.rules.PARTS``, by which multipliers of a plan may name it:
            ``attention_in`` (queries, keys, values), ``attention_out``, ``ffn_in`` (gate and up too), ``ffn_out``.
        experts: how many experts there are, where the size of ``expert_axis`` does not say it: along an axis that the
            layout names too, experts lie one after another; an axis of its own may have slices that no expert uses.

    ``name``, ``experts`` and ``tied_readout`` are filled in by :func:`mssp.describe`, and ``tied_as`` by ``{expert}``.
    ``place`` is filled in by :func:`mssp.hf.adapt`: where plans over configs keep the sides of a matrix. The sides of
    one that has a place are never guessed.
    """

    role: str
    fan_in: int | None = None
    fan_out: int | None = None
    expert_axis: int | None = None
    layout: str | None = None
    name: str = ""
    base_fan_in: int | None = None
    base_fan_out: int | None = None
    experts: int | None = None
    tied_as: str = ""
    tied_readout: bool = False
    start: float | Literal["own"] | None = None
    part: str | None = None
    place: str = field(default="", compare=False)  # where it stands, not what it is

    def __post_init__(self) -> None:
        if self.layout is not None:
            parse_layout(self.layout)
        if self.start is not None and self.role not in GAINS | BIASES:
            raise ValueError(f"start is for gains and biases: a {self.role} starts as its rule says")
        if self.part is not None and self.role != "hidden":
            raise ValueError(f"part is for hidden matrices: {self.part} does not go with {self.role}")

    def fitted(self, name: str, shape: tuple[int, ...], tied_as: str) -> ParamInfo:
        """This description for the parameter ``name``, with the sizes that its tensor's axes give."""
        if 0 in shape:
            raise ValueError(f"{name} {shape} is empty")
        if self.role in _PER_EXPERT and self.expert_axis is None and not tied_as:
            raise ValueError(
                f"{name} {shape} is an {self.role}: say its expert_axis, or write {{expert}} for the number in its name"
            )
        matrix = list(shape)
        experts = None
        if self.expert_axis is not None:
            if not -len(shape) <= self.expert_axis < len(shape):
                raise ValueError(f"{name} {shape} has no axis {self.expert_axis} for experts")
            size = matrix.pop(self.expert_axis)
            experts = self.experts or size
            if self.is_flat(len(shape)):
                if size % experts:
                    raise ValueError(f"{name} {shape} does not hold {experts} experts of one size one after another")
                matrix.insert(self.expert_axis % len(shape), size // experts)
            elif experts > size:
                raise ValueError(f"{name} {shape} has no room for {experts} experts")
        fan_in, fan_out = self._sides(name, matrix)
        return replace(self, name=name, fan_in=fan_in, fan_out=fan_out, experts=experts, tied_as=tied_as)

    def is_flat(self, axes: int) -> bool:
        """Whether experts have no axis of their own in a tensor with so many axes, and lie one after another on one."""
        named = self.expert_axis is not None and self.experts is not None and self.layout is not None
        return named and len(parse_layout(self.layout or "")) == axes

    def _sides(self, name: str, shape: list[int]) -> tuple[int | None, int | None]:
        """fan_in and fan_out: of the axes that the layout names, or as this description gives them."""
        vector = self.role in GAINS | BIASES
        layout = self.layout or ("out" if vector and len(shape) == 1 else None)
        if layout is None:
            if not vector and None in (self.fan_in, self.fan_out):
                raise ValueError(f"{name} {tuple(shape)}: say its layout (such as 'out in'), or fan_in and fan_out")
            return self.fan_in, self.fan_out
        axes = parse_layout(layout)
        if len(axes) != len(shape):
            raise ValueError(
                f"{name}: layout {layout!r} names {len(axes)} axes, the tensor has {tuple(shape)}; "
                "fan_in and fan_out can be given instead of a layout"
            )
        sides = {"fan_in": 1, "fan_out": 1}
        if not vector and all(side == "out" for side, _ in axes):
            raise ValueError(f"{name}: layout {layout!r} names no input axis, which a {self.role} has")
        for (side, count), size in zip(axes, shape, strict=True):
            if size % count:
                raise ValueError(f"{name}: layout {layout!r} splits an axis of {size} into {count} parts")
            # One token of the vocabulary is looked up at a time, so the input is of order 1.
            sides["fan_out" if side == "out" else "fan_in"] = 1 if side == "vocab" else size // count
        for side, claimed in (("fan_in", self.fan_in), ("fan_out", self.fan_out)):
            if claimed not in (None, sides[side]):
                raise ValueError(f"{name}: {side} is given as {claimed}, but its layout {layout!r} says {sides[side]}")
        return sides["fan_in"], sides["fan_out"]


def parse_layout(layout: str) -> list[tuple[str, int]]:
    """The axes of a layout: the side that each belongs to, and how many matrices lie along it.

    >>> parse_layout("(2 out) in")
    [('out', 2), ('in', 1)]
    """
    if not isinstance(layout, str):
        raise ValueError(f"layout must be a text such as 'out in', got {layout!r}")
    return list(_axes(layout))


@cache  # a model has thousands of parameters, and a handful of layouts
def _axes(layout: str) -> tuple[tuple[str, int], ...]:
    axes = []
    for part in re.findall(r"\([^)]*\)|\S+", layout):
        match = _LAYOUT_AXES.fullmatch(part)
        count, side, other_side, other_count, plain = match.groups() if match else (0, "", "", 0, "")
        matrices = 1 if plain else int(count or other_count or 0)
        if not matrices:
            raise ValueError(f"layout {layout!r}: {part!r} is not an axis; use in, out, vocab, (2 out) or (out 2)")
        axes.append((side or other_side or plain, matrices))
    ends = ["out" if side == "out" else "in" for side, _ in axes]
    if not axes or len(set(ends)) < len(ends):
        raise ValueError(f"layout {layout!r} must name an input axis, an output axis, or one of each")
    return tuple(axes)


Dims = Mapping[str, float]


def with_fans(role: str, shape: Shape) -> dict[str, float]:
    """The model's dimensions, with the two sides that the role's matrix has by its role."""
    dims = shape.dims
    return {**dims, "fan_in": FAN_IN.get(role, one).value(dims), "fan_out": FAN_OUT.get(role, one).value(dims)}


def own_dims(
    info: ParamInfo, target: Shape, base: Shape | None, used: Collection[str]
) -> tuple[Dims, Dims | None, bool]:
    """The dimensions at target and base with the parameter's own sides, and whether these grow as the role's do.

    ``used`` are the dimensions in the parameter's rule: a side that is not among them does not matter.
    """
    at_target = with_fans(info.role, target)
    at_base = with_fans(info.role, base) if base is not None else None
    grows_as_role = True
    for side in ("fan_in", "fan_out"):
        size, size_at_base = getattr(info, side), getattr(info, f"base_{side}")
        if size is None:
            continue
        if at_base is not None:
            lookup = info.role == "embedding" and side == "fan_in" and size == 1  # a token's input is of order 1
            expected = size if lookup else size * at_base[side] / at_target[side]
            if size_at_base is None and side in used and info.role == "hidden":
                _refuse_unknown(info, side, size, target, base)
            at_base[side] = expected if size_at_base is None else size_at_base
            grows_as_role &= info.role in GAINS or math.isclose(at_base[side], expected)
        at_target[side] = size
    return at_target, at_base, grows_as_role


def check_fits(info: ParamInfo, target: Shape) -> None:
    """Refuse a parameter whose sizes say that the plan was made for another model."""
    expected = {**with_fans(info.role, target), "experts": float(target.experts)}
    sides: dict[str, int | None] = {}
    if info.role != "hidden":  # hidden matrices have sizes of their own, and stacks of them (shared experts) numbers
        sides["experts"] = info.experts
        if info.role in FAN_IN and not (info.role == "embedding" and info.fan_in == 1):
            sides["fan_in"] = info.fan_in
        if info.role in FAN_OUT:
            sides["fan_out"] = info.fan_out
    for side, size in sides.items():
        if size is not None and size != expected[side]:
            raise ValueError(
                f"the plan is for another model: {info.role} '{info.name}' has {side} {size}, "
                f"but the plan's target {target} asks for {expected[side]:.0f}"
                + (" (name what else lies along that axis in its layout)" if size % expected[side] == 0 else "")
            )


def _refuse_unknown(info: ParamInfo, side: str, size: int, target: Shape, base: Shape | None) -> None:
    """Refuse a side that nothing says the size of at the base, where it would have to be guessed."""
    if info.place and base is not None and _grown_beside_depth(target, base):
        raise ValueError(
            f"'{info.name}' has {side} {size}, and neither the plan nor the model says what that was at the base: give "
            "the base's config, mssp.hf.adapt(model, base), or plan over configs, mssp.hf.plan(target, base, ...)"
        )
    if not _grows(size, target, base):
        raise ValueError(
            f"hidden '{info.name}' has {side} {size}, which is no multiple of the width {target.width}: "
            f"say its size at the base, base_{side} (of a Hugging Face model, give the base's config)"
        )


def _grown_beside_depth(target: Shape, base: Shape) -> bool:
    return replace(target, depth=base.depth) != base


def _grows(size: int, target: Shape, base: Shape | None) -> bool:
    """Whether a side can be taken to grow as the width does: a multiple of it, or of an expert width that does too."""
    if base is None or base.width == target.width:
        return True
    in_proportion = target.expert_width * base.width == base.expert_width * target.width
    return size % target.width == 0 or (in_proportion and size % target.expert_width == 0)
