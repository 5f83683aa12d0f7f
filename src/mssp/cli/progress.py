"""What a person at a terminal sees while a command works, and the tables it ends in; plain lines for everyone else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mssp.report.figure import Figure
    from mssp.store.runs import Result


def show_lines(text: Sequence[str], emphasised: Sequence[str] = ()) -> None:
    """Print lines, those named in bold. Nothing is cut to fit: better a wrapped line than a hidden number."""
    if not sys.stdout.isatty():
        print("\n".join(text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in text:
        style = "bold" if line in emphasised else "dim" if line.startswith("─") else ""
        console.print(Text(line, style=style))


def save_figure(path: Path | None, draw: Callable[[], Figure]) -> None:
    """Draw a figure into the file that was asked for, if one was."""
    if path is not None:
        from mssp.report.saving import save

        save(draw(), path)
        print(f"figure in {path}", file=sys.stderr)


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A line on the error stream that counts while something runs, if a person is there to see it."""
    done = 0
    shown = sys.stderr.isatty()

    def one_more() -> None:
        nonlocal done
        done += 1
        if shown:
            print(f"\r{done} of {total} {what}", end="", file=sys.stderr, flush=True)

    try:
        yield one_more
    finally:
        if shown and done:
            print("\r" + " " * len(f"{total} of {total} {what}") + "\r", end="", file=sys.stderr, flush=True)


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
