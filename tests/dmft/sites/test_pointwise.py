"""Activations with their first two derivatives."""

from __future__ import annotations

import pytest
import torch

from mssp.dmft.sites.pointwise import activated, differentiated, sigmoid
from mssp.nn.activations import ACTIVATIONS

AT = torch.linspace(-4, 4, 81, dtype=torch.float64)
SMOOTH = [name for name in ACTIVATIONS if name != "relu"]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_autograd(name: str) -> None:
    found, place = activated(name, AT), AT.clone().requires_grad_()
    value = ACTIVATIONS[name](place)
    (slope,) = torch.autograd.grad(value.sum(), place)
    torch.testing.assert_close(found.value, value.detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(found.slope, slope, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_finite_differences(name: str) -> None:
    step = 1e-4
    below, found, above = (activated(name, AT + shift) for shift in (-step, 0, step))
    torch.testing.assert_close(found.slope, (above.value - below.value) / (2 * step), rtol=0, atol=1e-7)
    torch.testing.assert_close(found.curvature, (above.slope - below.slope) / (2 * step), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "at", "value", "slope", "curvature"),
    [
        ("gelu", 0.0, 0.0, 0.5, 0.797885),
        ("gelu", 1.0, 0.841345, 1.083315, 0.241971),
        ("silu", 0.0, 0.0, 0.5, 0.5),
        ("tanh", 1.0, 0.761594, 0.419974, -0.639700),
        ("identity", -3.0, -3.0, 1.0, 0.0),
    ],
)
def test_numbers_worked_out_by_hand(name: str, at: float, value: float, slope: float, curvature: float) -> None:
    found = activated(name, torch.tensor([at], dtype=torch.float64))
    assert found.value.item() == pytest.approx(value, abs=1e-6)
    assert found.slope.item() == pytest.approx(slope, abs=1e-6)
    assert found.curvature.item() == pytest.approx(curvature, abs=1e-6)


def test_the_sigmoid_of_gates() -> None:
    found, slow = sigmoid(AT), differentiated(torch.sigmoid, AT)
    torch.testing.assert_close(found.value, slow.value)
    torch.testing.assert_close(found.slope, slow.slope)
    torch.testing.assert_close(found.curvature, slow.curvature, rtol=0, atol=1e-15)
    there = sigmoid(torch.zeros(1))
    assert (there.value.item(), there.slope.item(), there.curvature.item()) == (0.5, 0.25, 0.0)


@torch.no_grad()
def test_any_function_is_differentiated_where_nothing_else_is() -> None:
    places = torch.tensor([[-1.0, 0.0], [2.0, 3.0]])
    found = differentiated(lambda x: x**3 - x, places)
    assert found.value.tolist() == [[0.0, 0.0], [6.0, 24.0]]
    assert found.slope.tolist() == [[2.0, -1.0], [11.0, 26.0]]
    assert found.curvature.tolist() == [[-6.0, 0.0], [12.0, 18.0]]
    assert not any(each.requires_grad for each in (places, found.value, found.slope, found.curvature))


def test_functions_without_a_bend_have_no_curvature() -> None:
    line, constant = differentiated(lambda x: 3 * x, AT), differentiated(torch.ones_like, AT)
    assert (line.slope == 3).all()
    assert not line.curvature.any()
    assert (constant.value == 1).all()
    assert not constant.slope.any()
    assert not constant.curvature.any()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="activation must be one of gelu, relu, silu, tanh, identity, got 'exp'"):
        activated("exp", AT)
