"""A study as a table with one row per run: CSV, JSON, Parquet, pandas.

All formats have the same order of columns: key and chunk, the parameters as they first occur, status, diverged_at,
seconds, error, the metrics by name. A cell is None if its run lacks the parameter, or the metric so far.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mssp._constraints import kind_of, path, takes
from mssp._files import replacing
from mssp.store.runs import Parameter, Run, Study

_COLUMNS_BEFORE = {"key": str, "chunk": int}  # the columns before the parameters
_COLUMNS_AFTER = {"status": str, "diverged_at": int, "seconds": float, "error": str}


class Column(NamedTuple):
    """A column of a table; ``kind`` is the type of its cells, None if they differ in type or all are missing."""

    name: str
    kind: type[str | int | float | bool] | None
    cells: Sequence[Parameter]


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a path that :func:`export` could not write to; commands call it before hours of training."""
    target, _ = _target(path)
    if not target.parent.is_dir():
        raise ValueError(f"cannot export to {target}: there is no folder {target.parent}")
    if target.suffix.lower() == ".parquet":
        _optional("pyarrow", "Parquet")


@takes(study=kind_of(Study), path=path)
def export(study: Study, path: str | os.PathLike[str]) -> None:
    """Write a study to a file in the format that its suffix names: .csv, .json, .jsonl or .parquet.

    Numbers keep all their digits. NaN is empty in CSV and null in JSON. Infinity is ``inf`` in CSV and 1e999 in JSON,
    which has no word for infinity; its readers round 1e999 to infinity. The file is written whole or not at all, and
    replaces a file of the same name.
    """
    target, write = _target(path)
    columns = _columns(study.runs())
    try:
        with replacing(target) as unfinished:
            write(unfinished, columns)
    except OSError as error:
        raise ValueError(f"cannot export to {target}: {error.strerror or error}; choose another path") from error


@takes(study=kind_of(Study))
def frame(study: Study) -> Any:
    """The study as a ``pandas.DataFrame``. Whole numbers and flags keep their type even if cells are missing."""
    pandas = _optional("pandas", "a data frame")
    types: dict[type | None, str] = {float: "float64", int: "int64", bool: "bool"}
    with_gaps: dict[type | None, str] = {float: "float64", int: "Int64", bool: "boolean"}
    return pandas.DataFrame(
        {
            name: pandas.Series(cells, dtype=(with_gaps if None in cells else types).get(kind, object))
            for name, kind, cells in _columns(study.runs())
        }
    )


def _target(path: str | os.PathLike[str]) -> tuple[Path, Callable[[Path, Sequence[Column]], None]]:
    """The file to write, and the function that writes it."""
    target = Path(path).absolute()
    write = _WRITERS.get(target.suffix.lower())
    if write is None:
        raise ValueError(f"cannot export to {target.name}: the suffix must be one of {', '.join(_WRITERS)}")
    return target, write


def _columns(runs: Sequence[Run]) -> list[Column]:
    """The columns of the table of these runs, in order."""
    parameters = dict.fromkeys(name for run in runs for name in run.parameters)
    metrics = sorted({name for run in runs for name in run.metrics} - parameters.keys())
    kinds: dict[str, type] = {**_COLUMNS_BEFORE, **_COLUMNS_AFTER, **dict.fromkeys(metrics, float)}
    fixed = (*_COLUMNS_BEFORE, *_COLUMNS_AFTER)
    rows = [{**{name: getattr(run, name) for name in fixed}, **run.parameters, **run.metrics} for run in runs]
    columns = []
    for name in chain(_COLUMNS_BEFORE, parameters, _COLUMNS_AFTER, metrics):
        cells = [row.get(name) for row in rows]
        columns.append(Column(name, kinds.get(name) or _kind(cells), cells))
    return columns


def _kind(cells: Sequence[Parameter]) -> type[str | int | float | bool] | None:
    """The common type of cells; None if they have none, or if their whole numbers are too large."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {int, float}:
        return float
    # Tables store whole numbers in 64 bits; larger numbers, such as hashes, are stored as texts.
    if any(type(cell) is int and cell.bit_length() > 63 for cell in cells):
        return None
    return kinds.pop() if len(kinds) == 1 else None


def _write_csv(path: Path, columns: Sequence[Column]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in columns)
        for row in zip(*(column.cells for column in columns), strict=True):
            writer.writerow(None if _is_nan(cell) else cell for cell in row)  # csv writes floats with all their digits


def _write_json(path: Path, columns: Sequence[Column]) -> None:
    path.write_text("[\n" + ",\n".join(_json_lines(columns)) + "\n]\n", encoding="utf-8")


def _write_json_lines(path: Path, columns: Sequence[Column]) -> None:
    path.write_text("".join(f"{line}\n" for line in _json_lines(columns)), encoding="utf-8")


def _json_lines(columns: Sequence[Column]) -> list[str]:
    """One JSON object for each row."""
    names = [json.dumps(column.name) for column in columns]
    rows = zip(*(map(_json_cell, column.cells) for column in columns), strict=True)
    return ["{" + ", ".join(f"{name}: {cell}" for name, cell in zip(names, row, strict=True)) + "}" for row in rows]


def _json_cell(cell: Parameter) -> str:
    if _is_nan(cell):
        return "null"
    if isinstance(cell, float) and math.isinf(cell):
        return "1e999" if cell > 0 else "-1e999"
    return json.dumps(cell)


def _is_nan(cell: Parameter) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _write_parquet(path: Path, columns: Sequence[Column]) -> None:
    arrow = _optional("pyarrow", "Parquet")
    types = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_(), str: arrow.string()}
    arrays = {}
    for column in columns:
        kind = column.kind or str  # Parquet has one type per column: cells that differ in type become texts
        cells = [None if cell is None else kind(cell) for cell in column.cells]
        arrays[column.name] = arrow.array(cells, types[kind])
    _optional("pyarrow.parquet", "Parquet").write_table(arrow.table(arrays), path)


def _optional(module: str, what: str) -> Any:
    """Import an optional dependency; ``what`` is the format that needs it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ValueError(f"{what} needs {package}, which is not installed: pip install {package}") from None


_WRITERS: dict[str, Callable[[Path, Sequence[Column]], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_json_lines,
    ".parquet": _write_parquet,
}
