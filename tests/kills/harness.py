"""Kills commands at chosen moments, lets the same command end, and compares everything with a run that was not killed.

A :class:`Kill` says which command is killed, by which signal, and when. :class:`Bench` carries kills out, each in a
folder of its own, and raises :class:`DifferenceError` where something was lost, done twice, or left behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mssp.store.runs import FINISHED, Store

ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 120.0
_SMALL = ["--device", "cpu", "--steps", "8", "--batch", "10", "--validation", "50", "--seeds", "2"]
_TABLES = ("study", "chunk", "run", "metric", "curve", "checksum")
_HOW_TO_GO_ON = re.compile("^mssp: stopped: .*(?:run the same command again|the same command goes on)$", re.MULTILINE)
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+\d\d:\d\d)?")


class DifferenceError(AssertionError):
    """A killed command did not come to what it comes to when nobody kills it."""


@dataclass(frozen=True)
class Command:
    """A command, the store that it keeps, and what lies in its folder before."""

    arguments: tuple[str, ...]
    store: str | None = None
    prepare: Callable[[Path, Path], None] = lambda folder, references: None


def _store_and_old_page(folder: Path, references: Path) -> None:
    shutil.copy(references / "sweep" / "work" / "runs.sqlite", folder)
    (folder / "page.html").write_text("an old page", encoding="utf-8")


# The references are made in this order.
COMMANDS = {
    "sweep": Command(
        (
            *("sweep", "--regime", "I", "II", "--optimizer", "sgd", "adam", "--widths", "16", "32", "--lr-points", "3"),
            *("--multipliers", "ones", "--json", *_SMALL),
        ),
        "runs.sqlite",
    ),
    "tune": Command(
        (
            *("tune", "--optimizer", "adam", "--width", "32", "--points", "2", "--broad-points", "1", "--confirm", "2"),
            *("--json", *_SMALL),
        ),
        "runs.sqlite",
    ),
    "demo": Command(("demo", "--widths", "32", "64", "--steps", "6", "--seeds", "2"), "mssp-demo/runs.sqlite"),
    "report": Command(("report", "runs.sqlite", "-o", "page.html"), None, _store_and_old_page),
}


@dataclass(frozen=True)
class Moment:
    """So many seconds after an event happened so many times; after ``started`` it is a part of the unkilled time.

    Lines of our code that handle stores and files are events, too, such as ``runs.py:120``. Where the moment is at the
    event itself, the command holds still there until the signal comes.
    """

    event: str
    after: float = 0.0
    count: int = 1

    @property
    def holds(self) -> bool:
        return self.event != "started" and not self.after

    def __str__(self) -> str:
        if self.event == "started":
            return f"{self.after:.0%} of its time"
        return f"{self.event} {self.count}" + ("" if self.holds else f" + {1000 * self.after:.0f} ms")


@dataclass(frozen=True)
class Kill:
    """A command that is killed at one moment after another; ``beside`` it runs once more, and that one is spared."""

    command: str
    signal: signal.Signals
    moments: tuple[Moment, ...]
    beside: bool = False

    def __str__(self) -> str:
        moments = ", then ".join(map(str, self.moments))
        return f"{self.command} {self.signal.name} {moments}{', another beside it' if self.beside else ''}"


@dataclass(frozen=True)
class Death:
    """What was there when a command died: how it ended, chunks that it said were committed, runs, and files beside."""

    code: int
    committed: int
    done: dict[str, tuple[Any, ...]]  # finished runs by study and key
    chunks: tuple[int, int]  # finished, and all
    held: int  # chunks that are claimed and not given back
    log: bool
    hidden: bool

    def __str__(self) -> str:
        parts = ["had ended" if self.code == 0 else f"exit {self.code}"]
        parts += [f"{self.chunks[0]}/{self.chunks[1]} chunks"] if self.chunks[1] else []
        left = (("a chunk held", self.held), ("a log", self.log), ("a hidden file", self.hidden))
        return ", ".join([*parts, *(name for name, there in left if there)])


@dataclass
class Reference:
    """What a command comes to when nobody kills it."""

    seconds: float
    output: str
    files: dict[str, bytes]
    runs: dict[str, tuple[Any, ...]]
    rows: dict[str, int]
    events: Counter[str]
    lines: Counter[str] = field(default_factory=Counter)


Spoil = Callable[[Path], None]


def _nothing(folder: Path) -> None:
    pass


class Child:
    """A command under way in a folder, and the events that it has announced."""

    def __init__(
        self, bench: Bench, folder: Path, output: Path, arguments: Sequence[str], hold: Moment | None = None
    ) -> None:
        self._bench, self.output = bench, output
        self.events: Counter[str] = Counter()
        pipe = output / "events"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._ended, self._rest = False, b""
        request = {"arguments": arguments, "folder": str(folder), "output": str(output), "events": str(pipe)}
        self.pid = bench.ask(request | ({"hold": [hold.event, hold.count]} if hold is not None and hold.holds else {}))
        bench.living.add(self.pid)
        self.until("started")
        self.started = time.monotonic()

    def until(self, event: str, count: int = 1) -> bool:
        """Wait until an event has happened so often; False if the command ends before."""
        while self.events[event] < count and not self._ended:
            if not select.select([self._pipe], [], [], _PATIENCE_SECONDS)[0]:
                raise DifferenceError(f"nothing came of {self.output.name} in {_PATIENCE_SECONDS:.0f} s")
            part = os.read(self._pipe, 65536)
            # Before the command opens its end of the pipe, that end seems closed.
            self._ended = not part and bool(self.events)
            *lines, self._rest = (self._rest + part).split(b"\n")
            self.events.update(line.decode() for line in lines)
        return self.events[event] >= count

    def kill_at(self, moment: Moment, sent: signal.Signals, seconds: float) -> None:
        if moment.event == "started":
            time.sleep(max(0.0, self.started + moment.after * seconds - time.monotonic()))
        elif self.until(moment.event, moment.count):
            time.sleep(0.02 if moment.holds else moment.after)  # it announces a moment before it holds still
        os.kill(self.pid, sent)  # where it has ended, it is a zombie until it is asked how

    def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        while not self._ended:
            self.until("the end")
        os.close(self._pipe)
        (self.output / "events").unlink()
        code = self._bench.ask({"wait": self.pid})
        self._bench.living.discard(self.pid)
        return code


class Bench:
    """A fork server, the references, and a folder for each kill.

    The folders of kills that changed nothing are removed, so that only what differs is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.living: set[int] = set()
        self._folder = folder
        self._references: dict[str, Reference] = {}
        self._cases = 0
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.kills.server"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != "ready\n":
            raise RuntimeError("the server that forks commands did not start")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._end_the_living()
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.kill()
        self._server.wait()

    def ask(self, request: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def reference(self, name: str) -> Reference:
        """A command that nobody kills, once."""
        if name not in self._references:
            if name == "report":
                self.reference("sweep")  # of whose store the page is
            case = self._case(self._folder / "references" / name, name)
            child = Child(self, case / "work", case, COMMANDS[name].arguments)
            code = child.wait()
            seconds = time.monotonic() - child.started
            if code != 0:
                raise RuntimeError(f"{name} fails even if nobody kills it: {(case / 'stderr').read_text()}")
            store = COMMANDS[name].store
            runs, rows = ({}, {}) if store is None else _contents(case / "work" / store)
            files, output = _files(case / "work"), (case / "stdout").read_text(encoding="utf-8")
            self._references[name] = Reference(seconds, output, files, runs, rows, child.events)
        return self._references[name]

    def lines(self, name: str) -> Counter[str]:
        """The lines of our code that handle stores and files: how often a command that nobody kills comes to each."""
        reference = self.reference(name)
        if not reference.lines:
            case = self._case(self._folder / "references" / f"{name}-by-line", name)
            child = Child(self, case / "work", case, COMMANDS[name].arguments, Moment(".py:"))
            _expect(f"the exit code of {name}", child.wait(), 0)
            reference.lines.update({event: count for event, count in child.events.items() if ".py:" in event})
        return reference.lines

    def carry_out(self, kill: Kill, at_death: Spoil = _nothing, after_death: Spoil = _nothing) -> list[Death]:
        """Kill a command as often as it is said, let it end, and compare. Returns what was there at each death.

        Losses are planted by ``at_death``, before it is looked what is there, and by ``after_death``: functions of the
        folder in which the command works.
        """
        reference = self.reference(kill.command)
        command = COMMANDS[kill.command]
        self._cases += 1
        case = self._case(self._folder / f"{self._cases:03d}-{kill.command}-{kill.signal.name}", kill.command)
        deaths: list[Death] = []
        try:
            for number, moment in enumerate(kill.moments):
                code, committed = self._die(case, kill, moment, spared=kill.beside and number == 0)
                at_death(case / "work")
                deaths.append(_death(case, command, code, committed))
                _check_death(case, kill, deaths, reference)
                after_death(case / "work")
            child = Child(self, case / "work", case, command.arguments)
            _check_end(case, (child.wait(), child.events), deaths, reference, command)
        except (DifferenceError, ValueError, OSError, sqlite3.Error) as error:
            self._end_the_living()
            died = "; ".join(map(str, deaths))
            raise DifferenceError(f"{kill}{died and f' ({died})'}: {error}; its folder is {case}") from error
        shutil.rmtree(case)
        return deaths

    def _case(self, case: Path, name: str) -> Path:
        (case / "work").mkdir(parents=True)
        COMMANDS[name].prepare(case / "work", self._folder / "references")
        return case

    def _die(self, case: Path, kill: Kill, moment: Moment, spared: bool) -> tuple[int, int]:
        """Kill a command once. Returns its exit code, and how many chunks it said that it had committed."""
        arguments, reference = COMMANDS[kill.command].arguments, self.reference(kill.command)
        killed = Child(self, case / "work", case, arguments, moment)
        if not spared:
            killed.kill_at(moment, kill.signal, reference.seconds)
            return killed.wait(), killed.events["committed"]
        output = case / "spared"
        output.mkdir()
        other = Child(self, case / "work", output, arguments)
        killed.kill_at(moment, kill.signal, reference.seconds)
        code, other_code = killed.wait(), other.wait()
        errors = (output / "stderr").read_text(encoding="utf-8")
        _expect(f"the exit code of the one that was spared ({errors[-1000:]})", other_code, 0)
        printed = (output / "stdout").read_text(encoding="utf-8")
        _expect("what the one that was spared printed", printed, reference.output)
        claimed = killed.events["claimed"] + other.events["claimed"]
        if claimed > reference.events["claimed"] + 1:
            raise DifferenceError(f"the two claimed {claimed} chunks of {reference.events['claimed']}")
        shutil.rmtree(output)
        return code, reference.events["committed"]

    def _end_the_living(self) -> None:
        """End the commands that are still under way where an error came in between."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)
        self.living.clear()


# -- what is in a folder -----------------------------------------------------------------------------------------------


def _contents(path: Path) -> tuple[dict[str, tuple[Any, ...]], dict[str, int]]:
    """All runs of a store to the bit, by study and key, after checks that it is sound, and the rows of its tables."""
    with closing(sqlite3.connect(path)) as database:
        _expect("integrity_check", database.execute("PRAGMA integrity_check").fetchall(), [("ok",)])
        _expect("foreign_key_check", database.execute("PRAGMA foreign_key_check").fetchall(), [])
        rows = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in _TABLES}
    found: dict[str, tuple[Any, ...]] = {}
    with Store(path, read_only=True) as store:
        for name in store.studies():
            study = store.open_study(name)
            _expect("runs without a checksum", study.unchecked(), 0)
            for run in study.runs():
                key = f"{name}: {run.key}"
                if key in found:
                    raise DifferenceError(f"run {key} is there twice")
                curves = {curve: points.tobytes() for curve, points in study.curves(run.key).items()}
                metrics = {metric: float(value).hex() for metric, value in run.metrics.items()}
                # The seconds come last: they differ, but not those of a run that was finished before.
                found[key] = (run.chunk, run.status, run.diverged_at, run.spec, metrics, curves, run.seconds)
    return found, rows


def _files(folder: Path) -> dict[str, bytes]:
    """The files of a folder but stores, with times left out; of hidden files, only that they are there."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        is_read = path.suffix in (".json", ".html") and not path.name.startswith(".")
        found[name] = _TIME.sub(b"TIME", path.read_bytes()) if is_read else b""
    return found


def _hidden(names: Sequence[str] | dict[str, bytes]) -> set[str]:
    return {name for name in names if name.rpartition("/")[2].startswith(".")}


def _death(case: Path, command: Command, code: int, committed: int) -> Death:
    """What is there, read from a copy: whoever opens a store mends it."""
    work = case / "work"
    store = None if command.store is None else work / command.store
    done: dict[str, tuple[Any, ...]] = {}
    chunks, held, log = (0, 0), 0, False
    if store is not None and store.exists():
        copies = case / "copies"
        copies.mkdir()
        for end in ("", "-wal"):
            beside = store.with_name(store.name + end)
            if beside.exists():
                shutil.copy(beside, copies)
        log = (copies / f"{store.name}-wal").exists()
        runs, _ = _contents(copies / store.name)
        with closing(sqlite3.connect(copies / store.name)) as database:
            (held,) = database.execute("SELECT count(*) FROM chunk WHERE status = 'running'").fetchone()
        done = {key: run for key, run in runs.items() if run[1] in FINISHED}
        of_study = {(key.partition(": ")[0], run[0]): run[1] in FINISHED for key, run in runs.items()}
        chunks = (sum(of_study.values()), len(of_study))
        shutil.rmtree(copies)
    return Death(code, committed, done, chunks, held, log, any(work.rglob(".*")))


# -- what must be ------------------------------------------------------------------------------------------------------


def _expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise DifferenceError(f"{what}: {_shown(found)} and not {_shown(expected)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}..."


def _check_death(case: Path, kill: Kill, deaths: Sequence[Death], reference: Reference) -> None:
    """What holds at once: how it ended, what it said, that what it committed is there, and no file is half written."""
    death = deaths[-1]
    errors = (case / "stderr").read_text(encoding="utf-8")
    allowed = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (143, 0), signal.SIGINT: (130, 0)}[kill.signal]
    if death.code not in allowed:
        raise DifferenceError(f"it ended with {death.code} and not {allowed[0]}: {errors[-1000:]}")
    if "Traceback" in errors or "Exception ignored" in errors:
        raise DifferenceError(f"it printed a traceback: {errors[-1000:]}")
    _expect(f"lines that say how to go on ({errors[-1000:]})", len(_HOW_TO_GO_ON.findall(errors)), int(death.code > 0))
    if death.chunks[0] < sum(each.committed for each in deaths):
        raise DifferenceError(f"{sum(each.committed for each in deaths)} chunks were committed, {death} is there")
    # A signal on the very line that removes a file comes before the removal: no Python program can rule that out.
    on_a_line = ".py:" in kill.moments[len(deaths) - 1].event
    if kill.signal is not signal.SIGKILL and (death.held or death.log or (death.hidden and not on_a_line)):
        raise DifferenceError("it ended in order, and left something behind")
    files = _files(case / "work")
    old = {"page.html": b"an old page"}
    for name, content in files.items():
        is_read = name not in _hidden(files) and ".sqlite" not in name
        if is_read and content not in (reference.files.get(name), old.get(name)):
            raise DifferenceError(f"{name} is not whole")
    _check_kept(death.done, reference.runs, "when it died")


def _check_kept(done: dict[str, tuple[Any, ...]], runs: dict[str, tuple[Any, ...]], when: str) -> None:
    for key, run in done.items():
        _expect(f"run {key} {when}", run[:-1], runs[key][:-1] if key in runs else None)


def _check_end(
    case: Path, ended: tuple[int, Counter[str]], deaths: Sequence[Death], reference: Reference, command: Command
) -> None:
    """What holds in the end: everything is as if nobody had killed it, and what was finished was not done again."""
    code, events = ended
    errors = (case / "stderr").read_text(encoding="utf-8")
    _expect(f"the exit code ({errors[-1000:]})", code, 0)
    _expect("the printed result", (case / "stdout").read_text(encoding="utf-8"), reference.output)
    files = _files(case / "work")
    _expect("files", sorted(files.keys() - _hidden(files)), sorted(reference.files))
    for name, content in reference.files.items():
        _expect(name, files[name], content)
    if command.store is not None:
        runs, rows = _contents(case / "work" / command.store)
        _expect("rows", rows, reference.rows)
        _expect("runs", sorted(runs), sorted(reference.runs))
        _check_kept(runs, reference.runs, "in the end")
        for death in deaths:
            for key, run in death.done.items():
                _expect(f"seconds of run {key}, which was finished before", runs[key][-1], run[-1])
        left = reference.events["claimed"] - deaths[-1].chunks[0]
        _expect("chunks that were trained after the last death", events["claimed"], left)
