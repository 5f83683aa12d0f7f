"""The corrections to the printed table, by measurement (docs/errata.md has the full tables)."""

from __future__ import annotations

import pytest

import mssp
from tests.gradient_scales import DEPTHS, MARGIN, WIDTHS, exponents, family

SEEDS, STEPS = 3, 10


@pytest.mark.slow
def test_gradients_inside_blocks_fall_with_depth() -> None:
    """Hence the factor L in SGD's learning rates, which the table leaves out."""
    shapes = [mssp.Shape(width=64, expert_width=16, experts=4, active=4, depth=depth) for depth in DEPTHS]
    found = exponents(shapes, DEPTHS, "III", "sgd", STEPS, SEEDS)
    inside = ("norm", "qk_norm", "hidden", "bias", "router", "expert_in", "expert_out")
    outside = ("embedding", "final_norm", "readout")
    for role in inside:
        assert found[role][0] == pytest.approx(-1, abs=MARGIN), role
    for role in outside:
        assert found[role][0] == pytest.approx(0, abs=MARGIN), role


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_gradients_of_biases_and_experts_fall_with_width(regime: str) -> None:
    """A hidden bias has gradient 1/N, not 1; the derived rules are those of the measured scale."""
    found = exponents([family(regime, width) for width in WIDTHS], WIDTHS, regime, "adam", STEPS, SEEDS)
    experts_grow, inside, outside = regime != "I", {"I": -1, "II": -1, "III": -2}, {"I": -1, "II": -2, "III": -2}
    expected = {
        "bias": -1,
        "qk_norm": 0,
        "shared_gate": 0,
        "router_bias": -1 if experts_grow else 0,
        "expert_in_bias": inside[regime],
        "expert_out_bias": outside[regime],
        "expert_in": inside[regime],
        "expert_out": outside[regime],
    }
    for role, exponent in expected.items():
        assert found[role][0] == pytest.approx(exponent, abs=MARGIN), role
