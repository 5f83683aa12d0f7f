"""Cases: something broken, the command line that reads it, and what has to hold whatever was broken.

A kind makes a case from a seed. A case is accepted or refused in one line: no traceback, no waiting, and nothing that
is written by half.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType

from mssp.cli.commands import main
from tests.fuzz.mutations import Step

SECONDS = 20.0  # what a case may take
_LONGEST = 600  # characters of a refusal
_REFUSED = 2
_STOPPED = (130, 143)  # by Ctrl-C, by SIGTERM
Run = Callable[[Sequence[str], float], "Outcome"]  # of the words of a command, for so many seconds at most
Contents = dict[str, bytes]  # of a folder: digests by the names of files


@dataclass(frozen=True)
class Outcome:
    """What a command did. ``code`` is None where it was stopped."""

    code: int | None
    out: str
    err: str

    @property
    def accepted(self) -> bool:
        return self.code != _REFUSED


def nothing_to_ask(_: Outcome) -> None:
    """The oracle of a case that only has to end well."""


@dataclass(frozen=True)
class Case:
    """Broken files in a folder, and what reads them.

    Args:
        words: of the command line, after ``mssp``; paths are relative to the folder.
        read: reads the same in Python, and holds what it accepts against an oracle. It may raise a ValueError.
        oracle: asks whether what the command accepted is right; it runs in the folder, and raises an AssertionError.
        writes: the names of files that the command may write when it accepts, or their beginnings before a ``*``.
        always_writes: those that it may also leave changed where it refuses, since it had begun to work.
        has_verdict: whether the command exits with 1 where a verdict fails.
    """

    words: Sequence[str]
    read: Callable[[], None] | None = None
    oracle: Callable[[Outcome], None] = nothing_to_ask
    writes: Collection[str] = ()
    always_writes: Collection[str] = ()
    has_verdict: bool = False


@dataclass(frozen=True)
class Kind:
    """A kind of input: its steps are drawn from random numbers, and a case is made of them in an empty folder.

    ``make`` gets the random numbers of a case, for choices that do not depend on the steps.
    """

    name: str
    draw: Callable[[Random], list[Step]]
    make: Callable[[Random, Sequence[Step], Path], Case]

    def steps(self, seed: int) -> list[Step]:
        return self.draw(Random(f"{self.name} {seed}"))

    def case(self, seed: int, steps: Sequence[Step], folder: Path) -> Case:
        return self.make(Random(f"{self.name} {seed} made"), steps, folder)


class Hang(BaseException):
    """A case took too long. No ``except Exception`` takes it for a mistake of the library."""


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[None]:
    """A block that is stopped after so many seconds."""

    def stop(_: int, frame: FrameType | None) -> None:
        raise Hang("".join(traceback.format_stack(frame)[-6:]))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_process(words: Sequence[str], seconds: float = SECONDS) -> Outcome:
    """What a command does in this process and its folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with watched(seconds):
                code: int | None = main(words)
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        except Hang as hang:
            code, _ = None, err.write(str(hang))
    if code in _STOPPED:
        raise KeyboardInterrupt  # whoever stops a command here means the whole of it
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Outcome(code, *texts)


def as_program(words: Sequence[str], seconds: float = SECONDS, program: Sequence[str] = ("-m", "mssp")) -> Outcome:
    """What the program does in the folder of this process, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, *program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    ) as process:
        try:
            streams, code = process.communicate(timeout=seconds), process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            streams, code = process.communicate(), None
    out, err = (stream.decode() for stream in streams)
    return Outcome(code, out, err)


def contents(folder: Path) -> Contents:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).digest() for path in files}


def faults(
    kind: Kind, seed: int, steps: Sequence[Step], folder: Path, run: Run = in_process, seconds: float = SECONDS
) -> tuple[Outcome, list[str]]:
    """How a case ends in a folder, which is made anew, and what is wrong with that."""
    case = kind.case(seed, steps, empty(folder))
    with contextlib.chdir(folder):
        before, started = contents(folder), time.monotonic()
        outcome = run(case.words, seconds)
        found = [*_wrong_in(case, outcome, before, contents(folder), time.monotonic() - started)]
        if outcome.accepted and not found:
            found += _wrong_with(lambda: case.oracle(outcome), "accepted", seconds)
        if case.read is not None:
            found += _wrong_with(case.read, "in Python", seconds)
    return outcome, found


def _wrong_in(case: Case, outcome: Outcome, before: Contents, after: Contents, seconds: float) -> Iterator[str]:
    """What is wrong with the end of a command, and with what it left in its folder."""
    code, out, err = outcome.code, outcome.out, outcome.err
    if code is None:
        yield f"it was stopped after {seconds:.0f} s: {err[-3000:]}"
    elif code not in (0, _REFUSED, *([1] if case.has_verdict else [])) or "Traceback (most" in err:
        yield f"exit code {code}: {err[-3000:]}"
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    may_change = [*case.always_writes, *([] if code == _REFUSED else case.writes)]
    if others := [name for name in sorted(changed) if not any(_covers(pattern, name) for pattern in may_change)]:
        yield f"it changed {', '.join(others)}"
    if unfinished := [name for name in after if name.endswith(".part")]:
        yield f"it left {', '.join(unfinished)}"
    if code == _REFUSED:
        is_line = re.fullmatch(r"mssp: error: .*\w.*", err.removesuffix("\n")) is not None and err.endswith("\n")
        if not is_line or not err[:-1].isprintable() or len(err) > _LONGEST:
            yield f"it refused not in one line of {_LONGEST} characters: {err[:2000]!r}"
        if out:
            yield f"it printed before it refused: {out[:300]!r}"


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _wrong_with(read: Callable[[], None], where: str, seconds: float) -> Iterator[str]:
    """What is wrong with a reader: anything but an end without error, or a ValueError of one line."""
    try:
        with watched(seconds):
            read()
    except ValueError as error:
        message = str(error)
        if len(message.splitlines()) != 1 or len(message) > _LONGEST:
            yield f"{where}: refused not in one line of {_LONGEST} characters: {message[:2000]!r}"
        elif type(error) is not ValueError and not type(error).__module__.startswith("mssp."):
            yield f"{where}: {type(error).__name__}: {traceback.format_exc(limit=-6)}"
    except (Exception, Hang) as error:
        yield f"{where}: {type(error).__name__}: {traceback.format_exc(limit=-6)}"


@dataclass(frozen=True)
class Failure:
    """A case that ended as none may, with the few of its steps that it takes for that."""

    kind: Kind
    seed: int
    steps: Sequence[Step]
    faults: Sequence[str]

    def __str__(self) -> str:
        """The failure in words, and the command that shows it again."""
        steps = " ".join(f"{step.name!r}({step.seed})" for step in self.steps) or "nothing"
        head = f"{self.kind.name}, seed {self.seed}, after {steps}"
        again = f"again: python -m tests.fuzz --kind {self.kind.name} --seed {self.seed}"
        return "\n".join([head, *self.faults, again])

    @property
    def place(self) -> str:
        """Where the traceback ends, or what was said where there is none, without its numbers."""
        frames = re.findall(r'File "(.+)", line (\d+)', "\n".join(self.faults))
        return ":".join(frames[-1]) if frames else re.sub(r"\d+", "#", self.faults[0][:80])


def tried(
    kind: Kind, seed: int, folder: Path, run: Run = in_process, seconds: float = SECONDS
) -> tuple[Outcome, Failure | None]:
    """How the case of a seed ends, and what is wrong with that, if anything is."""
    steps: Sequence[Step] = kind.steps(seed)
    outcome, found = faults(kind, seed, steps, folder, run, seconds)
    if not found:
        return outcome, None
    steps = shrunk(lambda fewer: bool(faults(kind, seed, fewer, folder, run, seconds)[1]), steps)
    return outcome, Failure(kind, seed, steps, faults(kind, seed, steps, folder, run, seconds)[1] or found)


def shrunk(fails: Callable[[Sequence[Step]], bool], steps: Sequence[Step]) -> Sequence[Step]:
    """As few of the steps as still fail."""
    for number in reversed(range(len(steps))):
        fewer = [*steps[:number], *steps[number + 1 :]]
        if fails(fewer):
            steps = fewer
    return steps


def empty(folder: Path) -> Path:
    """The folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


assert sys.platform != "win32", "cases are watched by signals"
