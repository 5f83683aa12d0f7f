from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from mssp import Plan, Shape, plan
from mssp.theory.expected import Theory, rise
from mssp.theory.propagation import Exponent


def plans(widths: tuple[int, ...], regime: str = "II") -> dict[int, Plan]:
    shapes = {n: Shape(n, 16, n // 8, n // 16, 1) if regime == "II" else Shape(n, n, 8, 8, 1) for n in widths}
    return {
        n: plan(shape, regime=regime, lr=1.0, scheme="mup" if regime == "I" else "mssp") for n, shape in shapes.items()
    }


def derivatives(sizes: list[float]) -> np.ndarray:
    """By size, after 0, 1 and 2 updates, of two seeds: nothing comes back before the first."""
    return np.asarray(np.array(sizes)[:, None, None] * np.array([0.0, 1.0, 1.0])[None, :, None] * np.array([1.0, 1.1]))


def test_few_experts_raise_the_routers_way_back() -> None:
    assert float(rise([64, 128, 256], derivatives([0.5, 0.6, 0.72]))) == pytest.approx(0.263, abs=0.005)
    # More experts among which K stays leave each of them less, which raises nothing.
    assert rise([64, 128, 256], derivatives([0.5, 0.4, 0.3])) == 0
    assert rise([64, 128, 256], derivatives([0.0, 0.0, 0.0])) == 0


def test_the_routers_way_back_alone_is_raised() -> None:
    few = plans((64, 128, 256))
    measured = derivatives([0.5, 0.6, 0.72])
    usual, shares = Theory(few), Theory(few, equal_shares=True, derivatives=measured)
    raised = rise(few, measured)
    for name in ("backward/router-init-init", "backward/propagating/router", "gradient/router"):
        before, after = usual.prediction(name, 3), shares.prediction(name, 3)
        assert before is not None
        assert after is not None
        assert before.exponent.power is not None
        assert after.exponent == Exponent(before.exponent.power + raised, before.exponent.slack)
    for name in ("backward/A4", "gradient/expert_in", "effective/router", "eps/router"):
        assert usual.prediction(name, 3) == shares.prediction(name, 3)
    faithful = shares.prediction("faithfulness/router", 3)
    assert faithful is not None
    assert faithful.exponent == Exponent(Fraction(1, 2) - raised, Fraction(1, 2))


def test_a_readout_that_is_the_embedding_starts_as_a_random_sum() -> None:
    few = plans((64, 128, 256))
    usual, tied = Theory(few), Theory(few, tied_readout=True)
    before, after = usual.prediction("activation/readout", 3), tied.prediction("activation/readout", 3)
    assert before is not None
    assert after is not None
    assert (before.exponent, after.exponent) == (Exponent(Fraction(0)), Exponent(Fraction(0), Fraction(1, 2)))
    for name in ("activation/expert_in", "effective/readout", "features/delta", "backward/effective/readout"):
        assert usual.prediction(name, 3) == tied.prediction(name, 3)
