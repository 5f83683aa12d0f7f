"""A process that has imported everything and forks a child for each command, so that none pays for the imports.

``python -m tests.kills.server`` reads requests from its input, one JSON document a line, and answers each with a line:

    {"arguments": [...], "folder": ..., "events": ..., "hold": [event, count]}    the number of the child's process
    {"wait": pid}                                                                 how it ended: its exit code, or -signal

A child writes to the pipe ``events`` what it does: ``started``, ``claimed``, ``committing`` and ``committed`` for
chunks, ``linking`` for a new store, ``replacing`` for a file. It holds still at one of them for a moment, if it is
asked to, so that a signal reaches it there. ``shrink`` makes the demo small in the way of ``tests/cli/test_demo.py``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

HOLD_SECONDS = 0.3
UNHANDLED = 99  # the exit code of a child whose error left `main`


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
    import transformers.models.olmoe.modeling_olmoe

    import mssp.cli.commands
    import mssp.coordcheck.ladder_runs
    import mssp.dmft.document
    import mssp.report.findings
    import mssp.report.saving
    import mssp.report.sections
    import mssp.store.table
    import mssp.sweep.evaluation
    import mssp.sweep.search_text
    import mssp.sweep.transfer_text

    assert len(os.listdir("/proc/self/task")) == 1, "a forked child has no threads"


def _command(request: dict[str, Any]) -> NoReturn:
    """Carry out a command in a child of the server, as the program ``mssp`` would."""
    import torch

    from mssp.cli import main

    code = UNHANDLED
    try:
        os.chdir(request["folder"])
        for number, name in ((0, os.devnull), (1, "../stdout"), (2, "../stderr")):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(name, flags, 0o600), number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)
        torch.set_num_threads(1)
        _shrink_the_demo()
        announce = _Announcer(request["events"], request.get("hold"))
        _watch(announce)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        announce("started")
        code = main(request["arguments"])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has ended, all but in name
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
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


def _watch(announce: _Announcer) -> None:
    """Announce what a child does to its store and its files."""
    from mssp.store import runs
    from mssp.store.runs import Study

    claim, finish, checksum_of, link, replace = Study.claim, Study.finish, runs.checksum_of, os.link, os.replace

    def claiming(*arguments: Any) -> Any:
        chunk = claim(*arguments)
        if chunk is not None:
            announce("claimed")
        return chunk

    def finishing(*arguments: Any) -> None:
        finish(*arguments)
        announce("committed")

    def before(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*arguments: Any, **named: Any) -> Any:
            announce(event)
            return function(*arguments, **named)

        return announced

    Study.claim, Study.finish = claiming, finishing  # type: ignore[method-assign]
    runs.checksum_of = before("committing", checksum_of)  # the last thing in the transaction of a finished chunk
    os.link, os.replace = before("linking", link), before("replacing", replace)


def _shrink_the_demo() -> None:
    from mssp.cli import demo

    demo._SAMPLES, demo._SOLVES, demo._NETWORKS, demo._SEEDS = 1200, 2, (16, 32), 4  # type: ignore[assignment]
    demo._UPDATES, demo._CHECK_STEPS = 3, 3


if __name__ == "__main__":
    serve()
