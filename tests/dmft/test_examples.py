"""Experiments to start from have the constants that were asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import mssp
from mssp.dmft import Experiment, example
from mssp.dmft.constants import constants
from mssp.dmft.examples import on_random_inputs

CASES = [(regime, scheme) for regime in ("I", "II", "III") for scheme in ("mssp", "mup")]
# What starts at zero, or vanishes.
NONE = {("I", "mssp"): {"router", "readout"}, ("II", "mssp"): {"readout"}, ("III", "mssp"): {"readout"}}
NONE |= {("II", "mup"): {"expert_out"}}


def asked_variances(regime: str, scheme: str, stds: Mapping[str, float]) -> dict[str, float]:
    return {role: 0.0 if role in NONE.get((regime, scheme), ()) else std**2 for role, std in stds.items()}


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_constants_are_of_order_one(regime: str, scheme: str) -> None:
    of = constants(example(regime, scheme))
    assert of.rate == pytest.approx(
        {"embedding": 0.8, "router": 0.8, "expert_in": 0.4, "expert_out": 0.4, "readout": 0.4}
    )
    stds = {"embedding": 1.5, "router": 1.0, "expert_in": 1.5, "expert_out": 1.0, "readout": 1.0}
    assert of.variance == pytest.approx(asked_variances(regime, scheme, stds))


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_constants_are_as_asked(regime: str, scheme: str) -> None:
    rates = {"embedding": 0.5, "router": 3.0, "expert_in": 0.25, "expert_out": 2.0, "readout": 0.75}
    stds = {"embedding": 0.5, "router": 2.0, "expert_in": 0.75, "expert_out": 3.0, "readout": 1.25}
    of = constants(example(regime, scheme, lr=0.8, rates=rates, stds=stds))
    assert of.rate == pytest.approx({role: 0.8 * rate for role, rate in rates.items()})
    assert of.variance == pytest.approx(asked_variances(regime, scheme, stds))


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_one_constant_leaves_the_others(regime: str, scheme: str) -> None:
    plain, asked = (constants(example(regime, scheme, rates=rates)).rate for rates in (None, {"router": 5.0}))
    assert asked == pytest.approx({**plain, "router": 2.0})


@pytest.mark.parametrize(("regime", "scheme"), CASES)
def test_the_readout_starts_at_zero_for_mssp_and_not_for_mup(regime: str, scheme: str) -> None:
    assert example(regime, scheme).plan.readout == ("zero" if scheme == "mssp" else "mup")
    for readout in ("zero", "mup", "scheme"):
        of = constants(example(regime, scheme, readout=readout))
        assert of.variance["readout"] == pytest.approx(0.0 if readout == "zero" else 1.0)


def test_sizes_of_the_smallest_members() -> None:
    ratios = {}
    for regime in ("I", "II", "III"):
        target = example(regime, "mssp").plan.target
        ratios[regime] = (target.width, target.expert_width, target.experts, target.active, target.inputs)
    assert ratios == {"I": (16, 8, 4, 4, 8), "II": (16, 2, 8, 8, 8), "III": (16, 8, 8, 8, 8)}
    own = mssp.Shape(width=32, expert_width=4, experts=8, active=8, depth=1, inputs=5)
    assert example("II", "mssp", smallest=own).plan.target == own
    assert example("II", "mssp", smallest=own).inputs.shape == (4, 5)


def test_rates_are_as_asked_with_few_active_experts() -> None:
    few = mssp.Shape(width=16, expert_width=2, experts=8, active=2, depth=1)
    assert constants(example("II", "mssp", smallest=few, rates={"expert_out": 3.0})).rate == pytest.approx(
        {"embedding": 0.8, "router": 0.8, "expert_in": 0.4, "expert_out": 1.2, "readout": 0.4}
    )


def same(first: Experiment, second: Experiment) -> bool:
    return np.array_equal(first.all_inputs, second.all_inputs) and np.array_equal(first.targets, second.targets)


def test_data_depend_on_the_seed_alone() -> None:
    first = example("I", "mssp", test_inputs=2)
    assert same(first, example("III", "mup", test_inputs=2, lr=7.0, steps=3))
    assert not same(first, example("I", "mssp", test_inputs=2, data_seed=1))
    assert np.array_equal(example("I", "mssp", inputs=2).inputs, first.inputs[:2])


def test_inputs_have_length_root_d() -> None:
    of = example("II", "mssp", inputs=6, test_inputs=3)
    assert of.inputs.shape == (6, 8)
    assert of.all_inputs.shape == (9, 8)
    assert (of.all_inputs**2).sum(1) == pytest.approx(np.full(9, 8.0))
    assert np.linalg.matrix_rank(of.all_inputs) == 8


def test_targets_are_around_one_with_both_signs() -> None:
    targets = example("II", "mssp", inputs=40).targets
    assert np.sign(targets).tolist() == [1.0, -1.0] * 20
    assert 0.5 <= np.abs(targets).min() < 0.7
    assert 1.3 < np.abs(targets).max() <= 1.5


def test_a_plan_of_one_s_own() -> None:
    shape = mssp.Shape(width=16, expert_width=2, experts=8, active=8, depth=1, inputs=5)
    own = mssp.plan(shape, regime="II", optimizer="sgd", lr=0.5)
    found = on_random_inputs(own, 3, 7, test_inputs=1, activation="gelu", gate="softmax", seed=2)
    assert found.plan is own
    assert (found.inputs.shape, found.all_inputs.shape, found.steps) == ((3, 5), (4, 5), 7)
    assert (found.activation, found.gate) == ("gelu", "softmax")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"regime": "IV"}, "regime must be one of I, II, III, got 'IV'"),
        ({"scheme": "best"}, "scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'best'"),
        ({"readout": "open"}, "readout must be one of zero, mup, scheme, got 'open'"),
        ({"lr": 0}, "lr must be a positive number, got 0"),
        ({"inputs": 0}, "inputs must be a positive whole number, got 0"),
        ({"test_inputs": -1}, "test_inputs must be a whole number of at least 0, got -1"),
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"rates": {"norm": 1.0}}, "rates of 'norm': the layers are embedding, router, expert_in, expert_out, readout"),
        ({"stds": {"gate": 1.0}}, "stds of 'gate': the layers are embedding, router, expert_in, expert_out, readout"),
        ({"rates": {"router": 0}}, "rates of router must be a positive number, got 0"),
        ({"rates": {"router": -2.0}}, "rates of router must be a positive number, got -2.0"),
        ({"stds": {"router": float("inf")}}, "stds of router must be a positive number, got inf"),
        ({"stds": {"router": float("nan")}}, "stds of router must be a positive number, got nan"),
        ({"stds": {"router": "2"}}, "stds of router must be a positive number, got '2'"),
        ({"activation": "relu"}, "two derivatives are needed, and relu has a kink: use tanh, gelu or silu"),
    ],
)
def test_mistakes_get_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        example(**{"regime": "II", "scheme": "mssp", **given})
