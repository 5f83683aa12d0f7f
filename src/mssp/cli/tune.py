"""``mssp tune``: the multipliers of a small model, for all larger ones."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mssp._constraints import positive_int
from mssp._files import replacing
from mssp.cli import flags, progress
from mssp.cli.flags import RunFlags, multipliers
from mssp.ladders.mlp import family
from mssp.planning.plans import Plan
from mssp.planning.recipe import Recipe
from mssp.planning.setting import ZERO, Setting

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

    regime: flags.Regime = "II"
    """I, II (default) or III"""
    scheme: flags.Name = "mssp"
    """mssp (default), mup, mup-heuristic, sp, ntp or jiang"""
    optimizer: flags.Name = "sgd"
    """sgd (default), adam or adamw"""
    width: flags.Size = 128
    """the width N to tune at (default 128)"""
    lr: flags.Number = None
    """the learning rate to start looking around (default 0.01, or that of --multipliers)"""
    multipliers: flags.Names = ("ones",)
    """where to start: ones (default), tuned (known for this data), a data set's name, or any plan file"""
    metric: flags.Name = "validation_top5"
    """what runs are chosen by (default validation_top5)"""
    lr_points: flags.Size = 13
    """learning rates to begin with (default 13)"""
    lr_ratio: flags.Number = 4.0
    """the factor between them (default 4)"""
    aggregation_mult: flags.Number = None
    """the factor on the aggregation's 1/K (default: the paper's, as many as are active of eight experts)"""
    method: flags.Name = "grid"
    """grid (the paper's, default), random (and then pairs), or optuna"""
    points: flags.Size = 5
    """values of each multiplier in the fine grid (default 5)"""
    ratio: flags.Number = 4.0
    """the factor between them (default 4)"""
    broad_points: flags.Size = 3
    """values of each multiplier in the broad grid (default 3)"""
    broad_ratio: flags.Number = 64.0
    """the factor between them (default 64)"""
    rounds: flags.Size = 3
    """fine grids at most: another is centred on the best while that lies at an edge (default 3)"""
    budget: flags.Size = None
    """runs of random and optuna, beside the learning rates (default: as many as grid takes)"""
    early_stop: bool = False
    """look at all runs after an eighth of their steps, and finish the best quarter"""
    seeds: flags.Size = 1
    """seeds to average over in the search (default 1)"""
    confirm: flags.Size = 4
    """new seeds to train the best with: the best of thousands is partly luck (default 4)"""
    search_seed: flags.Size = 0
    """seed of what is random in the search itself (default 0)"""
    output: flags.Path = "tuned.json"
    """the plan file to write (default tuned.json)"""

    def run(self) -> int:
        from mssp.cli.progress import watcher
        from mssp.store.table import export
        from mssp.sweep.evaluation import Evaluator, study_name
        from mssp.sweep.search import tune
        from mssp.sweep.search_text import Summary

        contender, procedure = self._contender(), self._procedure()
        target = self._target()
        self.check_files()
        backend = self.runner()
        job = self.job(keep_curves=False)
        metric = self.check_metric(self.metric or "", job.data)
        start = self._start(contender, job.data.name)
        backend.chunks([start], job)  # refuses what cannot be run, before there is a store
        seeds = tuple(range(positive_int("--seeds", self.seeds or 0)))
        new_seeds = range(len(seeds), len(seeds) + self._whole("confirm", 0))
        with self.opened() as store:
            watching = watcher(metric.name, metric.higher_is_better)
            evaluate = Evaluator(store, backend, job, watching, metric, seeds, self.early_stop, _tell)
            try:
                found = tune(start, procedure, evaluate)
                scores = evaluate.per_seed("confirming", found.best, new_seeds) if new_seeds else []
            finally:
                watching.stop()
            if self.export is not None:
                export(store.open_study(study_name(job)), self.export)
        if math.isinf(found.score):
            raise ValueError(f"all {len(found.tried)} runs diverged: start from a smaller --lr, or other --multipliers")
        self._write(target, found.best.plan(job.ladder(found.best)))
        sign = 1 if metric.higher_is_better else -1
        self._show(Summary(found, metric, [sign * score for score in scores]), target)
        return 0

    def _target(self) -> Path:
        target = Path(self.output or "")
        if not target.name or target.is_dir():
            raise ValueError(f"--output {self.output!r} is no name for a file")
        if not target.absolute().parent.is_dir():
            raise ValueError(f"--output {target}: there is no folder {target.absolute().parent}")
        return target

    def _write(self, target: Path, plan: Plan) -> None:
        """The plan, with how it was tuned: a change of that is warned of when the plan is carried on."""
        recipe = Recipe(batch=self.batch, steps=self.steps)
        with replacing(target) as unfinished:
            text = replace(plan, recipe=recipe, tuned_with=recipe).json()
            unfinished.write_text(f"{text}\n", encoding="utf-8")

    def _contender(self) -> Contender:
        from mssp.sweep.transfer import Contender

        setting = Setting.of(self.scheme or "", self.regime or "", self.optimizer or "", self.readout or ZERO).checked()
        assert setting.regime is not None
        family(setting.regime, positive_int("--width", self.width or 0), active=self.active)
        return Contender(setting, self.active)

    def _start(self, contender: Contender, data: str) -> Trial:
        """The centre of the search; of the aggregation, the paper's 8/M unless something else is known or asked for."""
        known = multipliers(self.multipliers, data, contender, for_any=True)
        if known.base_width is not None:
            raise ValueError(
                f"what is kept for {data} is a plain model, without multipliers: start from --multipliers ones"
            )
        aggregation = float(self.active or 8) if self.multipliers == ("ones",) else known.aggregation_mult
        trial = contender.trial(self.width or 0, seed=0, lr=known.lr if self.lr is None else self.lr).with_tuned(known)
        given = self.aggregation_mult
        return replace(trial, aggregation_mult=aggregation if given is None else given)

    def _procedure(self) -> Procedure:
        from mssp.sweep.search import Procedure

        if self.budget is not None and self.method == "grid":
            raise ValueError("--budget is for random and optuna: a grid has as many runs as --points make")
        return Procedure(
            method=self.method or "",
            points=self.points or 0,
            ratio=self.ratio or 0.0,
            broad_points=self.broad_points or 0,
            broad_ratio=self.broad_ratio or 0.0,
            lr_points=self.lr_points or 0,
            lr_ratio=self.lr_ratio or 0.0,
            rounds=self.rounds or 0,
            budget=self.budget,
            seed=self._whole("search_seed", 0),
        )

    def _whole(self, name: str, least: int) -> int:
        given = getattr(self, name)
        if given is None or given < least:
            raise ValueError(f"--{name.replace('_', '-')} must be a whole number of at least {least}, got {given}")
        return int(given)

    def _show(self, summary: Summary, target: Path) -> None:
        if self.json:
            print(json.dumps(summary.json(), indent=1))
        else:
            setting = f"Regime {self.regime} · {self.scheme} · {self.optimizer}, N = {self.width}"
            heading = f"{setting}: tuned by {self.method}"
            what = f"--regime {self.regime} --scheme {self.scheme} --optimizer {self.optimizer}"
            closing = f"plan written to {target}: mssp sweep {what} --multipliers {target}"
            progress.show_lines([*summary.lines(heading, self.early_stop, str(target)), closing], emphasised=[heading])
        if self.plot is not None:
            from mssp.report.figures.sweeps import heatmaps
            from mssp.report.saving import save
            from mssp.sweep import grids

            best = summary.found.best
            # The grid around the best, which the paper's procedure fills and others touch.
            grid = summary.found.fine or grids.axes(grids.point_of(best), self.points or 0, self.ratio or 0.0)
            better, label = summary.metric.higher_is_better, summary.metric.label
            points, scores = zip(*grids.near(best, summary.found.tried, grid), strict=True)
            scores = tuple(score if better else -score for score in scores)
            figure = heatmaps(points, scores, grids.MULTIPLIERS, grids.point_of(best), label, higher_is_better=better)
            save(figure, self.plot)
            print(f"figure in {self.plot}", file=sys.stderr)


def _tell(stage: str, runs: int) -> None:
    if sys.stderr.isatty():
        print(f"{stage}: {runs} runs", file=sys.stderr)
