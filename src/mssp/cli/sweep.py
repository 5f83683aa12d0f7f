"""``mssp sweep``: does the best learning rate stay as the model grows?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from mssp._constraints import positive_int
from mssp.cli import flags, progress
from mssp.cli.flags import RunFlags, multipliers
from mssp.planning.setting import ZERO, Regime, Setting

if TYPE_CHECKING:
    from mssp.ladders.tuned import Tuned
    from mssp.sweep.transfer import Contender, Transfer


@dataclass
class SweepCommand(RunFlags):
    """Sweep the learning rate at several widths of the paper's MLP MoE, for each scheme.

    Says, for each setting: the best learning rate of every width, whether it stays as the width grows, what taking the
    narrowest model's best one costs, and whether wider is better. Runs of one width train together, as one program.
    """

    regime: flags.Names = ("II",)
    """I, II, III, or several (default II)"""
    scheme: flags.Names = ("mssp", "mup")
    """schemes to compare: mssp, mup, mup-heuristic, sp, ntp, jiang (default mssp mup)"""
    optimizer: flags.Names = ("sgd",)
    """sgd, adam, adamw, or several (default sgd)"""
    widths: flags.Sizes = (128, 256, 512)
    """widths N (default 128 256 512)"""
    largest: flags.ByRegime = ()
    """a regime's largest width, where it should end earlier: III=1024"""
    seeds: flags.Size = 4
    """runs of each kind, that differ in initial weights and order of data (default 4)"""
    lr_points: flags.Size = 8
    """learning rates per curve, around the tuned one (default 8)"""
    lr_ratio: flags.Number = 2.0
    """the factor between them (default 2)"""
    lrs: flags.Numbers = ()
    """these learning rates instead"""
    multipliers: flags.Names = ("tuned",)
    """tuned (for this data; the default), ones, plain (one model of the smallest width for all schemes: one learning
    rate, initial weights fan_in^-1/2), a data set's name, or plan files of mssp tune, one per setting"""
    metric: flags.Name = "train_top5"
    """what runs are judged by: train_ or validation_ top5, accuracy or loss (default train_top5)"""
    plot_scaling: flags.Path = None
    """write a figure of the best scores over the width"""
    markdown: bool = False
    """print Markdown tables"""

    def run(self) -> int:
        from mssp.cli.progress import watcher
        from mssp.sweep.execution import carry_out
        from mssp.sweep.transfer import LearningRates, transfers, trials

        if self.json and self.markdown:
            raise ValueError("--json and --markdown exclude each other")
        self.check_files(self.plot_scaling)
        rates = LearningRates(positive_int("--lr-points", self.lr_points or 0), self.lr_ratio or 0.0, tuple(self.lrs))
        widths = self._widths()
        backend = self.runner()
        job = self.job(keep_curves=True)
        metric = self.check_metric(self.metric or "", job.data)
        contenders = self._contenders(job.data.name)
        asked = trials(contenders, widths, self.seeds or 0, rates)
        backend.chunks(asked, job)  # which refuses what cannot be run, before there is a store
        with self.opened() as store:
            watching = watcher(metric.name, metric.higher_is_better)
            try:
                study = carry_out(store, backend, job, watching, asked, "sweep")
            finally:
                watching.stop()
            found = transfers(study.runs(), metric, asked)
            print(f"{len(asked)} runs in {self.store}", file=sys.stderr)
            if self.export is not None:
                from mssp.store.table import export

                export(study, self.export)
        self._show(job.text, found)
        return 0

    def _show(self, what: str, found: dict[Contender, Transfer]) -> None:
        from mssp.sweep import transfer_text

        if self.json:
            print(json.dumps({"experiment": what, "settings": transfer_text.as_json(found)}, indent=1))
        elif self.markdown:
            print("\n".join(transfer_text.markdown(found)))
        else:
            headings = [transfer_text.heading(contender, transfer) for contender, transfer in found.items()]
            progress.show_lines(transfer_text.lines(found), emphasised=headings)
        if self.plot is None and self.plot_scaling is None:
            return
        from mssp.report.figures.sweeps import scaling_figure, transfer_figure
        from mssp.report.saving import save

        panels = {str(contender): transfer for contender, transfer in found.items()}
        for path, draw, title in (
            (self.plot, transfer_figure, "Learning-rate transfer on"),
            (self.plot_scaling, scaling_figure, "Scores over width on"),
        ):
            if path is not None:
                save(draw(panels, f"{title} {what}"), path)
                print(f"figure in {path}", file=sys.stderr)

    def _contenders(self, data: str) -> dict[Contender, Tuned]:
        from mssp.sweep.transfer import Contender

        found = {}
        for regime, optimizer, scheme in product(self.regime, self.optimizer, self.scheme):
            setting = Setting.of(scheme, regime, optimizer, self.readout or ZERO).checked()
            contender = Contender(setting, self.active)
            found[contender] = multipliers(self.multipliers, data, contender, narrowest=min(self.widths))
        return found

    def _widths(self) -> dict[Regime, list[int]]:
        """The widths of each regime; a shape that none of its family has is refused before anything is loaded."""
        from mssp.ladders.mlp import family

        for name in ("widths", "regime", "scheme", "optimizer", "multipliers"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is empty: say at least one")
        ends = flags.by_regime("--largest", self.largest)
        found = {}
        for word in self.regime:
            regime = flags.regime_of(word)
            found[regime] = [width for width in sorted(set(self.widths)) if width <= ends.get(regime, width)]
            if not found[regime]:
                raise ValueError(
                    f"--largest {regime}={ends[regime]:g} leaves no width: {min(self.widths)} is the least"
                )
            for width in found[regime]:
                family(regime, width, active=self.active)
        return found
