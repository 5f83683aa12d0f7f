"""Rows of a store as the runs that they are, after a check of every field: a file that opens may hold anything.

A finished chunk has a checksum over its runs and their metrics, so that a number that flipped is found. Older stores
have none. Curves are compressed, which gives each of them a checksum of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mssp._constraints import shown
from mssp.store.ownership import among_numbers

Kept = TypeVar("Kept", int, str)
Parameter = float | int | str | bool | None

STATUSES = ("pending", "running", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
RUNS = "run JOIN chunk ON chunk.study = run.study AND chunk.number = run.chunk"
_NUMBER_OR_NULL = (float, type(None))
_PARAMETER_TYPES = frozenset((float, int, str, bool, type(None)))
_DAMAGED = "the store is damaged: bring back a copy or choose another path"


class Run(NamedTuple):
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
    runs, chunks = [], _Digests()
    checksums = _checksums(database, study)
    for run, digested in _read(database, study, dead, among):
        runs.append(run)
        if run.chunk in checksums and run.status in FINISHED:
            chunks.add(run.chunk, digested)
    for chunk, digest in chunks.items():
        if digest.hexdigest() != checksums[chunk]:
            raise ValueError(f"chunk {chunk}: its runs are not those that were written; {_DAMAGED}")
    return runs


def checksum_of(database: sqlite3.Connection, study: int, chunk: int) -> str:
    """The checksum of a chunk: of its runs as they are written now."""
    chunks = _Digests()
    for _, digested in _read(database, study, "", [chunk]):
        chunks.add(chunk, digested)
    return chunks[chunk].hexdigest()


class _Digests(dict[int, "hashlib.blake2b"]):
    """A checksum in the making for each chunk, which takes runs in the order in which they were added."""

    def add(self, chunk: int, digested: bytes) -> None:
        if chunk not in self:
            self[chunk] = hashlib.blake2b(digest_size=8)
        self[chunk].update(digested)


def _checksums(database: sqlite3.Connection, study: int) -> dict[Any, Any]:
    """The checksums of finished chunks by their numbers; none in a store of before."""
    if not has_table(database, "checksum"):
        return {}
    return dict(database.execute("SELECT number, metrics FROM checksum WHERE study = ?", (study,)))


def _read(
    database: sqlite3.Connection, study: int, dead: str, among: Collection[int] | None
) -> Iterator[tuple[Run, bytes]]:
    """Runs, each with the bytes that stand for it in the checksum of its chunk."""
    metrics = _metrics(database, study, among)
    columns = f"run.id, key, parameters, spec, number, {status(dead)}, diverged_at, seconds, error"
    query = f"SELECT {columns} FROM {RUNS} WHERE run.study = ?{among_numbers(among, 'run.chunk')} ORDER BY run.id"
    for number, key, parameters, *row in database.execute(query, (study,)):
        spec, chunk, run_status, *ending = row
        results = metrics.get(number, {})
        run = Run(key, _parameters(key, parameters), spec, chunk, run_status, results, *ending)
        _check(run)
        texts = "\0".join((key, parameters, spec, str(run.diverged_at), *results))
        yield run, f"{len(results)}\0{texts}\0".encode() + struct.pack(f"<{len(results)}d", *results.values())


def status(dead: str) -> str:
    """The status of a run, as an expression of SQL; ``dead`` is a list of owners."""
    return f"""CASE WHEN status = 'done' AND diverged_at IS NOT NULL THEN 'diverged'
        WHEN status = 'running' AND owner IN ({dead}) THEN 'pending' ELSE status END"""


def has_table(database: sqlite3.Connection, name: str) -> bool:
    """Whether a store has a table that came later."""
    return database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def column(what: str, kind: type[Kept], values: Iterable[Any]) -> list[Kept]:
    """The values of a column that names or counts something: texts, or whole numbers."""
    values = list(values)
    for value in values:
        if type(value) is not kind:
            must_be = "a text" if kind is str else "a whole number"
            raise ValueError(f"{what} must be {must_be}, got {shown(value)}; {_DAMAGED}")
    return values


def json_object(what: str, text: Any) -> dict[str, Any]:
    """A JSON object in a field of a row."""
    value = _object_in(text)
    if value is None:
        raise ValueError(f"{what} must be a JSON object, got {shown(text)}; {_DAMAGED}")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # made once, for hundreds of thousands of texts


def _object_in(text: Any) -> dict[str, Any] | None:
    try:
        value = _DECODER.decode(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def curve(what: str, packed: Any, points: Any) -> NDArray[np.float32]:
    """The numbers of a curve, whose points may be compressed."""
    try:
        return np.frombuffer(zlib.decompress(points) if packed else points, "<f4").astype(np.float32)
    except (TypeError, ValueError, zlib.error):
        raise ValueError(f"{what} must be float32 numbers, got {shown(points)}; {_DAMAGED}") from None


def _metrics(database: sqlite3.Connection, study: int, among: Collection[int] | None) -> dict[int, dict[str, float]]:
    """The metrics by the number of the run, in the order of their names; SQLite stores NaN as NULL."""
    metrics: dict[int, dict[str, float]] = {}
    last, of_run = None, {}
    where = f"WHERE study = ?{among_numbers(among, 'chunk')} ORDER BY run, name"
    query = f"SELECT run, key, name, value FROM metric JOIN run ON run.id = run {where}"
    for run, key, name, value in database.execute(query, (study,)):
        if type(value) not in _NUMBER_OR_NULL or type(name) is not str:
            raise ValueError(f"run {shown(key)}: metric {shown(name)} must be a number, got {shown(value)}; {_DAMAGED}")
        if run != last:
            last, of_run = run, metrics.setdefault(run, {})
        of_run[name] = math.nan if value is None else value
    return metrics


def _parameters(key: Any, text: Any) -> dict[str, Parameter]:
    parameters = _object_in(text)
    if parameters is None:
        raise ValueError(f"run {shown(key)}: parameters must be a JSON object, got {shown(text)}; {_DAMAGED}")
    for name, value in parameters.items():
        if type(value) not in _PARAMETER_TYPES:
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
    for (must_be, fits), name in zip(_FIELDS.values(), _FIELDS, strict=True):
        value = getattr(run, name)
        if not fits(value):
            raise ValueError(f"run {shown(run.key)}: {name} must be {must_be}, got {shown(value)}; {_DAMAGED}")
    if run.status in FINISHED and run.seconds is None:
        raise ValueError(f"run {shown(run.key)}: seconds must be a number, since it is {run.status}; {_DAMAGED}")
