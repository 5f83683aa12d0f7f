"""Factors of the forward pass, saved with the weights they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from mssp.planning import Plan


class WithFactors(nn.Module):
    """A module whose attributes ``FACTORS`` multiply its forward pass; :func:`mssp.initialize` sets them from a plan.

    A reloaded model would compute something else without them, so they are part of the state dict.
    """

    FACTORS: ClassVar[tuple[str, ...]]

    def get_extra_state(self) -> Tensor:
        return torch.tensor([getattr(self, name) for name in self.FACTORS], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        for name, factor in zip(self.FACTORS, state.tolist(), strict=True):
            setattr(self, name, factor)


def default_aggregation(gate_kind: str, active: int) -> float:
    """The factor on the sum over experts where no plan has set one: 1/K for sigmoid gates.

    Softmax and renormalised gates are shares of one, and take no factor.
    """
    return 1 / active if gate_kind == "sigmoid" else 1.0


def planned_aggregation(gate_kind: str, plan: Plan) -> float:
    """The factor a plan asks for; of gates that are shares of one, only what was tuned."""
    return plan.multiplier("aggregation") if gate_kind == "sigmoid" else plan.aggregation_mult
