"""What finitely many terms add to the exponent of a sum, against the sum's own formula and against drawn sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from mssp import Plan, Shape, plan
from mssp._estimates import slope_of
from mssp.measure.quantities import AGGREGATE, EFFECTIVE, PROPAGATING, Quantity
from mssp.planning.recipe import without_plan_warnings
from mssp.theory.finite_sums import alignment_of, excess

WIDTHS = (64, 128, 256)
SHAPES: dict[str, Callable[[int], Shape]] = {
    "II": lambda n: Shape(n, 16, n // 8, n // 16, 1),
    "III": lambda n: Shape(n, n // 2, n // 16, n // 32, 1),
}


def plans(regime: str) -> dict[int, Plan]:
    with without_plan_warnings():
        return {n: plan(SHAPES[regime](n), regime=regime, lr=1.0) for n in WIDTHS}


def alignment(terms: list[int], share: float) -> np.ndarray:
    """Sums over the sizes of their factors, [sizes, steps, seeds], where this share of the squares is aligned."""
    sizes = [math.sqrt(n * (1 + (n - 1) * share)) for n in terms]
    moved = np.array([0.0, 1.0, 1.0])  # nothing has moved before the first update
    return np.asarray(np.array(sizes)[:, None, None] * moved[None, :, None] * np.ones(2))


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        (EFFECTIVE("expert_in"), [64, 128, 256]),
        (EFFECTIVE("expert_out"), [32, 64, 128]),
        (AGGREGATE("effective"), [2 * 32, 4 * 64, 8 * 128]),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5, 1.0])
def test_the_excess_is_the_slope_of_what_is_beside_the_aligned_part(
    name: Quantity, terms: list[int], share: float
) -> None:
    logs = [math.log(share + (1 - share) / n) / 2 for n in terms]
    expected = slope_of([math.log(n) for n in WIDTHS], logs)
    assert float(excess(name, plans("III"), alignment(terms, share))) == pytest.approx(expected, abs=0.01)


def test_drawn_sums_fall_by_the_excess() -> None:
    random = np.random.default_rng(0)
    sizes, aligned, draws = (32, 64, 128), 0.03, 20000
    measured = []
    for n in sizes:
        common = math.sqrt(aligned) * random.choice([-1.0, 1.0], size=(draws, 1))
        signs = common + math.sqrt(1 - aligned) * random.standard_normal((draws, n))
        measured.append(math.sqrt(float(np.square(signs.sum(1)).mean())))
    fall = slope_of(
        [math.log(n) for n in WIDTHS], [math.log(size / n) for size, n in zip(measured, sizes, strict=True)]
    )
    assert fall == pytest.approx(-0.17, abs=0.02)  # the order of the sum is n, so that this is all of finite sizes
    at_sizes = np.array(measured)[:, None, None]
    assert float(excess(EFFECTIVE("expert_out"), plans("III"), at_sizes)) == pytest.approx(fall, abs=0.02)


def test_a_sum_whose_terms_stay_has_none() -> None:
    assert excess(EFFECTIVE("expert_out"), plans("II"), alignment([16, 16, 16], 0.01)) == 0


def test_only_sums_of_one_predicted_order_have_one() -> None:
    assert alignment_of(EFFECTIVE("expert_out")) == "alignment/p/expert_out"
    assert alignment_of(AGGREGATE("effective")) == "alignment/p/aggregate"
    for name in (
        EFFECTIVE("router"),
        EFFECTIVE("readout"),
        EFFECTIVE("norm"),
        AGGREGATE("init"),
        PROPAGATING("expert_out"),
    ):
        assert alignment_of(name) is None
