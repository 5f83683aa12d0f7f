"""Misses in words: which setting is behind them, and what it does instead of what it should."""

from __future__ import annotations

from typing import Any

import pytest

from mssp.coordcheck.causes import Cause, causes, divergence, power, with_reasons
from mssp.coordcheck.judgement import Judged, judged_quantities
from mssp.coordcheck.series import Numbers
from tests.coordcheck.synthetic import law, series, theory


def judged(values: dict[str, Numbers], **options: Any) -> dict[str, Judged]:
    return judged_quantities(series(values), theory(**options))


def only_cause(name: str, values: Numbers, **options: Any) -> Cause:
    accused = causes(judged({name: values}, **options), "N")
    assert len(accused) == 1
    return accused[0]


@pytest.mark.parametrize(
    ("excess", "words"),
    [
        (0.5, "multiplied by √N too often"),
        (-0.5, "divided by √N too often"),
        (1.0, "multiplied by N once too often"),
        (-1.0, "divided by N once too often"),
        (0.3, "multiplied by √N too often"),
        (-1.2, "divided by N once too often"),
        (2.0, "multiplied by N^2 too much"),
        (-1.5, "divided by N^1.5 too much"),
        (0.2, "multiplied by N^0.2 too much"),
    ],
)
def test_a_learning_rate_by_the_factor_to_look_for(excess: float, words: str) -> None:
    cause = only_cause("rate/expert_out", law(2.0 + excess, start=1))  # M N in Regime II, under SGD
    assert cause == Cause("rate", "expert_out", f"the learning rate of expert_out is {words}")


@pytest.mark.parametrize(
    ("name", "wrong", "options", "expected"),
    [
        ("weights/expert_out", 0.0, {},
         Cause("weights", "expert_out", "the initial weights of expert_out scale as N^0, the rule says N^0.5")),
        ("weights/router", -1.0, {},
         Cause("weights", "router", "the initial weights of router scale as N^−1, the rule says N^−0.5")),
        ("aggregation", -0.5, {},
         Cause("aggregation", "", "the aggregation factor scales as N^−0.5, the rule says N^−1")),
        ("aggregation", -1.0, {"regime": "I"},
         Cause("aggregation", "", "the aggregation factor scales as N^−1, the rule says N^0")),
        ("eps/expert_in", 0.0, {"optimizer": "adam", "regime": "III"},
         Cause("eps", "expert_in", "Adam's eps of expert_in scales as N^0, the rule says N^−2")),
    ],
)  # fmt: skip
def test_the_other_settings_by_both_powers(name: str, wrong: float, options: dict[str, Any], expected: Cause) -> None:
    assert only_cause(name, law(wrong), **options) == expected


def test_settings_that_are_zero_or_not() -> None:
    cause = only_cause("weights/router", law(-1.0), regime="I")
    assert cause.text == "the initial weights of router should be exactly zero after 0 updates, and is not"
    cause = only_cause("weights/expert_out", law(0.0) * 0)
    assert cause.text == "the initial weights of expert_out is exactly zero after 0 updates, and should not be"
    cause = only_cause("rate/expert_in", law(0.0) * 0)
    assert cause.text == "the learning rate of expert_in is exactly zero after 2 updates, and should not be"


def test_experts_that_are_tied_or_not() -> None:
    tied = only_cause("experts/distance", law(0.0, start=2))
    assert tied == Cause("experts", "", "experts start equal, and the rule draws each its own")
    apart = only_cause("experts/distance", law(0.0), regime="III")
    assert apart == Cause("experts", "", "experts differ at the start, and the rule ties them")


def test_over_depth_the_symbol_is_l() -> None:
    depths = (2, 4, 8)
    values = series(
        {"rate/expert_in": law(0.0, start=1, sizes=depths), "weights/expert_in": law(0.0, sizes=depths)}, depths
    )
    accused = causes(judged_quantities(values, theory(sizes=depths, depth=True)), "L")
    assert [cause.text for cause in accused] == ["the learning rate of expert_in is divided by L once too often"]


def test_the_likeliest_first() -> None:
    quantities = judged(
        {
            "rate/router": law(0.5, start=1),
            "rate/readout": law(0.0, start=1),
            "rate/expert_in": law(1.0, start=1, factor=0.0),
            "aggregation": law(0.0),
            "weights/expert_out": law(0.0),
            "weights/expert_in": law(0.5),
            "experts/distance": law(0.0, start=1),
            "effective/expert_in": law(1.0, start=2),
            "activation/embedding": law(0.0),
        }
    )
    # Settings come before what follows from them; within a kind, quantities without an exponent, then the farthest off.
    assert [(cause.setting, cause.role) for cause in causes(quantities, "N")] == [
        ("experts", ""), ("weights", "expert_in"), ("weights", "expert_out"), ("aggregation", ""),
        ("rate", "expert_in"), ("rate", "readout"), ("rate", "router"),
    ]  # fmt: skip


def test_an_eps_that_dominates_is_not_blamed_on_the_learning_rate() -> None:
    quantities = judged(
        {
            "rate/expert_in": law(-3.0, start=1),
            "rate/router": law(0.0, start=1),
            "eps/expert_in": law(0.0),
            "eps/router": law(-1.0),
        },
        optimizer="adam",
    )
    assert [(cause.setting, cause.role) for cause in causes(quantities, "N")] == [
        ("eps", "expert_in"),
        ("rate", "router"),
    ]


def test_nothing_is_blamed_where_settings_are_right() -> None:
    right = judged({"weights/router": law(-0.5), "rate/router": law(0.0, start=1), "effective/expert_in": law(1.0)})
    assert right["effective/expert_in"].verdict == "off"
    assert causes(right, "N") == []


def test_reasons_of_what_is_as_it_should_be() -> None:
    quantities = judged(
        {
            "weights/expert_out": law(0.52),
            "aggregate/init": law(0.01),
            "gradient/expert_out": law(-2.04, start=1),
            "experts/distance": law(0.5),
            "router/load": law(1.0),
            "propagating/readout": law(0.0) * 0,
        }
    )
    reasons = {name: each.reason for name, each in with_reasons(quantities, [], "N").items()}
    assert reasons == {
        "weights/expert_out": "grows as N^0.52: N^0.5 is expected",
        "aggregate/init": "stays, as expected",
        "gradient/expert_out": "falls as N^−2: N^−2 is expected",
        "experts/distance": "as it should be",
        "router/load": "",
        "propagating/readout": "",
    }


def test_reasons_of_what_is_off_name_the_cause() -> None:
    quantities = judged(
        {
            "weights/expert_out": law(0.0),
            "rate/router": law(1.0, start=1),
            "effective/router": law(1.0, start=2),
            "aggregate/init": law(-0.5),
            "effective/expert_out": law(0.0, start=1),
        }
    )
    of_weights = "the initial weights of expert_out scale as N^0, the rule says N^0.5"
    of_rate = "the learning rate of router is multiplied by N once too often"
    reasons = {name: each.reason for name, each in with_reasons(quantities, causes(quantities, "N"), "N").items()}
    assert {name: reason for name, reason in reasons.items() if name not in ("weights/router", "update/router")} == {
        "weights/expert_out": "stays, expected N^0.5",
        "rate/router": "grows as N^1, expected N^0",
        "effective/router": f"grows as N^1, expected N^0: {of_rate}",  # that of the same layer
        "aggregate/init": f"falls as N^−0.5, expected N^0: {of_weights}",  # nobody's layer: the likeliest
        "effective/expert_out": f"should be exactly zero after 1 update, and is not: {of_weights}",
    }


def test_where_every_setting_is_right_the_forward_pass_is_not() -> None:
    quantities = with_reasons(judged({"aggregate/init": law(-0.5), "weights/router": law(-0.5)}), [], "N")
    assert quantities["aggregate/init"].reason == (
        "falls as N^−0.5, expected N^0: every setting that was judged follows its rule, so look at the forward pass "
        "and the loss"
    )


def test_a_divergence_by_size_and_update() -> None:
    assert divergence(256, 3, "width") == Cause(
        "divergence", "", "training diverged at width 256 after 3 updates: lower the learning rate"
    )
    assert divergence(8, 1, "depth").text == "training diverged at depth 8 after 1 update: lower the learning rate"
    assert divergence(8, 0, "depth").text == (
        "something is not finite at depth 8 before any update: look at the data and the initial loss"
    )


def test_powers_as_people_write_them() -> None:
    assert [power("N", each) for each in (-0.5, 0.0, -0.003, 1.0, 0.333, -2.0)] == [
        "N^−0.5", "N^0", "N^0", "N^1", "N^0.33", "N^−2",
    ]  # fmt: skip
    assert power("L", -1.0) == "L^−1"
