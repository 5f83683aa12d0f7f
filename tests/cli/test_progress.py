"""What a person at a terminal sees of long work, and that nobody else sees any of it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from mssp.cli.progress import Progress

WORK = """
import time
from mssp.cli.progress import Progress
from mssp.store.runs import Result
from mssp.sweep.metrics import METRICS
with Progress("updates of models", 4, "updates") as progress:
    for _ in range(4):
        progress.advance()
        time.sleep(0.3)
with Progress("training", metric=METRICS["train_loss"]) as progress:
    progress.start(runs=3, done=1, steps=10)
    progress.stepped(20)
    progress.finished([Result("a", {"train_loss": 0.5}), Result("b", {"train_loss": 0.25})])
    time.sleep(0.3)
"""


def at_a_terminal(code: str) -> str:
    """All that a program writes to a terminal of 120 columns."""
    ours, its = pty.openpty()
    environment = os.environ | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen([sys.executable, "-c", code], stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # as Linux says that the other end was closed
            part = b""
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait() == 0
    return written.decode()


def test_a_person_sees_one_live_line_that_vanishes() -> None:
    written = at_a_terminal(WORK)
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert "4 of 4 updates" in seen
    assert "3/3 runs" in seen
    assert "best train_loss 0.2500" in seen
    assert "\x1b[2K" in written  # lines are erased
    assert "Traceback" not in seen
    last = re.split(r"\r|\n", seen)[-1]
    assert not last.strip()


def test_nobody_else_sees_anything(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("check", 2, "updates") as progress:
        progress.advance()
        progress.start(runs=1, done=0, steps=1)
        progress.stepped(1)
        progress.stage("confirming", 4)
        progress.finished([])
    assert capsys.readouterr() == ("", "")


def test_a_command_at_a_terminal() -> None:
    """A check shows its updates, and leaves its table alone."""
    flags = ["--widths", "32", "64", "--steps", "6", "--seeds", "1", "--batch", "20", "--multipliers", "ones"]
    flags += ["--device", "cpu"]
    written = at_a_terminal(f"from mssp.cli import main; main({['check', *flags]!r})")
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert re.search(r"\d+ of 12 updates", seen)
    assert "MSSP · Regime II · SGD" in seen
