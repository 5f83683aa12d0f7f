"""Rows of a store as the runs that they are, after a check of every field: a file that opens may hold anything.

A finished chunk has a checksum over its results, so that a number that flipped is found. Stores of before have none.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mssp._constraints import shown
from mssp.store.ownership import among_numbers

Parameter = float | int | str | bool | None

STATUSES = ("pending", "running", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
RUNS = "run JOIN chunk ON chunk.study = run.study AND chunk.number = run.chunk"
_DAMAGED = "the store is damaged: bring back a copy or choose another path"


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the store keeps it; ``status`` is one of STATUSES."""

    key: str
    parameters: Mapping[str, Parameter]
    spec: str
    chunk: int
    status: str
    metrics: Mapping[str, float]
    diverged_at: int | None
    seconds: float | None
    error: str | None


def read_runs(database: sqlite3.Connection, study: int, dead: str, among: Collection[int] | None) -> list[Run]:
    """The runs of a study, or of its chunks with these numbers, in the order in which they were added.

    It takes several queries, which must see the same data: call it in a transaction.

    Args:
        dead: the owners whose chunks are running no more, as a list for SQL.
    """
    metrics = _metrics(database, study, among)
    columns = f"run.id, key, parameters, spec, number, {status(dead)}, metrics, diverged_at, seconds, error"
    checksums = "LEFT JOIN checksum USING (study, number)" if has_table(database, "checksum") else ""
    if not checksums:
        columns = columns.replace(", metrics,", ", NULL,")
    query = f"SELECT {columns} FROM {RUNS} {checksums} WHERE run.study = ?{among_numbers(among, 'run.chunk')}"
    runs: list[Run] = []
    digests: dict[int, hashlib.blake2b] = {}
    expected: dict[int, str] = {}
    for number, *row in database.execute(f"{query} ORDER BY run.id", (study,)):
        key, parameters, spec, chunk, run_status, checksum, diverged_at, seconds, error = row
        fields = (key, _parameters(key, parameters), spec, chunk, run_status)
        run = Run(*fields, metrics.get(number, {}), diverged_at, seconds, error)
        _check(run)
        runs.append(run)
        if checksum is not None and run_status in FINISHED:
            expected[chunk] = checksum
            _add(digests.setdefault(chunk, _digest()), run)
    for chunk, checksum in expected.items():
        if digests[chunk].hexdigest() != checksum:
            raise ValueError(f"chunk {chunk}: its results are not those that were written; {_DAMAGED}")
    return runs


def checksum_of(runs: Iterable[Run]) -> str:
    """The checksum of the results of a chunk, whose runs come in the order in which they were added."""
    digest = _digest()
    for run in runs:
        _add(digest, run)
    return digest.hexdigest()


def status(dead: str) -> str:
    """The status of a run, as an expression of SQL; ``dead`` is a list of owners."""
    return f"""CASE WHEN status = 'done' AND diverged_at IS NOT NULL THEN 'diverged'
        WHEN status = 'running' AND owner IN ({dead}) THEN 'pending' ELSE status END"""


def has_table(database: sqlite3.Connection, name: str) -> bool:
    """Whether a store has a table that came later."""
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def json_object(what: str, text: Any) -> dict[str, Any]:
    """A JSON object in a field of a row."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, got {shown(text)}; {_DAMAGED}")
    return value


def curve(what: str, packed: Any, points: Any) -> NDArray[np.float32]:
    """The numbers of a curve, whose points may be compressed."""
    try:
        return np.frombuffer(zlib.decompress(points) if packed else points, "<f4").astype(np.float32)
    except (TypeError, ValueError, zlib.error):
        raise ValueError(f"{what} must be float32 numbers, got {shown(points)}; {_DAMAGED}") from None


def _metrics(database: sqlite3.Connection, study: int, among: Collection[int] | None) -> dict[int, dict[str, float]]:
    """The metrics by the number of the run, in the order of their names; SQLite stores NaN as NULL."""
    metrics: dict[int, dict[str, float]] = {}
    where = f"WHERE study = ?{among_numbers(among, 'chunk')} ORDER BY run, name"
    query = f"SELECT run, key, name, value FROM metric JOIN run ON run.id = run {where}"
    for run, key, name, value in database.execute(query, (study,)):
        if not (value is None or type(value) is float) or type(name) is not str:
            raise ValueError(f"run {shown(key)}: metric {shown(name)} must be a number, got {shown(value)}; {_DAMAGED}")
        metrics.setdefault(run, {})[name] = math.nan if value is None else value
    return metrics


def _parameters(key: Any, text: Any) -> dict[str, Parameter]:
    parameters = json_object(f"run {shown(key)}: parameters", text)
    for name, value in parameters.items():
        if not isinstance(value, Parameter):
            must_be = "a number, a text, true, false or null"
            raise ValueError(
                f"run {shown(key)}: parameter {shown(name)} must be {must_be}, got {shown(value)}; {_DAMAGED}"
            )
    return parameters


# What each field of a run must be, in words and as a check of its value.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "key": ("a text", lambda value: type(value) is str and value != ""),
    "spec": ("a text", lambda value: type(value) is str),
    "chunk": ("a whole number", lambda value: type(value) is int),
    "status": (f"one of {', '.join(STATUSES)}", lambda value: value in STATUSES),
    "diverged_at": ("a step or NULL", lambda value: value is None or (type(value) is int and value >= 0)),
    "seconds": ("a number of at least 0 or NULL", lambda value: value is None or (type(value) is float and value >= 0)),
    "error": ("a text or NULL", lambda value: value is None or type(value) is str),
}


def _check(run: Run) -> None:
    """Refuse a run with a field that no process has written."""
    for name, (must_be, fits) in _FIELDS.items():
        value = getattr(run, name)
        if not fits(value):
            raise ValueError(f"run {shown(run.key)}: {name} must be {must_be}, got {shown(value)}; {_DAMAGED}")
    if run.status in FINISHED and run.seconds is None:
        raise ValueError(f"run {shown(run.key)}: seconds must be a number, since it is {run.status}; {_DAMAGED}")


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8)


def _add(digest: hashlib.blake2b, run: Run) -> None:
    names = "\0".join(run.metrics)
    digest.update(f"{run.key}\0{run.diverged_at}\0{len(run.metrics)}\0{names}\0".encode())
    digest.update(struct.pack(f"<{len(run.metrics)}d", *run.metrics.values()))
