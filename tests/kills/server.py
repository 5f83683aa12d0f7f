"""A process that has imported everything and forks a child for each command, so that none pays for the imports.

``python -m tests.kills.server`` reads requests from its input, one JSON document a line, and answers each with a line:

    {"arguments": [...], "folder": ..., "output": ..., "events": ..., "hold": [event, count]}    the child's number
    {"wait": number}                                                         how it ended: its exit code, or -signal

A child works in ``folder``, and writes ``stdout`` and ``stderr`` in the folder ``output``. To the pipe ``events`` it
writes what it does: ``started``, ``claimed``, ``committing`` and ``committed`` for chunks, ``linking`` for a new store,
``replacing`` for a file. It holds still at one of them, if it is asked to, until a signal reaches it there. If that is
a line of our code that handles stores and files, such as ``runs.py:120``, it announces these lines, too.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

HOLD_SECONDS = 20.0  # longer than a busy machine needs to send a signal
UNHANDLED = 99  # the exit code of a child whose error left `main`
_TRACED = (
    *(f"mssp/store/{name}.py" for name in ("database", "ownership", "presence", "rows", "runs", "snapshot")),
    *("mssp/_files.py", "mssp/cli/training.py", "mssp/sweep/execution.py", "mssp/sweep/evaluation.py"),
)
_NEEDED = (
    "transformers.models.olmoe.modeling_olmoe",
    "mssp.cli.commands",
    "mssp.coordcheck.ladder_runs",
    "mssp.dmft.document",
    "mssp.report.findings",
    "mssp.report.saving",
    "mssp.report.sections",
    "mssp.store.table",
    "mssp.sweep.evaluation",
    "mssp.sweep.search_text",
    "mssp.sweep.transfer_text",
)


def serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask, and they end this process
    _import()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                _command(request)
        print(answer, flush=True)


def _import() -> None:
    """Import what commands need, and compute nothing: a child does not inherit threads."""
    for name in _NEEDED:
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a forked child has no threads"


def _command(request: dict[str, Any]) -> NoReturn:
    """Carry out a command in a child of the server, as the program ``mssp`` would."""
    import torch

    from mssp.cli import main

    code = UNHANDLED
    try:
        output = Path(request["output"])
        os.chdir(request["folder"])
        for number, path in ((0, Path(os.devnull)), (1, output / "stdout"), (2, output / "stderr")):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags, 0o600), number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        torch.set_num_threads(1)
        _shrink_the_demo()
        announce = _Announcer(request["events"], request.get("hold"))
        _watch(announce)
        if ".py:" in request.get("hold", [""])[0]:
            sys.settrace(_line_announcer(announce))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(request["arguments"])
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    gc.collect()  # at the end of a Python program, too, what was not closed is
    os._exit(code)


class _Announcer:
    """Writes events to a pipe, and holds still at one of them."""

    def __init__(self, path: str, hold: tuple[str, int] | None) -> None:
        self._pipe = os.open(path, os.O_WRONLY)
        self._hold, self._seen = hold, Counter[str]()

    def __call__(self, event: str) -> None:
        self._seen[event] += 1
        os.write(self._pipe, f"{event}\n".encode())
        if self._hold is not None and [event, self._seen[event]] == list(self._hold):
            time.sleep(HOLD_SECONDS)


def _line_announcer(announce: _Announcer) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that announces the lines of our code that handles stores and files."""

    def each_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            announce(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
        return each_line

    def each_call(frame: FrameType, event: str, _: Any) -> Any:
        return each_line if frame.f_code.co_filename.endswith(_TRACED) else None

    return each_call


def _watch(announce: _Announcer) -> None:
    """Announce what a child does to its store and its files."""
    from mssp.cli import commands
    from mssp.store import runs
    from mssp.store.runs import Study

    _before(commands, "_parse", lambda: announce("started"))
    _after(commands, "_run", lambda _: _end())
    _after(Study, "claim", lambda chunk: announce("claimed") if chunk is not None else None)
    _before(runs, "checksum_of", lambda: announce("committing"))  # the last thing in the transaction of a chunk
    _after(Study, "finish", lambda _: announce("committed"))
    _before(os, "link", lambda: announce("linking"))
    _before(os, "replace", lambda: announce("replacing"))


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    """Act before each call of a function."""
    function = getattr(owner, name)

    @wraps(function)
    def acting(*arguments: Any, **named: Any) -> Any:
        act()
        return function(*arguments, **named)

    setattr(owner, name, acting)


def _after(owner: Any, name: str, act: Callable[[Any], None]) -> None:
    """Act on what each call of a function has returned."""
    function = getattr(owner, name)

    @wraps(function)
    def acting(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        act(found)
        return found

    setattr(owner, name, acting)


def _end() -> None:
    """The command has ended, and only this process is left to end: signals that come now are for nobody."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def _shrink_the_demo() -> None:
    """Make the demo as small as ``tests/cli/test_demo.py`` makes it."""
    from mssp.cli import demo

    demo._SAMPLES, demo._SOLVES, demo._NETWORKS, demo._SEEDS = 1200, 2, (16, 32), 4  # type: ignore[assignment]
    demo._UPDATES, demo._CHECK_STEPS = 3, 3


if __name__ == "__main__":
    serve()
