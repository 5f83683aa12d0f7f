"""Files: written whole or not at all, and read with a plain message, or an empty text, if they are missing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO
from uuid import uuid4

_STANDARD_OUTPUT = Path("-")
_MOST_LINKS = 40  # as many as Linux follows


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary file to write to, whose content becomes that of the path at the end, unless there was an error.

    A file that is there is replaced in one step, and keeps its mode and its owner. A symbolic link is followed to its
    file. A device, a pipe and the standard output, whose name is ``-``, are written to: they are no files to replace.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as temporary:
    ...         written = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    if reason := why_not_writable(path):
        raise ValueError(f"{path} {reason}")
    if is_stream(path):
        with TemporaryDirectory() as folder:
            unfinished = Path(folder) / "unfinished"
            yield unfinished
            with unfinished.open("rb") as content, naming(path, unfinished), _opened(path) as stream:
                shutil.copyfileobj(content, stream)
        return
    target = _end_of_links(path)
    unfinished = target.with_name(f".{target.name[:50]}.{uuid4().hex[:8]}.part")
    try:
        with naming(path, unfinished):
            before = target.stat() if target.exists() else None
            # What others may not read of the old file, they may not read of the new one while it is written either.
            mode = 0o666 if before is None else 0o600
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            yield unfinished
            if before is not None:
                _keep_owner_and_mode(unfinished, before)
            os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def why_not_writable(path: Path) -> str:
    """Why :func:`replacing` cannot write to a path, as the rest of a sentence about the path; empty where it can."""
    if path == _STANDARD_OUTPUT:
        return ""
    try:
        target = _end_of_links(path)
        status = target.stat() if target.exists() else None
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    if status is None or stat.S_ISREG(status.st_mode):
        return _why_not_replaceable(target, status) if _descriptor(target) is None else ""
    if stat.S_ISDIR(status.st_mode):
        return "is a folder: a file is needed"
    if stat.S_ISBLK(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        return f"is a {'disk' if stat.S_ISBLK(status.st_mode) else 'socket'}: a file is needed"
    return "" if os.access(target, os.W_OK) else "may not be written: check its permissions"


def goes_to_standard_output(path: Path) -> bool:
    """Whether what is written to the path is printed, so that nothing else may be."""
    return path == _STANDARD_OUTPUT or _descriptor(_end_of_links(path)) == 1


def file_at(path: str | Path) -> Path:
    """The path, after a check that it is a file's."""
    path = Path(path)
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"{path} {reason}: a file is needed")
    return path


@cache
def text_at(path: str) -> str:
    """The text of a file that does not change while a program runs, or nothing if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


# -- what a path leads to ----------------------------------------------------------------------------------------------


def _end_of_links(path: Path) -> Path:
    """Where the symbolic links of a path end. An open file of this process is an end: its name may be gone."""
    for _ in range(_MOST_LINKS):
        if not path.is_symlink() or _descriptor(path) is not None:
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _descriptor(path: Path) -> int | None:
    """The number of an open file of this process, for paths such as ``/proc/self/fd/1``, to which /dev/stdout leads."""
    if not path.name.isdecimal() or path.parent.resolve() != Path(f"/proc/{os.getpid()}/fd"):
        return None
    return int(path.name)


def is_stream(path: Path) -> bool:
    """Whether a path, which can be written to, is written to and not replaced."""
    if path == _STANDARD_OUTPUT:
        return True
    target = _end_of_links(path)
    return _descriptor(target) is not None or (target.exists() and not target.is_file())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A stream, open for writing."""
    sys.stdout.flush()
    if path == _STANDARD_OUTPUT:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    target = _end_of_links(path)
    descriptor = _descriptor(target)
    # A copy of the descriptor goes on where the process's own output ended; the file opened anew would begin again.
    number = os.open(target, os.O_WRONLY) if descriptor is None else os.dup(descriptor)
    with os.fdopen(number, "wb") as stream:
        yield stream


# -- replacing a file --------------------------------------------------------------------------------------------------


def _why_not_replaceable(target: Path, status: os.stat_result | None) -> str:
    """Why a file cannot be replaced or made, where the status of one that is there is given."""
    if not target.parent.is_dir():
        return f"cannot be written: there is no folder {target.parent}"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"may not be written: check the permissions of {target.parent}"
    if status is not None and not os.access(target, os.W_OK):
        return "may not be written: check its permissions"
    if status is not None and not _can_keep_owner(status):
        return "belongs to somebody else, and would be yours after that: remove it, or choose another path"
    return ""


def _can_keep_owner(status: os.stat_result) -> bool:
    if os.name != "posix" or os.geteuid() == 0:
        return True
    return status.st_uid == os.geteuid() and status.st_gid in (os.getegid(), *os.getgroups())


def _keep_owner_and_mode(unfinished: Path, before: os.stat_result) -> None:
    now = unfinished.stat()
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.chown(unfinished, before.st_uid, before.st_gid)
    unfinished.chmod(stat.S_IMODE(before.st_mode))  # last, since another owner takes some bits away


@contextmanager
def naming(path: Path, unfinished: Path) -> Iterator[None]:
    """Gives the errors of writing, which name a temporary file or none, the name of the path."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(unfinished)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
