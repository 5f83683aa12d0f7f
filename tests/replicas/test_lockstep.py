"""A replica's trajectory is that of the same model trained alone."""

from __future__ import annotations

import pytest
import torch

from mssp.nn import MLPConfig
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from tests.replicas.models import CLASSES, INPUTS, OPTIMIZERS, alone, batches, config, replica, together


@pytest.mark.parametrize("active", [None, 2], ids=["soft", "top-2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_replica_is_the_model_alone_to_the_bit(optimizer: str, active: int | None) -> None:
    chosen = replica(config(active), optimizer, 0.15 if optimizer == "sgd" else 0.05)
    losses, lockstep = together(config(active), [chosen])
    expected, model = alone(config(active), chosen, batches(0))
    assert losses[:, 0].tolist() == expected
    assert sum(expected[-30:]) < 0.97 * sum(expected[:30])  # it learns, so there is something to compare
    for name, parameter in model.named_parameters():
        assert torch.equal(lockstep.parameters[name][0], parameter), name


@pytest.mark.parametrize("active", [None, 2], ids=["soft", "top-2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("arranged", ["shared", "groups", "mixed"])
def test_sixteen_replicas_are_sixteen_models(optimizer: str, active: int | None, arranged: str) -> None:
    seeds = {"shared": [3] * 16, "groups": [i // 4 for i in range(16)], "mixed": [i % 3 for i in range(16)]}[arranged]
    each = [
        replica(
            config(active), optimizer, 0.005 * 1.15**i, seed, ["mssp", "mup"][i % 2], init_mult=0.5 + 0.05 * i,
            aggregation_mult=1.0 + i / 8, lr_mult={"expert_in": 1.0 + i},
        )
        for i, seed in enumerate(seeds)
    ]  # fmt: skip
    losses, _ = together(config(active), each)
    for index, chosen in enumerate(each):
        expected, _ = alone(config(active), chosen, batches(chosen.seed))
        assert losses[-1, index].item() == pytest.approx(expected[-1], rel=1e-5), index


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_replica_is_unchanged_when_its_neighbour_diverges(optimizer: str) -> None:
    good = [replica(config(), optimizer, lr) for lr in (0.02, 0.04, 0.08)]
    mild = [*good[:2], replica(config(), optimizer, 0.03), good[2]]
    # Numbers beyond float32 within a few steps.
    wild = [*good[:2], replica(config(), optimizer, 1e20), good[2]]
    expected, _ = together(config(), mild)
    losses, lockstep = together(config(), wild)
    keep = [0, 1, 3]
    assert torch.equal(losses[:, keep], expected[:, keep])
    step = lockstep.diverged_at[2]
    assert step is not None
    assert 0 < step < 10
    assert lockstep.diverged_at == [None, None, step, None]
    assert losses[:step, 2].isfinite().all()
    assert losses[step:, 2].isnan().all()


def test_a_diverged_replica_is_frozen() -> None:
    wild = [replica(config(), "adam", 1e30), replica(config(), "adam", 0.01)]
    _, early = together(config(), wild, steps=5)
    _, late = together(config(), wild, steps=20)
    assert early.diverged_at[0] is not None
    for name, weights in early.parameters.items():
        torch.testing.assert_close(late.parameters[name][0], weights[0], rtol=0, atol=0, equal_nan=True)


def test_outputs_that_are_all_equal_are_right_as_often_as_chance() -> None:
    lockstep = Lockstep(MLPProgram(config()), [replica(config(), "sgd", 0.1)])
    x, targets = torch.randn(1, CLASSES * 10, INPUTS), torch.arange(CLASSES).repeat(1, 10)
    _, accuracy, top5 = lockstep.step(x, targets)[0].tolist()
    assert accuracy == pytest.approx(1 / CLASSES)
    assert top5 == pytest.approx(5 / CLASSES)


def test_replicas_must_be_alike() -> None:
    with pytest.raises(ValueError, match="no replicas to train"):
        Lockstep(MLPProgram(config()), [])
    with pytest.raises(ValueError, match="replicas in lockstep have one optimizer, got sgd and adam"):
        Lockstep(MLPProgram(config()), [replica(config(), "sgd", 0.1), replica(config(), "adam", 0.1)])
    with pytest.raises(ValueError, match="precision must be one of float32, tf32, got 'half'"):
        Lockstep(MLPProgram(config()), [replica(config(), "sgd", 0.1)], precision="half")
    other = MLPConfig(INPUTS, CLASSES, width=16, expert_width=8, experts=4)
    with pytest.raises(ValueError, match="the plan is for"):
        Lockstep(MLPProgram(config()), [replica(other, "sgd", 0.1)])
