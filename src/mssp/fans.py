"""The two sides of each matrix: what its role says they are, and what they are in the model at hand."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

from mssp.rules import FAN_IN, FAN_OUT, one
from mssp.shape import Shape

Dims = Mapping[str, float]


class ParameterSides(Protocol):
    """What planning reads of a :class:`mssp.ParamInfo`."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def fan_in(self) -> int | None: ...
    @property
    def fan_out(self) -> int | None: ...
    @property
    def base_fan_in(self) -> int | None: ...
    @property
    def base_fan_out(self) -> int | None: ...
    @property
    def experts(self) -> int | None: ...


def with_fans(role: str, shape: Shape) -> dict[str, float]:
    """The model's dimensions, with the two sides the role's matrix has by rights."""
    dims = shape.dims
    return {**dims, "fan_in": FAN_IN.get(role, one).value(dims), "fan_out": FAN_OUT.get(role, one).value(dims)}


def own_dims(
    info: ParameterSides, target: Shape, base: Shape | None, used: Collection[str]
) -> tuple[Dims, Dims | None, bool]:
    """The dimensions at target and base with the parameter's own fans, and whether those grow as the role's do.

    ``used`` names the sides that matter: those the rule speaks of.
    """
    at_target = with_fans(info.role, target)
    at_base = with_fans(info.role, base) if base is not None else None
    usual = True
    for side, own, own_at_base in (
        ("fan_in", info.fan_in, info.base_fan_in),
        ("fan_out", info.fan_out, info.base_fan_out),
    ):
        if own is None:
            continue
        if at_base is not None:
            lookup = info.role == "embedding" and side == "fan_in" and own == 1  # a token's input is of order 1
            follows = own if lookup else own * at_base[side] / at_target[side]
            if own_at_base is None and side in used and info.role == "hidden" and not _grows(own, target, base):
                raise ValueError(
                    f"hidden '{info.name}' has {side} {own}, which is no multiple of the width {target.width}: "
                    f"say its size at the base, base_{side} (of a Hugging Face model, give the base's config)"
                )
            at_base[side] = follows if own_at_base is None else own_at_base
            usual &= math.isclose(at_base[side], follows)
        at_target[side] = own
    return at_target, at_base, usual


def check_fits(info: ParameterSides, target: Shape) -> None:
    """Refuse a parameter whose sizes say that the plan was made for another model."""
    expected = {**with_fans(info.role, target), "experts": float(target.experts)}
    sides: dict[str, int | None] = {"experts": info.experts}
    if info.role != "hidden":  # which has sizes of its own
        if info.role in FAN_IN and not (info.role == "embedding" and info.fan_in == 1):
            sides["fan_in"] = info.fan_in
        if info.role in FAN_OUT:
            sides["fan_out"] = info.fan_out
    for side, own in sides.items():
        if own is not None and own != expected[side]:
            raise ValueError(
                f"the plan is for another model: {info.role} '{info.name}' has {side} {own}, "
                f"but the plan's target {target} asks for {expected[side]:.0f}"
                + (" (name what else lies along that axis in its layout)" if own % expected[side] == 0 else "")
            )


def _grows(own: int, target: Shape, base: Shape | None) -> bool:
    """Whether a side can be taken to grow as the width does: a multiple of it, or of what grows with it."""
    if base is None or base.width == target.width:
        return True
    in_proportion = target.expert_width * base.width == base.expert_width * target.width
    return own % target.width == 0 or (in_proportion and own % target.expert_width == 0)
