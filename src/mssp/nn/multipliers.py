"""Multipliers of a module's forward pass, which plans set and state dicts keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mssp.planning.plans import Plan


class WithMultipliers(nn.Module):
    """A module whose forward pass is multiplied by its attributes ``MULTIPLIERS``.

    :func:`mssp.initialize` sets them from a plan. A reloaded model would compute something else without them, so they
    are part of the state dict.
    """

    MULTIPLIERS: ClassVar[tuple[str, ...]]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([getattr(self, name) for name in self.MULTIPLIERS], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        if state.shape != (len(self.MULTIPLIERS),):
            wanted = ", ".join(self.MULTIPLIERS)
            raise ValueError(f"the state of a {type(self).__name__} holds {wanted}, got {tuple(state.shape)} numbers")
        for name, factor in zip(self.MULTIPLIERS, state.tolist(), strict=True):
            setattr(self, name, factor)


def default_aggregation(gate_kind: str, active: int) -> float:
    """The factor on the sum over experts where no plan has set one: 1/K for sigmoid gates.

    Softmax and renormalised gates sum to one, and need no factor.
    """
    return 1 / active if gate_kind == "sigmoid" else 1.0


def planned_aggregation(gate_kind: str, plan: Plan) -> float:
    """The factor on the sum over experts that a plan sets. For gates that sum to one it is the tuned factor alone."""
    return plan.multiplier("aggregation") if gate_kind == "sigmoid" else plan.aggregation_mult
