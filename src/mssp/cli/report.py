"""``mssp report``: one HTML page of sweeps, checks, multipliers, limits, plans and training runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mssp._files import goes_to_standard_output, write_whole
from mssp.cli import flags, progress

if TYPE_CHECKING:
    from mssp.report.contents import Contents

_FIGURE_SUFFIXES = (".svg", ".pdf")


@dataclass
class ReportCommand:
    """Write one self-contained page: sweeps, checks, multipliers, limits, plans and runs, with verdicts on top.

    Takes run stores (mssp sweep, mssp tune), JSON files (mssp check, dmft, sweep and plan, each with --json) and what
    mssp train keeps (run.jsonl, or the run's folder), in any number and order: mssp report runs.sqlite check.json run.
    The page needs nothing else and no network.
    """

    files: flags.Evidence = ()
    """run stores, JSON files, runs"""
    output: Annotated[flags.Page, tyro.conf.arg(aliases=["-o"], help_behavior_hint="")] = Path("report.html")
    """the page to write (default report.html), or - for the standard output"""
    title: flags.MaybeText = None
    """of the page (default: the names of the files)"""
    metric: flags.MaybeMetric = None
    """what sweeps are judged by (default train_top5; accuracy where few classes make that 1)"""
    figures: flags.MaybeFolder = None
    """also write every figure as .svg and .pdf, for papers, with its numbers as .csv"""

    def run(self) -> int:
        from mssp.report.contents import read
        from mssp.report.saving import check_target
        from mssp.report.sections import report

        if not self.files:
            raise ValueError("no file given: mssp report runs.sqlite check.json -o report.html")
        if self.figures is not None:
            for suffix in _FIGURE_SUFFIXES:
                check_target(self.figures.absolute().parent / f"figure{suffix}")
        contents = read(self.files, self.metric)
        title = self.title or f"Report of {', '.join(contents.sources)}"
        write_whole(self.output, report(contents, title))
        messages = sys.stderr if goes_to_standard_output(self.output) else sys.stdout
        print(f"report in {self.output}", file=messages)
        if self.figures is not None:
            print(f"{_write_figures(contents, self.figures)} figures in {self.figures}", file=messages)
        return 0


def _write_figures(contents: Contents, folder: Path) -> int:
    """Writes every figure of a report to files, and returns how many there are."""
    from mssp.report.figure_data import csv_of
    from mssp.report.page.document import charts
    from mssp.report.saving import one_browser, save
    from mssp.report.sections import sections

    figures = list(charts(block for section in sections(contents) for block in section.blocks))
    with one_browser(), progress.Progress("drawing", len(figures), "figures") as display:
        folder.mkdir(exist_ok=True)
        for chart in figures:
            for suffix in _FIGURE_SUFFIXES:
                save(chart.figure, folder / f"{chart.name}{suffix}")
            write_whole(folder / f"{chart.name}.csv", csv_of(chart.figure))
            display.advance()
    return len(figures)
