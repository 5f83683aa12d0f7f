"""Reads a store and leaves nothing beside it, whoever reads: no log, and no index of a log.

SQLite makes both for a reader too, under the reader's name, and the owner of the store may then not write to them.

    no log, or an empty one     the file is opened as one that does not change, and what was read counts if it did not
    a log and its index         the index that is there is used, and SQLite's locks hold
    a log alone                 both files are copied to a folder of the reader's own
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

Found = TypeVar("Found")
Look = Callable[[sqlite3.Connection], Found]

_UNCHANGING, _WITH_INDEX, _PRIVATE = "unchanging", "with index", "private"
_MOST_TRIES = 20  # each as long as the reading takes; a store changes when a chunk is finished, and every 15 seconds
_State = tuple[tuple[int, int, int] | None, ...]


class ChangedError(Exception):
    """A store that another process writes changed each time that it was read."""


class Snapshot:
    """A connection that reads a store as it is at one moment, anew for every call of :meth:`read`.

    ``connect`` opens a file by its path with options of SQLite's, as ``mode=ro``.
    """

    def __init__(self, path: Path, connect: Callable[[Path, str], sqlite3.Connection]) -> None:
        self._path, self._connect = path, connect
        self._log, self._index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
        self._folder: TemporaryDirectory[str] | None = None
        self._database: sqlite3.Connection | None = None
        self._state: _State = ()
        self._kind = ""

    def read(self, look: Look[Found]) -> Found:
        """What a function finds in the store. It may be called again, where the store changed while it looked."""
        for _ in range(_MOST_TRIES):
            try:
                found = in_transaction(self._opened(), look)
            except Exception:
                if self._now() == self._state:
                    raise
            else:
                if self._kind == _WITH_INDEX or self._now() == self._state:
                    return found
            self.close()
        raise ChangedError

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._database = self._folder = None

    def _opened(self) -> sqlite3.Connection:
        """The connection, which is made anew where the store is not as it was."""
        state = self._now()
        if self._database is not None and (self._kind == _WITH_INDEX or state == self._state):
            return self._database
        self.close()
        self._state = state
        if not _size(self._log):
            # A journal is of a file that keeps no log: SQLite has to look into it.
            journal = _is_hot(self._path.with_name(f"{self._path.name}-journal"))
            self._kind, path, options = _UNCHANGING, self._path, "mode=ro" if journal else "mode=ro&immutable=1"
        elif os.access(self._index, os.R_OK):
            self._kind, path, options = _WITH_INDEX, self._path, "mode=ro&readonly_shm=1"
        else:
            self._kind, path, options = _PRIVATE, self._copied(), "mode=rw"
        self._database = self._connect(path, options)
        return self._database

    def _copied(self) -> Path:
        """A copy of the file and its log, in a folder of its own."""
        self._folder = TemporaryDirectory()
        copy = Path(self._folder.name) / "copy"
        shutil.copyfile(self._path, copy)
        shutil.copyfile(self._log, copy.with_name(f"{copy.name}-wal"))
        return copy

    def _now(self) -> _State:
        """What tells whether the files changed while they were read or copied without SQLite's locks."""
        return tuple(map(_identity, (self._path, self._log)))


def in_transaction(database: sqlite3.Connection, look: Look[Found], begin: str = "BEGIN") -> Found:
    """What a function returns that reads an unchanging view of a database, or writes all or nothing."""
    try:
        database.execute(begin)
        found = look(database)
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # some errors have rolled back already
            database.execute("ROLLBACK")
        raise
    return found


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What of a file changes with its content; None for an empty log, which is like none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns) if status.st_size else None


def _is_hot(journal: Path) -> bool:
    """Whether there is a journal that SQLite has to undo: one that begins with a zero is done with."""
    try:
        with journal.open("rb") as file:
            return file.read(1) not in (b"", b"\0")
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    """The size of a file; 0 if there is none, since another process may remove a log at any time."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
