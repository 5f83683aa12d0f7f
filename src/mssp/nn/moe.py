"""A Mixture-of-Experts layer: router, experts, aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mssp.nn.experts import Experts
from mssp.nn.factors import WithFactors, default_aggregation, planned_aggregation
from mssp.nn.router import Router, Routing

if TYPE_CHECKING:
    from mssp.planning import Plan


class MoE(WithFactors):
    """aggregation · Σ over the chosen experts of gate · expert(x)

    >>> import torch
    >>> moe = MoE(width=16, expert_width=8, experts=4, active=2)
    >>> y, routing = moe(torch.randn(3, 16))
    >>> y.shape, routing.chosen.shape
    (torch.Size([3, 16]), torch.Size([3, 2]))

    Args:
        active: experts per token; None for all of them (soft routing).
        router: further settings of :class:`Router`.
        experts_: further settings of :class:`Experts`.

    ``aggregation`` is part of the state dict. It is 1/K until :func:`mssp.initialize` sets what the plan says; for
    softmax and renormalised gates, which are shares of one, it is 1.
    """

    FACTORS = ("aggregation",)

    def __init__(
        self,
        width: int,
        expert_width: int,
        experts: int,
        active: int | None = None,
        *,
        router: Mapping[str, Any] | None = None,
        **experts_: Any,
    ) -> None:
        super().__init__()
        self.router = Router(width, experts, active, **(router or {}))
        self.experts = Experts(width, expert_width, experts, **experts_)
        self.aggregation = default_aggregation(self.router.gate_kind, self.router.active)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        routing = self.router(x)
        return self.experts(x, routing, self.aggregation), routing

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """What :func:`mssp.initialize` sets."""
        if plan.target.active != self.router.active:  # which no parameter's shape would show
            raise ValueError(f"the plan is for {plan.target.active} active experts, a layer has {self.router.active}")
        return {"aggregation": planned_aggregation(self.router.gate_kind, plan)}
