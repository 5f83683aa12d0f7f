"""The run store: one SQLite file with the runs to train, their results, and which process works on which of them.

    Store -> Study -> claim() a Chunk, train it, finish(chunk, results)

A study is a named set of runs that share settings. A chunk is a group of its runs that train in lockstep. A chunk is
claimed, committed and repeated as a whole, so a resumed sweep trains the same runs together and gets the same bits. If
a process is killed, another one claims its chunk.

Any number of processes may read and write. They share memory through SQLite's write-ahead log, so all of them run on
one machine, possibly in containers. Other machines train chunks that a process on this machine has claimed.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from mssp._constraints import path, positive_or_zero, shown, switch, takes, word
from mssp._documents import one_line
from mssp._environment import environment, this_host
from mssp.planning.plan_file import MISSING, differences
from mssp.store import presence
from mssp.store.database import LATER_TABLES, REASONS, check, connect, create, plain_errors
from mssp.store.ownership import OPEN, among_numbers, claim, gone, owners, process_start
from mssp.store.rows import (
    FINISHED,
    RUNS,
    STATUSES,
    Parameter,
    Run,
    checksum_of,
    column,
    curve,
    has_table,
    json_object,
    read_runs,
    status,
)
from mssp.store.snapshot import Look, Snapshot, in_transaction

__all__ = ["COLUMNS", "FINISHED", "STATUSES", "Chunk", "NewRun", "Parameter", "Result", "Run", "Store", "Study"]

COLUMNS = ("key", "chunk", "status", "diverged_at", "seconds", "error")  # no parameter or metric may have these names
BEAT_EVERY_SECONDS = 15.0

_CHUNKS_AT_ONCE = 64  # that many are read into memory together


@dataclass(frozen=True)
class NewRun:
    """A run to add to a study.

    Args:
        key: the run's name within its study.
        parameters: what distinguishes it from other runs, as columns of tables.
        spec: JSON with everything needed to train it; the store does not read it.
    """

    key: str
    parameters: Mapping[str, Parameter]
    spec: str


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        metrics: numbers by name; NaN and infinity are numbers too.
        curves: one float32 per step, by name.
        diverged_at: the step at which it diverged; None if it did not.
    """

    key: str
    metrics: Mapping[str, float]
    curves: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    diverged_at: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Chunk:
    """Runs that train together, in this order."""

    index: int
    runs: tuple[Run, ...]


Found = TypeVar("Found")
_Keyed = TypeVar("_Keyed", NewRun, Result)


@takes(path=path, must_exist=switch, read_only=switch, device=word)
class Store:
    """A file of studies, which is opened, or created if there is none.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(f"{folder.name}/runs.db") as store:
    ...     study = store.study("widths", {"steps": 3})
    ...     added = study.add([[NewRun("a", {"width": 64}, "{}"), NewRun("b", {"width": 128}, "{}")]])
    ...     chunk = study.claim()
    ...     study.finish(chunk, [Result(run.key, {"loss": run.parameters["width"] / 64}) for run in chunk.runs])
    ...     [(run.key, run.status, run.metrics["loss"]) for run in study.runs(width=128)]
    [('b', 'done', 2.0)]
    >>> folder.cleanup()

    A file that is anything but a sound run store is refused, and left as it is.

    Args:
        must_exist: refuse to create the file.
        read_only: only read, and leave nothing beside the file, so that anybody may who can read it.
        device: the device that computes the runs, in words, for :meth:`Study.environments`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, must_exist: bool = False, read_only: bool = False, device: str = ""
    ) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        if not os.path.lexists(self.path):
            if must_exist or read_only:
                says = "`read_only`" if read_only else "`must_exist`"
                raise ValueError(f"{self.path}: there is no such file; {says} says not to make one")
            create(self.path)
        check(self.path)
        self.device = device
        self._pid = os.getpid()
        self._token = secrets.token_hex(8)
        self._owner: int | None = None
        self._presence: int | None = None  # the open folder that holds this owner's lock
        self._beat_at = 0.0
        self._snapshot = Snapshot(self.path, connect) if read_only else None
        if not read_only:
            self._database = connect(self.path, "mode=rw")
            with plain_errors(self.path):
                self._database.executescript("PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL")
        OPEN[self._token] = self

    def study(self, name: str, settings: Mapping[str, Any]) -> Study:
        """A new study, or the study of this name if its settings are the same."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"a study's name must be a text of at least one letter, got {name!r}")
        try:
            canonical = json.dumps(settings, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"settings of study {shown(name)} must be JSON data: {error}") from None
        if name not in self.studies():
            self._write("INSERT OR IGNORE INTO study (name, settings) VALUES (?, ?)", name, canonical)
        study = self.open_study(name)
        for setting, here, there in differences(json.loads(canonical), study.settings, _same_setting):
            raise ValueError(
                f"study {shown(name)} in {self.path} was made with other settings: {setting} is {_shown(there)} there "
                f"and {_shown(here)} here; use the same settings or another name"
            )
        return study

    def studies(self) -> list[str]:
        """The names of all studies, in the order in which they were made."""
        rows = self._rows("SELECT name FROM study ORDER BY id")
        with self._naming("its studies"):
            return column("the name of a study", str, [name for (name,) in rows])

    def open_study(self, name: str) -> Study:
        """The study of this name, with the settings it was made with."""
        for number, settings in self._rows("SELECT id, settings FROM study WHERE name = ?", name):
            with self._naming(f"study {shown(name)}"):
                return Study(self, name, number, json_object("settings", settings))
        there = ", ".join(map(one_line, self.studies())) or "none yet"
        raise ValueError(f"no study {shown(name)} in {self.path}: there is {there}")

    def close(self) -> None:
        """Give back the chunks that were claimed and not finished, and close the file."""
        if os.getpid() != self._pid or self._token not in OPEN:
            return  # SQLite forbids a forked child to use its parent's connection, even to close it
        del OPEN[self._token]
        release = "UPDATE chunk SET status = 'pending', owner = NULL WHERE status = 'running' AND owner = ?"
        try:
            if self._owner is not None:
                self._write(release, self._owner)
        finally:
            (self._database if self._snapshot is None else self._snapshot).close()
            if self._presence is not None:
                os.close(self._presence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, look: Look[Found]) -> Found:
        """What a function finds in an unchanging view of the file. It may be called more than once."""
        self._refuse_fork()
        with plain_errors(self.path):
            return in_transaction(self._database, look) if self._snapshot is None else self._snapshot.read(look)

    def _change(self, change: Callable[[sqlite3.Connection], Found]) -> Found:
        """What a function returns that writes, all or nothing."""
        self._refuse_fork()
        if self.read_only:
            raise ValueError(f"{self.path}: {REASONS[sqlite3.SQLITE_READONLY]}")
        with plain_errors(self.path):
            return in_transaction(self._database, change, "BEGIN IMMEDIATE")

    def _refuse_fork(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError(f"{self.path}: the store was opened before a fork: open it anew in the child")

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """Names, in errors about what the file holds, the file and the part of it."""
        try:
            yield
        except ValueError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise ValueError(f"{self.path}: {what}, {error}") from None

    def _rows(self, query: str, *values: Any) -> list[Any]:
        return self._read(lambda database: database.execute(query, values).fetchall())

    def _write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._change(lambda database: database.execute(statement, values))

    def _heartbeat(self) -> int:
        """Record that this store's process lives, and return the store's number as an owner of chunks."""
        if self._owner is None:
            # The lock first: an owner who is there without it would count as dead.
            self._presence = presence.hold(self.path.parent, self._token)
            self._owner = self._change(self._new_owner)
        else:
            self._write("UPDATE owner SET heartbeat = ? WHERE id = ?", time.time(), self._owner)
        self._beat_at = time.monotonic()
        return self._owner

    def _new_owner(self, database: sqlite3.Connection) -> int:
        insert = "INSERT INTO owner (token, host, pid, started, heartbeat, environment) VALUES (?, ?, ?, ?, ?, ?)"
        identity = (self._token, this_host(), self._pid, process_start(self._pid), time.time())
        owner = database.execute(insert, (*identity, json.dumps(environment(self.device)))).lastrowid
        assert owner is not None
        if self._presence is not None:
            _make_later_tables(database)
            place = presence.place(self.path.parent)
            database.execute("INSERT INTO presence (owner, place) VALUES (?, ?)", (owner, place))
        return owner


def _make_later_tables(database: sqlite3.Connection) -> None:
    for statement in LATER_TABLES.split(";"):  # not executescript, which would end the transaction
        database.execute(statement)


class Study:
    """A stored set of runs. :meth:`Store.study` and :meth:`Store.open_study` return it."""

    def __init__(self, store: Store, name: str, number: int, settings: Mapping[str, Any]) -> None:
        self.store, self.name, self.settings, self._id = store, name, settings, number

    def add(self, chunks: Sequence[Sequence[NewRun]]) -> int:
        """Add runs in chunks, and return how many were new. A run whose key the study already has is left as it is."""
        texts = {key: _parameters_text(run) for key, run in _by_key(chain.from_iterable(chunks)).items()}
        if not texts or texts.keys() <= self.keys():
            return 0  # and nothing is written, so that a finished study may be read with the same calls

        def add(database: sqlite3.Connection) -> int:
            old = {key for (key,) in database.execute("SELECT key FROM run WHERE study = ?", (self._id,))}
            first_free = "SELECT coalesce(max(number) + 1, 0) FROM chunk WHERE study = ?"
            (number,) = database.execute(first_free, (self._id,)).fetchone()
            new_chunks = ([run for run in chunk if run.key not in old] for chunk in chunks)
            for index, runs in enumerate(filter(None, new_chunks), number):
                database.execute("INSERT INTO chunk (study, number) VALUES (?, ?)", (self._id, index))
                insert = "INSERT INTO run (study, chunk, key, parameters, spec) VALUES (?, ?, ?, ?, ?)"
                rows = [(self._id, index, run.key, texts[run.key], run.spec) for run in runs]
                database.executemany(insert, rows)
            return len(texts.keys() - old)

        return self.store._change(add)

    def keys(self) -> set[str]:
        """The keys of all runs."""
        return {key for (key,) in self.store._rows("SELECT key FROM run WHERE study = ?", self._id)}

    def claim(self, among: Collection[int] | None = None) -> Chunk | None:
        """Claim the first chunk that is neither finished, nor failed, nor held by a living process.

        None does not mean that all chunks are done: other processes may hold some, see :meth:`counts`.

        Args:
            among: the numbers of the chunks to choose from, see :meth:`chunks_with`; None for all chunks.
        """
        owner = self.store._heartbeat()

        def take(database: sqlite3.Connection) -> Chunk | None:
            number = claim(database, self._id, owner, among, self.store.path.parent)
            return None if number is None else Chunk(number, tuple(self._runs(database, [number])))

        with self._naming():
            return self.store._change(take)

    def finish(self, chunk: Chunk, results: Sequence[Result]) -> None:
        """Commit the results of all runs of a chunk. If another process has committed results meanwhile, those stay."""
        by_key = _by_key(results)
        parameters = {run.key: run.parameters for run in chunk.runs}
        for key in (*parameters, *by_key):
            if key not in parameters or key not in by_key:
                wrong = "has no result" if key in parameters else "is not among them"
                raise ValueError(f"results must be those of the runs of chunk {chunk.index}, run {key!r} {wrong}")
        metrics = {key: _metric_rows(result, parameters[key]) for key, result in by_key.items()}
        curves = {key: [_curve_row(key, *curve) for curve in result.curves.items()] for key, result in by_key.items()}
        endings = {key: _ending_row(result) for key, result in by_key.items()}
        where = (self._id, chunk.index)

        def commit(database: sqlite3.Connection) -> None:
            ids = dict(database.execute("SELECT key, id FROM run WHERE study = ? AND chunk = ?", where))
            if ids.keys() != parameters.keys():
                raise ValueError(
                    f"chunk {chunk.index} is not one of study {shown(self.name)}: finish it where it was claimed"
                )
            finish = "UPDATE chunk SET status = 'done', owner = NULL, error = NULL WHERE study = ? AND number = ?"
            if not database.execute(f"{finish} AND status != 'done'", where).rowcount:
                return
            run_rows = [(*endings[key], ids[key]) for key in ids]
            database.executemany("UPDATE run SET diverged_at = ?, seconds = ? WHERE id = ?", run_rows)
            metric_rows = [(ids[key], *row) for key in ids for row in metrics[key]]
            database.executemany("INSERT INTO metric (run, name, value) VALUES (?, ?, ?)", metric_rows)
            curve_rows = [(ids[key], *row) for key in ids for row in curves[key]]
            database.executemany("INSERT INTO curve (run, name, packed, points) VALUES (?, ?, ?, ?)", curve_rows)
            _make_later_tables(database)
            checksum = checksum_of(database, *where)
            database.execute("INSERT OR REPLACE INTO checksum VALUES (?, ?, ?)", (*where, checksum))

        self.store._change(commit)

    def fail(self, chunk: Chunk, error: str) -> None:
        """Mark a chunk as failed, if this store still holds it."""
        self._give_up(chunk, "failed", error)

    def release(self, chunk: Chunk) -> None:
        """Give a chunk back, if this store still holds it."""
        self._give_up(chunk, "pending", None)

    def _give_up(self, chunk: Chunk, status: str, error: str | None) -> None:
        release = "UPDATE chunk SET status = ?, error = ?, owner = NULL WHERE study = ? AND number = ?"
        if_held = "status = 'running' AND owner = ?"
        self.store._write(f"{release} AND {if_held}", status, error, self._id, chunk.index, self.store._owner)

    def retry_failed(self, among: Collection[int] | None = None) -> int:
        """Make failed chunks pending again, all or those with these numbers, and return how many there were."""
        if not self.counts(among)["failed"]:
            return 0
        retry = "UPDATE chunk SET status = 'pending', error = NULL WHERE study = ? AND status = 'failed'"
        return self.store._write(retry + among_numbers(among, "number"), self._id).rowcount

    def heartbeat(self) -> None:
        """Tell processes in other containers that this one lives; cheap enough for every step of training."""
        if self.store._owner is not None and time.monotonic() - self.store._beat_at >= BEAT_EVERY_SECONDS:
            self.store._heartbeat()

    def runs(self, status: str | None = None, **parameters: Parameter) -> list[Run]:
        """The runs in the order in which they were added: all, or those with this status and these parameters.

        A run that a killed process was training counts as pending.
        """
        if status is not None and status not in STATUSES:
            raise ValueError(f"unknown status {status!r}: use one of {', '.join(STATUSES)}")
        with self._naming():
            runs = self.store._read(self._runs)
        names = dict.fromkeys(name for run in runs for name in run.parameters)
        for name in parameters:
            if runs and name not in names:
                raise ValueError(
                    f"no run of study {shown(self.name)} has a parameter {name!r}: there is {', '.join(names)}"
                )
        return [
            run
            for run in runs
            if status in (None, run.status)
            and all(name in run.parameters and _equal(run.parameters[name], parameters[name]) for name in parameters)
        ]

    def each_run(self, among: Collection[int] | None = None) -> Iterator[Run]:
        """The runs of :meth:`runs`, or those of the chunks with these numbers, without holding all of them in memory.

        Chunks that another process finishes meanwhile may come as finished or as not finished.
        """
        query = f"SELECT number FROM chunk WHERE study = ?{among_numbers(among, 'number')} ORDER BY number"
        rows = self.store._rows(query, self._id)
        with self._naming():
            numbers = column("the number of a chunk", int, [number for (number,) in rows])
        for start in range(0, len(numbers), _CHUNKS_AT_ONCE):
            some = numbers[start : start + _CHUNKS_AT_ONCE]
            with self._naming():
                runs = self.store._read(partial(self._runs, among=some))
            yield from runs

    def curves(self, key: str) -> dict[str, NDArray[np.float32]]:
        """The curves of a run by name; empty before the run is finished."""
        if not self.store._rows("SELECT id FROM run WHERE study = ? AND key = ?", self._id, key):
            raise ValueError(f"no run {key!r} in study {shown(self.name)}: see the keys of its runs()")
        query = "SELECT name, packed, points FROM curve JOIN run ON run = id WHERE study = ? AND key = ? ORDER BY name"
        with self._naming():
            return {
                name: curve(f"run {key!r}: curve {name!r}", packed, points)
                for name, packed, points in self.store._rows(query, self._id, key)
            }

    def chunks_with(self, keys: Collection[str]) -> set[int]:
        """The numbers of the chunks that hold these runs."""
        keys = set(keys)
        rows = self.store._rows("SELECT key, chunk FROM run WHERE study = ?", self._id)
        with self._naming():
            return {*column("the number of a chunk", int, [chunk for key, chunk in rows if key in keys])}

    def counts(self, among: Collection[int] | None = None) -> dict[str, int]:
        """How many runs have each status, in all chunks or in those with these numbers."""

        def count(database: sqlite3.Connection) -> dict[str, int]:
            where = f"WHERE run.study = ?{among_numbers(among, 'run.chunk')}"
            query = f"SELECT {status(self._dead(database))}, count(*) FROM {RUNS} {where} GROUP BY 1"
            return dict(database.execute(query, (self._id,)))

        with self._naming():
            return {**dict.fromkeys(STATUSES, 0), **self.store._read(count)}

    def unchecked(self) -> int:
        """How many finished runs have no checksum: an older version kept them, and a wrong number would not be seen."""

        def count(database: sqlite3.Connection) -> int:
            query = f"SELECT count(*) FROM {RUNS} WHERE run.study = ? AND status = 'done'"
            if has_table(database, "checksum"):
                query += " AND (run.study, run.chunk) NOT IN (SELECT study, number FROM checksum)"
            return int(database.execute(query, (self._id,)).fetchone()[0])

        return self.store._read(count)

    def waiting_for(self, among: Collection[int] | None = None) -> dict[int, str]:
        """What other processes do with chunks that are running, in words, by numbers that stand for the processes."""
        with self._naming():
            found = self.store._read(lambda database: owners(database, self._id, among))
        others = [owner for owner in found if owner.token != self.store._token]
        return {owner.number: owner.in_words(self.store.path.parent) for owner in others}

    def least(self, metric: str) -> float | None:
        """The smallest value of a metric among finished runs; None where no run has it."""
        query = "SELECT min(value) FROM metric JOIN run ON run.id = run WHERE study = ? AND name = ?"
        ((value,),) = self.store._rows(query, self._id, metric)
        return value if isinstance(value, float) else None

    def environments(self) -> list[dict[str, Any]]:
        """The environments of the processes that worked on the study: versions, device, a hash for the host."""
        query = "SELECT environment FROM owner JOIN work ON owner = id WHERE study = ? ORDER BY id"
        with self._naming():
            return [json_object("an environment", text) for (text,) in self.store._rows(query, self._id)]

    def _runs(self, database: sqlite3.Connection, among: Collection[int] | None = None) -> list[Run]:
        return read_runs(database, self._id, self._dead(database), among)

    def _dead(self, database: sqlite3.Connection) -> str:
        """The owners that died while they held a chunk of the study, as a list for SQL."""
        return gone(database, self._id, self.store.path.parent)

    def _naming(self) -> AbstractContextManager[None]:
        return self.store._naming(f"study {shown(self.name)}")


def _same_setting(here: Any, there: Any) -> bool:
    return MISSING not in (here, there) and json.dumps(here) == json.dumps(there)


def _shown(setting: Any) -> str:
    return "not set" if setting is MISSING else json.dumps(setting)


def _by_key(items: Iterable[_Keyed]) -> dict[str, _Keyed]:
    """Runs or results by their keys, which must differ."""
    by_key: dict[str, _Keyed] = {}
    for item in items:
        if not isinstance(item.key, str) or not item.key:
            raise ValueError(f"a run's key must be a text of at least one letter, got {item.key!r}")
        if item.key in by_key:
            raise ValueError(f"run {item.key!r} is given twice: a key names one run")
        by_key[item.key] = item
    return by_key


def _parameters_text(run: NewRun) -> str:
    """The parameters of a run as JSON, checked."""
    for name, value in run.parameters.items():
        if not isinstance(name, str) or name in COLUMNS:
            raise ValueError(f"run {run.key!r} has a parameter {name!r}: use a text other than {', '.join(COLUMNS)}")
        if not isinstance(value, Parameter) or (isinstance(value, float) and not math.isfinite(value)):
            allowed = "a finite number, a text, True, False or None"
            raise ValueError(f"parameter {name} of run {run.key!r} must be {allowed}, got {value!r}")
    return json.dumps(dict(run.parameters))


def _equal(first: Parameter, second: Parameter) -> bool:
    """Whether two parameters are equal. True does not equal 1 here, as it does in Python."""
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def _ending_row(result: Result) -> tuple[int | None, float]:
    """The step at which a run diverged, and its seconds."""
    step = result.diverged_at
    if step is not None and (type(step) is not int or step < 0):
        raise ValueError(f"diverged_at of run {result.key!r} must be a step, 0 or more, or None, got {step!r}")
    return step, positive_or_zero(f"seconds of run {result.key!r}", result.seconds)


def _metric_rows(result: Result, parameters: Mapping[str, Parameter]) -> list[tuple[str, float]]:
    """The names and numbers of a run's metrics; SQLite stores NaN as NULL."""
    for name, value in result.metrics.items():
        if name in COLUMNS or name in parameters:
            raise ValueError(f"metric {name!r} of run {result.key!r} has a parameter's or column's name: use another")
        if not isinstance(value, float | int | np.floating):
            raise ValueError(f"metric {name} of run {result.key!r} must be a number, got {value!r}")
    return [(name, float(value)) for name, value in result.metrics.items()]


def _curve_row(key: str, name: str, curve: NDArray[np.float32]) -> tuple[str, bool, bytes]:
    """A curve's name, whether its points are compressed, and its points: always, since that also guards them."""
    if not isinstance(curve, np.ndarray) or curve.ndim != 1 or curve.dtype != np.float32:
        got = f"{curve.dtype} {list(curve.shape)}" if isinstance(curve, np.ndarray) else type(curve).__name__
        raise ValueError(f"curve {name} of run {key!r} must be a numpy float32 array, one number per step, got {got}")
    return name, True, zlib.compress(curve.astype("<f4").tobytes(), 1)
