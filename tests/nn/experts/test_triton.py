"""The kernels one by one; without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mssp.nn.activations import ACTIVATIONS, activation

pytest.importorskip("triton")
from mssp.nn.experts import triton

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gated_activation_and_its_gradient(dtype: torch.dtype, name: str, gated: bool) -> None:
    """In half precision gelu takes a rational form of the normal distribution: as good as half precision can see."""
    torch.manual_seed(0)
    R, E = 37, 11
    pre = (3 * torch.randn(R, 2 * E if gated else E, device=DEVICE)).to(dtype)
    gate = torch.rand(R, device=DEVICE)
    grad = torch.randn(R, E, device=DEVICE).to(dtype)
    exact_pre, exact_gate = pre.double().requires_grad_(), gate.double().requires_grad_()
    units = activation(name)(exact_pre[:, :E]) * (exact_pre[:, E:] if gated else 1)
    wanted = units * exact_gate[:, None]
    wanted_grads = torch.autograd.grad(wanted, (exact_pre, exact_gate), grad.double())
    got = triton.gate_rows(pre, gate, name, gated)
    got_grads = triton.gate_rows_backward(pre, gate, grad, name, gated)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    for a, b in zip((got, *got_grads), (wanted, *wanted_grads), strict=True):
        assert (a.double() - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.1, 1.0, 30.0])
def test_tanh_of_numbers_of_every_size(scale: float) -> None:
    pre, gate = scale * torch.linspace(-1, 1, 64, device=DEVICE).view(8, 8), torch.ones(8, device=DEVICE)
    got = triton.gate_rows(pre, gate, "tanh", gated=False).double()
    assert ((got - pre.double().tanh()) / pre.double().tanh()).abs().max() < 1e-6


def test_rows_beyond_one_block() -> None:
    """Experts with more rows than a block, fewer, one and none; more columns than a block; odd sizes everywhere."""
    torch.manual_seed(0)
    counts = [130, 0, 1, 70]
    offsets = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    experts = torch.repeat_interleave(torch.arange(4), torch.tensor(counts)).to(DEVICE)
    tokens, rows, J, C = 50, sum(counts), 37, 149
    x, matrices = torch.randn(tokens, J, device=DEVICE), torch.randn(4, J, C, device=DEVICE)
    token = torch.randint(tokens, (rows,), device=DEVICE)
    bias = torch.randn(4, C, device=DEVICE)
    product = triton.rows_times_matrices(x, matrices, offsets, rows=rows, from_row=token, bias_MC=bias)
    wanted = torch.einsum("rj,rjc->rc", x[token].double(), matrices[experts].double()) + bias[experts]
    assert (product.double() - wanted).norm() <= 1e-6 * wanted.norm()
    gradient = triton.matrices_gradient(product, x, token, offsets)
    parts = zip(product.double().split(counts), x[token].double().split(counts), strict=True)
    wanted = torch.stack([left.T @ right for left, right in parts])
    assert (gradient.double() - wanted).norm() <= 1e-6 * wanted.norm()
    assert not gradient[1].any()


def test_collected_rows() -> None:
    torch.manual_seed(0)
    rows, position = torch.randn(12, 1030, device=DEVICE), torch.randperm(12, device=DEVICE).view(4, 3)
    wanted = F.embedding(position, rows).sum(1)
    torch.testing.assert_close(triton.collect_rows(rows, position), wanted)
