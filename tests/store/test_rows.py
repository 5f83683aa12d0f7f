"""Broken rows of a store are refused in one line that names the study, the run and the field."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from mssp.cli.commands import main
from mssp.store.runs import Store, Study
from tests.store.stores import claimed, new_runs, results

DAMAGED = "the store is damaged: bring back a copy or choose another path"
RUN = "run '1-0'"
BROKEN = {
    "a metric of another type": ("UPDATE metric SET value = 'x'", f"{RUN}: metric 'loss' must be a number, got 'x'"),
    "a metric without a name": ("UPDATE metric SET name = x'00'", f"{RUN}: metric 1 bytes must be a number, got 2.5"),
    "parameters": ("UPDATE run SET parameters = '[]'", f"{RUN}: parameters must be a JSON object, got '\\[\\]'"),
    "a parameter": (
        """UPDATE run SET parameters = '{"width": [1]}'""",
        f"{RUN}: parameter 'width' must be a number, a text, true, false or null, got \\[1\\]",
    ),
    "seconds": ("UPDATE run SET seconds = NULL", f"{RUN}: seconds must be a number, since it is done"),
    "a step": ("UPDATE run SET diverged_at = -1", f"{RUN}: diverged_at must be a step or NULL, got -1"),
    "a spec": ("UPDATE run SET spec = x'00'", f"{RUN}: spec must be a text, got 1 bytes"),
    "a curve": ("UPDATE curve SET points = x'0011'", f"{RUN}: curve 'loss' must be float32 numbers, got 2 bytes"),
}  # fmt: skip
CHANGED = (
    "UPDATE metric SET value = 2.5000000000000004",
    "UPDATE metric SET value = NULL",
    "UPDATE metric SET name = 'lass'",
    "DELETE FROM metric",
    "UPDATE run SET diverged_at = 1",
    """UPDATE run SET parameters = '{"width": 64, "seed": 1}'""",
    "UPDATE run SET spec = '{ }'",
)


def change(path: Path, statement: str) -> None:
    """Change the run 1-0, its metric or its curve without the store."""
    table = statement.split()[2 if statement.startswith("DELETE") else 1]
    where = "key = '1-0'" if table == "run" else "run = (SELECT id FROM run WHERE key = '1-0')"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute(f"{statement} WHERE {where}").rowcount == 1


@pytest.fixture
def finished(path: Path, study: Study) -> Path:
    """A store of two finished chunks of one run each."""
    study.add(new_runs(2, 1))
    for _ in range(2):
        chunk = claimed(study)
        study.finish(chunk, results(chunk, 2.5))
    return path


def read_all(path: Path) -> None:
    with Store(path, read_only=True) as store:
        study = store.open_study("sweep")
        for run in study.runs():
            study.curves(run.key)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_field_is_named_with_its_study_and_run(finished: Path, kind: str) -> None:
    statement, message = BROKEN[kind]
    change(finished, statement)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(finished))}: study 'sweep', {message}; {DAMAGED}$"):
        read_all(finished)


def test_a_text_that_is_no_utf8_is_refused_in_a_line(finished: Path) -> None:
    change(finished, "UPDATE run SET spec = CAST(x'22ff0a00' AS TEXT)")
    with pytest.raises(ValueError, match="Could not decode to UTF-8") as refusal:
        read_all(finished)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("statement", CHANGED)
def test_a_changed_number_of_a_finished_chunk_is_found(finished: Path, statement: str) -> None:
    read_all(finished)
    change(finished, statement)
    message = f"study 'sweep', chunk 1: its runs are not those that were written; {DAMAGED}"
    with pytest.raises(ValueError, match=f"{message}$"):
        read_all(finished)


def test_a_store_without_checksums_goes_on_and_is_called_unchecked(finished: Path) -> None:
    with closing(sqlite3.connect(finished)) as database:
        database.executescript("DROP TABLE checksum; DROP TABLE presence; UPDATE chunk SET status = 'pending'")
        database.executescript("UPDATE chunk SET status = 'done' WHERE number = 0; DELETE FROM metric WHERE run = 2")
        database.executescript("DELETE FROM curve WHERE run = 2")
    with Store(finished) as store:
        study = store.open_study("sweep")
        assert study.unchecked() == 1
        chunk = claimed(study)
        study.finish(chunk, results(chunk, 3.5))
        assert [run.metrics["loss"] for run in study.runs()] == [2.5, 3.5]
        assert study.unchecked() == 1
    change(finished, "UPDATE metric SET value = 1.0")
    with pytest.raises(ValueError, match="chunk 1: its runs are not those that were written"):
        read_all(finished)


def test_a_study_whose_name_is_no_text_is_refused(finished: Path) -> None:
    with closing(sqlite3.connect(finished, isolation_level=None)) as database:
        database.execute("INSERT INTO study (name, settings) VALUES (x'00ff', '{}')")
    message = f"{finished}: its studies, the name of a study must be a text, got 2 bytes; {DAMAGED}"
    with Store(finished, read_only=True) as store, pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        store.studies()


def test_a_chunk_whose_number_is_none_is_refused(finished: Path) -> None:
    with closing(sqlite3.connect(finished, isolation_level=None)) as database:
        database.execute("UPDATE chunk SET number = 9e999 WHERE number = 1")
        database.execute("UPDATE run SET chunk = 9e999 WHERE chunk = 1")
    message = f"{finished}: study 'sweep', the number of a chunk must be a whole number, got inf; {DAMAGED}"
    with Store(finished, read_only=True) as store:
        study = store.open_study("sweep")
        for read in (lambda: study.chunks_with({"1-0"}), lambda: list(study.each_run())):
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                read()


def test_a_long_name_of_a_study_is_shortened_in_messages(finished: Path) -> None:
    with closing(sqlite3.connect(finished, isolation_level=None)) as database:
        database.execute("UPDATE study SET name = ?", ("é" * 20_000,))
    change(finished, "UPDATE metric SET value = 'x'")
    with Store(finished, read_only=True) as store:
        study = store.open_study("é" * 20_000)
        with pytest.raises(
            ValueError, match=f"study 'é{{50}}…é{{50}}', {RUN}: metric 'loss' must be a number, got 'x'"
        ):
            study.runs()


def test_names_of_studies_do_not_break_the_line(finished: Path) -> None:
    with closing(sqlite3.connect(finished, isolation_level=None)) as database:
        database.execute("UPDATE study SET name = ?", ("a\nb",))
    with (
        Store(finished, read_only=True) as store,
        pytest.raises(ValueError, match=r"no study 'x' in .*: there is a\\nb$"),
    ):
        store.open_study("x")


# -- runs of a sweep, whose specs the store itself does not read -------------------------------------------------------

SWEEP = ["sweep", "--data", "clusters", "--widths", "16", "--steps", "2", "--batch", "10", "--validation", "10",
         "--seeds", "1", "--lrs", "0.5", "--scheme", "mssp", "--multipliers", "ones", "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The store of a sweep of one run, without its checksum: what is changed must be noticed all the same."""
    path = tmp_path_factory.mktemp("sweep") / "runs.sqlite"
    assert main([*SWEEP, "--store", str(path)]) == 0
    with closing(sqlite3.connect(path)) as database:
        database.executescript("DELETE FROM checksum; PRAGMA journal_mode = DELETE")
    return path.read_bytes()


@pytest.fixture
def in_store(sweep: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Changes a store of the sweep in the folder of the test, without the store; it tells how many rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.sqlite").write_bytes(sweep)

    def change_row(statement: str) -> int:
        with closing(sqlite3.connect("runs.sqlite", isolation_level=None)) as database:
            return database.execute(statement).rowcount

    return change_row


def said(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


EDITS = {
    """replace(spec, '"width": 16', '"width": 17')""": "width is 17 in its spec and 16 in its parameters",
    """replace(spec, '"seed": 0, ', '')""": "a trial must have 'seed', got .*",
    """replace(spec, '"seed": 0', '"seed": "0"')""": "seed must be a whole number, got '0'",
    """replace(spec, '"lr": 0.5', '"later": 1, "lr": 0.5')""":
        "later is unknown to this mssp, which is older than the store: upgrade mssp",
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_run_whose_spec_was_changed_is_named(
    edit: str, in_store: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_store(f"UPDATE run SET spec = {edit}") == 1
    for words in (["report", "runs.sqlite"], SWEEP):
        pattern = rf"mssp: error: study 'sweep [^']*' in \S*runs.sqlite: run '[0-9a-f]+': {EDITS[edit]}\n"
        assert re.fullmatch(pattern, said(capsys, words)) is not None
    assert not Path("report.html").exists()


def test_a_run_whose_spec_and_parameters_were_changed_has_the_wrong_key(
    in_store: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    for column in ("spec", "parameters"):
        assert in_store(f"""UPDATE run SET {column} = replace({column}, '"width": 16', '"width": 17')""") == 1
    assert "its key is not that of its spec, which is '" in said(capsys, ["report", "runs.sqlite"])


def test_a_metric_that_is_missing_is_named(in_store: Callable[[str], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert in_store("DELETE FROM metric WHERE name = 'train_top5'") == 1
    pattern = r"study 'sweep [^']*' in \S*runs.sqlite: run '[0-9a-f]+'.* has no train_top5, only first_loss, "
    assert re.search(pattern, said(capsys, SWEEP)) is not None


def test_settings_of_a_study_that_are_no_number_are_named(
    in_store: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_store("""UPDATE study SET settings = replace(settings, '"steps": 2', '"steps": {}')""") == 1
    assert "steps must be a whole number, got a dict" in said(capsys, ["report", "runs.sqlite"])


@pytest.mark.usefixtures("in_store")
def test_a_report_calls_unchecked_runs_by_that_word() -> None:
    assert main(["report", "runs.sqlite"]) == 0
    assert "Unchecked: 1 run" in Path("report.html").read_text(encoding="utf-8")
