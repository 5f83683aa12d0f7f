"""Searches on a made-up surface whose optimum is known, and on a real one through a store."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from mssp.cli.progress import Progress
from mssp.data.generated import clusters
from mssp.ladders.mlp import MLPLadder
from mssp.planning.setting import Setting
from mssp.replicas import Schedule
from mssp.store.runs import Store
from mssp.sweep import grids
from mssp.sweep.evaluation import KIND, Evaluator
from mssp.sweep.execution import Job, Local
from mssp.sweep.search import Procedure, Scores, tune
from mssp.sweep.trial import Trial

START = Trial(Setting.of("mssp", "II", "sgd"), 32, 0, 0.01, aggregation_mult=8.0)
OPTIMUM = {"init": 0.25, "embedding": 4.0, "router": 16.0, "expert_in": 1.0, "expert_out": 1 / 64, "readout": 64.0}
SMALL = {"points": 3, "broad_points": 3, "broad_ratio": 16.0, "lr_points": 3}


class Surface:
    """Scores that are best at OPTIMUM and at the learning rate 0.04; ``asked`` lists the stages and their trials."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def __call__(self, stage: str, trials: Sequence[Trial]) -> Scores:
        self.asked.append((stage, len(trials)))
        return {trial.key: self.score(trial) for trial in trials}

    def score(self, trial: Trial) -> float:
        distances = [math.log(grids.point_of(trial)[name] / best, 4) for name, best in OPTIMUM.items()]
        return -sum(distance**2 for distance in distances) - math.log(trial.lr / 0.04, 4) ** 2


def test_the_papers_procedure_finds_the_optimum() -> None:
    surface = Surface()
    result = tune(START, Procedure(**SMALL, rounds=1), surface)  # type: ignore[arg-type]
    assert result.best.lr == pytest.approx(0.04)
    assert grids.point_of(result.best) == OPTIMUM
    assert surface.asked == [("learning rate", 3), ("broad grid", 729), ("fine grid 1", 729)]
    assert result.at_edge == ["init", "embedding", "expert_out", "readout"]
    assert result.fine["readout"] == [4.0, 16.0, 64.0]


def test_another_round_goes_on_from_an_edge() -> None:
    surface = Surface()
    result = tune(START, Procedure(**SMALL, rounds=3), surface)  # type: ignore[arg-type]
    assert [stage for stage, _ in surface.asked][-1] == "fine grid 2"  # the third is not needed
    assert result.at_edge == []
    assert result.fine["readout"] == [16.0, 64.0, 256.0]


@pytest.mark.parametrize("method", ["random", pytest.param("optuna", marks=pytest.mark.slow)])
def test_cheaper_searches_keep_to_their_budget(method: str) -> None:
    surface = Surface()
    procedure = Procedure(method, **SMALL, budget=700)  # type: ignore[arg-type]
    result = tune(START, procedure, surface)
    assert sum(count for _, count in surface.asked) == 703
    assert len(result.tried) == 703  # none twice
    assert result.score > surface.score(START)
    again = tune(START, procedure, Surface())
    assert again.best == result.best


def test_where_nothing_learns_the_given_rate_is_kept() -> None:
    result = tune(START, Procedure(**SMALL), lambda stage, trials: {trial.key: 0.05 for trial in trials})  # type: ignore[arg-type]
    assert result.best.lr == START.lr


def test_a_budget_beyond_all_points_ends() -> None:
    tiny = {"points": 1, "broad_points": 3, "broad_ratio": 4.0, "lr_points": 1}
    result = tune(START, Procedure("random", **tiny, budget=1000), Surface())  # type: ignore[arg-type]
    assert len(result.tried) == 1 + 3**6


def test_grids() -> None:
    assert grids.levels(2.0, 4, 4.0) == [0.25, 1.0, 4.0, 16.0]
    axes = grids.axes(dict.fromkeys(grids.MULTIPLIERS, 1.0), 5, 4.0)
    assert len(grids.all_points(axes)) == 15625
    assert len(grids.unique(grids.pair_points(axes, dict.fromkeys(axes, 1.0)))) == 15 * 16 + 6 * 4 + 1
    assert len({tuple(point.values()) for point in grids.random_points(axes, 1000, seed=0)}) == 1000
    assert (
        grids.random_points(axes, 5, seed=1)
        == grids.random_points(axes, 5, seed=1)
        != grids.random_points(axes, 5, seed=2)
    )
    assert Procedure().runs == 3**6 + 5**6
    assert Procedure().reach == 5


def test_procedures_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="method must be one of grid, random, optuna, got 'guess'"):
        Procedure("guess")
    with pytest.raises(ValueError, match="ratio must be a number of more than 1, got 1"):
        Procedure(ratio=1.0)


def evaluator(store: Store, steps: int = 16, **other: object) -> Evaluator:
    data = clusters(examples=2000, validation=100, classes=10, superclasses=2)
    job = Job(data, Schedule(steps, 10), MLPLadder, keep_curves=False)
    return Evaluator(store, Local(torch.device("cpu")), job, Progress("training"), **other)  # type: ignore[arg-type]


def test_scores_are_means_over_seeds_and_known_ones_are_not_run_again(tmp_path: Path) -> None:
    trials = [Trial(Setting.of("mssp", "II", "adam"), 32, 0, lr) for lr in (0.01, 0.02)]
    with Store(tmp_path / "runs.sqlite") as store:
        evaluate = evaluator(store, seeds=(0, 1))
        scores = evaluate("first", trials)
        each = [evaluate.per_seed("again", trial, (0, 1)) for trial in trials]
        assert list(scores.values()) == [pytest.approx(sum(values) / 2) for values in each]
        study = store.open_study(evaluate.job.study_name(KIND))
        assert study.counts()["done"] == 4
        assert study.curves(trials[0].key) == {}


def test_early_stopping_finishes_a_quarter(tmp_path: Path) -> None:
    trials = [Trial(Setting.of("mssp", "II", "adam"), 32, 0, 0.0001 * 1.1**k) for k in range(64)]
    with Store(tmp_path / "runs.sqlite") as store:
        scores = evaluator(store, early_stop=True)("grid", trials)
        counts = {name: store.open_study(name).counts()["done"] for name in store.studies()}
    assert counts == {"tune clusters, 2 steps of 10, float32": 64, "tune clusters, 16 steps of 10, float32": 16}
    assert sum(math.isfinite(score) for score in scores.values()) == 16


def test_early_stopping_keeps_what_is_known(tmp_path: Path) -> None:
    trials = [Trial(Setting.of("mssp", "II", "adam"), 32, 0, 0.0001 * 1.1**k) for k in range(64)]
    with Store(tmp_path / "runs.sqlite") as store:
        whole = evaluator(store)("grid", trials)
        assert evaluator(store, early_stop=True)("grid", trials) == whole
