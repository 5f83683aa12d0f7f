"""``mssp report``: everything that was found, on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from mssp._files import write_whole
from mssp.cli import flags, progress

if TYPE_CHECKING:
    from mssp.report.contents import Contents

_KINDS = (".svg", ".pdf")


@dataclass
class ReportCommand:
    """Write one self-contained page: sweeps, checks, multipliers, limits and plans, with verdicts on top.

    Takes run stores (mssp sweep, mssp tune) and JSON files (mssp check, dmft, sweep and plan, each with --json), in any
    number and order: mssp report runs.sqlite check.json limit.json. The page needs nothing else and no network.
    """

    files: flags.Files = ()
    """run stores and JSON files"""
    output: Annotated[flags.Page, tyro.conf.arg(aliases=["-o"], help_behavior_hint="")] = Path("report.html")
    """the page to write (default report.html)"""
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
            for kind in _KINDS:
                check_target(self.figures.absolute().parent / f"figure{kind}")
        contents = read(self.files, self.metric)
        title = self.title or f"Report of {', '.join(contents.sources)}"
        write_whole(self.output, report(contents, title))
        print(f"report in {self.output}")
        if self.figures is not None:
            count = write_figures(contents, self.figures)
            print(f"{count} figures in {self.figures}")
        return 0


def write_figures(contents: Contents, folder: Path) -> int:
    """Every figure of a report as files; how many there are."""
    from mssp.report.figure_data import csv_of
    from mssp.report.page.document import charts
    from mssp.report.saving import one_browser, save
    from mssp.report.sections import sections

    found = list(charts(block for section in sections(contents) for block in section.blocks))
    with one_browser(), progress.Progress("drawing", len(found), "figures") as live:
        folder.mkdir(exist_ok=True)
        for chart in found:
            for kind in _KINDS:
                save(chart.figure, folder / f"{chart.name}{kind}")
            write_whole(folder / f"{chart.name}.csv", csv_of(chart.figure))
            live.advance()
    return len(found)
