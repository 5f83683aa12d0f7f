"""One run in a line of JSON, and the plan it stands for."""

from __future__ import annotations

import pytest

import mssp
from mssp.sweep.trial import Problem, Trial
from mssp.tuned import tuned

PROBLEM = Problem(inputs=12288, classes=100)


def test_a_trial_is_the_plan_one_would_make() -> None:
    best = tuned("tinyimagenet", "adam", "III", "mssp", active=2)
    trial = Trial("III", "mssp", "adam", 256, seed=3, lr=0.32, active=2).with_tuned(best)
    expected = mssp.plan(
        mssp.Shape(width=256, expert_width=256, experts=16, active=4, depth=1, inputs=12288),
        regime="III",
        optimizer="adam",
        lr=0.32,
        init_mult=0.25,
        aggregation_mult=2.0,
        lr_mult={"embedding": 4.0, "router": 0.25, "expert_in": 0.0625, "expert_out": 0.25, "readout": 16.0},
    )
    assert trial.plan(PROBLEM) == expected
    assert trial.plan(PROBLEM).hash == expected.hash
    config = trial.config(PROBLEM)
    assert (config.inputs, config.outputs, config.experts, config.active) == (12288, 100, 16, 4)


def test_it_comes_back_from_json_and_its_key_tells_it_apart() -> None:
    trial = Trial("II", "mup", "sgd", 128, seed=0, lr=0.01, lr_mult={"router": 4.0})
    assert Trial.from_json(trial.json()) == trial
    assert trial.key == "0844dc9a359894ec"
    others = [Trial("II", "mup", "sgd", 128, seed=1, lr=0.01, lr_mult={"router": 4.0}), Trial.from_json(trial.json())]
    assert [other.key == trial.key for other in others] == [False, True]
    assert trial.parameters["lr_mult.router"] == 4.0


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="lr must be a positive number, got 0"):
        Trial("II", "mssp", "sgd", 128, seed=0, lr=0.0).plan(PROBLEM)
    with pytest.raises(ValueError, match="unknown role 'gate' in lr_mult"):
        Trial("II", "mssp", "sgd", 128, seed=0, lr=1.0, lr_mult={"gate": 2.0}).plan(PROBLEM)
    with pytest.raises(ValueError, match="Regime II has an expert for every 16 of width: 100 is no multiple of it"):
        Trial("II", "mssp", "sgd", 100, seed=0, lr=1.0).plan(PROBLEM)
