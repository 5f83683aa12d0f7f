"""The sides of a host's matrices that a plan does not know: what the user says of them, and what is assumed.

A plan knows the width and the expert width. A ``hidden`` matrix follows its own input side, which in the output
projection of attention, in a dense FFN, in a shared expert and behind a low rank is another size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mssp._numbers import positive_int

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

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
