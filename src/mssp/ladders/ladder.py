"""The interface between a family of models of growing size, a ladder, and the checks and sweeps that train it."""

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
        """The name of the family in flags, stores and titles, for example ``mlp``."""

    def shape(self, width: int) -> Shape:
        """The shape of the member that has this width; a width that the family does not have is refused."""

    def program(self, width: int) -> Program:
        """The program that trains replicas of the member that has this width."""

    def deep(self, blocks: int) -> Ladder:
        """This ladder with another depth. Ladders of several depths, at one width, are models that grow in depth."""

    def feed(self, device: torch.device) -> Feed:
        """The training data, moved to a device."""

    def words(self) -> dict[str, Any]:
        """The choices that tell this ladder's runs from those of another ladder of the same name, for run stores."""


# A function that makes a ladder, from what grows, the data, and the number of active experts (None for all of them).
Ladders: TypeAlias = "Callable[[Regime, Dataset, int | None], Ladder]"
