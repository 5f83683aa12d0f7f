"""What is measured of a MoE layer never asks for a number, where a recorded graph could not answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mssp.measure.moe_terms import ExpertLayer, moe_sizes
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
    sizes = {}
    for device in ("cpu", "meta"):
        now = layer(device, gates)
        back = torch.ones(1, TOKENS, WIDTH, device=device)
        sizes[device] = moe_sizes(now, now, torch.relu, {"update": back}, lambda gradient: gradient)
    assert list(sizes["meta"]) == list(sizes["cpu"])
    assert {size.device.type for size in sizes["meta"].values()} == {"meta"}
