"""Scaled gradients go on where scaled eps underflows in float32 (docs/faithfulness.md)."""

from __future__ import annotations

import torch

from tests.adam_trajectory import trajectory


def distance(factor: float, scaled: bool) -> float:
    reference = trajectory(1.0, 1e-4, False, torch.float64, "cpu")
    found = trajectory(factor, 1e-4, scaled, torch.float32, "cpu")
    return float((found - reference).norm() / reference.norm())


def test_both_forms_agree_where_float32_suffices() -> None:
    assert distance(1e-9, scaled=False) < 1e-4
    assert distance(1e-9, scaled=True) < 1e-4


def test_only_scaled_gradients_survive_tiny_ones() -> None:
    assert distance(1e-20, scaled=False) > 1.0
    assert distance(1e-20, scaled=True) < 1e-4


def test_in_float64_they_are_the_same() -> None:
    by_eps = trajectory(1e-9, 1e-4, False, torch.float64, "cpu")
    by_gradient = trajectory(1e-9, 1e-4, True, torch.float64, "cpu")
    torch.testing.assert_close(by_eps, by_gradient, rtol=1e-10, atol=1e-14)
