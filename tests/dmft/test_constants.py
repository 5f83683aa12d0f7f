"""The constants of every limit, worked out by hand from the rules for SGD."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mssp
from mssp.dmft import Experiment, example
from mssp.dmft.constants import Constants, constants

SHAPE = mssp.Shape(width=64, expert_width=32, experts=16, active=16, depth=1, inputs=8)
TOP_K = mssp.Shape(width=64, expert_width=32, experts=16, active=4, depth=1, inputs=8)
ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")

# In the order of ROLES, at N = 64, N_e = 32, M = 16, D = 8, lr η = 0.5.
# Embedding: η N over N/D is D η = 4. Router: η/N over M/N is η/M in I; η M/N is η in II; η over M/N = 1/4 is 4η in III.
# Experts: η over M is η/M = 1/32 in I, and η in II and III. Readout: η/N over 1/N is η.
RATE = {
    "I": (4.0, 0.03125, 0.03125, 0.03125, 0.5),
    "II": (4.0, 0.5, 0.5, 0.5, 0.5),
    "III": (4.0, 2.0, 0.5, 0.5, 0.5),
}
# A zero router in I under MSSP; in II the sum over experts of muP vanishes, as 1/M over what MSSP has.
VARIANCE = {
    ("I", "mssp"): (1.0, 0.0, 1.0, 1.0, 1.0),
    ("I", "mup"): (1.0, 1.0, 1.0, 1.0, 1.0),
    ("II", "mssp"): (1.0, 1.0, 1.0, 1.0, 1.0),
    ("II", "mup"): (1.0, 1.0, 1.0, 0.0, 1.0),
    ("III", "mssp"): (1.0, 1.0, 1.0, 1.0, 1.0),
    ("III", "mup"): (1.0, 1.0, 1.0, 1.0, 1.0),
}
CASES = list(VARIANCE)


def found(
    regime: str, scheme: str = "mssp", shape: mssp.Shape = SHAPE, gate: str = "sigmoid", **tuned: Any
) -> Constants:
    asked: dict[str, Any] = {"lr": 0.5, "readout": "mup", **tuned}
    plan = mssp.plan(shape, scheme=scheme, regime=regime, optimizer="sgd", **asked)
    return constants(Experiment(plan, np.eye(8)[:2], np.array([1.0, -1.0]), steps=2, gate=gate))


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_the_constants_of_every_case(regime: str, scheme: str) -> None:
    of = found(regime, scheme)
    assert tuple(of.rate) == tuple(of.variance) == ROLES
    assert tuple(of.rate.values()) == pytest.approx(RATE[regime], rel=1e-12)
    assert tuple(of.variance.values()) == pytest.approx(VARIANCE[regime, scheme], rel=1e-12)
    assert of.tied == ((regime, scheme) == ("III", "mssp"))
    assert (of.experts_per_width, of.expert_width_ratio, of.experts, of.expert_width) == (0.25, 0.5, 16, 32)


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_a_readout_that_starts_at_zero_has_no_variance(regime: str, scheme: str) -> None:
    assert found(regime, scheme, readout="zero").variance["readout"] == 0.0
    assert found(regime, scheme, readout="scheme").variance["readout"] == pytest.approx(1.0)


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_a_larger_member_of_the_family_has_the_same_constants(regime: str) -> None:
    sizes = {"I": (256, 128, 16), "II": (256, 32, 64), "III": (256, 128, 64)}[regime]
    larger = mssp.Shape(*sizes, active=sizes[2], depth=1, inputs=8)
    small, large = found(regime), found(regime, shape=larger)
    assert large.rate == pytest.approx(small.rate, rel=1e-12)
    assert large.variance == pytest.approx(small.variance, rel=1e-12)


@pytest.mark.parametrize("regime", ["I", "II", "III"])
@pytest.mark.parametrize("role", ROLES)
def test_a_tuned_multiplier_is_in_one_constant(role: str, regime: str) -> None:
    plain, tuned = found(regime, "mup"), found(regime, "mup", lr_mult={role: 3.0}, init_mult={role: 2.0})
    assert tuned.rate == pytest.approx({**plain.rate, role: 3 * plain.rate[role]}, rel=1e-12)
    assert tuned.variance == pytest.approx({**plain.variance, role: 4 * plain.variance[role]}, rel=1e-12)


def test_the_learning_rate_is_in_all_rates() -> None:
    assert tuple(found("II", lr=0.25).rate.values()) == pytest.approx((2.0, 0.25, 0.25, 0.25, 0.25))


@pytest.mark.parametrize("regime", ["I", "II", "III"])
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_the_sum_over_experts_is_in_expert_out(gate: str, regime: str) -> None:
    plain, tuned = found(regime, gate=gate), found(regime, gate=gate, aggregation_mult=3.0)
    assert tuned.rate == pytest.approx({**plain.rate, "expert_out": 9 * plain.rate["expert_out"]})
    assert tuned.variance == pytest.approx({**plain.variance, "expert_out": 9 * plain.variance["expert_out"]})


@pytest.mark.parametrize(("regime", "scheme"), [case for case in CASES if case[0] != "I"])
def test_top_k_divides_by_fewer_experts(regime: str, scheme: str) -> None:
    soft, few = found(regime, scheme), found(regime, scheme, TOP_K)
    assert few.rate == pytest.approx({**soft.rate, "expert_out": 16 * 0.5})
    assert few.variance == pytest.approx({**soft.variance, "expert_out": 16 * soft.variance["expert_out"]})


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_softmax_has_the_constants_of_sigmoid(regime: str, scheme: str) -> None:
    # A softmax gate is a share of one: no 1/M is left to the sum.
    assert found(regime, scheme, gate="softmax") == found(regime, scheme)


@pytest.mark.parametrize("scheme", ["sp", "ntp"])
@pytest.mark.parametrize(
    ("regime", "what"),
    [
        ("I", "the initial variance of router grows as N^1"),
        ("II", "the initial variance of expert_out grows as N^1"),
        ("III", "the initial variance of expert_out grows as N^2"),
    ],
)
def test_a_scheme_without_a_limit_is_refused(scheme: str, regime: str, what: str) -> None:
    message = f"scheme {scheme!r} has no limit in regime {regime}: {what} over the scale that has one"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        found(regime, scheme)


def test_a_rate_that_grows_is_refused() -> None:
    # Softmax leaves SP's sum over experts alone; its readout learns N times too fast.
    with pytest.raises(ValueError, match=r"the learning rate of readout grows as N\^1 over"):
        found("II", "sp", gate="softmax")


def test_what_vanishes_is_zero() -> None:
    # In Regime II the heuristic takes expert_in for an output: N times too small a start, and M too small a rate.
    of = found("II", "mup-heuristic")
    assert (of.variance["expert_in"], of.rate["expert_in"], of.rate["expert_out"]) == (0.0, 0.0, 0.0)
    assert of.variance["router"] == pytest.approx(1.0)


def test_asked_stds_hold_under_top_k_too() -> None:
    quarter = mssp.Shape(width=16, expert_width=2, experts=8, active=2, depth=1)
    found = constants(example("II", "mssp", smallest=quarter, stds={"expert_out": 1.3}))
    assert found.variance["expert_out"] == pytest.approx(1.69)
    assert found.rate["expert_out"] == pytest.approx(0.4)
