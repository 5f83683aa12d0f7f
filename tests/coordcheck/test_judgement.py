"""Verdicts on series of known exponents: what is off, by how much it must be, and what excuses it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mssp
from mssp import Shape
from mssp._estimates import Estimate
from mssp.coordcheck.judgement import Judged, judged_quantities
from mssp.coordcheck.series import Numbers
from mssp.planning.recipe import without_plan_warnings
from mssp.theory.expected import Prediction, Theory
from mssp.theory.propagation import Exponent
from tests.coordcheck.synthetic import SIZES, SPREAD, law, plans, series, theory

WIDE = (-0.1, 0.0, 0.1)  # an interval of ± 0.248


def judged(
    name: str, values: Numbers, expectation: Theory | None = None, sizes: Sequence[int] = SIZES, **options: Any
) -> Judged:
    quantities = judged_quantities(series({name: values}, sizes), expectation or theory(sizes=sizes, **options))
    assert list(quantities)[-1] == name
    return quantities[name]


def test_a_quantity_as_it_should_be() -> None:
    quantity = judged("effective/expert_in", law(0.0, start=2, factor=3.0))
    assert (quantity.verdict, quantity.stable, quantity.reason) == ("ok", True, "")
    assert quantity.expected == Exponent(Fraction(0))
    assert quantity.judged is not None
    assert quantity.judged.value == pytest.approx(0.0, abs=1e-9)
    assert quantity.judged.ci == pytest.approx(0.0248, abs=1e-4)
    assert quantity.values[128] == pytest.approx((0.0, 0.0, 3.0, 3.0, 3.0))
    assert [None if each is None else each.exponent.power for each in quantity.predicted] == [None, None, 0, 0, 0]


def test_what_is_exactly_zero_has_no_exponent_rather_than_minus_infinity() -> None:
    quantity = judged("effective/expert_in", law(0.0, start=2))
    assert quantity.exponents[:2] == (None, None)
    assert all(each is not None and abs(each.value) < 1e-9 for each in quantity.exponents[2:])
    for name in ("propagating/readout", "router/load"):  # predicted to vanish; nothing predicted
        gone = judged(name, law(0.0) * 0)
        assert (gone.verdict, gone.judged, gone.stable) == ("zero", None, True)
        assert gone.exponents == (None,) * 5


# 0.15 and an interval of 0.025, of 0.248, or of 1.24, which can tell nothing.
@pytest.mark.parametrize(
    ("power", "spread", "verdict"),
    [
        (0.16, (-0.01, 0.0, 0.01), "ok"),
        (-0.17, (-0.01, 0.0, 0.01), "ok"),
        (0.19, (-0.01, 0.0, 0.01), "off"),
        (-0.19, (-0.01, 0.0, 0.01), "off"),
        (0.38, WIDE, "ok"),
        (-0.42, WIDE, "off"),
        (0.48, (-0.5, 0.0, 0.5), "ok"),
        (0.52, (-0.5, 0.0, 0.5), "ok"),
        (0.5, (-0.01, 0.0, 0.01), "off"),
        (0.14, (0.0,), "ok"),  # one seed on a straight line
        (0.16, (0.0,), "off"),
    ],
)
@pytest.mark.parametrize(("name", "right"), [("effective/expert_in", 0.0), ("backward/h2-init-update", -1.0)])
def test_a_miss_beyond_tolerance_and_interval_is_off(
    name: str, right: float, power: float, spread: Sequence[float], verdict: str
) -> None:
    quantity = judged(name, law(right + power, start=2 if right == 0.0 else 1, spread=spread))
    assert quantity.verdict == verdict
    assert quantity.judged is not None
    assert quantity.judged.value == pytest.approx(right + power, abs=1e-9)


def test_with_two_sizes_a_line_always_fits_and_seeds_judge() -> None:
    two = (64, 256)
    for power, verdict in ((0.16, "ok"), (0.19, "off")):
        assert judged("effective/expert_in", law(power, start=2, sizes=two), sizes=two).verdict == verdict
    # One seed gives no interval, so only a miss beyond 0.15 + 0.35, is off.
    for power, verdict in ((0.45, "ok"), (0.55, "off")):
        alone = judged("effective/expert_in", law(power, start=2, sizes=two, spread=(0.0,)), sizes=two)
        assert alone.verdict == verdict


FOUR = (64, 128, 256, 512)


def test_a_bend_of_finite_sizes_explains_a_miss() -> None:
    bent = judged("effective/expert_in", law(0.0, bend=40.0, start=2, sizes=FOUR), sizes=FOUR)
    assert bent.judged is not None
    # The values are 1.625, 1.3125, 1.156 and 1.078: their slope is off by as much as the straight one below.
    assert bent.judged.value == pytest.approx(-0.195, abs=2e-3)
    assert bent.verdict == "ok"
    straight = judged("effective/expert_in", law(-0.195, start=2, sizes=FOUR), sizes=FOUR)
    assert straight.verdict == "off"
    # Three sizes are too few to measure a bend.
    assert judged("effective/expert_in", law(0.0, bend=40.0, start=2)).verdict == "off"


@pytest.mark.parametrize(("power", "bend"), [(-0.5, -30.0), (-0.5, 40.0), (-0.5, 200.0), (0.5, -30.0), (0.5, 40.0)])
def test_a_bend_excuses_no_wrong_half_power(power: float, bend: float) -> None:
    assert judged("effective/expert_in", law(power, bend=bend, start=2, sizes=FOUR), sizes=FOUR).verdict == "off"


@pytest.mark.parametrize(
    ("power", "verdict"), [(0.0, "ok"), (-0.25, "ok"), (-0.5, "ok"), (-0.6, "ok"), (-0.75, "off"), (0.25, "off")]
)
def test_an_inner_product_may_be_on_its_way(power: float, verdict: str) -> None:
    quantity = judged("effective/router", law(power, start=2))
    assert quantity.verdict == verdict
    assert quantity.expected == Exponent(Fraction(0), Fraction(1, 2))
    assert quantity.stable == (verdict == "ok")


def test_wrongly_zero_and_wrongly_not() -> None:
    quantity = judged("effective/readout", law(0.0) * 0)
    assert (quantity.verdict, quantity.reason) == ("off", "is exactly zero after 1 update, and should not be")
    quantity = judged("effective/expert_in", law(0.0, start=3))
    assert (quantity.verdict, quantity.reason) == ("off", "is exactly zero after 2 updates, and should not be")
    quantity = judged("effective/expert_in", law(0.0, start=1))
    assert (quantity.verdict, quantity.reason) == ("off", "should be exactly zero after 1 update, and is not")
    quantity = judged("aggregate/A22", law(0.0))
    assert (quantity.verdict, quantity.reason) == ("off", "should be exactly zero after 0 updates, and is not")
    quantity = judged("propagating/readout", law(0.0, start=4))
    assert (quantity.verdict, quantity.reason) == ("off", "should be exactly zero after 4 updates, and is not")


@pytest.mark.parametrize(("share", "verdict"), [(1e-6, "ok"), (9e-5, "ok"), (2e-4, "off"), (1e-2, "off")])
def test_of_a_term_to_come_rounding_may_be_there_before(share: float, verdict: str) -> None:
    values = law(0.0, start=2, factor=5.0, spread=(0.0, 0.0, 0.0))
    values[:, 1] = 5.0 * share
    assert judged("effective/expert_in", values).verdict == verdict


def test_a_term_that_never_comes_is_not_excused_by_rounding() -> None:
    assert judged("propagating/readout", law(0.0, factor=1e-9)).verdict == "off"


def test_a_layer_that_is_dead_at_one_size_is_off() -> None:
    for spread in (SPREAD, (0.0,)):
        values = law(0.0, start=2, spread=spread)
        values[1] = 0.0
        quantity = judged("effective/expert_in", values)
        assert (quantity.verdict, quantity.stable) == ("off", False)
        assert quantity.reason == "is exactly zero at size 128 after 2 updates, and should not be"


def test_nothing_is_said_of_what_nobody_predicts() -> None:
    quantity = judged("router/load", law(0.3))
    assert (quantity.verdict, quantity.judged, quantity.expected, quantity.stable) == ("unpredicted", None, None, True)
    first = quantity.exponents[0]
    assert first is not None
    assert (first.value, first.ci) == pytest.approx((0.3, 0.0248), abs=1e-4)


def test_the_loss_is_no_quantity() -> None:
    assert not judged_quantities(series({"loss": law(0.0)}), theory())


def test_what_is_not_finite_is_off() -> None:
    values = law(0.0, start=2)
    values[1, 3, 0] = np.nan
    quantity = judged("effective/expert_in", values)
    assert (quantity.verdict, quantity.reason, quantity.stable) == ("off", "is not finite", False)
    assert np.isnan(quantity.values[128][3])
    assert quantity.values[64] == pytest.approx((0.0, 0.0, 1.0, 1.0, 1.0))
    assert judged("router/load", values).verdict == "unpredicted"  # what was lost shows in the rest


@pytest.mark.parametrize(
    ("regime", "apart", "verdict", "reason"),
    [
        ("II", True, "ok", ""),
        ("II", False, "off", "start equal, and the rule draws each its own"),
        ("III", False, "ok", ""),
        ("III", True, "off", "differ at the start, and the rule ties them"),
    ],
)
def test_experts_start_equal_where_they_are_tied_and_only_there(
    regime: str, apart: bool, verdict: str, reason: str
) -> None:
    quantity = judged("experts/distance", law(-0.5, start=0 if apart else 2), regime=regime)
    assert (quantity.verdict, quantity.reason) == (verdict, reason)


def test_the_worst_of_several_predictions_is_judged() -> None:
    # muP's sum over experts: −1/2 at the start; 0 after an update, with a slack that admits −1/2.
    mup = theory(scheme="mup", readout="mup")
    values = law(-0.5)
    assert judged("activation/aggregate", values, mup).verdict == "ok"
    values[:, 0] = law(0.0)[:, 0]
    quantity = judged("activation/aggregate", values, mup)
    assert quantity.verdict == "off"
    assert quantity.judged is not None
    assert quantity.judged.value == pytest.approx(0.0, abs=1e-9)
    assert quantity.expected == Exponent(Fraction(-1, 2))


def test_steps_with_one_prediction_are_judged_together() -> None:
    # The exponent is 0.3 too high after two updates and 0.3 too low after three; the mean is judged, and it is right.
    values = law(0.0, start=2, steps=3)
    values[:, 2], values[:, 3] = law(0.3)[:, 0], law(-0.3)[:, 0]
    assert judged("effective/expert_in", values).verdict == "ok"
    values[:, 3] = law(0.2)[:, 0]
    quantity = judged("effective/expert_in", values)
    assert quantity.verdict == "off"
    assert quantity.judged is not None
    assert quantity.judged.value == pytest.approx(0.25)


def test_mup_in_regime_ii_passes_and_is_not_stable() -> None:
    mup = theory(scheme="mup")
    quantity = judged("aggregate/init", law(-0.5), mup)
    assert (quantity.verdict, quantity.stable) == ("ok", False)
    of_mssp = judged("aggregate/init", law(-0.5))
    assert (of_mssp.verdict, of_mssp.stable) == ("off", False)
    wrong = judged("aggregate/init", law(0.0), mup)
    assert (wrong.verdict, wrong.stable) == ("off", True)


def test_stability_is_asked_of_the_last_third() -> None:
    values = law(-0.5, steps=5)
    values[:, 4:] = law(0.0)[:, :2]
    mup = theory(scheme="mup")
    assert judged("aggregate/init", values, mup).stable
    values[:, 4:] = law(-0.5)[:, :2]
    values[:, :4] = law(0.0)[:, :4]
    assert not judged("aggregate/init", values, mup).stable


def test_outputs_of_experts_are_free_in_regime_ii() -> None:
    for power, stable in ((0.5, True), (0.0, True), (-0.3, False), (0.8, False)):
        for name in ("activation/expert_out", "propagating/expert_out"):
            assert judged(name, law(power), theory(scheme="mup")).stable == stable
    assert not judged("activation/expert_out", law(0.5), theory("III", scheme="mup")).stable


def test_eps_must_follow_its_gradient_to_be_stable() -> None:
    jiang = theory("III", scheme="jiang", optimizer="adam")
    for power, stable in ((0.0, True), (2.0, False), (-0.5, False)):
        assert judged("faithfulness/expert_in", law(power, start=1), jiang).stable == stable
    assert judged("faithfulness/router", law(0.4, start=1), jiang).stable  # its gradient is on its way up


def test_over_depth_gradients_in_blocks_fall_and_are_stable() -> None:
    depths = (2, 4, 8)
    quantity = judged("backward/A4", law(-1.0, start=1, sizes=depths), sizes=depths, depth=True)
    assert (quantity.verdict, quantity.stable) == ("ok", True)
    assert quantity.expected == Exponent(Fraction(-1))
    wrong = judged("backward/A4", law(0.0, start=1, sizes=depths), sizes=depths, depth=True)
    assert (wrong.verdict, wrong.stable) == ("off", False)


@pytest.mark.parametrize(
    ("name", "power", "start"),
    [("weights/expert_out", 0.5, 0), ("rate/expert_out", 2.0, 1), ("aggregation", -1.0, 0), ("rate/readout", -1.0, 1)],
)
def test_what_layers_were_told_is_judged_like_the_rest(name: str, power: float, start: int) -> None:
    assert judged(name, law(power, start=start)).verdict == "ok"
    wrong = judged(name, law(power - 0.5, start=start))
    assert wrong.verdict == "off"
    assert wrong.expected == Exponent(Fraction(power))


def test_a_rate_is_judged_by_a_layers_first_update_alone() -> None:
    # From the second update on, the gradients of several updates add up.
    values = law(2.0, start=1)
    values[:, 3:] = law(5.0)[:, 3:]
    quantity = judged("rate/expert_out", values)
    assert [each is not None for each in quantity.predicted] == [False, False, True, False, False]
    assert quantity.verdict == "ok"


def test_an_update_that_its_weights_round_away_tells_no_rate() -> None:
    values = {"rate/expert_out": law(1.0, start=1), "weights/expert_out": law(0.5), "update/expert_out": law(0.5)}
    assert judged_quantities(series(values), theory())["rate/expert_out"].verdict == "off"
    values["update/expert_out"] = 1e-7 * law(0.5)
    assert judged_quantities(series(values), theory())["rate/expert_out"].verdict == "unpredicted"


def test_with_weight_decay_nothing_is_exactly_zero() -> None:
    decays = theory(optimizer="adamw", weight_decay=0.1)
    assert judged("effective/expert_in", law(0.0, start=1), decays).verdict == "ok"
    assert judged("effective/expert_in", law(0.0, start=1), theory(optimizer="adamw")).verdict == "off"


def test_a_simulation_speaks_where_the_paper_is_silent_and_of_the_first_update_alone() -> None:
    told = {
        "effective/expert_in": [None, Estimate(-0.5, 0.1), Estimate(3.0, 0.0)],
        "update/router": [Estimate(0.0, 0.0)],
    }
    simulated = Theory(plans(scheme="mup", optimizer="adam"), told)  # type: ignore[arg-type]
    assert judged("effective/expert_in", law(-0.5, start=1), simulated).verdict == "ok"
    assert judged("effective/expert_in", law(-0.74, start=1), simulated).verdict == "ok"  # 0.15 + 0.1 + 0.025 below
    assert judged("effective/expert_in", law(-0.8, start=1), simulated).verdict == "off"
    assert judged("effective/expert_in", law(-0.5), simulated).verdict == "off"  # and zero before it
    # The paper takes precedence, and the simulation predicts only terms of the paper.
    assert judged("aggregate/init", law(-0.5), simulated).predicted[0].source == "paper"  # type: ignore[union-attr]
    assert simulated.prediction("update/router", 0) is None


# -- sums of finitely many terms ---------------------------------------------------------------------------------------


def few_aligned_terms(planted: float) -> dict[str, Numbers]:
    """What Regime III's expert_out does to its output where 1 % of the sum's square is aligned, and what shows it.

    ``planted`` is a power of the width by which the learning rate is wrong.
    """
    sizes, hidden = np.array(SIZES)[:, None, None], np.array([32.0, 64.0, 128.0])[:, None, None]
    beside = np.sqrt(hidden * (1 + (hidden - 1) * 0.01)) / hidden
    update = law(planted, start=2) / hidden
    assert np.array_equal(sizes // 2, hidden)
    return {
        "update/expert_out": update,
        "alignment/p/expert_out": beside * hidden * law(0.0, start=2, spread=(0.0, 0.0, 0.0)),
        "effective/expert_out": update * hidden * beside,
    }


@pytest.mark.parametrize(("planted", "verdict"), [(0.0, "ok"), (0.5, "off"), (-0.5, "off")])
def test_a_sum_that_is_still_falling_to_its_order(planted: float, verdict: str) -> None:
    quantities = judged_quantities(series(few_aligned_terms(planted)), finite_theory())
    quantity = quantities["effective/expert_out"]
    assert quantity.judged is not None
    assert quantity.judged.value == pytest.approx(-0.3 + planted, abs=0.02)
    assert (quantity.verdict, quantity.stable) == (verdict, verdict == "ok")
    assert quantity.expected_power == pytest.approx(-0.3, abs=0.02)  # whatever is planted


def test_a_sum_without_a_measured_alignment_is_judged_by_its_order() -> None:
    values = few_aligned_terms(0.0)
    del values["alignment/p/expert_out"]
    quantity = judged_quantities(series(values), finite_theory())["effective/expert_out"]
    assert (quantity.verdict, quantity.expected_power) == ("off", 0.0)


def finite_theory() -> Theory:
    with without_plan_warnings():
        shapes = {n: Shape(n, n // 2, n // 16, n // 32, 1) for n in SIZES}
        return Theory({n: mssp.plan(shape, regime="III", lr=0.1) for n, shape in shapes.items()})


def test_a_bend_that_was_measured_is_not_laid_to_finite_sums_too() -> None:
    """With four sizes the slope at large sizes is estimated, and must be of the order itself."""
    prediction = Prediction(Exponent(Fraction(0)), "paper").at_finite_sizes(Fraction(-3, 10))
    assert prediction.exponent == Exponent(Fraction(-3, 10))
    assert prediction.of_large_sizes == Exponent(Fraction(0))
    zero = Prediction(Exponent(None), "paper")
    assert zero.at_finite_sizes(Fraction(-3, 10)) == zero
