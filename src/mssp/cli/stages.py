"""How a command of several stages goes: a bar for the one that is running, a line for each that is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mssp.store.runs import Result

Advance = Callable[..., None]  # by one unit, or by so many


class Stages:
    """On the error stream: live where a person looks, one line a stage otherwise."""

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0
        self._live = sys.stderr.isatty()

    @contextmanager
    def stage(self, title: str, units: float) -> Iterator[Advance]:
        """What takes so many units, and calls what it is given for each."""
        started = time.monotonic()
        number = f"{self.done + 1}/{self.count}"
        if not self._live:
            yield lambda amount=1: None
        else:
            with _bar() as bar:
                task = bar.add_task(f"{number} {title}", total=units)
                yield lambda amount=1: bar.update(task, advance=amount)
        self.done += 1
        print(f"{number} {title} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)

    def kept(self, title: str) -> None:
        """A stage that an earlier run has done."""
        self.done += 1
        print(f"{self.done}/{self.count} {title} (kept)", file=sys.stderr, flush=True)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=4,
    )


class Steps:
    """A sweep's watcher that advances a stage: its units are steps of single runs."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance

    def start(self, runs: int, done: int, steps: int) -> None:
        self._advance(done * steps)

    def stepped(self, replicas: int) -> None:
        self._advance(replicas)

    def finished(self, results: Sequence[Result]) -> None:
        pass
