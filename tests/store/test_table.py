from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.store import table as export_module
from mssp.store.runs import NewRun, Result, Store, Study
from mssp.store.table import export, export_curves, frame, rows

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


def test_rows_are_flat_and_all_alike(study: Study) -> None:
    a, b, c, d = rows(study)
    assert [list(row) for row in (a, b, c, d)] == [COLUMNS] * 4
    assert only(a, "key", "chunk", "width", "lr", "soft", "depth") == ["a", 0, 64, THIRD, True, None]
    assert only(a, "status", "diverged_at", "seconds", "error", "train/loss") == ["done", None, 1.5, None, THIRD]
    assert only(b, "status", "diverged_at", "train/loss") == ["diverged", 7, math.inf]
    assert isinstance(b["test/loss"], float)
    assert math.isnan(b["test/loss"])
    assert only(c, "status", "error", "train/loss") == ["failed", "line one\r\nline two\rthree", None]
    assert only(d, "chunk", "status", "seconds") == [2, "pending", None]


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


def test_json_comes_back(study: Study, tmp_path: Path) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    expected = rows(study)
    assert expected[1].pop("test/loss") is not None
    expected[1] = {name: expected[1].get(name) for name in COLUMNS}
    export(study, tmp_path / "runs.json")
    text = (tmp_path / "runs.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=no_constant) == expected
    export(study, tmp_path / "runs.jsonl")
    lines = (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=no_constant) for line in lines] == expected
    assert [type(value) for value in json.loads(lines[1]).values()] == [type(value) for value in expected[1].values()]


def test_parquet_comes_back(study: Study, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
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
    pytest.importorskip("pandas")
    made = frame(study)
    assert list(made.columns) == COLUMNS
    types = made.dtypes.astype(str).to_dict()
    assert only(types, "width", "lr", "soft", "mixed", "depth") == ["int64", "float64", "boolean", "object", "Int64"]
    assert only(types, "chunk", "diverged_at", "seconds", "train/loss") == ["int64", "Int64", "float64", "float64"]
    assert made["mixed"].tolist()[:2] == [1, "1"]
    assert made["train/loss"].tolist()[:2] == [THIRD, math.inf]
    assert made["train/loss"].isna().tolist() == [False, False, True, True]
    assert made.groupby("width")["key"].count().to_dict() == {64: 1, 128: 2, 256: 1}


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_a_study_without_runs_is_a_table_without_rows(study: Study, tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    empty = study.store.study("empty", {})
    assert rows(empty) == []
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
        ("nowhere/runs.csv", "nowhere/runs.csv: No such file or directory; choose another path"),
        ("folder.csv", "folder.csv: Is a directory; choose another path"),
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


@pytest.fixture
def curved(study: Study) -> Study:
    """Of its runs, one has a curve that ended early, one diverged, one has no curves, and one was never trained."""
    curved = study.store.study("curved", {})
    runs = [NewRun("a", {"lr": THIRD, "mixed": 1}, ""), NewRun("b", {"mixed": "1", "soft": True}, "")]
    curved.add([[*runs, NewRun("c", {}, "")], [NewRun("d", {"depth": 3}, "")]])
    chunk = curved.claim()
    assert chunk is not None
    whole = {"loss": np.array([0.1, 1e-10, 16777216], np.float32), "gate, mean": np.array([-0.0, 2], np.float32)}
    burst = {"loss": np.array([math.inf, math.nan], np.float32)}
    curved.finish(chunk, [Result("a", {}, whole), Result("b", {}, burst, diverged_at=0), Result("c", {})])
    return curved


def test_curves_in_csv(curved: Study, tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    path.write_text("an older export", encoding="utf-8")
    export_curves(curved, path)
    assert path.read_text(encoding="utf-8").splitlines() == [
        'key,lr,mixed,soft,depth,step,"gate, mean",loss',
        "a,0.30000000000000004,1,,,0,-0.0,0.1",
        "a,0.30000000000000004,1,,,1,2.0,1e-10",
        "a,0.30000000000000004,1,,,2,,1.6777216e+07",
        "b,,1,True,,0,,inf",
        "b,,1,True,,1,,",
    ]
    assert sorted(entry.name for entry in tmp_path.iterdir() if "runs.db" not in entry.name) == ["curves.csv"]


@pytest.mark.parametrize("batch", [1, 1 << 20])
def test_curves_in_parquet(curved: Study, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export_module, "_PARQUET_ROWS", batch)
    export_curves(curved, tmp_path / "curves.parquet")
    table = parquet.read_table(tmp_path / "curves.parquet")
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("key", "string"), ("lr", "double"), ("mixed", "string"), ("soft", "bool"), ("depth", "int64"),
        ("step", "int64"), ("gate, mean", "float"), ("loss", "float"),
    ]  # fmt: skip
    columns = table.to_pydict()
    assert columns["key"] == ["a", "a", "a", "b", "b"]
    assert columns["step"] == [0, 1, 2, 0, 1]
    assert columns["lr"] == [THIRD, THIRD, THIRD, None, None]
    assert columns["mixed"] == ["1"] * 5
    assert columns["soft"] == [None, None, None, True, True]
    assert columns["gate, mean"] == [-0.0, 2.0, None, None, None]
    assert columns["loss"][:4] == [float(np.float32(0.1)), float(np.float32(1e-10)), 16777216.0, math.inf]
    assert math.isnan(columns["loss"][4])


def test_texts_of_curves_are_the_same_numbers(study: Study, tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    curve = np.concatenate([bits[np.isfinite(bits)], np.array([1e-45, 3.4028235e38], np.float32)])
    noise = study.store.study("noise", {})
    noise.add([[NewRun("a", {}, "")]])
    chunk = noise.claim()
    assert chunk is not None
    noise.finish(chunk, [Result("a", {}, {"loss": curve})])
    export_curves(noise, tmp_path / "noise.csv")
    with (tmp_path / "noise.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["loss"] for row in csv.DictReader(file)]
    assert np.array([float(text) for text in texts]).astype(np.float32).tobytes() == curve.tobytes()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_study_without_curves_is_a_table_without_rows(study: Study, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"curves.{suffix}"
    if suffix == "csv":
        export_curves(study.store.study("empty", {}), path)
        assert path.read_text(encoding="utf-8") == "key,step\n"
        export_curves(study, path)
        assert path.read_text(encoding="utf-8") == "key,width,lr,scheme,soft,mixed,hash,depth,step\n"
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        export_curves(study, path)
        table = parquet.read_table(path)
        assert (table.num_rows, table.column_names[-2:]) == (0, ["depth", "step"])


def test_what_curves_cannot_be_exported(curved: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {entry.name for entry in tmp_path.iterdir()}
    for name, message in (
        ("curves.json", r"cannot export to curves.json: the suffix must be one of .csv, .parquet"),
        ("nowhere/curves.csv", "nowhere/curves.csv: No such file or directory; choose another path"),
    ):
        with pytest.raises(ValueError, match=message):
            export_curves(curved, tmp_path / name)
    for parameter, curve, twice in (("step", "loss", "step"), ("lr", "lr", "lr"), ("lr", "key", "key")):
        clash = curved.store.study(f"{parameter} and {curve}", {})
        clash.add([[NewRun("a", {parameter: 1}, "")]])
        chunk = clash.claim()
        assert chunk is not None
        clash.finish(chunk, [Result("a", {}, {curve: np.ones(1, np.float32)})])
        with pytest.raises(ValueError, match=f"two columns would be called '{twice}'"):
            export_curves(clash, tmp_path / "curves.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="Parquet needs pyarrow, which is not installed: pip install pyarrow"):
        export_curves(curved, tmp_path / "curves.parquet")
    assert {entry.name for entry in tmp_path.iterdir()} == before
