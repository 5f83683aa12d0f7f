"""``mssp tune``: searches the best multipliers of a small model, which all larger models then share."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mssp._files import goes_to_standard_output, write_whole
from mssp.cli import flags, progress
from mssp.cli.training import RunFlags, multipliers
from mssp.ladders.mlp import family
from mssp.planning.plans import Plan
from mssp.planning.recipe import Recipe
from mssp.planning.setting import II, MSSP, SGD, Setting
from mssp.sweep.metrics import METRICS

if TYPE_CHECKING:
    from mssp.sweep.search import Procedure
    from mssp.sweep.search_text import Summary
    from mssp.sweep.transfer import Contender
    from mssp.sweep.trial import Trial


@dataclass
class TuneCommand(RunFlags):
    """Tune the init multiplier and the learning-rate multipliers of the paper's MLP MoE at a small width.

    The paper's procedure by default: the learning rate, a broad grid, then every combination of 5 values of each of the
    6 multipliers around the best, chosen by validation top-5: 15,625 runs, minutes on a GPU. Writes a plan file that
    mssp sweep and mssp plan take. Try --points 2 --broad-points 1 --width 32 first.
    """

    regime: flags.Regime = II
    """I, II (default) or III"""
    scheme: flags.Scheme = MSSP
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    optimizer: flags.Optimizer = SGD
    """sgd (default), adam or adamw"""
    width: flags.Size = 128
    """the width N to tune at (default 128)"""
    lr: flags.MaybePositive = None
    """the learning rate to start looking around (default 0.01, or that of --multipliers)"""
    multipliers: flags.Multipliers = ("ones",)
    """where to start: ones (default), tuned (known for this data), a data set's name, or any plan file"""
    metric: flags.Metric = METRICS["validation_top5"]
    """what runs are chosen by (default validation_top5)"""
    lr_points: flags.Size = 13
    """learning rates to begin with (default 13)"""
    lr_ratio: flags.Ratio = 4.0
    """the factor between them (default 4)"""
    aggregation_mult: flags.MaybePositive = None
    """the factor on the aggregation's 1/K (default: the paper's, as many as are active of eight experts)"""
    method: flags.Method = "grid"
    """grid (the paper's, default), random (and then pairs), or optuna"""
    points: flags.Size = 5
    """values of each multiplier in the fine grid (default 5)"""
    ratio: flags.Ratio = 4.0
    """the factor between them (default 4)"""
    broad_points: flags.Size = 3
    """values of each multiplier in the broad grid (default 3)"""
    broad_ratio: flags.Ratio = 64.0
    """the factor between them (default 64)"""
    rounds: flags.Size = 3
    """fine grids at most: another is centred on the best while that lies at an edge (default 3)"""
    budget: flags.MaybeSize = None
    """runs of random and optuna, beside the learning rates (default: as many as grid takes)"""
    early_stop: flags.Switch = False
    """look at all runs after an eighth of their steps, and finish the best quarter"""
    seeds: flags.Size = 1
    """seeds to average over in the search (default 1)"""
    confirm: flags.Count = 4
    """new seeds to train the best with: the best of thousands is partly luck (default 4)"""
    search_seed: flags.Count = 0
    """seed of what is random in the search itself (default 0)"""
    output: flags.Target = Path("tuned.json")
    """the plan file to write (default tuned.json), or - for the standard output"""

    def run(self) -> int:
        from mssp.store.table import export
        from mssp.sweep.evaluation import KIND, Evaluator
        from mssp.sweep.search import tune
        from mssp.sweep.search_text import Summary

        if self.json and goes_to_standard_output(self.output):
            raise ValueError(f"--json and --output {self.output} would print two documents: leave out one of them")
        contender, procedure = self._contender(), self._procedure()
        procedure.check_runs(self.seeds, self.confirm)
        backend = self.runner()
        job = self.job(self.metric, keep_curves=False)
        start = self._start(contender, job.data.name)
        procedure.check_values(start)
        backend.chunks([start], job)  # refuses a trial that cannot be run, before a store is made
        seeds, new_seeds = range(self.seeds), range(self.seeds, self.seeds + self.confirm)
        with self.opened() as store:
            with progress.Progress("training", metric=self.metric) as display:
                evaluate = Evaluator(store, backend, job, display, self.metric, seeds, self.early_stop, display.stage)
                found = tune(start, procedure, evaluate)
                scores = evaluate.per_seed("confirming", found.best, new_seeds) if new_seeds else []
            if self.export is not None:
                export(store.open_study(job.study_name(KIND)), self.export)
        if math.isinf(found.score):
            raise ValueError(f"all {len(found.tried)} runs diverged: start from a smaller --lr, or other --multipliers")
        self._write(found.best.plan(job.ladder(found.best)))
        sign = 1 if self.metric.higher_is_better else -1
        with redirect_stdout(sys.stderr) if goes_to_standard_output(self.output) else nullcontext():
            self._show(Summary(found, self.metric, [sign * score for score in scores]))
        return 0

    def _write(self, plan: Plan) -> None:
        """Writes the plan with the recipe it was tuned with, so that extending it warns of another recipe."""
        recipe = Recipe(batch=self.batch, steps=self.steps)
        write_whole(self.output, f"{replace(plan, recipe=recipe, tuned_with=recipe).json()}\n")

    def _contender(self) -> Contender:
        from mssp.sweep.transfer import Contender

        setting = Setting(scheme=self.scheme, regime=self.regime, optimizer=self.optimizer, readout=self.readout)
        family(self.regime, self.width, active=self.active)  # refuses a width or a share that no member has
        return Contender(setting.checked(), self.active)

    def _start(self, contender: Contender, data: str) -> Trial:
        """The centre of the search. Its aggregation multiplier is the paper's 8/M if nothing else is tuned or given."""
        tuned = multipliers(self.multipliers, data, contender, for_any=True)
        if tuned.base_width is not None:
            raise ValueError(
                f"what is kept for {data} is a plain model, without multipliers: start from --multipliers ones"
            )
        trial = contender.trial(self.width, seed=0, lr=tuned.lr if self.lr is None else self.lr).with_tuned(tuned)
        aggregation_mult = self.aggregation_mult
        if aggregation_mult is None:
            aggregation_mult = float(self.active or 8) if self.multipliers == ("ones",) else tuned.aggregation_mult
        return replace(trial, aggregation_mult=aggregation_mult)

    def _procedure(self) -> Procedure:
        from mssp.sweep.search import Procedure

        if self.budget is not None and self.method == "grid":
            raise ValueError("--budget is for random and optuna: a grid has as many runs as --points make")
        return Procedure(
            method=self.method,
            points=self.points,
            ratio=self.ratio,
            broad_points=self.broad_points,
            broad_ratio=self.broad_ratio,
            lr_points=self.lr_points,
            lr_ratio=self.lr_ratio,
            rounds=self.rounds,
            budget=self.budget,
            seed=self.search_seed,
        )

    def _show(self, summary: Summary) -> None:
        if self.json:
            print(json.dumps(summary.json(), indent=1))
        else:
            setting = f"Regime {self.regime} · {self.scheme} · {self.optimizer}, N = {self.width}"
            heading = f"{setting}: tuned by {self.method}"
            options = f"--regime {self.regime} --scheme {self.scheme} --optimizer {self.optimizer}"
            closing = f"plan written to {self.output}: mssp sweep {options} --multipliers {self.output}"
            progress.show_lines(
                [*summary.lines(heading, self.early_stop, str(self.output)), closing], emphasised=[heading]
            )
        if self.plot is not None:
            from mssp.report.figures.sweeps import heatmaps
            from mssp.sweep import grids

            best = summary.result.best
            # The fine grid around the best trial: the paper's procedure trains all of it, other methods a part.
            grid = summary.result.fine or grids.axes(grids.point_of(best), self.points, self.ratio)
            better, label = summary.metric.higher_is_better, summary.metric.label
            points, scores = zip(*grids.points_at_best_lr(best, summary.result.tried, grid), strict=True)
            scores = tuple(score if better else -score for score in scores)
            figure = heatmaps(points, scores, grids.MULTIPLIERS, grids.point_of(best), label, higher_is_better=better)
            progress.save_figure(self.plot, lambda: figure)
