"""A Mixture-of-Experts layer: router, experts, aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mssp.nn.experts import Experts
from mssp.nn.multipliers import WithMultipliers, default_aggregation, planned_aggregation
from mssp.nn.router import Router, Routing

if TYPE_CHECKING:
    from mssp.planning.plans import Plan


class MoE(WithMultipliers):
    """aggregation · Σ over the chosen experts of gate · expert(x)

    >>> import torch
    >>> moe = MoE(width=16, expert_width=8, experts=4, active=2)
    >>> y, routing = moe(torch.randn(3, 16))
    >>> y.shape, routing.chosen.shape
    (torch.Size([3, 16]), torch.Size([3, 2]))

    Args:
        active: experts per token; None for all of them (soft routing).
        gate, inverse_temperature, normalise, router_bias, noise, random_bias: of the :class:`Router`.
        activation, gated, bias, dispatch: of the :class:`Experts`.
        check_finite: raise where an input or a logit is NaN or infinite. This waits for the device.

    ``aggregation`` is part of the state dict. It is 1/K until :func:`mssp.initialize` sets what the plan says; for
    softmax and renormalised gates, which are shares of one, it is 1.
    """

    MULTIPLIERS = ("aggregation",)

    def __init__(
        self,
        width: int,
        expert_width: int,
        experts: int,
        active: int | None = None,
        *,
        gate: str = "sigmoid",
        inverse_temperature: float = 1.0,
        normalise: bool = False,
        router_bias: bool = False,
        noise: float = 0.0,
        random_bias: float = 0.0,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = False,
        dispatch: str = "auto",
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.router = Router(
            width,
            experts,
            active,
            gate=gate,
            inverse_temperature=inverse_temperature,
            normalise=normalise,
            bias=router_bias,
            noise=noise,
            random_bias=random_bias,
            check_finite=check_finite,
        )
        self.experts = Experts(
            width,
            expert_width,
            experts,
            activation=activation,
            gated=gated,
            bias=bias,
            dispatch=dispatch,
            check_finite=check_finite,
        )
        self.aggregation = default_aggregation(self.router.gate_kind, self.router.active)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        routing = self.router(x)
        return self.experts(x, routing, self.aggregation), routing

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """What :func:`mssp.initialize` sets."""
        if plan.target.active != self.router.active:  # which no parameter's shape would show
            raise ValueError(f"the plan is for {plan.target.active} active experts, a layer has {self.router.active}")
        return {"aggregation": planned_aggregation(self.router.gate_kind, plan)}
