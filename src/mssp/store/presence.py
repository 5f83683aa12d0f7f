"""Shows to all processes of a machine, whatever container they are in, that the owner of chunks still runs.

An owner holds a lock on the folder of its store, at a place of its own. The kernel drops the lock when the process
ends, however it ends. Numbers of processes say nothing across containers, and a heartbeat has to be waited for.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from mssp._files import text_at

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# Locks of an open file, which end with it and which other open files of the process do not touch: Linux alone has them.
_SET, _ASK = (getattr(fcntl, name, None) for name in ("F_OFD_SETLK", "F_OFD_GETLK"))
_FLOCK = "hhqqi4x"  # the kernel's struct flock: kind, whence, start, length, process


def hold(folder: Path, token: str) -> int | None:
    """Take an owner's lock. Returns the open folder, whose closing ends the lock; None where there are no locks."""
    return _locking(folder, _SET, token, "F_RDLCK")[0]


def place(folder: Path) -> str:
    """The folder as the kernel knows it; empty where it has no locks. Equal places have locks in common."""
    if _SET is None:
        return ""
    status = folder.stat()
    return f"{text_at('/proc/sys/kernel/random/boot_id')}:{status.st_dev}:{status.st_ino}"


def is_held(folder: Path, token: str) -> bool | None:
    """Whether the lock of an owner is held; None where that cannot be known."""
    descriptor, answer = _locking(folder, _ASK, token, "F_WRLCK")
    if descriptor is None or fcntl is None:
        return None
    os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _locking(folder: Path, request: int | None, token: str, kind: str) -> tuple[int | None, bytes]:
    """The open folder and the kernel's answer to a request; None where the file system or the system has no locks."""
    if request is None:
        return None, b""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        byte = int(token, 16) >> 2  # in the range of file positions
        answer = fcntl.fcntl(descriptor, request, struct.pack(_FLOCK, getattr(fcntl, kind), os.SEEK_SET, byte, 1, 0))
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None, b""
    return descriptor, answer
