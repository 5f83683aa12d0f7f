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

    files: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE [...]", help_behavior_hint="")
    ] = ()
    """run stores and JSON files"""
    output: Annotated[flags.Path, tyro.conf.arg(aliases=["-o"], metavar="FILE", help_behavior_hint="")] = "report.html"
    """the page to write (default report.html)"""
    title: flags.Name = None
    """of the page (default: the names of the files)"""
    metric: flags.Name = None
    """what sweeps are judged by (default train_top5; accuracy where few classes make that 1)"""
    figures: Annotated[flags.Path, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """also write every figure as .svg and .pdf, for papers, with its numbers as .csv"""

    def run(self) -> int:
        from mssp.report.contents import read
        from mssp.report.sections import report

        if not all(self.files):
            raise ValueError("a file's name is empty: mssp report runs.sqlite check.json -o report.html")
        if not self.files:
            raise ValueError("no file given: mssp report runs.sqlite check.json -o report.html")
        target = Path(self.output or "")
        self._check(target)
        contents = read([Path(file) for file in self.files], self.metric)
        title = self.title or f"Report of {', '.join(contents.sources)}"
        write_whole(target, report(contents, title))
        print(f"report in {target}")
        if self.figures is not None:
            count = write_figures(contents, Path(self.figures))
            print(f"{count} figures in {self.figures}")
        return 0

    def _check(self, target: Path) -> None:
        """Refuse names that could not be written to, before anything is read."""
        from mssp.report import saving

        if target.suffix.lower() != ".html":
            raise ValueError(f"--output {target}: a report is a page, so use a name that ends in .html")
        saving.check_target(target)
        if self.figures is not None:
            folder = Path(self.figures)
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"--figures {folder} is a file: name a folder")
            if not folder.absolute().parent.is_dir():
                raise ValueError(f"--figures {folder}: there is no folder {folder.absolute().parent}")
            for kind in _KINDS:
                saving.check_target(folder.absolute().parent / f"figure{kind}")


def write_figures(contents: Contents, folder: Path) -> int:
    """Every figure of a report as files; how many there are."""
    from mssp.report.figure_data import csv_of
    from mssp.report.saving import one_browser, save
    from mssp.report.sections import charts, sections

    found = list(charts(block for section in sections(contents) for block in section.blocks))
    with one_browser(), progress.counting(len(found), "figures") as one_more:
        folder.mkdir(exist_ok=True)
        for chart in found:
            for kind in _KINDS:
                save(chart.figure, folder / f"{chart.name}{kind}")
            write_whole(folder / f"{chart.name}.csv", csv_of(chart.figure))
            one_more()
    return len(found)
