"""Gates of a population, and how they respond."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mssp.dmft.sites.experts import Gates, gates

EXPERTS = 40_000
STEP = 1e-4


def normal_logits(inputs: int = 1, experts: int = EXPERTS, std: float = 1.0) -> Tensor:
    """The quantiles of a normal distribution, in any order."""
    places = (torch.arange(experts, dtype=torch.float64) + 0.5) / experts
    order = torch.randperm(experts, generator=torch.Generator().manual_seed(0))
    psi: Tensor = std * torch.special.ndtri(places)[order]
    return psi.expand(inputs, -1)[:, :, None, None]


def column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1)


def flat(gates_or_gradients: Tensor) -> list[float]:
    return [float(number) for number in gates_or_gradients.flatten()]


def test_sigmoid_gates_respond_as_they_slope() -> None:
    psi = normal_logits(inputs=2, experts=100)
    below, found, above = (gates("sigmoid", psi + shift) for shift in (-STEP, 0, STEP))
    difference = (above.value - below.value) / (2 * STEP)
    torch.testing.assert_close(found.value, torch.sigmoid(psi))
    torch.testing.assert_close(found.slope, difference, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.response, difference, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.slope_response, (above.slope - below.slope) / (2 * STEP), rtol=0, atol=1e-8)


def test_numbers_worked_out_by_hand() -> None:
    soft = gates("sigmoid", column([0.0, math.log(3)]))
    assert flat(soft.value) == pytest.approx([0.5, 0.75])
    assert flat(soft.slope) == pytest.approx([0.25, 0.1875])
    assert flat(soft.slope_response) == pytest.approx([0.0, -0.09375])
    assert flat(soft.router_gradient(column([2.0, 4.0]))) == pytest.approx([0.5, 0.75])
    assert flat(soft.equal_time_response(column([2.0, 4.0]))) == pytest.approx([0.0, -0.375])
    shares = gates("softmax", column([0.0, math.log(3)]))
    assert flat(shares.value) == pytest.approx([0.5, 1.5])
    # Relative to the mean pull, 0.5 (0.5 · 2 + 1.5 · 4) = 3.5.
    assert flat(shares.router_gradient(column([2.0, 4.0]))) == pytest.approx([-0.75, 0.75])
    assert flat(shares.equal_time_response(column([2.0, 4.0]))) == pytest.approx([-0.75, 0.75])


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
def test_the_router_gradient_is_that_of_backpropagation(kind: str) -> None:
    psi = normal_logits(inputs=3, experts=50).clone().requires_grad_()
    pull = torch.randn(3, 50, 1, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    f = (gates(kind, psi).value * pull).mean(1).sum()
    (gradient,) = torch.autograd.grad(f, psi)
    found = gates(kind, psi.detach()).router_gradient(pull)
    torch.testing.assert_close(found, 50 * gradient, rtol=0, atol=1e-12)


def test_softmax_gates_are_shares_of_the_number_of_experts() -> None:
    found = gates("softmax", normal_logits(inputs=3, experts=64, std=2.0))
    assert flat(found.value.sum(1)) == pytest.approx([64.0] * 3, rel=1e-14)


def test_one_of_many_softmax_gates_responds_with_the_others_held() -> None:
    psi = normal_logits(experts=1000)
    found = gates("softmax", psi)
    weight = psi.exp().mean()
    difference = ((psi + STEP).exp() - (psi - STEP).exp()) / weight / (2 * STEP)
    torch.testing.assert_close(found.response, difference, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.slope, difference, rtol=1e-7, atol=0)
    torch.testing.assert_close(found.slope_response, difference, rtol=1e-7, atol=0)


def test_equal_experts_do_not_move_a_softmax_router() -> None:
    shares = gates("softmax", torch.zeros(2, 7, 1, 1, dtype=torch.float64))
    assert not shares.router_gradient(torch.full((2, 7, 1, 1), 3.0, dtype=torch.float64)).any()
    uneven = gates("softmax", normal_logits(experts=64))
    assert abs(uneven.router_gradient(torch.full((1, 64, 1, 1), 3.0, dtype=torch.float64))).max() < 1e-13


def test_softmax_gates_do_not_see_a_shift() -> None:
    psi = normal_logits(experts=64)
    torch.testing.assert_close(gates("softmax", psi + 900).value, gates("softmax", psi).value)


@pytest.mark.parametrize(("share", "chosen"), [(0.5, 20_000), (0.25, 10_000), (0.125, 5_000), (0.0625, 2_500)])
def test_top_k_keeps_its_share(share: float, chosen: int) -> None:
    psi = normal_logits(inputs=2)
    found = gates("sigmoid", psi, share)
    assert flat((found.value > 0).sum(1)) == [chosen, chosen]
    assert flat((found.slope > 0).sum(1)) == [chosen, chosen]
    kept = found.value > 0
    assert psi[kept].min() > psi[~kept].max()
    torch.testing.assert_close(found.value[kept], torch.sigmoid(psi[kept]))


def test_each_input_has_a_threshold_of_its_own() -> None:
    psi = torch.cat([column([3.0, 1.0, 2.0, 4.0]), column([-3.0, -1.0, -2.0, -4.0])])
    found = gates("sigmoid", psi, 0.5)
    assert (found.value > 0).flatten(1).tolist() == [[True, False, False, True], [False, True, True, False]]


def over_the_threshold(found: Gates) -> tuple[float, float]:
    """The mean responses of gate and slope, less those of experts that are chosen and stay so."""
    curvature = found.slope * (1 - 2 * found.value)
    return float((found.response - found.slope).mean()), float((found.slope_response - curvature).mean())


def moved_over(psi: Tensor, threshold: float) -> tuple[float, float]:
    """The same by finite differences: each ψ moves while the threshold of the others stays."""
    step, value = 0.02 * float(psi.std()), torch.sigmoid(psi)
    changed = ((psi + step > threshold).double() - (psi - step > threshold).double()) / (2 * step)
    return float((changed * value).mean()), float((changed * value * (1 - value)).mean())


@pytest.mark.parametrize("std", [0.5, 2.0])
@pytest.mark.parametrize("share", [0.5, 0.25, 0.125])
def test_top_k_responds_by_whole_gates_at_the_threshold(
    share: float, std: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    psi = normal_logits(std=std)
    expected = moved_over(psi, std * float(torch.special.ndtri(torch.tensor(1 - share, dtype=torch.float64))))
    # The window smooths the density of experts there.
    assert over_the_threshold(gates("sigmoid", psi, share)) == pytest.approx(expected, rel=0.1)
    monkeypatch.setattr("mssp.dmft.sites.experts._WINDOW", 0.02)
    assert over_the_threshold(gates("sigmoid", psi, share)) == pytest.approx(expected, rel=0.005)


def test_the_response_of_half_the_experts_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mssp.dmft.sites.experts._WINDOW", 0.02)
    found = gates("sigmoid", normal_logits(), 0.5)
    # σ'(ψ) over the upper half, and half a gate times the density 1/√(2π) at 0.
    assert float(found.slope.mean()) == pytest.approx(0.103310, rel=1e-3)
    assert float(found.response.mean()) == pytest.approx(0.103310 + 0.199471, rel=1e-3)


def test_with_all_experts_there_is_no_threshold() -> None:
    psi = normal_logits(experts=100)
    all_of_them, soft = gates("sigmoid", psi, 1.0), gates("sigmoid", psi)
    assert torch.equal(all_of_them.value, soft.value)
    assert torch.equal(all_of_them.response, soft.slope)


def test_equal_logits_give_finite_responses() -> None:
    found = gates("sigmoid", torch.zeros(1, 8, 1, 1, dtype=torch.float64), 0.5)
    assert found.value.isfinite().all()
    assert found.slope.isfinite().all()
