"""Chunk ownership: which process claimed a chunk, and is it still running?

A chunk is a group of runs that train together, and its owner is the open store that claimed it. The chunk of a killed
process can be claimed again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from weakref import WeakValueDictionary

from mssp._environment import this_host
from mssp._files import text_at

HEARTBEAT_SECONDS = 120.0  # an owner in another container or host counts as dead if its heartbeat is older
OPEN: WeakValueDictionary[str, object] = WeakValueDictionary()  # the open stores of this process, by their tokens


def claim(database: sqlite3.Connection, study: int, owner: int, among: Collection[int] | None) -> int | None:
    """Claim the first chunk that is neither finished, nor failed, nor held by a living process. Returns its number."""
    free = f"status = 'pending' OR status = 'running' AND owner IN ({gone(database, study)})"
    first = f"SELECT min(number) FROM chunk WHERE study = ? AND ({free}){among_numbers(among, 'number')}"
    (number,) = database.execute(first, (study,)).fetchone()
    if number is None:
        return None
    take = "UPDATE chunk SET status = 'running', owner = ? WHERE study = ? AND number = ?"
    database.execute(take, (owner, study, number))
    database.execute("INSERT OR IGNORE INTO work VALUES (?, ?)", (study, owner))
    return int(number)


def gone(database: sqlite3.Connection, study: int) -> str:
    """The numbers of the owners that died while they held a chunk of a study, as a list for SQL."""
    life = "token, host, pid, started, heartbeat"
    query = f"SELECT DISTINCT id, {life} FROM chunk JOIN owner ON owner = id WHERE study = ? AND status = 'running'"
    return ", ".join(str(owner) for owner, *life in database.execute(query, (study,)) if not lives(*life))


def among_numbers(numbers: Collection[int] | None, column: str) -> str:
    """A condition to append to a WHERE clause: the column holds one of these numbers. Empty for None."""
    return "" if numbers is None else f" AND {column} IN ({', '.join(str(int(number)) for number in numbers)})"


def lives(token: str, host: str, pid: int, started: str, heartbeat: float) -> bool:
    """Whether an owner still runs. A pid does not tell, since a new process may have the pid of a dead owner."""
    if host != this_host() or os.name != "posix":
        return abs(time.time() - heartbeat) < HEARTBEAT_SECONDS
    # A store of this process that was dropped without being closed counts as dead, too.
    return process_start(pid) in (started, "") and (pid != os.getpid() or token in OPEN)


def process_start(pid: int) -> str:
    """The boot and the clock tick of a process's start, which distinguish it from later processes with the same pid.

    Returns "dead" where there is no such process, and "" where its start cannot be read.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "dead" if os.name == "posix" and _is_dead(pid) else ""
    # The process's name is in brackets and may hold anything; the start is the 22nd field, the 20th after the name.
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie has ended, and only waits for its parent to read its exit status.
    return "dead" if state in "ZX" else f"{text_at('/proc/sys/kernel/random/boot_id')}:{fields[18]}"


def _is_dead(pid: int) -> bool:
    """Whether a process that /proc does not show has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it runs as another user
    return False
