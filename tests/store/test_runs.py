"""Studies: runs that are added, claimed and finished are read back unchanged."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.store.runs import NewRun, Result, Store, Study
from tests.store.stores import SETTINGS, beside, claimed, new_runs, results


def test_a_sweep_from_start_to_end(path: Path) -> None:
    with Store(path) as store:
        study = store.study("sweep", SETTINGS)
        assert study.add(new_runs(2, 3)) == 6
        assert study.counts() == {"pending": 6, "running": 0, "done": 0, "diverged": 0, "failed": 0}
        chunk = claimed(study)
        assert (chunk.index, [run.key for run in chunk.runs]) == (0, ["0-0", "0-1", "0-2"])
        assert {run.status for run in chunk.runs} == {"running"}
        out = results(chunk)
        out[1] = Result("0-1", {"loss": 7.5}, {}, diverged_at=2, seconds=0.25)
        study.finish(chunk, out[::-1])
    assert beside(path) == {path.name}
    with Store(path, must_exist=True) as store:
        assert store.studies() == ["sweep"]
        study = store.open_study("sweep")
        assert study.settings == SETTINGS
        assert study.counts() == {"pending": 3, "running": 0, "done": 2, "diverged": 1, "failed": 0}
        (diverged,) = study.runs("diverged")
        assert (diverged.key, diverged.diverged_at, diverged.seconds, diverged.metrics) == (
            "0-1",
            2,
            0.25,
            {"loss": 7.5},
        )
        assert study.curves("0-1") == {}
        assert study.curves("1-0") == {}
        assert [run.key for run in study.runs(status="pending", seed=2)] == ["1-2"]


def test_adding_again_changes_nothing_and_more_runs_get_chunks_of_their_own(study: Study) -> None:
    study.add(new_runs(2, 2))
    assert study.add(new_runs(2, 2)) == 0
    assert study.add(new_runs(3, 3)) == 5
    assert study.add([[], []]) == 0
    chunks = {chunk.index: [run.key for run in chunk.runs] for chunk in iter(study.claim, None)}
    assert chunks == {0: ["0-0", "0-1"], 1: ["1-0", "1-1"], 2: ["0-2"], 3: ["1-2"], 4: ["2-0", "2-1", "2-2"]}


def test_parameters_come_back_with_their_types(study: Study) -> None:
    given = {"i": 3, "f": 3.0, "tiny": 5e-324, "yes": True, "none": None, "text": "μP", "big": 2**70, "x": 0.1 + 0.2}
    study.add([[NewRun("a", given, '{"n": 1}'), NewRun("b", {**given, "i": 1, "yes": False}, "")]])
    first, second = study.runs()
    assert first.parameters == given
    assert list(first.parameters) == list(given)
    assert [type(value) for value in first.parameters.values()] == [type(value) for value in given.values()]
    assert (first.spec, second.spec) == ('{"n": 1}', "")
    assert study.runs(i=3, yes=True, none=None) == [first]
    assert study.runs(i=True) == []
    with pytest.raises(ValueError, match="no run of study 'sweep' has a parameter 'wdth': there is i, f, tiny"):
        study.runs(wdth=3)
    with pytest.raises(ValueError, match="unknown status 'finished': use one of pending, running, done, diverged"):
        study.runs("finished")


def test_numbers_come_back_to_the_bit(study: Study) -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x7F800000, 0x80000000, 0x00000001, 0x3DCCCCCD], np.uint32)
    noise = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    curves = {"odd": bits.view(np.float32), "noise": noise.view(np.float32), "none": np.empty(0, np.float32)}
    curves["flat"] = np.full(10_000, np.nan, np.float32)
    curves["strided"] = curves["noise"][::3]
    metrics: dict[str, Any] = {"nan": math.nan, "inf": -math.inf, "third": 1 / 3, "single": np.float32(0.1), "whole": 2}
    study.add([[NewRun("a", {}, "{}")]])
    study.finish(claimed(study), [Result("a", metrics, curves, 0, 0.1)])
    (run,) = study.runs()
    assert math.isnan(run.metrics["nan"])
    assert {name: run.metrics[name] for name in metrics if name != "nan"} == {
        "inf": -math.inf, "third": 1 / 3, "single": float(np.float32(0.1)), "whole": 2.0,
    }  # fmt: skip
    assert all(type(value) is float for value in run.metrics.values())
    back = study.curves("a")
    assert back.keys() == curves.keys()
    for name, curve in back.items():
        assert curve.dtype == np.float32
        assert curve.flags.writeable
        assert curve.tobytes() == curves[name].tobytes()
    assert back["odd"].view(np.uint32).tolist() == bits.tolist()
    with closing(sqlite3.connect(study.store.path)) as database:
        sizes = dict(database.execute("SELECT name, length(points) FROM curve"))
    assert sizes["noise"] < 4100
    assert sizes["flat"] < 400


def test_thousands_of_runs_take_no_time(study: Study) -> None:
    began = time.perf_counter()
    assert study.add(new_runs(16, 1000)) == 16_000
    added = time.perf_counter()
    chunk = claimed(study)
    curve = np.random.default_rng(0).normal(size=200).astype(np.float32)
    study.finish(chunk, [Result(run.key, {"a": 1.0, "b": 2.0}, {"loss": curve}, None, 1.0) for run in chunk.runs])
    finished = time.perf_counter()
    assert len(study.runs()) == 16_000
    assert max(added - began, finished - added, time.perf_counter() - finished) < 2.0


def test_a_study_has_one_set_of_settings(study: Study) -> None:
    again = study.store.study("sweep", {"betas": (0.9, 0.95), **{k: v for k, v in SETTINGS.items() if k != "betas"}})
    assert again.settings == study.settings
    for other, message in (
        ({**SETTINGS, "steps": 4}, "made with other settings: steps is 3 there and 4 here; use the same settings or"),
        ({**SETTINGS, "steps": 3.0}, "steps is 3 there and 3.0 here"),
        ({**SETTINGS, "data": {"name": "mnist", "batch": 50}}, 'data.name is "cifar10" there and "mnist" here'),
        ({**SETTINGS, "betas": [0.9, 0.99]}, r"betas is \[0.9, 0.95\] there and \[0.9, 0.99\] here"),
        ({**SETTINGS, "seed": 1}, "seed is not set there and 1 here"),
        ({"steps": 3}, "betas is .* there and not set here"),
    ):
        with pytest.raises(ValueError, match=message):
            study.store.study("sweep", other)
    assert study.store.study("sweep", SETTINGS).settings == SETTINGS
    study.store.study("other", {})
    with pytest.raises(ValueError, match=r"no study 'sweeep' in .*: there is sweep, other"):
        study.store.open_study("sweeep")
    with pytest.raises(ValueError, match="settings of study 'x' must be JSON data"):
        study.store.study("x", {"lr": math.nan})
    with pytest.raises(ValueError, match="a study's name must be a text"):
        study.store.study("", {})


def test_what_cannot_be_added(study: Study) -> None:
    for runs, message in (
        ([NewRun("a", {}, ""), NewRun("a", {}, "")], "run 'a' is given twice"),
        ([NewRun("", {}, "")], "a run's key must be a text"),
        ([NewRun("a", {"seconds": 1}, "")], "run 'a' has a parameter 'seconds': use a text other than key, chunk"),
        ([NewRun("a", {"lr": math.inf}, "")], "parameter lr of run 'a' must be a finite number, .* got inf"),
        ([NewRun("a", {"lr": [1]}, "")], "parameter lr of run 'a' must be"),  # type: ignore[dict-item]
        ([NewRun("a", {"n": np.int64(1)}, "")], "parameter n of run 'a' must be"),  # type: ignore[dict-item]
    ):
        with pytest.raises(ValueError, match=message):
            study.add([[NewRun("good", {}, "")], runs])
    assert study.runs() == []


def test_results_must_be_those_of_the_chunk(study: Study) -> None:
    study.add(new_runs(2, 2))
    chunk = claimed(study)
    good = results(chunk)

    def changed(**fields: Any) -> list[Result]:
        return [good[0], Result(**{**vars(good[1]), **fields})]

    for given, message in (
        (good[:1], "results must be those of the runs of chunk 0, run '0-1' has no result"),
        ([*good, Result("x", {})], "run 'x' is not among them"),
        ([good[0], *good], "run '0-0' is given twice"),
        (changed(diverged_at=-1), "diverged_at of run '0-1' must be a step"),
        (changed(seconds=math.nan), "seconds of run '0-1' must be a number of at least 0"),
        (changed(metrics={"seed": 1.0}), "metric 'seed' of run '0-1' has a parameter's or column's name"),
        (changed(metrics={"loss": "low"}), "metric loss of run '0-1' must be a number, got 'low'"),
        (changed(curves={"loss": np.ones(3)}), r"curve loss of run '0-1' must be .* got float64 \[3\]"),
        (changed(curves={"loss": np.ones((1, 3), np.float32)}), r"got float32 \[1, 3\]"),
        (changed(curves={"loss": [1.0]}), "got list"),
    ):
        with pytest.raises(ValueError, match=message):
            study.finish(chunk, given)
    with pytest.raises(ValueError, match="chunk 0 is not one of study 'other': finish it where it was claimed"):
        study.store.study("other", {}).finish(chunk, good)
    assert study.counts()["running"] == 2
    study.finish(chunk, good)
    assert study.counts()["done"] == 2
    with pytest.raises(ValueError, match="no run 'x' in study 'sweep'"):
        study.curves("x")


def test_the_first_results_stay(study: Study) -> None:
    study.add(new_runs(1, 2))
    chunk = claimed(study)
    study.finish(chunk, results(chunk, 1.0))
    study.finish(chunk, results(chunk, 2.0))
    study.fail(chunk, "too late")
    study.release(chunk)
    assert [(run.status, run.metrics["loss"], run.error) for run in study.runs()] == [("done", 1.0, None)] * 2
    assert study.claim() is None


def test_failed_chunks_wait_for_a_retry(study: Study) -> None:
    study.add(new_runs(2, 1))
    study.fail(claimed(study), "out of memory")
    assert [(run.status, run.error) for run in study.runs()] == [("failed", "out of memory"), ("pending", None)]
    assert claimed(study).index == 1
    assert study.claim() is None
    assert study.retry_failed() == 1
    again = claimed(study)
    assert (again.index, again.runs[0].error) == (0, None)
    study.finish(again, results(again))
    assert study.retry_failed() == 0


def test_reading_waits_for_no_writer(path: Path, study: Study) -> None:
    study.add(new_runs(1, 1))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE chunk SET status = 'done'")
        writer.execute("UPDATE run SET seconds = 1.0")
        began = time.perf_counter()
        assert [run.status for run in study.runs()] == ["pending"]
        assert (study.counts()["pending"], study.curves("0-0"), study.store.studies()) == (1, {}, ["sweep"])
        with Store(path, must_exist=True) as reader:
            assert reader.open_study("sweep").counts()["pending"] == 1
        assert time.perf_counter() - began < 5
        writer.execute("COMMIT")
    assert [run.status for run in study.runs()] == ["done"]


def test_a_store_belongs_to_the_process_and_thread_that_opened_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    with Store(path) as store:

        def ask() -> None:
            with pytest.raises(ValueError, match=r"\.db: SQLite objects created in a thread") as caught:
                store.studies()
            told.append(caught)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert told
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(ValueError, match="opened before a fork: open it anew in the child"):
                store.studies()
            store.close()
        assert store.studies() == []
    with pytest.raises(ValueError, match=r"\.db: Cannot operate on a closed database"):
        store.studies()
    store.close()


def test_the_store_does_not_import_torch() -> None:
    check = (
        "import sys, mssp.store.runs, mssp.store.table; assert not {'torch', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
