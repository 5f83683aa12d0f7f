"""Living processes hold chunks: several that share a study, and some that die with a chunk."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssp
from mssp.store import ownership
from mssp.store import runs as store_module
from mssp.store.runs import Store, Study
from tests.store.stores import SETTINGS, busy_worker, claimed, new_runs, results, worker


def edit(path: Path, statement: str, *values: Any) -> None:
    """Change the file without the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount == 1


def test_released_and_closed_chunks_are_free(path: Path, study: Study) -> None:
    study.add(new_runs(2, 1))
    study.release(claimed(study))
    assert claimed(study).index == 0
    with Store(path) as other:
        second = other.open_study("sweep")
        chunk = claimed(second)
        assert chunk.index == 1
        study.fail(chunk, "not mine")
        study.release(chunk)
        assert second.runs("running") == study.runs()
        assert study.claim() is None
    assert claimed(study).index == 1


def test_a_store_dropped_by_its_own_process_holds_nothing(path: Path, study: Study) -> None:
    study.add(new_runs(1, 1))
    other = Store(path)
    assert claimed(other.open_study("sweep")).index == 0
    assert study.claim() is None
    other._database.close()
    del other
    assert claimed(study).index == 0


def test_processes_share_the_work(path: Path) -> None:
    with Store(path) as store:
        store.study("sweep", SETTINGS).add(new_runs(60, 3))
    outcomes = [process.communicate(timeout=60) for process in [worker(path, 0.005) for _ in range(3)]]
    assert [errors for _, errors in outcomes] == [""] * 3
    taken = [[int(line) for line in output.split()] for output, _ in outcomes]
    assert sorted(index for indexes in taken for index in indexes) == list(range(60))
    with Store(path) as store:
        study = store.open_study("sweep")
        assert study.counts()["done"] == 180
        assert len(study.environments()) == sum(map(bool, taken))


def test_no_one_comes_between_looking_and_taking(path: Path, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    look = ownership.gone

    def look_and_intrude(database: sqlite3.Connection, number: int, folder: Path) -> str:
        with pytest.raises(sqlite3.OperationalError, match="locked"), closing(sqlite3.connect(path, 0)) as other:
            other.execute("UPDATE chunk SET status = 'done'")
        return look(database, number, folder)

    study.add(new_runs(1, 1))
    monkeypatch.setattr(ownership, "gone", look_and_intrude)
    assert claimed(study).index == 0


def test_a_killed_process_holds_nothing(path: Path, study: Study) -> None:
    study.add(new_runs(3, 2))
    with busy_worker(path) as process:
        assert (study.counts()["running"], claimed(study).index) == (2, 1)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and a zombie: no one has asked for its status
        assert study.counts()["pending"] == 4
        chunk = claimed(study)
        assert (chunk.index, [run.key for run in chunk.runs]) == (0, ["0-0", "0-1"])
    study.finish(chunk, results(chunk, 1.0))
    output, errors = worker(path, 0).communicate(timeout=60)
    assert (output, errors) == ("2\n", "")
    assert [run.metrics.get("loss") for run in study.runs()] == [1.0, 1.0, None, None, 2.0, 2.0]


def test_a_process_with_the_number_of_a_dead_one_is_another(path: Path, study: Study) -> None:
    study.add(new_runs(1, 1))
    with busy_worker(path) as process:
        assert study.claim() is None
        with closing(sqlite3.connect(path)) as database:
            query = "SELECT started FROM owner WHERE pid = ?"
            boot, _, tick = database.execute(query, (process.pid,)).fetchone()[0].rpartition(":")
        edit(path, "UPDATE owner SET started = ? WHERE pid = ?", f"{boot}:{int(tick) - 1}", process.pid)
        assert claimed(study).index == 0


@pytest.mark.parametrize(("age", "lives"), [(0.0, True), (110.0, True), (130.0, False), (-1e6, False)])
def test_owners_elsewhere_live_by_their_heartbeat(path: Path, study: Study, age: float, lives: bool) -> None:
    study.add(new_runs(1, 1))
    with Store(path) as other:
        second = other.open_study("sweep")
        claimed(second)
        change = "UPDATE owner SET host = 'elsewhere', heartbeat = ? WHERE id = (SELECT max(id) FROM owner)"
        edit(path, change, time.time() - age)
        edit(path, "UPDATE presence SET place = 'another kernel' WHERE owner = (SELECT max(id) FROM owner)")
        assert study.counts()["running" if lives else "pending"] == 1
        assert (study.claim() is None) == lives


@pytest.mark.skipif(sys.platform != "linux", reason="locks that other containers see are Linux's")
def test_an_owner_in_another_container_is_taken_over_at_once(path: Path, study: Study) -> None:
    """Its process number means nothing here and its heartbeat is fresh, but the kernel has dropped its lock."""
    study.add(new_runs(1, 1))
    with busy_worker(path) as process:
        edit(path, "UPDATE owner SET host = 'another container' WHERE pid = ?", process.pid)
        assert study.claim() is None
        (words,) = study.waiting_for().values()
        assert words == f"process {process.pid} in another container or on another machine trains"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert claimed(study).index == 0


def test_the_wait_for_an_owner_who_cannot_be_seen_is_said(path: Path, study: Study) -> None:
    study.add(new_runs(1, 1))
    with busy_worker(path) as process:
        edit(path, "UPDATE owner SET host = 'another machine' WHERE pid = ?", process.pid)
        edit(path, "UPDATE presence SET place = 'another kernel' WHERE owner = (SELECT max(id) FROM owner)")
        (words,) = study.waiting_for().values()
    assert re.fullmatch(r"process \d+ in another .* trains; .* they are taken over in 1[12]\d s", words) is not None


def test_a_heartbeat_is_written_now_and_then(path: Path, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> float:
        with closing(sqlite3.connect(path)) as database:
            return float(database.execute("SELECT heartbeat FROM owner").fetchone()[0])

    study.heartbeat()
    study.add(new_runs(1, 1))
    claimed(study)
    edit(path, "UPDATE owner SET heartbeat = 1")
    study.heartbeat()
    assert seen() == 1
    monkeypatch.setattr(store_module, "BEAT_EVERY_SECONDS", 0.0)
    study.heartbeat()
    assert abs(seen() - time.time()) < 60


def test_environments_say_what_worked_and_not_where(study: Study) -> None:
    assert study.environments() == []
    study.add(new_runs(2, 1))
    claimed(study)
    claimed(study)
    (found,) = study.environments()
    assert list(found) == ["python", "numpy", "torch", "mssp", "host", "device", "started"]
    assert (found["numpy"], found["mssp"], found["device"]) == (np.__version__, mssp.__version__, "two cores")
    assert len(found["host"]) == 16
    assert study.store.study("other", {}).environments() == []


@pytest.mark.parametrize("owner", ["NULL", "99"])
def test_a_chunk_that_nobody_holds_is_not_waited_for(path: Path, study: Study, owner: str) -> None:
    study.add(new_runs(2, 1))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(f"UPDATE chunk SET status = 'running', owner = {owner} WHERE number = 1")
    for ask in (study.counts, study.claim, study.runs, study.waiting_for):
        with pytest.raises(ValueError, match="study 'sweep', owner None is no process, got None, None"):
            ask()
