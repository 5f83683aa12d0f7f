"""One width names a whole model of a family, and that model is the one that checks, sweeps and limits train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mssp
from mssp import Shape
from mssp.coordcheck.ladder_runs import LadderSizes
from mssp.data import load
from mssp.dmft.examples import example
from mssp.ladders.ladder import Ladder
from mssp.ladders.mlp import MLPLadder, config_of, family
from mssp.ladders.tuned import Tuned
from mssp.nn import MLPConfig
from mssp.planning.setting import Setting, regime_named
from mssp.replicas import Lockstep, MLPProgram, Replica, Schedule, train
from mssp.replicas.program import Program
from mssp.sweep.execution import Job
from mssp.sweep.transfer import Contender

DATA = load("clusters")
D, C = 64, 100


def test_shapes_of_a_ladder() -> None:
    assert MLPLadder(regime_named("I"), DATA).shape(256) == Shape(256, 256, 8, 8, 1, D)
    assert MLPLadder(regime_named("I"), DATA, active=2).shape(256) == Shape(256, 256, 8, 2, 1, D)
    assert MLPLadder(regime_named("II"), DATA).shape(256) == Shape(256, 16, 16, 16, 1, D)
    assert MLPLadder(regime_named("II"), DATA, active=2).shape(256) == Shape(256, 16, 16, 4, 1, D)
    assert MLPLadder(regime_named("III"), DATA).shape(256) == Shape(256, 256, 16, 16, 1, D)
    assert MLPLadder(regime_named("III"), DATA, active=2).shape(256) == Shape(256, 256, 16, 4, 1, D)
    assert MLPLadder(regime_named("III"), DATA, blocks=3).shape(256) == Shape(256, 256, 16, 16, 3, D)
    with pytest.raises(ValueError, match="Regime II has an expert for every 16 of width: 100 is no multiple of it"):
        MLPLadder(regime_named("II"), DATA).shape(100)
    with pytest.raises(ValueError, match="regime must be one of I, II, III, got 'IV'"):
        family("IV", 128)


def test_configs_of_a_ladder() -> None:
    assert MLPLadder(regime_named("III"), DATA).config(64) == MLPConfig(D, C, width=64, expert_width=64, experts=4)
    assert MLPLadder(regime_named("II"), DATA, active=2).config(64) == MLPConfig(D, C, 64, 16, 4, active=1)
    assert MLPLadder(regime_named("I"), DATA, active=8).config(64) == MLPConfig(D, C, 64, 64, 8, active=8)
    assert MLPLadder(regime_named("I"), DATA, blocks=3).config(64) == MLPConfig(
        D, C, 64, 64, 8, blocks=3, residual=True
    )
    assert MLPLadder(regime_named("I"), DATA, blocks=1).config(64) == MLPConfig(
        D, C, 64, 64, 8, blocks=1, residual=True
    )


def config_in(program: Program) -> MLPConfig:
    assert isinstance(program, MLPProgram)
    return program.config


@pytest.mark.parametrize("active", [None, 2, 8])
@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_a_sweep_and_a_check_train_its_models(regime: str, active: int | None) -> None:
    setting = Setting.of("mssp", regime, "sgd")
    ladder = MLPLadder(regime_named(regime), DATA, active)
    job = Job(DATA, Schedule(10, 10), MLPLadder)
    widths = (64, 128, 256)
    checked = LadderSizes(widths).programs(setting, Tuned(0.1), MLPLadder, DATA, active)
    for width in widths:
        trial = Contender(setting, active).trial(width, 0, 0.1)
        assert job.ladder(trial) == ladder
        assert config_in(checked[width].program) == ladder.config(width)
        assert checked[width].plan.target == ladder.shape(width) == ladder.config(width).shape
        assert trial.plan(ladder).target == ladder.shape(width)


def test_growth_in_depth_at_one_width() -> None:
    ladder = MLPLadder(regime_named("II"), DATA)
    runs = LadderSizes((64,), depths=(1, 2, 8)).programs(Setting.of("mssp", "II", "adam"), Tuned(0.1), MLPLadder, DATA)
    for depth, run in runs.items():
        assert ladder.deep(depth).config(64) == config_in(run.program)
        assert ladder.deep(depth).shape(64) == run.plan.target == Shape(64, 16, 4, 4, depth, D)
    with pytest.raises(ValueError, match="blocks must be"):
        ladder.deep(0)


@pytest.mark.parametrize("active", [8, 4], ids=["soft", "top-4"])
def test_configs_of_shapes_are_those_of_the_limits(active: int) -> None:
    limit = example("II", "mup", smallest=Shape(16, 4, 8, active, 1))
    assert limit.soft == (active == 8)
    for width in (16, 64):
        choices: dict[str, Any] = {"activation": limit.activation, "gate": limit.gate, "loss": "mse"}
        assert config_of(limit.shape(width), 1, soft=limit.soft, **choices) == limit.config(width)


def test_a_shape_without_inputs_is_no_mlp() -> None:
    with pytest.raises(ValueError, match=r"an MLP MoE has inputs of one size, and Shape\(.*\) does not say which"):
        config_of(family("I", 64), 10, soft=True)


def test_words_tell_its_runs_from_others() -> None:
    assert MLPLadder(regime_named("II"), DATA).words() == {"active": None}
    assert MLPLadder(regime_named("II"), DATA, active=2).words() == {"active": 2}
    assert MLPLadder(regime_named("II"), DATA).deep(4).words() == {"active": None, "blocks": 4}


def test_its_parts_train_together() -> None:
    ladder: Ladder = MLPLadder(regime_named("II"), DATA)
    assert ladder.name == "mlp"
    plan = mssp.plan(ladder.shape(64), regime="II", optimizer="adam", lr=0.01)
    (done,) = train(ladder.program(64), [Replica(plan)], ladder.feed(torch.device("cpu")), Schedule(20, 10))
    assert done.curves["loss"][-5:].mean() < done.curves["loss"][0]
    assert np.isfinite(done.validation["loss"])
    with pytest.raises(ValueError, match="the plan is for"):
        Lockstep(ladder.program(128), [Replica(plan)])
