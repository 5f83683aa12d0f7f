"""Tables of a study: every number and text that is written is read back."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from mssp.store.runs import NewRun, Result, Store, Study
from mssp.store.table import export, frame

THIRD = 0.1 + 0.2  # 0.30000000000000004: shorter texts are other numbers
COLUMNS = [
    "key", "chunk", "width", "lr", "scheme", "soft", "mixed", "hash", "depth", "status", "diverged_at", "seconds",
    "error", "test/loss", "train/loss",
]  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with Store(tmp_path / "runs.db") as store:
        study = store.study("sweep", {})
        study.add(
            [
                [
                    NewRun("a", {"width": 64, "lr": THIRD, "scheme": "μP, soft", "soft": True, "mixed": 1}, "{}"),
                    NewRun("b", {"width": 128, "lr": 1, "scheme": 'say "so"', "soft": False, "mixed": "1"}, "{}"),
                ],
                [NewRun("c", {"width": 128, "lr": 1e-9, "scheme": None, "hash": 2**64, "depth": 3}, "{}")],
                [NewRun("d", {"width": 256, "lr": 0.5, "scheme": ""}, "{}")],
            ]
        )
        first, second = study.claim(), study.claim()
        assert first is not None
        assert second is not None
        diverged = Result("b", {"train/loss": math.inf, "test/loss": math.nan}, {}, diverged_at=7, seconds=2.0)
        study.finish(first, [Result("a", {"train/loss": THIRD, "test/loss": 2.0}, seconds=1.5), diverged])
        study.fail(second, "line one\r\nline two\rthree")
        yield study


def only(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_csv_comes_back(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "runs.CSV"
    path.write_text("an older export", encoding="utf-8")
    export(study, path)
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == COLUMNS
    a, b, c, d = (dict(zip(header, line, strict=True)) for line in lines)
    assert only(a, "width", "lr", "scheme", "soft", "train/loss") == [
        "64", "0.30000000000000004", "μP, soft", "True", "0.30000000000000004",
    ]  # fmt: skip
    assert float(a["lr"]) == THIRD
    assert only(b, "lr", "scheme", "diverged_at", "test/loss", "train/loss") == ["1", 'say "so"', "7", "", "inf"]
    assert only(c, "lr", "hash", "error") == ["1e-09", str(2**64), "line one\r\nline two\rthree"]
    assert only(d, "status", "seconds", "error", "train/loss") == ["pending", "", "", ""]
    assert sorted(entry.name for entry in tmp_path.iterdir() if "runs.db" not in entry.name) == ["runs.CSV"]


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_json_comes_back_as_flat_rows_that_are_all_alike(study: Study, tmp_path: Path, suffix: str) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    path = tmp_path / f"runs.{suffix}"
    export(study, path)
    text = path.read_text(encoding="utf-8")
    whole = text if suffix == "json" else f"[{','.join(text.splitlines())}]"
    a, b, c, d = json.loads(whole, parse_constant=no_constant)
    assert [list(row) for row in (a, b, c, d)] == [COLUMNS] * 4
    assert only(a, "key", "chunk", "width", "lr", "soft", "depth") == ["a", 0, 64, THIRD, True, None]
    assert only(a, "status", "diverged_at", "seconds", "error", "train/loss") == ["done", None, 1.5, None, THIRD]
    assert only(b, "status", "diverged_at", "test/loss", "train/loss") == ["diverged", 7, None, math.inf]
    assert only(c, "hash", "status", "error") == [2**64, "failed", "line one\r\nline two\rthree"]
    assert only(c, "depth", "train/loss") == [3, None]
    assert only(d, "chunk", "status", "seconds") == [2, "pending", None]
    assert [type(value) for value in only(b, "lr", "soft", "mixed", "seconds")] == [int, bool, str, float]


def test_parquet_comes_back(study: Study, tmp_path: Path) -> None:
    export(study, tmp_path / "runs.parquet")
    table = parquet.read_table(tmp_path / "runs.parquet")
    assert table.column_names == COLUMNS
    assert [str(kind) for kind in table.schema.types] == [
        "string", "int64", "int64", "double", "string", "bool", "string", "string", "int64", "string", "int64",
        "double", "string", "double", "double",
    ]  # fmt: skip
    columns = table.to_pydict()
    assert columns["lr"] == [THIRD, 1.0, 1e-9, 0.5]
    assert columns["soft"] == [True, False, None, None]
    assert columns["mixed"] == ["1", "1", None, None]
    assert columns["hash"] == [None, None, str(2**64), None]
    assert columns["diverged_at"] == [None, 7, None, None]
    assert columns["train/loss"] == [THIRD, math.inf, None, None]
    assert math.isnan(columns["test/loss"][1])
    assert columns["test/loss"][2] is None


def test_a_data_frame_keeps_types(study: Study) -> None:
    table = frame(study)
    assert list(table.columns) == COLUMNS
    types = table.dtypes.astype(str).to_dict()
    assert only(types, "width", "lr", "soft", "mixed", "depth") == ["int64", "float64", "boolean", "object", "Int64"]
    assert only(types, "chunk", "diverged_at", "seconds", "train/loss") == ["int64", "Int64", "float64", "float64"]
    assert table["mixed"].tolist()[:2] == [1, "1"]
    assert table["train/loss"].tolist()[:2] == [THIRD, math.inf]
    assert table["train/loss"].isna().tolist() == [False, False, True, True]
    assert table.groupby("width")["key"].count().to_dict() == {64: 1, 128: 2, 256: 1}


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_a_study_without_runs_is_a_table_without_rows(study: Study, tmp_path: Path, suffix: str) -> None:
    empty = study.store.study("empty", {})
    path = tmp_path / f"runs.{suffix}"
    export(empty, path)
    header = "key,chunk,status,diverged_at,seconds,error\n"
    if suffix != "parquet":
        assert path.read_text(encoding="utf-8") == {"csv": header, "json": "[\n\n]\n", "jsonl": ""}[suffix]


def test_what_cannot_be_exported(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.csv").mkdir()
    before = {entry.name for entry in tmp_path.iterdir()}
    for name, message in (
        ("runs.xlsx", r"cannot export to runs.xlsx: the suffix must be one of .csv, .json, .jsonl, .parquet"),
        ("runs", "the suffix must be one of"),
        ("nowhere/runs.csv", "nowhere/runs.csv cannot be written: there is no folder .*nowhere"),
        ("folder.csv", "folder.csv is a folder: a file is needed"),
    ):
        with pytest.raises(ValueError, match=message):
            export(study, tmp_path / name)
    for package in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match="Parquet needs pyarrow, which is not installed: pip install pyarrow"):
        export(study, tmp_path / "runs.parquet")
    with pytest.raises(ValueError, match="a data frame needs pandas, which is not installed: pip install pandas"):
        frame(study)
    assert {entry.name for entry in tmp_path.iterdir()} == before
