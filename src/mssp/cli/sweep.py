"""``mssp sweep``: does the best learning rate of a small model stay the best as the model grows?"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from mssp.cli import flags, progress
from mssp.cli.garbage import no_garbage_collection
from mssp.cli.training import RunFlags, multipliers
from mssp.planning.setting import II, MSSP, MUP, SGD, Regime, Setting
from mssp.sweep.metrics import METRICS

if TYPE_CHECKING:
    from mssp.ladders.tuned import Tuned
    from mssp.sweep.transfer import Contender, Transfer


@dataclass
class SweepCommand(RunFlags):
    """Sweep the learning rate at several widths of the paper's MLP MoE, for each scheme.

    Says, for each setting: the best learning rate of every width, whether it stays as the width grows, what taking the
    narrowest model's best one costs, and whether wider is better. Runs of one width train together, as one program.
    """

    regime: flags.Regimes = (II,)
    """I, II, III, or several (default II)"""
    scheme: flags.Schemes = (MSSP, MUP)
    """schemes to compare: mssp, mup, mup-heuristic, sp, ntp, jiang (default mssp mup)"""
    optimizer: flags.Optimizers = (SGD,)
    """sgd, adam, adamw, or several (default sgd)"""
    widths: flags.SomeSizes = (128, 256, 512)
    """widths N (default 128 256 512)"""
    largest: flags.ByRegime = field(default_factory=dict)
    """a regime's largest width, where it should end earlier: III=1024"""
    seeds: flags.Size = 4
    """runs of each kind, that differ in initial weights and order of data (default 4)"""
    lr_points: flags.Size = 8
    """learning rates per curve, around the tuned one (default 8)"""
    lr_ratio: flags.Ratio = 2.0
    """the factor between them (default 2)"""
    lrs: flags.Positives = ()
    """these learning rates instead"""
    multipliers: flags.Multipliers = ("tuned",)
    """tuned (for this data; the default), ones, plain (one model of the smallest width for all schemes: one learning
    rate, initial weights fan_in^-1/2), a data set's name, or plan files of mssp tune, one per setting"""
    metric: flags.Metric = METRICS["train_top5"]
    """what runs are judged by: train_ or validation_ top5, accuracy or loss (default train_top5)"""
    plot_scaling: flags.MaybeFigure = None
    """write a figure of the best scores over the width"""
    markdown: flags.Switch = False
    """print Markdown tables"""

    def run(self) -> int:
        from mssp.sweep.execution import carry_out, naming, one_of_each_kind, unchecked_text
        from mssp.sweep.transfer import LearningRates, transfers, trials

        flags.refuse_both(self, "json", "markdown")
        widths, rates = self._widths(), LearningRates(self.lr_points, self.lr_ratio, self.lrs)
        rates.check_runs(len({*self.scheme}) * len({*self.optimizer}) * sum(map(len, widths.values())), self.seeds)
        backend = self.runner()
        job = self.job(self.metric, keep_curves=True)
        contenders = self._contenders(job.data.name)
        with no_garbage_collection():
            planned = trials(contenders, widths, self.seeds, rates)
        backend.chunks(one_of_each_kind(planned), job)  # refuses trials that cannot be run, before a store is made
        with self.opened() as store:
            with progress.Progress("training", metric=self.metric) as display:
                study = carry_out(store, backend, job, display, planned, "sweep")
            with naming(study), no_garbage_collection():
                by_contender = transfers(study.each_run(), self.metric, planned)
            print(f"{len(planned)} runs in {self.store}{unchecked_text(study)}", file=sys.stderr)
            if self.export is not None:
                from mssp.store.table import export

                export(study, self.export)
        self._show(job.text, by_contender)
        return 0

    def _show(self, experiment: str, by_contender: dict[Contender, Transfer]) -> None:
        from mssp.report.figures import sweeps
        from mssp.sweep import transfer_text

        if self.json:
            print(json.dumps({"experiment": experiment, "settings": transfer_text.as_json(by_contender)}, indent=1))
        elif self.markdown:
            print("\n".join(transfer_text.markdown(by_contender)))
        else:
            headings = [transfer_text.heading(contender, transfer) for contender, transfer in by_contender.items()]
            progress.show_lines(transfer_text.lines(by_contender), emphasised=headings)
        title, title_of_scaling = f"Learning-rate transfer on {experiment}", f"Scores over width on {experiment}"
        progress.save_figure(self.plot, lambda: sweeps.transfer_figure(by_contender, title))
        progress.save_figure(self.plot_scaling, lambda: sweeps.scaling_figure(by_contender, title_of_scaling))

    def _contenders(self, data: str) -> dict[Contender, Tuned]:
        from mssp.sweep.transfer import Contender

        tuned = {}
        for regime, optimizer, scheme in product(self.regime, self.optimizer, self.scheme):
            setting = Setting(scheme=scheme, regime=regime, optimizer=optimizer, readout=self.readout)
            contender = Contender(setting.checked(), self.active)
            tuned[contender] = multipliers(self.multipliers, data, contender, narrowest=min(self.widths))
        return tuned

    def _widths(self) -> dict[Regime, list[int]]:
        """The widths of each regime. One that its family of models does not have is refused before data are loaded."""
        from mssp.ladders.mlp import family

        by_regime = {}
        for regime in self.regime:
            largest = self.largest.get(regime, max(self.widths))
            by_regime[regime] = [width for width in sorted(set(self.widths)) if width <= largest]
            if not by_regime[regime]:
                raise ValueError(f"--largest {regime}={largest} leaves no width: {min(self.widths)} is the least")
            for width in by_regime[regime]:
                family(regime, width, active=self.active)
        return by_regime
