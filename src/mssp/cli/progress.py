"""What a person at a terminal sees while a command works, and what it ends in; plain lines for everyone else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mssp.report.figure import Figure
    from mssp.store.runs import Result
    from mssp.sweep.metrics import Metric


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


class Progress:
    """A live line on the error stream while work goes on, where a person looks; it says nothing where nobody does.

    It also watches the runs of a study (:class:`mssp.sweep.execution.Watcher`): then it counts steps of single runs,
    and shows how many runs are done, the steps per second of all replicas together, and the best run so far.
    """

    def __init__(self, title: str, total: float = 0, unit: str = "", metric: Metric | None = None) -> None:
        self._title, self._total, self._unit, self._metric = title, total, unit, metric
        self._done = self._before = self._runs = self._finished = self._steps = 0
        self._best = -math.inf
        self._since = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(self._title, total=self._total, detail="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int = 1) -> None:
        self._done += amount
        self._update()

    def stage(self, title: str, runs: int) -> None:
        """Another part of the same work."""
        self._title = f"{title}, {runs} runs"
        self._update()

    def start(self, runs: int, done: int, steps: int) -> None:
        self._runs, self._finished, self._steps = runs, done, steps
        self._done = self._before = done * steps
        self._total = runs * steps
        self._since = time.monotonic()
        if self._bar is not None:
            self._bar.reset(self._task)
        self._update()

    def stepped(self, replicas: int) -> None:
        self.advance(replicas)

    def finished(self, results: Sequence[Result]) -> None:
        self._finished += len(results)
        if self._metric is not None:
            values = [self._sign * result.metrics[self._metric.name] for result in results]
            self._best = max([self._best, *filter(math.isfinite, values)])
        # Work that was repeated, or done elsewhere, leaves the count of steps behind that of runs.
        self._done = self._finished * self._steps
        self._update()

    @property
    def _sign(self) -> float:
        return 1.0 if self._metric is None or self._metric.higher_is_better else -1.0

    def _update(self) -> None:
        if self._bar is not None:
            shown = {"description": self._title, "detail": self._detail()}
            self._bar.update(self._task, completed=self._done, total=self._total, **shown)

    def _detail(self) -> str:
        if not self._runs:
            return f"{self._done} of {self._total} {self._unit}" if self._unit else ""
        speed = (self._done - self._before) / max(time.monotonic() - self._since, 1e-3)
        best = "" if math.isinf(self._best) else f", best {self._metric} {self._sign * self._best:.4f}"
        return f"{self._finished}/{self._runs} runs, {speed:,.0f} steps/s{best}"
