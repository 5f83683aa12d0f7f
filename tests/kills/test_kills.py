"""Killed commands lose nothing, do nothing twice, and end as if nobody had killed them. The harness sees where not."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from signal import SIGINT, SIGKILL, SIGTERM

import pytest

from mssp.store.rows import checksum_of
from tests.kills.harness import Bench, DifferenceError, Kill, Moment
from tests.kills.training import Trainings

# By what is killed and when: the kill, and what is there at each death. The kills of one command stand together, so
# that mostly one process of pytest makes its reference.
KILLS = {
    "a sweep before its store has its name": (
        Kill("sweep", SIGKILL, (Moment("linking"),)),
        ["exit -9, a hidden file"],
    ),
    "a sweep in the middle of a transaction": (
        Kill("sweep", SIGKILL, (Moment("committing", count=2),)),
        ["exit -9, 1/8 chunks, a chunk held, a log"],
    ),
    "a sweep between claiming and finishing": (
        Kill("sweep", SIGKILL, (Moment("claimed", count=5),)),
        ["exit -9, 4/8 chunks, a chunk held, a log"],
    ),
    "a sweep just after a commit": (
        Kill("sweep", SIGTERM, (Moment("committed", count=4),)),
        ["exit 143, 4/8 chunks"],
    ),
    "a sweep by Ctrl-C in the middle of a transaction": (
        Kill("sweep", SIGINT, (Moment("committing", count=8),)),
        ["exit 130, 7/8 chunks"],
    ),
    "a sweep twice": (
        Kill("sweep", SIGKILL, (Moment("committed"), Moment("committing", count=3))),
        ["exit -9, 1/8 chunks, a log", "exit -9, 3/8 chunks, a chunk held, a log"],
    ),
    "a sweep beside another": (
        Kill("sweep", SIGKILL, (Moment("claimed"),), beside=True),
        ["exit -9, 8/8 chunks"],
    ),
    "a search in the middle of a transaction": (
        Kill("tune", SIGTERM, (Moment("committing", count=3),)),
        ["exit 143, 2/4 chunks"],  # the search has not planned its last stages yet
    ),
    "a search while its plan file is replaced": (
        Kill("tune", SIGKILL, (Moment("replacing"),)),
        ["exit -9, 7/7 chunks, a hidden file"],
    ),
    "a report while its page is replaced": (
        Kill("report", SIGKILL, (Moment("replacing"),)),
        ["exit -9, a hidden file"],
    ),
    "a demo in the middle of a transaction": (
        Kill("demo", SIGKILL, (Moment("committing", count=2),)),
        ["exit -9, 1/2 chunks, a chunk held, a log"],
    ),
    "a demo by Ctrl-C while its report is made": (
        Kill("demo", SIGINT, (Moment("replacing", count=6),)),
        ["exit 130, 2/2 chunks"],
    ),
}


def _marks(kill: Kill) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if kill.command == "demo" else []


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("kills")) as bench:
        yield bench


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(kill)) for name, (kill, _) in KILLS.items()])
def test_everything_is_as_if_nobody_had_killed(bench: Bench, name: str) -> None:
    kill, there = KILLS[name]
    assert [str(death) for death in bench.carry_out(kill)] == there


# -- what the harness reports ------------------------------------------------------------------------------------------

AFTER_FOUR = Kill("sweep", SIGTERM, (Moment("committed", count=4),))
PAGE = Kill("report", SIGTERM, (Moment("replacing"),))


def spoiling(*statements: str, seal: bool = True) -> Callable[[Path], None]:
    """Changes the store of a sweep whose chunk 0 is finished; with ``seal``, so that its checksum fits again."""

    def spoil(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "runs.sqlite", isolation_level=None)) as database:
            for statement in statements:
                assert database.execute(statement).rowcount > 0
            if seal:
                database.execute("UPDATE checksum SET metrics = ? WHERE number = 0", (checksum_of(database, 1, 0),))

    return spoil


FIRST_RUN = "(SELECT min(id) FROM run)"
FIRST_CHUNK = "(SELECT id FROM run WHERE chunk = 0)"
CHANGED_METRIC = f"UPDATE metric SET value = value + 1e-12 WHERE name = 'train_loss' AND run = {FIRST_RUN}"
NOT_AS_WRITTEN = "chunk 0: its runs are not those that were written"
LOST_RUN = [
    f"DELETE FROM metric WHERE run = {FIRST_RUN}",
    f"DELETE FROM curve WHERE run = {FIRST_RUN}",
    f"DELETE FROM run WHERE id = {FIRST_RUN}",
]
LOST_RESULTS = [
    f"DELETE FROM metric WHERE run IN {FIRST_CHUNK}",
    f"DELETE FROM curve WHERE run IN {FIRST_CHUNK}",
    "DELETE FROM checksum WHERE number = 0",
    "UPDATE run SET seconds = NULL WHERE chunk = 0",
    "UPDATE chunk SET status = 'pending' WHERE number = 0",
]


@pytest.mark.parametrize(
    ("statements", "seal", "report"),
    [
        ([CHANGED_METRIC], True, "run sweep clusters.* when it died: "),
        ([CHANGED_METRIC], False, NOT_AS_WRITTEN),
        (LOST_RUN, False, NOT_AS_WRITTEN),
        (LOST_RESULTS, False, "4 chunks were committed, exit 143, 3/8 chunks is there"),
        (["DELETE FROM checksum WHERE number = 0"], False, "runs without a checksum: 12 and not 0"),
        (["UPDATE chunk SET status = 'running', owner = 1 WHERE number = 7"], False, "left something behind"),
        (["DELETE FROM metric"], False, NOT_AS_WRITTEN),
    ],
)
def test_a_loss_at_death_is_reported(bench: Bench, statements: list[str], seal: bool, report: str) -> None:
    with pytest.raises(DifferenceError, match=report):
        bench.carry_out(AFTER_FOUR, at_death=spoiling(*statements, seal=seal))


@pytest.mark.parametrize(
    ("statements", "seal", "report"),
    [
        ([CHANGED_METRIC], True, "run sweep clusters.* in the end: "),
        ([CHANGED_METRIC], False, rf"the exit code \(mssp: error: .*{NOT_AS_WRITTEN}.*\n\): 2 and not 0"),
        (LOST_RUN, True, "rows: "),
        (LOST_RESULTS, False, "seconds of run .*, which was finished before: "),
    ],
)
def test_a_loss_after_death_is_reported(bench: Bench, statements: list[str], seal: bool, report: str) -> None:
    with pytest.raises(DifferenceError, match=report):
        bench.carry_out(AFTER_FOUR, after_death=spoiling(*statements, seal=seal))


def test_a_page_that_is_not_whole_is_reported(bench: Bench) -> None:
    def halve(folder: Path) -> None:
        page = bench.reference("report").files["page.html"]
        (folder / "page.html").write_bytes(page[: len(page) // 2])

    with pytest.raises(DifferenceError, match=r"page\.html is not whole"):
        bench.carry_out(PAGE, at_death=halve)


def test_a_file_that_is_left_behind_is_reported(bench: Bench) -> None:
    with pytest.raises(DifferenceError, match="left something behind"):
        bench.carry_out(PAGE, at_death=lambda folder: (folder / ".page.html.0.part").touch())
    with pytest.raises(DifferenceError, match=r"files: .*notes\.txt"):
        bench.carry_out(PAGE, after_death=lambda folder: (folder / "notes.txt").touch())


def test_a_store_that_is_torn_is_reported(bench: Bench) -> None:
    def tear(folder: Path) -> None:
        store = folder / "runs.sqlite"
        store.write_bytes(store.read_bytes()[: store.stat().st_size // 2])

    with pytest.raises(DifferenceError, match="database disk image is malformed"):
        bench.carry_out(AFTER_FOUR, at_death=tear)


@pytest.mark.slow
def test_a_run_of_training_that_is_killed_goes_on(tmp_path: Path) -> None:
    trainings = Trainings(tmp_path)
    assert len(trainings.kill(Random(3), times=2)) == 2
    # The planted loss: a log that was cut.
    shutil.copytree(tmp_path / "whole", tmp_path / "other")
    log = tmp_path / "other" / "run.jsonl"
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(DifferenceError, match=r"other: run\.jsonl differs"):
        trainings.compare("other")
