"""Output of commands: a live progress line at a terminal, result lines with headings in bold, and figures in files."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mssp.report.figure import Figure
    from mssp.store.runs import Result
    from mssp.sweep.metrics import Metric


def show_lines(lines: Sequence[str], emphasised: Sequence[str] = ()) -> None:
    """Print lines, the emphasised ones in bold at a terminal. Long lines wrap: a line cut off could hide a number."""
    if not sys.stdout.isatty():
        print("\n".join(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        style = "bold" if line in emphasised else "dim" if line.startswith("─") else ""
        console.print(Text(line, style=style))


def save_figure(path: Path | None, draw: Callable[[], Figure]) -> None:
    """Draw a figure and save it, if a path is given."""
    if path is not None:
        from mssp.report.saving import save

        save(draw(), path)
        print(f"figure in {path}", file=sys.stderr)


class Progress:
    """A live line on the error stream while work goes on. It prints nothing where that stream is not a terminal.

    It is also a :class:`mssp.sweep.execution.Watcher` of the runs of a study. It then shows how many runs are done, the
    steps per second of all runs together, and the best score so far.
    """

    def __init__(self, title: str, total: float | None = 0, unit: str = "", metric: Metric | None = None) -> None:
        self._title, self._total, self._unit, self._metric = title, total, unit, metric
        self._done = self._done_at_start = self._runs = self._finished = self._steps = 0
        self._sign = 1.0 if metric is None or metric.higher_is_better else -1.0
        self._best = -math.inf  # times the sign: more is better
        self._said_detail = ""
        self._started = time.monotonic()
        self._said: set[int] = set()
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

    def advance(self, amount: int = 1, detail: str = "") -> None:
        """Count work that is done. ``detail`` stands beside the bar from then on, in place of the numbers done."""
        self._done += amount
        self._said_detail = detail or self._said_detail
        self._update()

    def stage(self, title: str, runs: int) -> None:
        """Name the part of the work that begins."""
        self._title = f"{title}, {runs} runs"
        self._update()

    def start(self, runs: int, done: int, steps: int) -> None:
        self._runs, self._finished, self._steps = runs, done, steps
        self._done = self._done_at_start = done * steps
        self._total = runs * steps
        self._started = time.monotonic()
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
        # Steps are counted anew from runs: those repeated, or taken by other processes, would make the two differ.
        self._done = self._finished * self._steps
        self._update()

    def waiting(self, reasons: Mapping[int, str]) -> None:
        """Say, once for each process, that its runs are waited for, and why; keys are the numbers of the processes."""
        for number in reasons.keys() - self._said:
            print(f"mssp: waiting for runs that {reasons[number]}", file=sys.stderr, flush=True)
        self._said |= reasons.keys()

    def _update(self) -> None:
        if self._bar is not None:
            texts = {"description": self._title, "detail": self._detail()}
            self._bar.update(self._task, completed=self._done, total=self._total, **texts)

    def _detail(self) -> str:
        if not self._runs and self._said_detail:
            return f"{self._done}/{self._total:g} {self._unit}, {self._said_detail}"
        if not self._runs:
            of_all = "" if self._total is None else f" of {self._total:,}"  # nobody knows where a stream ends
            return f"{self._done:,}{of_all} {self._unit}" if self._unit else ""
        speed = (self._done - self._done_at_start) / max(time.monotonic() - self._started, 1e-3)
        best = "" if math.isinf(self._best) else f", best {self._metric} {self._sign * self._best:.4f}"
        return f"{self._finished}/{self._runs} runs, {speed:,.0f} steps/s{best}"
