"""Whole studies: killed and resumed, shared by two processes, on Ray."""

from __future__ import annotations

import re
import signal
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from mssp._environment import pick_device
from mssp.cli.progress import Progress
from mssp.data import load
from mssp.data.generated import clusters
from mssp.ladders.mlp import MLPLadder
from mssp.planning.setting import Setting
from mssp.replicas import Schedule
from mssp.store.runs import Run, Store
from mssp.sweep.execution import Job, Local, giving_back_on_error, naming, plan_chunks
from mssp.sweep.trial import Trial, in_chunks

CPU = torch.device("cpu")


def trials(widths: Sequence[int] = (16, 32), seeds: int = 2) -> list[Trial]:
    return [
        Trial(Setting.of(scheme, "II", "adam"), width, seed, lr)
        for scheme in ("mssp", "mup")
        for width in widths
        for seed in range(seeds)
        for lr in (0.01, 0.02, 0.04)
    ]


def job(steps: int = 12) -> Job:
    return Job(clusters(examples=2000, validation=100, classes=10, superclasses=2), Schedule(steps, 10), MLPLadder)


def finished(path: Path, backend: Local, asked: Sequence[Trial], todo: Job) -> list[Run]:
    with Store(path) as store:
        study = store.study("all", todo.settings)
        study.add(backend.chunks(asked, todo))
        backend.run(study, todo, Progress("training"), asked)
        return study.runs()


def same(first: Path, second: Path, name: str) -> bool:
    """Whether two stores hold the same runs with the same numbers, to the bit."""
    contents = []
    for path in (first, second):
        with Store(path, must_exist=True) as store:
            study = store.open_study(name)
            contents.append({run.key: (run.status, run.metrics, study.curves(run.key)) for run in study.runs()})
    mine, theirs = contents
    assert mine.keys() == theirs.keys()
    for key, (status, metrics, curves) in mine.items():
        other = theirs[key]
        assert status == other[0]
        np.testing.assert_array_equal(list(metrics.values()), list(other[1].values()))
        for curve, numbers in curves.items():
            np.testing.assert_array_equal(numbers, other[2][curve])
    return True


def test_a_second_call_runs_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, asked = Local(CPU), trials()
    first = finished(tmp_path / "runs.sqlite", backend, asked, job())
    monkeypatch.setattr("mssp.sweep.execution.train_trials", lambda *_: pytest.fail("it was run again"))
    assert finished(tmp_path / "runs.sqlite", backend, asked, job()) == first
    assert {run.status for run in first} == {"done"}
    assert len(first) == len(asked)


def test_what_is_added_runs_alone(tmp_path: Path) -> None:
    path, backend = tmp_path / "runs.sqlite", Local(CPU)
    few = finished(path, backend, trials((16,)), job())
    more = finished(path, backend, trials((16, 32)), job())
    assert more[: len(few)] == few
    assert len(more) == 2 * len(few)


def test_what_was_left_by_another_call_goes_on_waiting(tmp_path: Path) -> None:
    with Store(tmp_path / "runs.sqlite") as store:
        todo, backend = job(), Local(CPU)
        study = store.study("all", todo.settings)
        study.add(backend.chunks(trials((16, 32)), todo))
        backend.run(study, todo, Progress("training"), trials((32,)))
        assert {run.parameters["width"] for run in study.runs("done")} == {32}
        assert study.counts()["pending"] == len(trials((16,)))


def test_other_data_or_lengths_are_refused(tmp_path: Path) -> None:
    finished(tmp_path / "runs.sqlite", Local(CPU), trials((16,)), job(12))
    with pytest.raises(ValueError, match="was made with other settings: steps is 12 there and 13 here"):
        finished(tmp_path / "runs.sqlite", Local(CPU), trials((16,)), job(13))


def test_a_chunk_that_fails_says_why_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the device is on fire")

    with monkeypatch.context() as patch:
        patch.setattr("mssp.sweep.execution.train_trials", broken)
        with pytest.raises(RuntimeError, match="on fire"):
            finished(tmp_path / "runs.sqlite", Local(CPU), trials((16,)), job())
    with Store(tmp_path / "runs.sqlite") as store:
        runs = store.open_study("all").runs("failed")
        assert runs[0].error == "RuntimeError: the device is on fire"
    assert {run.status for run in finished(tmp_path / "runs.sqlite", Local(CPU), trials((16,)), job())} == {"done"}


def test_a_damaged_store_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    finished(path, Local(CPU), trials((16,)), job())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE metric SET value = value + 1")
    what = f"{path}: study 'all', chunk 0: its runs are not those that were written"
    with Store(path) as store:
        study = store.open_study("all")
        with pytest.raises(ValueError, match=f"^{re.escape(what)}"), naming(study):
            list(study.each_run())


def test_an_interrupted_chunk_is_given_back(tmp_path: Path) -> None:
    with Store(tmp_path / "runs.sqlite") as store:
        study = store.study("all", {})
        study.add(plan_chunks(trials((16,)), job(), CPU))
        chunk = study.claim()
        assert chunk is not None
        with pytest.raises(KeyboardInterrupt), giving_back_on_error(study, chunk):
            raise KeyboardInterrupt
        assert study.counts()["pending"] == len(trials((16,)))


def test_chunks_share_batches_and_fit() -> None:
    asked = trials((16, 32), seeds=2)
    chunks = in_chunks(asked, {trial.group_key: 4 for trial in asked})
    assert [len(chunk) for chunk in chunks] == [4, 4, 4] * 2
    for chunk in chunks:
        assert len({trial.width for trial in chunk}) == 1
        assert [trial.seed for trial in chunk] == [0, 0, 1, 1]
    assert sorted(trial.key for chunk in chunks for trial in chunk) == sorted(trial.key for trial in asked)
    uneven = [*asked, Trial(Setting.of("mssp", "II", "adam"), 16, 5, 0.01)]
    assert all(
        len({trial.seed for trial in chunk}) == 1 for chunk in in_chunks(uneven, {t.group_key: 4 for t in uneven})[:4]
    )


def test_devices_are_named() -> None:
    assert pick_device("cpu") == CPU
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:1, got 'tpu9'"):
        pick_device("tpu9")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:1, got 'meta'"):
        pick_device("meta")


@pytest.mark.slow
def test_ray_gives_the_same_numbers_and_survives_a_killed_worker(tmp_path: Path) -> None:
    import ray

    from mssp.sweep.on_ray import Ray

    todo, asked = Job(load("clusters"), Schedule(400, 50), MLPLadder), trials((16, 32, 48), seeds=1)
    finished(tmp_path / "local.sqlite", Local(CPU), asked, todo)
    backend = Ray()
    killed: list[int] = []
    try:
        with Store(tmp_path / "ray.sqlite") as store:
            study = store.study("all", todo.settings)
            study.add(backend.chunks(asked, todo))
            backend.run(study, todo, Killer(killed), asked)
    finally:
        ray.shutdown()
    assert killed, "no worker was found to kill"
    assert same(tmp_path / "ray.sqlite", tmp_path / "local.sqlite", "all")


class Killer(Progress):
    """Kills a worker as soon as one runs."""

    def __init__(self, killed: list[int]) -> None:
        super().__init__("training")
        self._killed = killed

    def start(self, runs: int, done: int, steps: int) -> None:
        from threading import Thread

        Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        import os

        for _ in range(600):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and b"ray::_train_chunk" in _command(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
                    self._killed.append(int(entry.name))
                    return
            time.sleep(0.05)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
