"""The SQLite file of a run store: creates, checks and opens it, and words its errors plainly."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from mssp._documents import one_line
from mssp.store.snapshot import ChangedError, Snapshot

APPLICATION_ID = 0x4D535350  # "MSSP"
SCHEMA_VERSION = 1
BUSY_SECONDS = 30.0  # how long SQLite waits for a file that another process has locked

# A run has the status of its chunk, or is diverged if its `diverged_at` is set. `work` says who worked on which study.
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE study (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, settings TEXT NOT NULL);
CREATE TABLE owner (
    id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, host TEXT NOT NULL, pid INTEGER NOT NULL,
    started TEXT NOT NULL, heartbeat REAL NOT NULL, environment TEXT NOT NULL
);
CREATE TABLE work (
    study INTEGER NOT NULL REFERENCES study, owner INTEGER NOT NULL REFERENCES owner, PRIMARY KEY (study, owner)
) WITHOUT ROWID;
CREATE TABLE chunk (
    study INTEGER NOT NULL REFERENCES study, number INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    owner INTEGER REFERENCES owner, error TEXT,
    PRIMARY KEY (study, number), CHECK (status != 'running' OR owner IS NOT NULL)
);
CREATE TABLE run (
    id INTEGER PRIMARY KEY, study INTEGER NOT NULL, chunk INTEGER NOT NULL, key TEXT NOT NULL,
    parameters TEXT NOT NULL, spec TEXT NOT NULL, diverged_at INTEGER, seconds REAL,
    UNIQUE (study, key), FOREIGN KEY (study, chunk) REFERENCES chunk (study, number)
);
CREATE INDEX runs_of_chunk ON run (study, chunk);
CREATE TABLE metric (
    run INTEGER NOT NULL REFERENCES run, name TEXT NOT NULL, value REAL, PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE curve (
    run INTEGER NOT NULL REFERENCES run, name TEXT NOT NULL, packed INTEGER NOT NULL CHECK (packed IN (0, 1)),
    points BLOB NOT NULL, PRIMARY KEY (run, name)
);
"""
# Tables that came later, without which a store is as good as it was: the checksums of finished chunks, and the folder
# at which an owner shows that it runs.
LATER_TABLES = """
CREATE TABLE IF NOT EXISTS checksum (
    study INTEGER NOT NULL, number INTEGER NOT NULL, metrics TEXT NOT NULL, PRIMARY KEY (study, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS presence (owner INTEGER PRIMARY KEY REFERENCES owner, place TEXT NOT NULL);
"""
REASONS = {
    sqlite3.SQLITE_BUSY: "another process kept it locked: try again when that one is done",
    sqlite3.SQLITE_FULL: "the disk is full: make room, then resume",
    sqlite3.SQLITE_READONLY: "it may not be written: check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the permissions of the file and its folder",
    sqlite3.SQLITE_CORRUPT: "it is damaged: bring back a copy or choose another path",
    sqlite3.SQLITE_NOTADB: "it is not a run store, not even a SQLite file: choose another path",
}


def create(path: Path) -> None:
    """Make an empty store. The file gets its name when it is complete, so that no other process sees half of it."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it or choose another path")
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with plain_errors(path), closing(connect(unfinished, "mode=rwc")) as database:
            database.executescript(_SCHEMA + LATER_TABLES)
            database.execute("PRAGMA journal_mode = WAL")  # last, so that the schema is in the file and not in its log
        try:
            os.link(unfinished, path)
        except FileExistsError:
            pass  # another process was faster, and made the same store
        except OSError:  # a file system without links
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(unfinished.read_bytes())
    finally:
        unfinished.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Refuse a file that is not a sound store, and leave it unchanged."""
    if not path.is_file():
        raise ValueError(f"{path}: it is not a file; choose another path")
    if not path.stat().st_size:
        raise ValueError(f"{path}: it is empty, not a run store; remove it or choose another path")
    with plain_errors(path), closing(Snapshot(path, connect)) as snapshot:
        snapshot.read(lambda database: _check(path, database))


def _check(path: Path, database: sqlite3.Connection) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise ValueError(f"{path}: it is another application's SQLite file, no run store; choose another path")
    if version > SCHEMA_VERSION:
        versions = f"as version {version}, this one reads up to {SCHEMA_VERSION}"
        raise ValueError(f"{path}: it was written by a newer mssp, {versions}; upgrade mssp")
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise ValueError(f"{path}: {REASONS[sqlite3.SQLITE_CORRUPT]} ({' '.join(verdict.split())})")


def connect(path: Path, options: str) -> sqlite3.Connection:
    """A connection to the file; the options are those of SQLite's addresses, as ``mode=ro``, ``mode=rw``."""
    with plain_errors(path):
        return sqlite3.connect(f"{path.as_uri()}?{options}", BUSY_SECONDS, isolation_level=None, uri=True)


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite into ValueErrors that name the file and say what to do."""
    try:
        yield
    except ChangedError:
        raise ValueError(f"{path}: {REASONS[sqlite3.SQLITE_BUSY]}") from None
    except UnicodeDecodeError:  # in a message of SQLite, which quotes what it found
        raise ValueError(f"{path}: {REASONS[sqlite3.SQLITE_CORRUPT]}") from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte is the kind of error
        reason = REASONS.get(code, one_line(str(error)))
        raise ValueError(f"{path}: {_not_ours(path) if code == sqlite3.SQLITE_READONLY else ''}{reason}") from error


def _not_ours(path: Path) -> str:
    """Names a file beside the store that this user may not write to, where there is one."""
    for name in (f"{path.name}-wal", f"{path.name}-shm"):
        beside = path.with_name(name)
        if beside.exists() and not os.access(beside, os.W_OK):
            return f"{name} belongs to another user, who has the store open or left it; "
    return ""
