"""Whole trainings: curves, validation, parts that fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from mssp.data.dataset import Dataset, Split
from mssp.data.generated import clusters
from mssp.nn import MLPConfig
from mssp.planning.setting import ADAM, SGD
from mssp.replicas import Feed, Lockstep, MLPProgram, Schedule, train
from mssp.replicas import training as training_module
from mssp.replicas.training import bytes_per_replica, even_parts, replicas_that_fit
from tests.replicas.models import CLASSES, INPUTS, config, replica

DATA = clusters(examples=2000, validation=300, classes=CLASSES, inputs=INPUTS, superclasses=1, difficulty=0.3)
PROGRAM = MLPProgram(config())
CPU = torch.device("cpu")


def test_what_training_returns() -> None:
    replicas = [replica(config(), "adam", 0.02, seed) for seed in (0, 1)]
    schedule = Schedule(steps=100, batch=10, validate_at=(0, 50, 100))
    outcomes = train(PROGRAM, replicas, Feed(DATA), schedule)
    assert len(outcomes) == 2
    for done in outcomes:
        assert list(done.curves) == list(done.validation) == ["loss", "accuracy", "top5"]
        assert all(curve.shape == (100,) and curve.dtype == np.float32 for curve in done.curves.values())
        assert list(done.validations) == [0, 50, 100]
        assert done.validations[100] == done.validation
        assert done.validations[0]["loss"] == pytest.approx(np.log(CLASSES), rel=1e-5)
        assert done.validation["loss"] < done.validations[50]["loss"] < done.validations[0]["loss"]
        assert done.validation["accuracy"] > 0.2  # chance is 0.14
        assert done.diverged_at is None
    assert not np.array_equal(outcomes[0].curves["loss"], outcomes[1].curves["loss"])


def test_it_is_a_loop_of_steps_over_the_seeds_batches() -> None:
    chosen = replica(config(), "sgd", 0.05, seed=3)
    done = train(PROGRAM, [chosen], Feed(DATA), Schedule(steps=5, batch=10))[0]
    lockstep = Lockstep(PROGRAM, [chosen])
    for step, examples in enumerate(DATA.batches(seed=3, batch=10, steps=5)):
        x = torch.from_numpy(DATA.prepared(DATA.train.inputs[examples]))
        targets = torch.from_numpy(DATA.train.targets[examples])
        loss = lockstep.step(x.unsqueeze(0), targets.unsqueeze(0))[0, 0]
        assert done.curves["loss"][step] == loss
    held_out = torch.from_numpy(DATA.prepared(DATA.validation.inputs)), torch.from_numpy(DATA.validation.targets)
    assert done.validation["loss"] == pytest.approx(lockstep.evaluate(*held_out, batch=37)[0, 0].item(), rel=1e-5)


def test_shorter_trainings_are_the_beginning_of_longer_ones() -> None:
    chosen = [replica(config(), "adam", 0.02)]
    short, long = (train(PROGRAM, chosen, Feed(DATA), Schedule(steps, 10))[0].curves["loss"] for steps in (20, 60))
    assert np.array_equal(short, long[:20])


def test_parts_give_the_same_as_the_whole() -> None:
    replicas = [replica(config(), "adam", 0.01 * 1.2**r, seed=r // 3) for r in range(6)]
    whole = train(PROGRAM, replicas, Feed(DATA), Schedule(30, 10))
    for largest in (1, 4):
        parts = train(PROGRAM, replicas, Feed(DATA), Schedule(30, 10), largest=largest)
        for mine, theirs in zip(parts, whole, strict=True):
            np.testing.assert_allclose(mine.curves["loss"], theirs.curves["loss"], rtol=1e-5)


def test_what_does_not_fit_after_all_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [replica(config(), "adam", 0.01 * 1.2**r) for r in range(5)]
    expected = train(PROGRAM, replicas, Feed(DATA), Schedule(5, 10))
    sizes = []
    real = training_module._train_together

    def full(lockstep: Lockstep, *others: object) -> object:
        sizes.append(len(lockstep.replicas))
        if len(lockstep.replicas) > 2:
            raise torch.OutOfMemoryError("no")
        return real(lockstep, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(training_module, "_train_together", full)
    found = train(PROGRAM, replicas, Feed(DATA), Schedule(5, 10))
    assert sizes == [5, 3, 2, 1, 2]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.curves["loss"], theirs.curves["loss"], rtol=1e-5)


def test_replicas_that_fit_follow_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    each = bytes_per_replica(PROGRAM, ADAM, 10, CPU)
    assert each > 4 * bytes_per_replica(PROGRAM, SGD, 10, CPU) / 3
    monkeypatch.setattr("mssp.replicas.training.free_bytes", lambda device: 100 * each)
    assert replicas_that_fit(PROGRAM, ADAM, 10, CPU) == 80
    monkeypatch.setattr("mssp.replicas.training.free_bytes", lambda device: each // 2)
    with pytest.raises(ValueError, match=r"one replica needs 0\.0 GiB, and cpu has 0\.0 free"):
        replicas_that_fit(PROGRAM, ADAM, 10, CPU)
    assert [part.stop - part.start for part in even_parts(15625, 4096)] == [3907, 3906, 3906, 3906]


def images() -> Dataset:
    generator = np.random.default_rng(0)
    train, validation = (
        Split(generator.integers(0, 256, (n, 3, 5, 3), dtype=np.uint8), generator.integers(0, 4, n)) for n in (40, 8)
    )
    return Dataset("bytes", 4, train, validation, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


def test_bytes_are_normalised_on_the_way_and_keep_their_shape() -> None:
    data = images()
    feed = Feed(data)
    (x, targets), *_ = feed.batches([0, 1], Schedule(2, 5))
    assert x.shape == (2, 5, 3, 5, 3)
    chosen = data.batches(seed=1, batch=5, steps=2)[0]
    np.testing.assert_allclose(x[1].flatten(1), data.prepared(data.train.inputs[chosen]), rtol=1e-6, atol=1e-6)
    assert targets[1].tolist() == data.train.targets[chosen].tolist()
    held_out, right = feed.validation(None)
    np.testing.assert_allclose(held_out.flatten(1), data.prepared(data.validation.inputs), rtol=1e-6, atol=1e-6)
    some, _ = feed.validation(3)
    assert len(right) == 8
    assert all(any(torch.equal(one, each) for each in held_out) for one in some)


def test_the_mlp_takes_images_as_rows_of_numbers_to_the_bit() -> None:
    data = images()
    scale, shift = (torch.from_numpy(each) for each in data.scale_and_shift())
    config = MLPConfig(data.inputs, data.classes, width=16, expert_width=4, experts=2)
    replicas = [replica(config, "adam", 0.02, seed) for seed in (0, 1)]
    of_images, of_rows = (Lockstep(MLPProgram(config), replicas) for _ in range(2))
    orders = [data.batches(seed, 10, 4) for seed in (0, 1)]
    for (x, targets), *chosen in zip(Feed(data).batches([0, 1], Schedule(4, 10)), *orders, strict=True):
        rows = torch.from_numpy(data.train.inputs[np.stack(chosen)]).flatten(2)
        assert torch.equal(x.flatten(2), torch.addcmul(shift, rows.float(), scale))
        assert torch.equal(of_images.step(x, targets), of_rows.step(x.flatten(2), targets))
    x, targets = Feed(data).validation(None)
    assert torch.equal(of_images.evaluate(x, targets, 3), of_rows.evaluate(x.flatten(1), targets, 3))


def test_metrics_are_the_programs() -> None:
    class Errors(MLPProgram):
        metrics: tuple[str, ...] = ("loss", "error")

        def scores(self, losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
            wrong = (outputs.argmax(-1) != targets).float().mean(-1)
            return torch.stack([losses, wrong], dim=-1)

    chosen = [replica(config(), "adam", 0.02, seed) for seed in (0, 1)]
    for mine, known in zip(
        train(Errors(config()), chosen, Feed(DATA), Schedule(20, 10)),
        train(PROGRAM, chosen, Feed(DATA), Schedule(20, 10)),
        strict=True,
    ):
        assert list(mine.curves) == list(mine.validation) == ["loss", "error"]
        assert np.array_equal(mine.curves["loss"], known.curves["loss"])
        assert mine.validation["error"] == pytest.approx(1 - known.validation["accuracy"])


def test_what_cannot_be_trained_is_said() -> None:
    chosen = [replica(config(), "sgd", 0.1)]
    with pytest.raises(ValueError, match="201 steps of 10 need 2010 examples in a single pass"):
        train(PROGRAM, chosen, Feed(DATA), Schedule(201, 10))
    with pytest.raises(ValueError, match="a subset of 301 examples was asked for, there are 300"):
        train(PROGRAM, chosen, Feed(DATA), Schedule(1, 10, validation=301))
    with pytest.raises(ValueError, match="validate_at lies within the 5 steps of training, got 6"):
        Schedule(5, 10, validate_at=(6,))
    with pytest.raises(ValueError, match="no replicas to train"):
        train(PROGRAM, [], Feed(DATA), Schedule(1, 10))


def test_divergence_in_the_last_update_is_seen_in_validation() -> None:
    wild = [replica(config(), "adam", 1e38), replica(config(), "adam", 0.01)]
    done = train(PROGRAM, wild, Feed(DATA), Schedule(1, 10))
    assert np.isfinite(done[0].curves["loss"]).all()
    assert done[0].diverged_at == 1
    assert np.isnan(done[0].validation["loss"])
    assert done[1].diverged_at is None
