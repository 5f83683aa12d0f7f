"""What is trained: members of the family of a plan, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mssp
from mssp.dmft import Experiment

SHAPES = {
    "I": mssp.Shape(width=16, expert_width=8, experts=4, active=4, depth=1, inputs=3),
    "II": mssp.Shape(width=16, expert_width=2, experts=8, active=4, depth=1, inputs=3),
    "III": mssp.Shape(width=16, expert_width=8, experts=12, active=12, depth=1, inputs=3),
}


def plan(regime: str | None = "II", shape: mssp.Shape | None = None, **asked: Any) -> mssp.Plan:
    settings = {"optimizer": "sgd", "regime": regime, "lr": 0.5, **asked}
    return mssp.plan(shape or SHAPES[regime or "II"], **settings)


def experiment(of: mssp.Plan | None = None, **given: Any) -> Experiment:
    data: dict[str, Any] = {"inputs": np.eye(3)[:2], "targets": np.array([1.0, -1.0]), "steps": 2, **given}
    return Experiment(of or plan(), **data)


@pytest.mark.parametrize(
    ("regime", "width", "expert_width", "experts", "active"),
    [
        ("I", 64, 32, 4, 4),
        ("I", 2, 1, 4, 4),
        ("II", 64, 2, 32, 16),
        ("II", 4, 2, 2, 1),
        ("III", 64, 32, 48, 48),
        ("III", 4, 2, 3, 3),
        ("III", 20, 10, 15, 15),
    ],
)
def test_members_of_a_family(regime: str, width: int, expert_width: int, experts: int, active: int) -> None:
    family = experiment(plan(regime))
    shape = mssp.Shape(width, expert_width, experts, active, depth=1, inputs=3)
    assert family.shape(width) == family.member(width).target == shape
    assert family.member(width).roles["embedding"].lr == 0.5 * width
    config = family.config(width)
    assert (config.width, config.expert_width, config.experts) == (width, expert_width, experts)
    assert config.active == (active if regime == "II" else None)
    assert (config.inputs, config.outputs, config.loss) == (3, 1, "mse")


def test_the_first_member_is_the_plan() -> None:
    for regime in SHAPES:
        family = experiment(plan(regime, lr_mult={"router": 2.0}))
        assert family.member(16) == family.plan


def test_members_are_made_without_repeating_the_plan_s_warnings() -> None:
    with pytest.warns(mssp.PlanWarning, match="init_mult of readout has no effect"):
        warned = plan(init_mult={"readout": 2.0})
    assert experiment(warned).member(64).target.experts == 32


def test_the_model_is_as_asked() -> None:
    config = experiment(plan("I"), activation="silu", gate="softmax").config(32)
    assert (config.activation, config.gate) == ("silu", "softmax")


def test_test_inputs_come_after_the_inputs() -> None:
    seen, unseen = np.eye(3)[:2], np.full((2, 3), 5.0)
    assert experiment(inputs=seen).all_inputs.tolist() == seen.tolist()
    both = experiment(inputs=seen, test_inputs=unseen)
    assert both.all_inputs.tolist() == [*seen.tolist(), *unseen.tolist()]
    assert both.inputs.tolist() == seen.tolist()


def test_data_become_arrays_of_doubles() -> None:
    found = experiment(inputs=[[1, 0, 2]], targets=[3], test_inputs=np.ones((1, 3), np.float32))
    assert {each.dtype.name for each in (found.inputs, found.targets, found.all_inputs)} == {"float64"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"optimizer": "adamw"}, "the limits are those of sgd, the plan is for adamw"),
        ({"optimizer": "adam"}, "the limits are those of sgd, the plan is for adam"),
        ({"scheme": "sp", "regime": None}, "scheme 'sp' has no regime: say in the plan what is to grow"),
        (
            {"shape": mssp.Shape(16, 2, 8, 8, depth=2, inputs=3)},
            "the limits are those of one MoE layer, the plan has depth 2",
        ),
        (
            {"base": mssp.Shape(8, 2, 4, 2, depth=1, inputs=3)},
            "the family has no base: plan its first member without one",
        ),
        (
            {"regime": "I", "scheme": "mup", "shape": mssp.Shape(16, 8, 4, 2, depth=1, inputs=3)},
            "top-K is solved for sigmoid gates in regimes II and III: use all experts otherwise",
        ),
    ],
)
def test_plans_that_have_no_solver_are_refused(asked: dict[str, Any], message: str) -> None:
    refused = plan(**asked)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        experiment(refused)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"activation": "relu"}, "two derivatives are needed, and relu has a kink: use tanh, gelu or silu"),
        ({"activation": "exp"}, "activation must be one of gelu, relu, silu, tanh, identity, got 'exp'"),
        ({"gate": "hard"}, "gate must be one of sigmoid, softmax, got 'hard'"),
        (
            {"gate": "softmax"},
            "top-K is solved for sigmoid gates in regimes II and III: use all experts otherwise",
        ),
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"steps": 2.5}, "steps must be a positive whole number, got 2.5"),
        ({"inputs": np.ones((2, 4))}, "inputs are [number, 3] as the plan says, got [2, 4]"),
        ({"inputs": np.ones(3)}, "inputs are [number, 3] as the plan says, got [3]"),
        ({"inputs": np.ones((0, 3))}, "inputs are [number, 3] as the plan says, got [0, 3]"),
        ({"test_inputs": np.ones((1, 2))}, "test_inputs are [number, 3] as the plan says, got [1, 2]"),
        ({"inputs": np.full((2, 3), np.nan)}, "inputs hold numbers that are not finite"),
        ({"test_inputs": np.full((2, 3), np.inf)}, "test_inputs hold numbers that are not finite"),
        ({"targets": np.ones(3)}, "targets are 2 finite numbers, one for each input"),
        ({"targets": np.ones((2, 1))}, "targets are 2 finite numbers, one for each input"),
        ({"targets": np.array([1.0, np.nan])}, "targets are 2 finite numbers, one for each input"),
        ({"targets": np.zeros(2)}, "all targets are zero: there is nothing to learn"),
    ],
)
def test_what_cannot_be_trained_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        experiment(**given)


@pytest.mark.parametrize(
    ("regime", "width", "message"),
    [
        ("I", 17, "width 17 times expert_width/width = 8/16 is no whole number: use another width"),
        ("II", 15, "width 15 times experts/width = 8/16 is no whole number: use another width"),
        ("II", 2, "width 2 times active/width = 4/16 is no whole number: use another width"),
        ("III", 6, "width 6 times experts/width = 12/16 is no whole number: use another width"),
        ("III", 0, "width must be a positive whole number, got 0"),
    ],
)
def test_widths_that_give_no_whole_number_are_refused(regime: str, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        experiment(plan(regime)).member(width)
