"""Models of growing size, as checks and sweeps know them: the interface between a family and its experiments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from mssp.data.dataset import Dataset
    from mssp.planning.setting import Regime
    from mssp.planning.shape import Shape
    from mssp.replicas.program import Program
    from mssp.replicas.training import Feed


class Ladder(Protocol):
    """Models of one family, one for each width, and the data that all of them train on.

    A plan for the shape of a width goes with the program of that width, and the program takes the feed's batches.
    """

    @property
    def name(self) -> str:
        """The family, as flags, stores and titles call it: ``mlp``."""

    def shape(self, width: int) -> Shape:
        """The member that has this width; a width that the family does not have is refused."""

    def program(self, width: int) -> Program:
        """Replicas of the member that has this width."""

    def deep(self, blocks: int) -> Ladder:
        """The same widths with so many residual blocks: at one width, ladders of several depths grow in depth."""

    def feed(self, device: torch.device) -> Feed:
        """The data, on a device."""

    def words(self) -> dict[str, Any]:
        """The choices that distinguish its runs from those of another ladder of this name, as a store keeps them."""


# Makes a ladder of one kind: from what grows, the data, and how many experts are active (None for all).
Ladders: TypeAlias = "Callable[[Regime, Dataset, int | None], Ladder]"
