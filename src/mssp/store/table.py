"""A study as a table, one row per run: CSV, JSON, Parquet, pandas. Its curves as another, one row per step of a run.

Columns stand in the same order everywhere: key and chunk, the parameters as they first came, status, diverged_at,
seconds, error, the metrics by name. A cell is None where a run has no such parameter, or no such metric yet.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mssp._files import replacing
from mssp.store.runs import Parameter, Run, Study

_KINDS = {"key": str, "chunk": int, "status": str, "diverged_at": int, "seconds": float, "error": str}
_PARQUET_ROWS = 1 << 20  # collected before they are written: readers are slow where every run is a group of its own

_Writer = TypeVar("_Writer")
_Finished = Iterator[tuple[int, Mapping[str, NDArray[np.float32]]]]  # rows of the table of runs, with their curves


class Column(NamedTuple):
    """A column of a table; ``kind`` is None where cells differ in type, or all are missing."""

    name: str
    kind: type[str | int | float | bool] | None
    cells: Sequence[Parameter]


def rows(study: Study) -> list[dict[str, Parameter]]:
    """One flat dict per run, all with the same keys in the same order.

    >>> import tempfile
    >>> from mssp.store.runs import NewRun, Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/runs.db") as store:
    ...     study = store.study("widths", {})
    ...     added = study.add([[NewRun("a", {"width": 64}, "{}")]])
    ...     rows(study)
    [{'key': 'a', 'chunk': 0, 'width': 64, 'status': 'pending', 'diverged_at': None, 'seconds': None, 'error': None}]
    """
    return _rows(_columns(study.runs()))


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a name that :func:`export` could not write to, before hours of training."""
    target, _ = _target(path, _WRITERS)
    if not target.parent.is_dir():
        raise ValueError(f"cannot export to {target}: there is no folder {target.parent}")
    if target.suffix.lower() == ".parquet":
        _optional("pyarrow", "Parquet")


def export(study: Study, path: str | os.PathLike[str]) -> None:
    """Write a study to a file of the kind that its suffix names: .csv, .json, .jsonl or .parquet.

    Numbers come back as they were. NaN is empty in CSV and null in JSON; infinity is ``inf`` in CSV and 1e999 in JSON,
    which has no word for it but whose readers make infinity of that. The file appears when it is complete, in the place
    of one that was there.
    """
    path, write = _target(path, _WRITERS)
    columns = _columns(study.runs())
    with _unfinished(path) as file:
        write(file, columns)


def export_curves(study: Study, path: str | os.PathLike[str]) -> None:
    """Write the curves of all finished runs to a .csv or .parquet file, one row per step of a run.

    >>> import tempfile
    >>> import numpy as np
    >>> from mssp.store.runs import NewRun, Result, Store
    >>> with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/runs.db") as store:
    ...     study = store.study("widths", {})
    ...     added = study.add([[NewRun("a", {"width": 64}, "{}")]])
    ...     study.finish(study.claim(), [Result("a", {}, {"loss": np.array([2.5, 0.1], np.float32)})])
    ...     export_curves(study, f"{folder}/curves.csv")
    ...     print(Path(folder, "curves.csv").read_text())
    key,width,step,loss
    a,64,0,2.5
    a,64,1,0.1
    <BLANKLINE>

    Columns are key, the parameters as they first came, step (from 0), the curves by name. A cell is missing where a run
    has no such curve, or one that ended before; CSV leaves NaN empty too. Numbers are those of float32. As with
    :func:`export`, the file appears when it is complete.
    """
    path, write = _target(path, _CURVE_WRITERS)
    runs = study.runs()
    parameters = {name for run in runs for name in run.parameters}
    columns = [column for column in _columns(runs) if column.name in {"key", *parameters}]
    # Asked for after the runs: what was finished by then has all its names here, whatever others finish meanwhile.
    names = study.curve_names()
    header = [*(column.name for column in columns), "step", *names]
    for name in header:
        if header.count(name) > 1:
            why = "a curve has the name of a parameter, or one of them that of the key or step"
            raise ValueError(
                f"cannot export the curves of study {study.name!r}: two columns would be called {name!r}, as {why}; "
                "read them with study.curves(key)"
            )
    finished = ((row, study.curves(run.key)) for row, run in enumerate(runs) if run.status in ("done", "diverged"))
    with _unfinished(path) as file:
        write(file, columns, names, finished)


def _target(path: str | os.PathLike[str], writers: Mapping[str, _Writer]) -> tuple[Path, _Writer]:
    path = Path(path).absolute()
    write = writers.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"cannot export to {path.name}: the suffix must be one of {', '.join(writers)}")
    return path, write


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Where to write what takes its name when it is complete."""
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except OSError as error:
        raise ValueError(f"cannot export to {path}: {error.strerror or error}; choose another path") from error


def frame(study: Study) -> Any:
    """The study as a ``pandas.DataFrame``; whole numbers and flags keep their type where some are missing."""
    pandas = _optional("pandas", "a data frame")
    types: dict[type | None, str] = {float: "float64", int: "int64", bool: "bool"}
    with_gaps: dict[type | None, str] = {float: "float64", int: "Int64", bool: "boolean"}
    return pandas.DataFrame(
        {
            name: pandas.Series(cells, dtype=(with_gaps if None in cells else types).get(kind, object))
            for name, kind, cells in _columns(study.runs())
        }
    )


def _columns(runs: Sequence[Run]) -> list[Column]:
    parameters = dict.fromkeys(name for run in runs for name in run.parameters)
    metrics = sorted({name for run in runs for name in run.metrics} - parameters.keys())
    first, last = ("key", "chunk"), ("status", "diverged_at", "seconds", "error")
    flat = [{**{name: getattr(run, name) for name in (*first, *last)}, **run.parameters, **run.metrics} for run in runs]
    kinds: dict[str, type] = {**_KINDS, **dict.fromkeys(metrics, float)}
    columns = []
    for name in chain(first, parameters, last, metrics):
        cells = [cells.get(name) for cells in flat]
        columns.append(Column(name, kinds.get(name) or _kind(cells), cells))
    return columns


def _kind(cells: Sequence[Parameter]) -> type[str | int | float | bool] | None:
    found = {type(cell) for cell in cells if cell is not None}
    if found == {int, float}:
        return float
    # Tables hold whole numbers in 64 bits; larger ones, such as hashes, are kept as texts.
    if any(type(cell) is int and cell.bit_length() > 63 for cell in cells):
        return None
    return found.pop() if len(found) == 1 else None


def _rows(columns: Sequence[Column]) -> list[dict[str, Parameter]]:
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*(column.cells for column in columns), strict=True)]


def _write_csv(path: Path, columns: Sequence[Column]) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in columns)
        for row in zip(*(column.cells for column in columns), strict=True):
            writer.writerow(None if _is_nan(cell) else cell for cell in row)  # floats are written as repr() has them


def _write_json(path: Path, columns: Sequence[Column]) -> None:
    path.write_text("[\n" + ",\n".join(_json_lines(columns)) + "\n]\n", encoding="utf-8")


def _write_json_lines(path: Path, columns: Sequence[Column]) -> None:
    path.write_text("".join(f"{line}\n" for line in _json_lines(columns)), encoding="utf-8")


def _json_lines(columns: Sequence[Column]) -> list[str]:
    return [
        "{" + ", ".join(f"{json.dumps(name)}: {_json_cell(cell)}" for name, cell in row.items()) + "}"
        for row in _rows(columns)
    ]


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
    arrays = {column.name: _arrow_array(arrow, column) for column in columns}
    _optional("pyarrow.parquet", "Parquet").write_table(arrow.table(arrays), path)


def _arrow_array(arrow: Any, column: Column) -> Any:
    """Parquet has one type per column: where cells differ they become texts."""
    kind = column.kind or str
    types = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_(), str: arrow.string()}
    return arrow.array([None if cell is None else kind(cell) for cell in column.cells], types[kind])


def _write_curves_csv(path: Path, columns: Sequence[Column], names: Sequence[str], finished: _Finished) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(column.name for column in columns), "step", *names])
        for row, curves in finished:
            same = [column.cells[row] for column in columns]
            texts = [_texts(curves[name]) if name in curves else () for name in names]
            writer.writerows([*same, step, *points] for step, points in enumerate(zip_longest(*texts)))


def _texts(curve: NDArray[np.float32]) -> Sequence[str]:
    """The shortest that are the same float32."""
    return ["" if text == "nan" else text for text in map(str, curve)]


def _write_curves_parquet(path: Path, columns: Sequence[Column], names: Sequence[str], finished: _Finished) -> None:
    arrow, parquet = _optional("pyarrow", "Parquet"), _optional("pyarrow.parquet", "Parquet")
    same = {column.name: _arrow_array(arrow, column) for column in columns}
    kinds = {**{name: array.type for name, array in same.items()}, "step": arrow.int64()}
    schema = arrow.schema({**kinds, **dict.fromkeys(names, arrow.float32())})
    with parquet.ParquetWriter(path, schema) as writer:
        waiting: list[Any] = []
        rows_waiting = 0
        for row, curves in finished:
            steps = max(map(len, curves.values()), default=0)
            arrays = [arrow.repeat(array[row], steps) for array in same.values()]
            arrays.append(arrow.array(np.arange(steps)))
            for name in names:
                points = arrow.array(curves.get(name, ()), arrow.float32())
                arrays.append(arrow.concat_arrays([points, arrow.nulls(steps - len(points), arrow.float32())]))
            waiting.append(arrow.table(arrays, schema=schema))
            rows_waiting += steps
            if rows_waiting >= _PARQUET_ROWS:
                writer.write_table(arrow.concat_tables(waiting))
                waiting, rows_waiting = [], 0
        if waiting:
            writer.write_table(arrow.concat_tables(waiting))


def _optional(module: str, what: str) -> Any:
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
_CURVE_WRITERS: dict[str, Callable[[Path, Sequence[Column], Sequence[str], _Finished], None]] = {
    ".csv": _write_curves_csv,
    ".parquet": _write_curves_parquet,
}
