"""Trials as lines of JSON, and their plans."""

from __future__ import annotations

import pytest

import mssp
from mssp.data import load
from mssp.ladders.mlp import MLPLadder
from mssp.ladders.tuned import TUNED_ROLES, Tuned, multipliers_for
from mssp.planning.setting import II, III, Setting
from mssp.sweep.trial import Trial

IMAGES = load("clusters", examples=10, validation=10, inputs=12288, classes=10, superclasses=1)
FEW = load("clusters", examples=10, validation=10, inputs=16, classes=4, superclasses=1)


def test_a_trial_is_the_plan_one_would_make() -> None:
    best = multipliers_for("tinyimagenet", Setting.of("mssp", "III", "adam"), 2)
    trial = Trial(Setting.of("mssp", "III", "adam"), 256, seed=3, lr=0.32, active=2).with_tuned(best)
    expected = mssp.plan(
        mssp.Shape(width=256, expert_width=256, experts=16, active=4, depth=1, inputs=12288),
        regime="III",
        optimizer="adam",
        lr=0.32,
        init_mult=0.25,
        aggregation_mult=2.0,
        lr_mult={"embedding": 4.0, "router": 0.25, "expert_in": 0.0625, "expert_out": 0.25, "readout": 16.0},
    )
    ladder = MLPLadder(III, IMAGES, active=2)
    assert trial.plan(ladder) == expected
    assert trial.plan(ladder).hash == expected.hash
    config = ladder.config(trial.width)
    assert (config.inputs, config.outputs, config.experts, config.active) == (12288, 10, 16, 4)


def test_it_comes_back_from_json_and_its_key_tells_it_apart() -> None:
    trial = Trial(Setting.of("mup", "II", "sgd"), 128, seed=0, lr=0.01, lr_mult={"router": 4.0})
    assert Trial.from_json(trial.json()) == trial
    assert trial.key == "0844dc9a359894ec"
    others = [
        Trial(Setting.of("mup", "II", "sgd"), 128, seed=1, lr=0.01, lr_mult={"router": 4.0}),
        Trial.from_json(trial.json()),
    ]
    assert [other.key == trial.key for other in others] == [False, True]
    assert trial.parameters["lr_mult.router"] == 4.0


def test_a_trial_may_grow_from_a_plain_model() -> None:
    """All schemes agree at the base; beyond it, in Regime II, μP and MSSP differ in the experts' second matrices."""
    trials = {
        (scheme, width): Trial(Setting.of(scheme, "II", "sgd"), width, seed=0, lr=0.5).with_tuned(
            Tuned(1.0, base_width=64)
        )
        for scheme in ("mup", "mssp", "sp")
        for width in (64, 256)
    }
    assert Trial.from_json(trials["mup", 64].json()) == trials["mup", 64]
    assert trials["mup", 64].parameters["base_width"] == 64
    plans = {key: trial.plan(MLPLadder(II, FEW)) for key, trial in trials.items()}

    def numbers(scheme: str, width: int) -> list[tuple[float, float]]:
        roles = plans[scheme, width].roles
        return [(roles[role].init_std, roles[role].lr) for role in TUNED_ROLES]

    assert numbers("mup", 64) == numbers("mssp", 64) == numbers("sp", 64)
    assert numbers("mup", 64) == [(0.25, 0.5), (0.125, 0.5), (0.125, 0.5), (0.25, 0.5), (0.0, 0.5)]
    assert [plans[key].multiplier("aggregation") for key in plans] == [1 / 4, 1 / 16, 1 / 4, 1 / 16, 1 / 4, 1 / 4]
    assert numbers("mup", 256)[3][0] == 0.25
    assert numbers("mssp", 256)[3][0] == 0.5
    assert numbers("mssp", 256)[:3] == numbers("mup", 256)[:3]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="lr must be a positive number, got 0"):
        Trial(Setting.of("mssp", "II", "sgd"), 128, seed=0, lr=0.0).plan(MLPLadder(II, IMAGES))
    with pytest.raises(ValueError, match="unknown role 'gate' in lr_mult"):
        Trial(Setting.of("mssp", "II", "sgd"), 128, seed=0, lr=1.0, lr_mult={"gate": 2.0}).plan(MLPLadder(II, IMAGES))
    with pytest.raises(ValueError, match="Regime II has an expert for every 16 of width: 100 is no multiple of it"):
        Trial(Setting.of("mssp", "II", "sgd"), 100, seed=0, lr=1.0).plan(MLPLadder(II, IMAGES))
    with pytest.raises(ValueError, match="1 of 8 experts active is no whole number of the 4 at the base's width 64"):
        Trial(Setting.of("mssp", "II", "sgd"), 128, seed=0, lr=1.0, active=1, base_width=64).plan(
            MLPLadder(II, IMAGES, active=1)
        )
