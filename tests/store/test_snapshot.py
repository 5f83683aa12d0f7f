"""Readers leave nothing beside a store, see everything that is in it, and need no permission but to read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mssp.store import snapshot as snapshot_module
from mssp.store.database import connect
from mssp.store.runs import Store
from mssp.store.snapshot import Snapshot
from mssp.store.table import export
from tests.another_user import as_another_user, needs_root
from tests.store.stores import SETTINGS, busy_worker, claimed, new_runs, results, sound_store


def content(path: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in the folder of a store, with the time of its last change."""
    return {entry.name: (entry.read_bytes(), entry.stat().st_mtime_ns) for entry in path.parent.iterdir()}


def counts(path: Path) -> dict[str, int]:
    with Store(path, read_only=True) as store:
        return {status: count for status, count in store.open_study("sweep").counts().items() if count}


def test_a_reader_leaves_nothing(path: Path) -> None:
    sound_store(path)
    before = content(path)
    assert counts(path) == {"done": 50, "pending": 350}
    assert content(path) == before


def test_a_reader_sees_what_is_in_the_log_of_a_writer(path: Path) -> None:
    with Store(path) as writer:
        study = writer.study("sweep", SETTINGS)
        study.add(new_runs(2, 3))
        beside = {entry.name for entry in path.parent.iterdir()}
        with Store(path, read_only=True) as reader:
            same = reader.open_study("sweep")
            assert same.counts()["pending"] == 6
            chunk = claimed(study)
            assert same.counts()["running"] == 3
            study.finish(chunk, results(chunk))
            assert same.counts()["done"] == 3
        assert {entry.name for entry in path.parent.iterdir()} == beside


@pytest.mark.parametrize("index", [True, False])
def test_a_reader_sees_what_is_in_the_log_of_the_dead(path: Path, index: bool) -> None:
    with Store(path) as store:
        store.study("sweep", SETTINGS).add(new_runs(3, 2))
    with busy_worker(path) as process:
        process.kill()
        process.wait()
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if not index:
        shared.unlink()  # as where somebody copied the store and its log
    before = content(path)
    assert log.name in before
    with Store(path, read_only=True) as reader:
        study = reader.open_study("sweep")
        assert study.counts()["pending"] == 6
        assert len(study.environments()) == 1  # which only the log has
    assert content(path) == before


def test_what_changes_while_it_is_read_is_read_again(path: Path) -> None:
    sound_store(path)
    looks = 0

    def look(database: sqlite3.Connection) -> int:
        nonlocal looks
        looks += 1
        (before,) = database.execute("SELECT count(*) FROM metric").fetchone()
        if looks == 1:
            with closing(sqlite3.connect(path, isolation_level=None)) as writer:
                writer.execute("DELETE FROM metric WHERE run <= 10")
        return int(before)

    with closing(Snapshot(path, connect)) as snapshot:
        assert (snapshot.read(look), looks) == (40, 2)
        assert (snapshot.read(look), looks) == (40, 3)


def test_what_changes_all_the_time_is_given_up_in_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound_store(path)
    monkeypatch.setattr(snapshot_module, "_identity", lambda path: os.urandom(8))
    with pytest.raises(ValueError, match=r"\.db: another process kept it locked: try again when that one is done$"):
        Store(path, read_only=True)


def test_a_reader_writes_nothing(path: Path) -> None:
    sound_store(path)
    before = content(path)
    with Store(path, read_only=True) as reader:
        study = reader.study("sweep", SETTINGS)
        assert study.add(new_runs(8, 50)) == 0
        assert study.retry_failed() == 0
        with pytest.raises(ValueError, match=r"\.db: it may not be written: check the permissions of the file and its"):
            study.claim()
        with pytest.raises(ValueError, match="it may not be written"):
            study.add(new_runs(9, 50))
        with pytest.raises(ValueError, match="it may not be written"):
            reader.study("other", {})
    assert content(path) == before
    with pytest.raises(ValueError, match="there is no such file; `read_only` says not to make one"):
        Store(path.with_name("new.db"), read_only=True)


EXPORT = """
with mssp.store.Store({store!r}, read_only=True) as store:
    mssp.store.export(store.open_study("sweep"), {table!r})
"""


def report_as_another_user(store: Path, page: Path) -> None:
    """Write a report as another user, after root has written the same one elsewhere."""
    code = "assert mssp.cli.commands.main(['report', {!r}, '-o', {!r}]) == 0"
    roots = page.with_name(f"root's {page.name}")
    as_another_user(code.format(str(store), str(page)), before=code.format(str(store), str(roots)))
    assert page.read_bytes() == roots.read_bytes()
    roots.unlink()


@needs_root
def test_a_reader_does_not_lock_the_owner_out(shared_folder: Path, tmp_path: Path) -> None:
    path = shared_folder / "runs.sqlite"
    sound_store(path)
    before = content(path)
    with Store(path) as owner:  # another user reads while the owner has it open, and while not
        owner.study("another", {})
        report_as_another_user(path, shared_folder / "live.html")
    report_as_another_user(path, shared_folder / "page.html")
    as_another_user(EXPORT.format(store=str(path), table=str(shared_folder / "runs.csv")))
    assert content(path).keys() == before.keys() | {"live.html", "page.html", "runs.csv"}
    with Store(path) as owner:
        assert claimed(owner.open_study("sweep")).index == 1
    with Store(path, read_only=True) as store:
        export(store.open_study("sweep"), tmp_path / "mine.csv")
    assert (shared_folder / "runs.csv").read_bytes() == (tmp_path / "mine.csv").read_bytes()


@needs_root
def test_who_may_only_read_can_report_and_export(shared_folder: Path) -> None:
    folder = shared_folder / "read only"
    folder.mkdir(mode=0o755)
    path = folder / "runs.sqlite"
    sound_store(path)
    path.chmod(0o444)
    before = content(path)
    report_as_another_user(path, shared_folder / "page.html")
    as_another_user(EXPORT.format(store=str(path), table=str(shared_folder / "runs.csv")))
    assert len((shared_folder / "runs.csv").read_text().splitlines()) == 401
    assert content(path) == before


@needs_root
def test_a_log_of_another_user_is_named(shared_folder: Path) -> None:
    path = shared_folder / "runs.sqlite"
    sound_store(path)
    path.chmod(0o666)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).touch(mode=0o644)
    code = f"""
try:
    mssp.store.Store({str(path)!r}).study("mine", {{}})
except ValueError as error:
    print(error)
"""
    message = as_another_user(code)
    assert message == (
        f"{path}: runs.sqlite-wal belongs to another user, who has the store open or left it; it may not be written: "
        "check the permissions of the file and its folder\n"
    )


def test_a_journal_that_is_done_with_is_not_looked_into(path: Path) -> None:
    """SQLite would make a log and its index for that."""
    sound_store(path)
    path.with_name(f"{path.name}-journal").write_bytes(bytes(600))
    before = content(path)
    assert counts(path) == {"done": 50, "pending": 350}
    assert content(path) == before
