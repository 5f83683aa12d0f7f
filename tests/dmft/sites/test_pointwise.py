"""Activations with their first two derivatives."""

from __future__ import annotations

import pytest
import torch

from mssp.dmft.sites.pointwise import activation_with_derivatives, sigmoid, with_autograd_derivatives
from mssp.nn.activations import ACTIVATIONS

AT = torch.linspace(-4, 4, 81, dtype=torch.float64)
SMOOTH = [name for name in ACTIVATIONS if name != "relu"]


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_autograd(name: str) -> None:
    computed, points = activation_with_derivatives(name, AT), AT.clone().requires_grad_()
    value = ACTIVATIONS[name](points)
    (slope,) = torch.autograd.grad(value.sum(), points)
    torch.testing.assert_close(computed.value, value.detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(computed.slope, slope, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_finite_differences(name: str) -> None:
    step = 1e-4
    below, middle, above = (activation_with_derivatives(name, AT + shift) for shift in (-step, 0, step))
    torch.testing.assert_close(middle.slope, (above.value - below.value) / (2 * step), rtol=0, atol=1e-7)
    torch.testing.assert_close(middle.curvature, (above.slope - below.slope) / (2 * step), rtol=0, atol=1e-7)


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
    computed = activation_with_derivatives(name, torch.tensor([at], dtype=torch.float64))
    assert computed.value.item() == pytest.approx(value, abs=1e-6)
    assert computed.slope.item() == pytest.approx(slope, abs=1e-6)
    assert computed.curvature.item() == pytest.approx(curvature, abs=1e-6)


def test_the_sigmoid_of_gates() -> None:
    closed_form, autograds = sigmoid(AT), with_autograd_derivatives(torch.sigmoid, AT)
    torch.testing.assert_close(closed_form.value, autograds.value)
    torch.testing.assert_close(closed_form.slope, autograds.slope)
    torch.testing.assert_close(closed_form.curvature, autograds.curvature, rtol=0, atol=1e-15)
    at_zero = sigmoid(torch.zeros(1))
    assert (at_zero.value.item(), at_zero.slope.item(), at_zero.curvature.item()) == (0.5, 0.25, 0.0)


@torch.no_grad()
def test_any_function_is_differentiated_where_nothing_else_is() -> None:
    points = torch.tensor([[-1.0, 0.0], [2.0, 3.0]])
    cubic = with_autograd_derivatives(lambda x: x**3 - x, points)
    assert cubic.value.tolist() == [[0.0, 0.0], [6.0, 24.0]]
    assert cubic.slope.tolist() == [[2.0, -1.0], [11.0, 26.0]]
    assert cubic.curvature.tolist() == [[-6.0, 0.0], [12.0, 18.0]]
    assert not any(tensor.requires_grad for tensor in (points, cubic.value, cubic.slope, cubic.curvature))


def test_functions_without_a_bend_have_no_curvature() -> None:
    line, constant = (with_autograd_derivatives(function, AT) for function in (lambda x: 3 * x, torch.ones_like))
    assert (line.slope == 3).all()
    assert not line.curvature.any()
    assert (constant.value == 1).all()
    assert not constant.slope.any()
    assert not constant.curvature.any()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="activation must be one of gelu, relu, silu, tanh, identity, got 'exp'"):
        activation_with_derivatives("exp", AT)
