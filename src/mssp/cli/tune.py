"""``mssp tune``: the multipliers of a small model, for all larger ones."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp.cli import flags, show
from mssp.cli.run_flags import RunFlags, multipliers
from mssp.data.whole_files import replacing
from mssp.families import family
from mssp.plan_text import align
from mssp.rules import check_cell, check_names
from mssp.shape import positive_int
from mssp.statistics import Estimate, mean_of

if TYPE_CHECKING:
    from mssp.sweep.evaluation import Evaluator
    from mssp.sweep.learning_rates import Setting
    from mssp.sweep.trial import Trial
    from mssp.sweep.tuning import Found, Procedure


@dataclass
class TuneCommand(RunFlags):
    """Tune the init multiplier and the learning-rate multipliers of the paper's MLP MoE at a small width.

    The paper's procedure by default: the learning rate, a broad grid, then every combination of 5 values of each of the
    6 multipliers around the best, chosen by validation top-5. Writes a plan file that mssp sweep and mssp plan take.
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
    multipliers: flags.Name = "ones"
    """where to start: ones (default), tuned (known for this data), a data set's name, or a plan file"""
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
    """runs of random and optuna (default: as many as grid takes)"""
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
        from mssp.sweep.evaluation import Evaluator
        from mssp.sweep.progress import watcher
        from mssp.sweep.tuning import METRIC, tune

        setting, procedure = self._setting(), self._procedure()
        target = Path(self.output or "tuned.json")
        if not target.absolute().parent.is_dir():
            raise ValueError(f"--output {target}: there is no folder {target.absolute().parent}")
        backend = self.runner()
        job = self.job(keep_curves=False)
        start = self._start(setting, job.data.name)
        start.plan(job.problem)  # refuses what cannot be run, before there is a store
        seeds = range(positive_int("--seeds", self.seeds or 0))
        with self.opened() as store:
            watching = watcher(METRIC, higher_is_better=True)
            evaluate = Evaluator(store, backend, job, watching, tuple(seeds), self.early_stop, _tell)
            try:
                found = tune(start, procedure, evaluate)
                confirmed = self._confirmed(found, evaluate, len(seeds))
            finally:
                watching.stop()
            plan = found.best.plan(job.problem)
            with replacing(target) as unfinished:
                unfinished.write_text(plan.json() + "\n", encoding="utf-8")
            if self.export is not None:
                from mssp.sweep.evaluation import study_name
                from mssp.sweep.export import export

                export(store.open_study(study_name(job)), self.export)
        self._show(found, confirmed, target)
        return 0

    def _setting(self) -> Setting:
        from mssp.sweep.learning_rates import Setting

        setting = Setting(
            self.optimizer or "", self.regime or "", self.scheme or "", self.active, self.readout or "zero"
        )
        check_names(setting.scheme, setting.optimizer, setting.regime)
        check_cell(setting.scheme, setting.regime, setting.optimizer)
        family(setting.regime, positive_int("--width", self.width or 0), active=self.active)
        return setting

    def _start(self, setting: Setting, data: str) -> Trial:
        """The centre of the search; of the aggregation, the paper's 8/M unless something else is known or asked for."""
        known = multipliers(self.multipliers or "ones", data, setting)
        aggregation = float(self.active or 8) if self.multipliers == "ones" else known.aggregation_mult
        trial = setting.trial(self.width or 0, seed=0, lr=known.lr if self.lr is None else self.lr).with_tuned(known)
        return replace(trial, aggregation_mult=self.aggregation_mult or aggregation)

    def _procedure(self) -> Procedure:
        from mssp.sweep.tuning import Procedure

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
            seed=self.search_seed or 0,
        )

    def _confirmed(self, found: Found, evaluate: Evaluator, first: int) -> Estimate:
        """The best trial again, with seeds the search has not seen."""
        if not self.confirm:
            return Estimate(math.nan, math.nan)
        return mean_of(evaluate.per_seed("confirming", found.best, range(first, first + self.confirm)))

    def _show(self, found: Found, confirmed: Estimate, target: Path) -> None:
        if self.json:
            print(json.dumps(_as_json(found, confirmed), indent=1))
        else:
            heading = (
                f"Regime {self.regime} · {self.scheme} · {self.optimizer}, N = {self.width}: tuned by {self.method}"
            )
            show.lines(_lines(heading, found, confirmed, target), emphasised=[heading])
        if self.plot is not None:
            from mssp.report.figures import heatmaps
            from mssp.report.saving import save
            from mssp.sweep import grids

            tried = [(trial, score) for trial, score in found.tried if trial.lr == found.best.lr]
            figure = heatmaps(
                [grids.point_of(trial) for trial, _ in tried],
                [score for _, score in tried],
                grids.MULTIPLIERS,
                grids.point_of(found.best),
                "validation top-5",
            )
            save(figure, self.plot)


def _tell(stage: str, runs: int) -> None:
    if sys.stderr.isatty():
        print(f"{stage}: {runs} runs", file=sys.stderr)


def _lines(heading: str, found: Found, confirmed: Estimate, target: Path) -> list[str]:
    from mssp.sweep import grids

    rows = [["multiplier", "best", *(["of", ""] if found.fine else [])]]
    for name, value in grids.point_of(found.best).items():
        axis = found.fine.get(name, ())
        span = [f"{min(axis):.4g} … {max(axis):.4g}", "at the edge" if name in found.at_edge else ""] if axis else []
        rows.append([name, f"{value:.6g}", *span])
    diverged = sum(math.isinf(score) for _, score in found.tried)
    text = [heading, "", f"lr {found.best.lr:.6g}", "", *align(rows), ""]
    text.append(
        f"validation top-5 {found.score:.4f}, the best of {len(found.tried)} runs ({diverged} diverged or stopped)"
    )
    if not math.isnan(confirmed.value):
        text.append(f"with new seeds {confirmed.text(4)} (95% CI)")
    if found.at_edge:
        text.append(f"at the edge: more may be better; --multipliers {target} goes on from there")
    return [*text, f"plan written to {target}: mssp sweep --multipliers {target}"]


def _as_json(found: Found, confirmed: Estimate) -> dict[str, Any]:
    from mssp.sweep import grids

    return {
        "lr": found.best.lr,
        "multipliers": grids.point_of(found.best),
        "aggregation_mult": found.best.aggregation_mult,
        "validation_top5": found.score,
        "confirmed": {"value": confirmed.value, "ci": confirmed.ci} if not math.isnan(confirmed.value) else None,
        "runs": len(found.tried),
        "at_edge": list(found.at_edge),
    }
