"""The file of a store: it appears whole; other files are refused and left unchanged; errors are plain."""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mssp.store import database as database_module
from mssp.store.database import APPLICATION_ID, SCHEMA_VERSION
from mssp.store.runs import Result, Store, Study
from tests.store.stores import SETTINGS, beside, busy_worker, claimed, new_runs, sound_store, worker


def test_processes_may_make_the_store_together(path: Path) -> None:
    processes = [worker(path, 0) for _ in range(4)]
    assert [process.communicate(timeout=60) for process in processes] == [("", "")] * 4
    assert beside(path) == {path.name}


@pytest.mark.parametrize("links", [True, False])
def test_making_a_store_replaces_nothing(path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    whole = sound_store(path)
    database_module.create(path)
    assert path.read_bytes() == whole
    assert beside(path) == {path.name}


def test_a_lock_that_stays_is_told_plainly(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    with Store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        study = store.study("sweep", SETTINGS)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(ValueError, match=r"\.db: another process kept it locked: try again when that one is done"):
            study.add(new_runs(1, 1))
        writer.execute("ROLLBACK")
        assert study.add(new_runs(1, 1)) == 1


def test_a_full_disk_is_told_plainly_and_loses_nothing(study: Study) -> None:
    study.add(new_runs(1, 1))
    chunk = claimed(study)
    (pages,) = study.store._database.execute("PRAGMA page_count").fetchone()
    study.store._database.execute(f"PRAGMA max_page_count = {pages}")
    curve = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    with pytest.raises(ValueError, match="the disk is full: make room, then resume"):
        study.finish(chunk, [Result("0-0", {"loss": 1.0}, {"loss": curve})])
    assert (study.runs()[0].status, study.runs()[0].metrics) == ("running", {})
    study.store._database.execute("PRAGMA max_page_count = 1000000")
    study.finish(chunk, [Result("0-0", {"loss": 1.0}, {"loss": curve})])
    assert study.curves("0-0")["loss"].tolist() == curve.tolist()


def refused(path: Path, message: str) -> None:
    """Assert that a file is refused, whether or not it may be created, and that its folder stays unchanged."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()}
    for must_exist in (False, True):
        with pytest.raises(ValueError, match=message) as caught:
            Store(path, must_exist=must_exist)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    after = {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()}
    # Every reader rewrites a log's index (-shm), which is SQLite's shared memory.
    assert {name: data for name, data in after.items() if not name.endswith("-shm")} == {
        name: data for name, data in before.items() if not name.endswith("-shm")
    }
    assert after.keys() == before.keys()


def foreign_file(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in (*statements, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)"):
            database.execute(statement)


@pytest.mark.parametrize("content", [b"hello", b"a,b\n" * 5000, bytes(8192), b"SQLite format 4\0" + bytes(5000)])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refused(path, "it is not a run store, not even a SQLite file: choose another path")


def test_empty_files_and_folders_are_refused(path: Path) -> None:
    path.touch()
    refused(path, "it is empty, not a run store; remove it or choose another path")
    refused(path.parent, "it is not a file; choose another path")
    with pytest.raises(ValueError, match="there is no folder"):
        Store(path.parent / "nowhere" / "runs.db")
    with pytest.raises(ValueError, match="there is no such file"):
        Store(path.with_name("new.db"), must_exist=True)
    assert beside(path) == {path.name}


@pytest.mark.parametrize(
    "statements", [(), ("PRAGMA journal_mode = WAL",), ("PRAGMA application_id = 7", "PRAGMA user_version = 1")]
)
def test_sqlite_files_of_others_are_refused(path: Path, statements: tuple[str, ...]) -> None:
    foreign_file(path, *statements)
    refused(path, "it is another application's SQLite file, no run store; choose another path")


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_file_that_others_are_writing_is_left_alone(path: Path, journal: str) -> None:
    foreign_file(path, f"PRAGMA journal_mode = {journal}")
    with closing(sqlite3.connect(path, isolation_level=None)) as theirs:
        theirs.execute("INSERT INTO theirs VALUES (2)")
        theirs.execute("BEGIN IMMEDIATE")
        theirs.execute("INSERT INTO theirs VALUES (3)")
        refused(path, "it is another application's SQLite file")
        theirs.execute("COMMIT")
        assert theirs.execute("SELECT x FROM theirs").fetchall() == [(1,), (2,), (3,)]


def test_newer_stores_are_refused(path: Path) -> None:
    sound_store(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    refused(path, "it was written by a newer mssp, as version 2, this one reads up to 1; upgrade mssp")


def test_truncated_stores_are_refused(path: Path) -> None:
    whole = sound_store(path)
    for length in (100, 4096, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:length])
        refused(path, "it is damaged: bring back a copy or choose another path")
    path.write_bytes(whole)
    with Store(path) as store:
        assert store.open_study("sweep").counts()["done"] == 50


def test_damaged_stores_are_refused(path: Path) -> None:
    whole = sound_store(path)
    noise = np.random.default_rng(0).bytes(4096)
    for page in range(1, len(whole) // 4096):
        path.write_bytes(whole[: 4096 * page] + noise + whole[4096 * (page + 1) :])
        refused(path, "it is damaged: bring back a copy or choose another path")


def test_a_damaged_store_keeps_the_log_of_whoever_was_killed(path: Path) -> None:
    sound_store(path)
    with busy_worker(path) as process:
        process.kill()
    log = path.with_name(f"{path.name}-wal")
    assert log.stat().st_size > 0
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(4096) + whole[len(whole) // 2 + 4096 :])
    refused(path, "it is damaged")
    path.write_bytes(whole)
    with Store(path) as store:
        assert claimed(store.open_study("sweep")).index == 1
    assert not log.exists()


def test_the_file_says_what_it_is(path: Path) -> None:
    header = sound_store(path)[:100]
    assert header[:16] == b"SQLite format 3\0"
    assert struct.unpack(">I", header[68:72])[0] == APPLICATION_ID == int.from_bytes(b"MSSP", "big")
    assert struct.unpack(">I", header[60:64])[0] == SCHEMA_VERSION == 1


def test_the_file_refuses_what_makes_no_sense(study: Study) -> None:
    study.add(new_runs(1, 1))
    for statement in (
        "UPDATE chunk SET status = 'lost'",
        "UPDATE chunk SET status = 'running'",
        "UPDATE run SET chunk = 9",
        "INSERT INTO run (study, chunk, key, parameters, spec) VALUES (1, 0, '0-0', '{}', '')",
        "INSERT INTO curve VALUES (99, 'loss', 0, x'00')",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            study.store._database.execute(statement)


def test_a_message_of_sqlite_that_is_no_text_is_not_passed_on(path: Path) -> None:
    """SQLite quotes names as they stand in the file, and Python cannot read the message."""
    whole = sound_store(path)
    assert whole.count(b"indexsqlite_autoindex_curve_1curve") == 1
    path.write_bytes(whole.replace(b"indexsqlite_autoindex_curve_1curve", b"indexsqlite_autoindex_cu\xffve_1curve"))
    refused(path, "it is damaged: bring back a copy or choose another path")
