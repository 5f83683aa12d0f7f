"""Chunk ownership: which process claimed a chunk, and is it still running? A killed one must not hold it for ever."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from mssp._environment import this_host
from mssp._files import text_at

HEARTBEAT_SECONDS = 120.0  # silence after which an owner that cannot be looked at counts as dead
OPEN: WeakValueDictionary[str, object] = WeakValueDictionary()  # this process's stores, by their owners' tokens


def claim(database: sqlite3.Connection, study: int, owner: int, among: Collection[int] | None) -> int | None:
    """The first chunk that is neither finished, nor failed, nor held by a living process; now held by this owner."""
    free = f"status = 'pending' OR status = 'running' AND owner IN ({gone(database, study)})"
    first = f"SELECT min(number) FROM chunk WHERE study = ? AND ({free}){among_numbers(among, 'number')}"
    (number,) = database.execute(first, (study,)).fetchone()
    if number is not None:
        hold = "UPDATE chunk SET status = 'running', owner = ? WHERE study = ? AND number = ?"
        database.execute(hold, (owner, study, number))
        database.execute("INSERT OR IGNORE INTO work VALUES (?, ?)", (study, owner))
    return None if number is None else int(number)


def let_go(
    database: sqlite3.Connection, study: int, owner: int | None, number: int, status: str, error: str | None
) -> None:
    """Give a chunk another status, if this owner still holds it."""
    release = "UPDATE chunk SET status = ?, error = ?, owner = NULL WHERE study = ? AND number = ?"
    database.execute(f"{release} AND status = 'running' AND owner = ?", (status, error, study, number, owner))


def gone(database: sqlite3.Connection, study: int) -> str:
    """The numbers of the owners that died at their work, for SQL."""
    life = "token, host, pid, started, heartbeat"
    query = f"SELECT DISTINCT id, {life} FROM chunk JOIN owner ON owner = id WHERE study = ? AND status = 'running'"
    return ", ".join(str(owner) for owner, *life in database.execute(query, (study,)) if not lives(*life))


def among_numbers(numbers: Collection[int] | None, column: str) -> str:
    """A further condition, for SQL."""
    return "" if numbers is None else f" AND {column} IN ({', '.join(str(int(number)) for number in numbers)})"


def lives(token: str, host: str, pid: int, started: str, heartbeat: float) -> bool:
    """Whether an owner can still finish what it holds; a new process with an old one's number is another."""
    if host != this_host() or os.name != "posix":
        return abs(time.time() - heartbeat) < HEARTBEAT_SECONDS
    now = process_start(pid)
    # Of this process, stores that were dropped without being closed hold nothing.
    return now in (started, "") and (pid != os.getpid() or token in OPEN)


def process_start(pid: int) -> str:
    """Boot and clock tick, which tell a process from others of its number; "dead", or "" where no one can tell."""
    try:
        # The name stands in brackets and may hold anything; the start is the 22nd field, the 20th after the name.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return _answer(pid) if os.name == "posix" else ""
    # A zombie has ended, and waits for its parent to ask.
    return "dead" if fields[0] in "ZX" else f"{text_at('/proc/sys/kernel/random/boot_id')}:{fields[19]}"


def _answer(pid: int) -> str:
    """The same for a process that /proc does not show."""
    with suppress(PermissionError):  # someone else's
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "dead"
    return ""
