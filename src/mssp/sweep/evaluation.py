"""Train the trials of a search through a store: what is known is not run again, and a killed search goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from mssp.store.runs import Store
from mssp.sweep.execution import Backend, Job, Watcher, carry_out
from mssp.sweep.metrics import METRICS, Metric
from mssp.sweep.search import Scores
from mssp.sweep.trial import Trial

KIND = "tune"  # what names of its studies begin with
_SHARE = 8  # of the steps that a first look takes
_KEEP = 4  # one in so many is worth the rest
_WORTH = 64  # trials: fewer are not worth a first look


@dataclass(frozen=True)
class Evaluator:
    """Scores of trials, the mean over seeds, larger is better; minus infinity where one diverged.

    Args:
        early_stop: look at all trials after an eighth of their steps, and go on with the best quarter. The others count
            as diverged.
        told: called with the name of every stage and how many runs it has.
    """

    store: Store
    backend: Backend
    job: Job
    watcher: Watcher
    metric: Metric = METRICS["validation_top5"]
    seeds: Sequence[int] = (0,)
    early_stop: bool = False
    told: Callable[[str, int], None] = lambda stage, runs: None

    def __call__(self, stage: str, trials: Sequence[Trial]) -> Scores:
        if not self.early_stop or len(trials) < _WORTH:
            return self._trained(stage, trials, self.job)
        schedule = self.job.schedule
        short = replace(self.job, schedule=replace(schedule, steps=max(1, schedule.steps // _SHARE)))
        first = self._trained(f"{stage}, a first look", trials, short)
        best = sorted(trials, key=lambda trial: first[trial.key], reverse=True)[: -(-len(trials) // _KEEP)]
        # What was trained in full before costs nothing.
        known = self._finished()
        promising = {trial.key for trial in best}
        whole = [
            trial
            for trial in trials
            if trial.key in promising or all(seeded.key in known for seeded in self._seeded(trial))
        ]
        return {**dict.fromkeys(first, -math.inf), **self._trained(stage, whole, self.job)}

    def per_seed(self, stage: str, trial: Trial, seeds: Sequence[int]) -> list[float]:
        """One trial's scores with other seeds."""
        trials = [replace(trial, seed=seed) for seed in seeds]
        scores = self._run(stage, trials, self.job)
        return [scores[each.key] for each in trials]

    def _trained(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        every = {trial.key: self._seeded(trial) for trial in trials}
        scores = self._run(stage, [trial for each in every.values() for trial in each], job)
        return {key: fmean(scores[trial.key] for trial in each) for key, each in every.items()}

    def _seeded(self, trial: Trial) -> list[Trial]:
        return [replace(trial, seed=seed) for seed in self.seeds]

    def _finished(self) -> set[str]:
        study = self.store.study(study_name(self.job), self.job.settings)
        return {run.key for run in study.runs() if run.status in ("done", "diverged")}

    def _run(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        self.told(stage, len(trials))
        study = carry_out(self.store, self.backend, job, self.watcher, trials, KIND)
        runs = {run.key: run for run in study.runs()}
        scores = {}
        for trial in trials:
            run = runs[trial.key]
            value = run.metrics[self.metric.name] if run.diverged_at is None else math.inf
            better = value if self.metric.higher_is_better else -value
            scores[trial.key] = better if math.isfinite(value) else -math.inf
        return scores


def study_name(job: Job) -> str:
    return f"{KIND} {job.text}"
