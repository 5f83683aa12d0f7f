"""Chunk ownership: which process claimed a chunk, and is it still running?

A chunk is a group of runs that train together, and its owner is the open store that claimed it. The chunk of a killed
process can be claimed again: at once where its process or its lock would be seen from here, or else when its heartbeat
has been missing for two minutes.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from mssp._constraints import shown
from mssp._environment import this_host
from mssp._files import text_at
from mssp.store import presence

# An owner in another container or on another host, whose lock cannot be seen, counts as dead if its heartbeat is older.
HEARTBEAT_SECONDS = 120.0
_LARGEST_PID = 2**31
OPEN: WeakValueDictionary[str, object] = WeakValueDictionary()  # the open stores of this process, by their tokens


def claim(
    database: sqlite3.Connection, study: int, owner: int, among: Collection[int] | None, folder: Path
) -> int | None:
    """Claim the first chunk that is neither finished, nor failed, nor held by a living process. Returns its number."""
    free = f"status = 'pending' OR status = 'running' AND owner IN ({gone(database, study, folder)})"
    first = f"SELECT min(number) FROM chunk WHERE study = ? AND ({free}){among_numbers(among, 'number')}"
    (number,) = database.execute(first, (study,)).fetchone()
    if number is None:
        return None
    take = "UPDATE chunk SET status = 'running', owner = ? WHERE study = ? AND number = ?"
    database.execute(take, (owner, study, number))
    database.execute("INSERT OR IGNORE INTO work VALUES (?, ?)", (study, owner))
    return int(number)


class Owner(NamedTuple):
    """The owner of a running chunk, as the store keeps it; ``place`` is where it shows that it lives, if it does."""

    number: int
    token: str
    host: str
    pid: int
    started: str
    heartbeat: float
    place: str | None

    def check(self) -> None:
        """Refuse what no process has written."""
        texts = all(isinstance(text, str) for text in (self.token, self.host, self.started, self.place or ""))
        numbers = isinstance(self.pid, int) and isinstance(self.heartbeat, float) and 0 < self.pid < _LARGEST_PID
        if not (texts and numbers):
            got = ", ".join(shown(value) for value in self[1:])
            raise ValueError(f"owner {self.number} is no process, got {got}; bring back a copy or choose another path")

    @property
    def is_elsewhere(self) -> bool:
        """Whether its process number means nothing here: it is in another container, or on another machine."""
        return self.host != this_host() or os.name != "posix"

    def lives(self, folder: Path) -> bool:
        """Whether it still runs. A pid does not tell, since a new process may have the pid of a dead owner."""
        if not self.is_elsewhere:
            # A store of this process that was dropped without being closed counts as dead, too.
            return process_start(self.pid) in (self.started, "") and (self.pid != os.getpid() or self.token in OPEN)
        held = self._is_locked(folder)
        return abs(time.time() - self.heartbeat) < HEARTBEAT_SECONDS if held is None else held

    def in_words(self, folder: Path) -> str:
        """What it does, and when its runs are taken over if it is not heard of."""
        if not self.is_elsewhere:
            return f"process {self.pid} trains"
        words = f"process {self.pid} in another container or on another machine trains"
        if self._is_locked(folder) is not None:
            return words
        left = max(0.0, HEARTBEAT_SECONDS - abs(time.time() - self.heartbeat))
        return f"{words}; without a sign of life from there, they are taken over in {left:.0f} s"

    def _is_locked(self, folder: Path) -> bool | None:
        """Whether its lock is held; None where that cannot be seen from here."""
        has_lock = (
            re.fullmatch("[0-9a-f]{1,16}", self.token) is not None
        )  # its place in the folder is made of the token
        is_here = has_lock and bool(self.place) and self.place == presence.place(folder)
        return presence.is_held(folder, self.token) if is_here else None


def owners(database: sqlite3.Connection, study: int, among: Collection[int] | None = None) -> list[Owner]:
    """The owners of the running chunks of a study, or of those with these numbers."""
    has_place = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'presence'").fetchone()
    place = "(SELECT place FROM presence WHERE presence.owner = owner.id)" if has_place else "NULL"
    columns = f"DISTINCT id, token, host, pid, started, heartbeat, {place}"
    # A chunk whose owner is missing would be waited for without end.
    query = f"SELECT {columns} FROM chunk LEFT JOIN owner ON owner = id WHERE study = ? AND status = 'running'"
    found = [Owner(*row) for row in database.execute(query + among_numbers(among, "number"), (study,))]
    for owner in found:
        owner.check()
    return found


def gone(database: sqlite3.Connection, study: int, folder: Path) -> str:
    """The numbers of the owners that died while they held a chunk of a study, as a list for SQL."""
    return ", ".join(str(owner.number) for owner in owners(database, study) if not owner.lives(folder))


def among_numbers(numbers: Collection[int] | None, column: str) -> str:
    """A condition to append to a WHERE clause: the column holds one of these numbers. Empty for None."""
    return "" if numbers is None else f" AND {column} IN ({', '.join(str(int(number)) for number in numbers)})"


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
