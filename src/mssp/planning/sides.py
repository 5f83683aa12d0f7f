"""The sides of a model's matrices at the target and at the base, as a plan over two configs keeps them.

The sizes of a :class:`mssp.Shape` do not tell how wide attention, dense layers, shared experts and low ranks are, and
by how much these have grown. A plan over configs has the sides of every such matrix, by its place: the matrix's name
without what stands before the list of blocks, in which ``*`` stands for the number of every block if all blocks agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mssp._constraints import UnfitError, kind_of, optional, positive_int, shown, takes
from mssp.planning.rules import GAINS

if TYPE_CHECKING:
    from mssp.planning.parameter import ParamInfo
    from mssp.planning.shape import Shape

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_PLACE = kind_of(str, what="a parameter's place")


@takes(
    fan_in=optional(positive_int),
    fan_out=optional(positive_int),
    base_fan_in=optional(positive_int),
    base_fan_out=optional(positive_int),
)
@dataclass(frozen=True, kw_only=True)
class Sides:
    """The sides of one matrix; a gain has an output side alone. None stands for a side that is not known."""

    fan_in: int | None = None
    fan_out: int | None = None
    base_fan_in: int | None = None
    base_fan_out: int | None = None

    def json(self) -> dict[str, int]:
        return {name: size for name, size in asdict(self).items() if size is not None}

    @property
    def of_base(self) -> Sides:
        """These sides for the base as a target."""
        return replace(self, fan_in=self.base_fan_in, fan_out=self.base_fan_out)

    @property
    def of_any_target(self) -> Sides:
        """These sides without those of the target, for another one whose sides are not known yet."""
        return replace(self, fan_in=None, fan_out=None)


SidesByPlace = Mapping[str, Sides]


def of_all_blocks(place: str) -> str:
    """A place with ``*`` for every number in it.

    >>> of_all_blocks("layers.3.self_attn.o_proj.weight")
    'layers.*.self_attn.o_proj.weight'
    """
    return _NUMBER.sub("*", place)


def taken(sides: Any) -> SidesByPlace:
    """Sides by place, as they were given or as a plan file has them; a ValueError says what is wrong with others."""
    found = {}
    for place, entry in dict(sides or {}).items():
        try:
            _PLACE.take(place)
            found[place] = entry if isinstance(entry, Sides) else Sides(**dict(entry))
        except (UnfitError, TypeError, ValueError) as error:
            raise ValueError(f"sides of {shown(place)} are no sides of a matrix: {error or shown(entry)}") from None
    return MappingProxyType(found)


def folded(by_place: SidesByPlace) -> dict[str, Sides]:
    """The same, with one entry for all blocks that agree.

    >>> list(folded({"layers.0.w": Sides(fan_in=2), "layers.1.w": Sides(fan_in=2), "layers.0.v": Sides(fan_in=2),
    ...              "layers.1.v": Sides(fan_in=4)}))
    ['layers.*.w', 'layers.0.v', 'layers.1.v']
    """
    alike: dict[str, dict[str, Sides]] = {}
    for place, sides in by_place.items():
        alike.setdefault(of_all_blocks(place), {})[place] = sides
    return {
        pattern if len(set(entries.values())) == 1 else place: sides
        for pattern, entries in alike.items()
        for place, sides in entries.items()
    }


def at(sides: SidesByPlace, place: str) -> Sides | None:
    """The sides of a place, by its own number or by that of all blocks."""
    return sides.get(place) or sides.get(of_all_blocks(place))


def completed(info: ParamInfo, sides: SidesByPlace) -> ParamInfo:
    """A description with the sides at the base that a plan knows; sides that contradict the plan's are refused."""
    known = at(sides, info.place) if info.place else None
    if known is None:
        return info
    for name, planned in known.json().items():
        own = getattr(info, name)
        if own not in (None, planned):
            if known == known.of_base:
                raise ValueError(_other_base(info.name, name, planned, own))
            which = "the plan has another base" if name.startswith("base_") else "the plan is for another model"
            raise ValueError(f"{which}: '{info.name}' has {name} {own}, but the plan's is {planned}")
    # A gain on a head or on a low rank is planned as one on the stream where its size grows.
    grows = info.role == "qk_norm" and known.base_fan_out not in (None, info.fan_out)
    return replace(
        info,
        role="norm" if grows else info.role,
        base_fan_in=info.base_fan_in or known.base_fan_in,
        base_fan_out=info.base_fan_out or known.base_fan_out,
    )


def _other_base(name: str, side: str, planned: int, own: int) -> str:
    """What is the case where a plan's target is its own base, and the model has another side there.

    The sides of an extended plan are those at the base of what its first target has at a place. A block of the same
    number may be of another kind in the base, which has fewer blocks.
    """
    return (
        f"the plan's target is its own base, where it has {side} {planned} for '{name}', and the model has {own}: the "
        "model is not that base, or the plan was extended from a target whose block of this number is of another kind; "
        "then plan the base by its config alone, mssp.hf.plan(base, base, ...)"
    )


def sides_of(infos: Iterable[ParamInfo]) -> dict[str, Sides]:
    """The sides of all that have a place, by that place."""
    return folded({info.place: _sides(info) for info in infos if info.place})


def _sides(info: ParamInfo) -> Sides:
    if info.role in GAINS:
        return Sides(fan_out=info.fan_out, base_fan_out=info.base_fan_out)
    return Sides(fan_in=info.fan_in, fan_out=info.fan_out, base_fan_in=info.base_fan_in, base_fan_out=info.base_fan_out)


def carried(sides: SidesByPlace, target: Shape, base: Shape | None, to: Shape) -> SidesByPlace:
    """The sides of a plan that is extended to another target, of which the sides at the base alone are known."""
    if to == target:
        return sides
    return MappingProxyType({
        place: entry.of_base if to == base else entry.of_any_target
        for place, entry in sides.items()
        if entry.base_fan_in is not None or entry.base_fan_out is not None
    })  # fmt: skip
