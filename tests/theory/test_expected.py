from __future__ import annotations

from fractions import Fraction

import pytest

from mssp import Plan, Shape, plan
from mssp.theory.expected import Theory, rise
from mssp.theory.propagation import Exponent


def plans(widths: tuple[int, ...], regime: str = "II") -> dict[int, Plan]:
    shapes = {n: Shape(n, 16, n // 8, n // 16, 1) if regime == "II" else Shape(n, n, 8, 8, 1) for n in widths}
    return {
        n: plan(shape, regime=regime, lr=1.0, scheme="mup" if regime == "I" else "mssp") for n, shape in shapes.items()
    }


def test_few_experts_raise_the_routers_way_back() -> None:
    # A separate simulation, with torch and other numbers, gave 0.247 and 0.178 for the two doublings, and 0.095 after.
    assert float(rise(plans((64, 128, 256)))) == pytest.approx(0.21, abs=0.02)
    assert float(rise(plans((256, 512, 1024)))) == pytest.approx(0.095, abs=0.02)
    assert rise(plans((64, 128, 256), "I")) == 0


def test_room_is_made_for_the_router_alone_and_on_one_side() -> None:
    few = plans((64, 128, 256))
    usual, shares = Theory(few), Theory(few, equal_shares=True)
    room = rise(few)
    for name in ("backward/router-init-init", "backward/propagating/router", "gradient/router"):
        before, after = usual.prediction(name, 3), shares.prediction(name, 3)
        assert before is not None
        assert after is not None
        assert before.exponent.power is not None
        # The least exponent that is accepted stays, the largest rises.
        assert after.exponent == Exponent(before.exponent.power + room, before.exponent.slack + room)
    for name in ("backward/A4", "gradient/expert_in", "effective/router", "eps/router"):
        assert usual.prediction(name, 3) == shares.prediction(name, 3)
    faithful = shares.prediction("faithfulness/router", 3)
    assert faithful is not None
    assert faithful.exponent == Exponent(Fraction(1, 2), Fraction(1, 2) + room)


def test_a_readout_that_is_the_embedding_starts_as_a_random_sum() -> None:
    few = plans((64, 128, 256))
    usual, tied = Theory(few), Theory(few, tied_readout=True)
    before, after = usual.prediction("activation/readout", 3), tied.prediction("activation/readout", 3)
    assert before is not None
    assert after is not None
    assert (before.exponent, after.exponent) == (Exponent(Fraction(0)), Exponent(Fraction(0), Fraction(1, 2)))
    for name in ("activation/expert_in", "effective/readout", "features/delta", "backward/effective/readout"):
        assert usual.prediction(name, 3) == tied.prediction(name, 3)
