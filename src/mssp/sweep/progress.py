"""How a sweep goes, for people at a terminal; nothing for everyone else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from mssp.store.runs import Result


class Quiet:
    """Says nothing."""

    def start(self, runs: int, done: int, steps: int) -> None:
        pass

    def stepped(self, replicas: int) -> None:
        pass

    def finished(self, results: Sequence[Result]) -> None:
        pass

    def stop(self) -> None:
        pass


class Bar(Quiet):
    """A live line: runs done, steps per second of all replicas together, the best so far, time left."""

    def __init__(self, metric: str, higher_is_better: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._metric, self._sign = metric, 1.0 if higher_is_better else -1.0
        self._best = -math.inf
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]} runs"),
            TextColumn("{task.fields[speed]} steps/s"),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        self._task: Any = None
        self._runs = self._done = self._steps = self._taken = 0
        self._since = time.monotonic()

    def start(self, runs: int, done: int, steps: int) -> None:
        self.stop()
        self._runs, self._done, self._steps, self._taken = runs, done, steps, 0
        self._since = time.monotonic()
        self._task = self._bar.add_task("training", total=runs * steps, completed=done * steps, **self._fields())
        self._bar.start()

    def stepped(self, replicas: int) -> None:
        self._taken += replicas
        self._bar.update(self._task, advance=replicas, **self._fields())

    def finished(self, results: Sequence[Result]) -> None:
        self._done += len(results)
        values = [self._sign * result.metrics[self._metric] for result in results]
        self._best = max([self._best, *(value for value in values if math.isfinite(value))])
        # Work that was repeated, or done elsewhere, leaves the count of steps behind that of runs.
        self._bar.update(self._task, completed=self._done * self._steps, **self._fields())

    def stop(self) -> None:
        if self._task is not None:
            self._bar.stop()
            self._bar.remove_task(self._task)
            self._task = None

    def _fields(self) -> dict[str, Any]:
        speed = self._taken / max(time.monotonic() - self._since, 1e-3)
        best = "" if math.isinf(self._best) else f"best {self._metric} {self._sign * self._best:.4f}"
        return {"runs": f"{self._done}/{self._runs}", "speed": f"{speed:,.0f}", "best": best}


def watcher(metric: str, higher_is_better: bool) -> Quiet:
    """A bar where someone is watching."""
    return Bar(metric, higher_is_better) if sys.stderr.isatty() else Quiet()
