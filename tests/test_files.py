"""Output: files are replaced whole and keep their mode and owner; links, devices and pipes are what they were."""

from __future__ import annotations

import errno
import os
import pty
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import mssp
from mssp._files import replacing, why_not_writable, write_whole
from mssp.cli import main
from tests.another_user import as_another_user, needs_root

LONG = "μP\n" * 50_000  # more than a pipe holds


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    base, target = (mssp.Shape(width=n, experts=8, active=8, expert_width=n, depth=2) for n in (64, 128))
    path = tmp_path / "plan.json"
    path.write_text(mssp.plan(target, base, lr=0.01, scheme="mup").json())
    return path


def folder_of(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()}


def read_in_the_background(path: Path) -> Callable[[], bytes]:
    """Reads a pipe to its end in a thread, and returns a function that waits for what was read."""
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    thread.start()

    def result() -> bytes:
        thread.join(20)
        return read[0]

    return result


def fail_half_way(path: Path) -> None:
    def write() -> None:
        with replacing(path) as unfinished:
            unfinished.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    write_whole(tmp_path / "new", "")
    assert (tmp_path / "new").stat().st_mode == usual.stat().st_mode


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "private.txt"
    path.touch(mode=0o600)
    with replacing(path) as unfinished:
        assert stat.S_IMODE(unfinished.stat().st_mode) == 0o600


@needs_root
def test_root_leaves_a_file_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "theirs.txt"
    path.write_text("old")
    os.chown(path, 1234, 4321)
    path.chmod(0o4755)
    write_whole(path, "new")
    after = path.stat()
    assert (path.read_text(), after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == ("new", 1234, 4321, 0o4755)


@needs_root
def test_another_users_file_is_not_taken_from_them(shared_folder: Path) -> None:
    def refusal(name: str) -> str:
        return as_another_user(f"print(mssp._files.why_not_writable(Path({str(shared_folder / name)!r})))").strip()

    path = shared_folder / "theirs.txt"
    path.write_text("old")
    path.chmod(0o666)
    assert refusal(path.name) == (
        "belongs to somebody else, and would be yours after that: remove it, or choose another path"
    )
    path.chmod(0o644)
    assert refusal(path.name) == "may not be written: check its permissions"
    shared_folder.chmod(0o755)
    assert refusal("new.txt") == f"may not be written: check the permissions of {shared_folder}"


def test_a_link_is_followed_to_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "real.txt").write_text("old")
    (folder / "inner").symlink_to("real.txt")
    (tmp_path / "outer").symlink_to(Path("elsewhere/inner"))
    (tmp_path / "dangling").symlink_to("elsewhere/new.txt")
    write_whole(tmp_path / "outer", "new")
    write_whole(tmp_path / "dangling", "made")
    assert ((folder / "real.txt").read_text(), (folder / "new.txt").read_text()) == ("new", "made")
    assert all(link.is_symlink() for link in (folder / "inner", tmp_path / "outer", tmp_path / "dangling"))
    assert folder_of(folder / "real.txt") == {"real.txt", "inner", "new.txt"}
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ValueError, match="circle cannot be written: Too many levels of symbolic links"):
        write_whole(tmp_path / "circle", "")
    (tmp_path / "nowhere").symlink_to("missing/file")
    with pytest.raises(ValueError, match=r"nowhere cannot be written: there is no folder .*missing"):
        write_whole(tmp_path / "nowhere", "")


def test_folders_and_sockets_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        for path, kind in ((tmp_path, "folder"), (tmp_path / "s", "socket")):
            with pytest.raises(ValueError, match=f"is a {kind}: a file is needed"):
                write_whole(path, "")
    assert folder_of(tmp_path / "s") == {"s"}


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    fail_half_way(path)
    assert (path.read_text(), folder_of(path)) == ("old", {"a.txt"})


def test_a_full_disk_is_told_of_by_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match=re.escape(f"[Errno 28] No space left on device: '{path}'")), replacing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert folder_of(path) == set()


def test_names_may_be_as_long_as_names_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("ö" * 127)
    write_whole(path, "whole")
    assert path.read_text() == "whole"


# -- pipes, devices and the standard output ----------------------------------------------------------------------------


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        content = read_in_the_background(tmp_path / name)
        write_whole(tmp_path / name, LONG)
        assert content() == LONG.encode()
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert folder_of(tmp_path / "pipe") == {"pipe", "link"}


def test_a_pipe_gets_nothing_of_what_failed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    fail_half_way(tmp_path / "pipe")  # would wait for a reader if it wrote


def test_a_pipe_that_nobody_reads_any_more_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    threading.Timer(0.5, os.close, (reader,)).start()  # by then the pipe is full
    with pytest.raises(BrokenPipeError, match="pipe"):
        write_whole(path, LONG)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_terminal_is_written_to() -> None:
    controller, terminal = pty.openpty()
    try:
        before = os.fstat(terminal)
        write_whole(Path(os.ttyname(terminal)), "to a terminal\n")
        assert os.read(controller, 100) == b"to a terminal\r\n"
        assert os.stat(os.ttyname(terminal)).st_rdev == before.st_rdev
    finally:
        os.close(controller)
        os.close(terminal)


@needs_root
def test_a_device_stays_a_device(tmp_path: Path, plan_file: Path) -> None:
    null = tmp_path / "null"
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    assert main(["export", "nanogpt", "--plan", str(plan_file), "-o", str(null)]) == 0
    assert stat.S_ISCHR(null.stat().st_mode)
    assert null.read_bytes() == b""
    disk = tmp_path / "disk"
    os.mknod(disk, 0o600 | stat.S_IFBLK, os.makedev(250, 77))
    assert why_not_writable(disk) == "is a disk: a file is needed"


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_the_standard_output_is_written_to(
    name: str, plan_file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["export", "nanogpt", "--plan", str(plan_file)]) == 0
    printed, warned = capfdbinary.readouterr()
    print("before")
    assert main(["export", "nanogpt", "--plan", str(plan_file), "-o", name]) == 0
    assert capfdbinary.readouterr() == (b"before\n" + printed, warned)


def test_output_that_goes_to_a_file_goes_on_there(tmp_path: Path, plan_file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mssp._files import write_whole; print('first');"
        "write_whole(Path('/dev/stdout'), 'second\\n'); print('third')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"
