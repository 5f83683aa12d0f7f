"""Looking at what a command does, from inside this process: its words, its exit code, its files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mssp
from mssp.cli import main
from tests.golden.comparing import Tolerance, masked

EXACT = Tolerance(0.0)
PLANNED = Tolerance(1e-9)
# Exponents and intervals are fitted to few numbers that hardly differ, and take an error many times larger.
TRAINED = Tolerance(1e-4, 1e-8, fitted=2e-3, in_text=True)
# Losses and limits are means over many examples, and hardly depend on the order of sums.
AVERAGED = Tolerance(1e-5, 1e-8, fitted=2e-3, in_text=True)
# Of a standard deviation from float32 entries whose sum is added in any order.
DRAWN = Tolerance(1e-6, 1e-8)

_TERMINAL = {"COLUMNS": "100", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"}
_FOREIGN = ("MSSP_DISPATCH_TABLE", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CLICOLOR_FORCE")


@dataclass(frozen=True)
class Case:
    """Something to observe: in an empty folder, which is the working folder meanwhile."""

    look: Callable[[], Any]
    tolerance: Tolerance = field(default_factory=Tolerance)


def observe(case: Case, folder: Path) -> Any:
    """What a case shows today, as JSON data, masked."""
    with _elsewhere(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = case.look()
    return json.loads(json.dumps(masked(found, {str(folder): "FOLDER"})))


@contextlib.contextmanager
def _elsewhere(folder: Path) -> Iterator[None]:
    """In this folder, with a terminal of a fixed size and no colour."""
    before = dict(os.environ)
    os.environ.update(_TERMINAL)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class Said:
    """What a command printed, and the code it left with."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> dict[str, Any]:
        """All of it, by line."""
        version = mssp.__version__
        out, err = (text.replace(version, "VERSION").splitlines() for text in (self.out, self.err))
        return {"code": self.code, "out": out, **({"err": err} if err else {})}

    @property
    def document(self) -> dict[str, Any]:
        """The JSON that was printed, and how it was laid out."""
        if self.code == 2:
            return self.lines
        found = json.loads(self.out)
        layouts = {
            f"indent {indent}{'' if ascii_ else ', any letters'}": json.dumps(found, indent=indent, ensure_ascii=ascii_)
            for indent in (None, 1, 2)
            for ascii_ in (True, False)
        }
        layout = next((name for name, text in layouts.items() if f"{text}\n" == self.out), "another")
        err = self.err.splitlines()
        return {"code": self.code, "layout": layout, **({"err": err} if err else {}), "json": found}


def command(line: str | Sequence[str]) -> Said:
    """Run ``mssp`` with these words."""
    words = shlex.split(line) if isinstance(line, str) else list(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    return Said(code, out.getvalue(), err.getvalue())


def written(line: str, file: str) -> str:
    """The name of a file that holds what a command printed; the command must do what it should."""
    said = command(line)
    if said.code not in (0, 1) or not said.out:
        raise AssertionError(f"mssp {line} left with {said.code}: {said.err}")
    Path(file).write_text(said.out, encoding="utf-8")
    return file
