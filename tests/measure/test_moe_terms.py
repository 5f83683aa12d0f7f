"""What is measured of a MoE layer: no question is asked while a graph is recorded; the derivative of gates by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mssp.measure.moe_terms import ExpertLayer, moe_sizes
from mssp.measure.quantities import GATE_DERIVATIVE
from mssp.nn.experts.paths import ExpertWeights

TOKENS, WIDTH, EXPERTS, HIDDEN = 5, 8, 4, 3


def layer(device: str, gates: Tensor) -> ExpertLayer:
    torch.manual_seed(0)
    weights = ExpertWeights(torch.randn(1, EXPERTS, HIDDEN, WIDTH), torch.randn(1, EXPERTS, HIDDEN, WIDTH))
    x, router = torch.randn(1, TOKENS, WIDTH), torch.randn(1, EXPERTS, WIDTH)
    pre = torch.einsum("rtn,rmen->rtme", x, weights.w_in)
    moved = ExpertWeights(weights.w_in.to(device), weights.w_out.to(device))
    return ExpertLayer(x.to(device), router.to(device), moved, pre.to(device), gates.to(device), 0.5)


@pytest.mark.parametrize("active", [2, EXPERTS])
def test_sizes_ask_nothing_of_a_device_that_cannot_answer(active: int) -> None:
    """Tensors without values refuse a question as a CUDA graph does while it is recorded."""
    gates = torch.zeros(1, TOKENS, EXPERTS)
    gates[..., :active] = 1.0
    sizes: dict[str, dict[str, Tensor]] = {}
    for device in ("cpu", "meta"):
        now = layer(device, gates)
        back = torch.ones(1, TOKENS, WIDTH, device=device)
        sizes[device] = moe_sizes(now, now, torch.relu, {"update": back}, lambda gradient: gradient, equal_shares=True)
    assert list(sizes["meta"]) == list(sizes["cpu"])
    assert {size.device.type for size in sizes["meta"].values()} == {"meta"}


def through_shares(gates: Tensor) -> Callable[[Tensor], Tensor]:
    """From a gradient at the gates, K times shares that sum to one, to that at the logits."""
    share = gates / gates.sum(-1, keepdim=True)
    return lambda back: gates * (back - (share * back).sum(-1, keepdim=True))


def derivative(scale: float) -> float:
    """Of two experts of four with shares of 3/4 and 1/4, where what comes back is a multiple of one tensor."""
    gates = torch.zeros(1, TOKENS, EXPERTS)
    gates[..., :2] = torch.tensor([1.5, 0.5])
    now = layer("cpu", gates)
    alike = now.weights.w_out[:, :1].expand(-1, EXPERTS, -1, -1) * torch.tensor([1.0, 3.0, 50.0, 50.0]).view(-1, 1, 1)
    start = replace(now, weights=ExpertWeights(now.weights.w_in[:, :1].expand_as(alike), alike))
    start = replace(start, pre=torch.einsum("rtn,rmen->rtme", start.x, start.weights.w_in))
    back = scale * torch.ones(1, TOKENS, WIDTH)
    sizes = moe_sizes(start, start, torch.abs, {"update": back}, through_shares(gates), equal_shares=True)
    return float(sizes[GATE_DERIVATIVE()])


def test_the_derivative_of_gates_is_over_the_experts_that_are_chosen_and_without_a_scale() -> None:
    # To the gates come b and 3b, of a mean square of 5b² among the chosen. At the logits, 1.5 (b - 1.5b) = -0.75b and
    # 0.5 (3b - 1.5b) = 0.75b, of a mean square of 2 · 0.5625b² / 4 among all four.
    assert derivative(1.0) == pytest.approx((0.28125 / 5) ** 0.5, rel=1e-5)
    assert derivative(1e-6) == pytest.approx(derivative(1.0), rel=1e-5)
    assert derivative(0.0) == 0.0
