"""Scores for a search: its trials train through a store, so that none trains twice and a killed search goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from mssp.store.runs import Store
from mssp.sweep.execution import Backend, Job, Watcher, carry_out
from mssp.sweep.metrics import METRICS, Metric
from mssp.sweep.search import Scores
from mssp.sweep.trial import Trial

KIND = "tune"  # the names of its studies begin with this
_SHARE = 8  # a first look takes an eighth of the steps
_KEEP = 4  # after it, a quarter of the trials is trained to its end
_WORTH = 64  # fewer trials are not worth a first look


@dataclass(frozen=True)
class Evaluator:
    """Gives trials their scores: means over seeds, larger is better, minus infinity where a seed diverged.

    Args:
        early_stop: look at all trials after an eighth of their steps, and go on with the best quarter. The others count
            as diverged.
        on_stage: called with the name of every stage and the number of its runs.
    """

    store: Store
    backend: Backend
    job: Job
    watcher: Watcher
    metric: Metric = METRICS["validation_top5"]
    seeds: Sequence[int] = (0,)
    early_stop: bool = False
    on_stage: Callable[[str, int], None] = lambda stage, runs: None

    def __call__(self, stage: str, trials: Sequence[Trial]) -> Scores:
        if not self.early_stop or len(trials) < _WORTH:
            return self._trained(stage, trials, self.job)
        schedule = self.job.schedule
        short = replace(self.job, schedule=replace(schedule, steps=max(1, schedule.steps // _SHARE)))
        first = self._trained(f"{stage}, a first look", trials, short)
        best = sorted(trials, key=lambda trial: first[trial.key], reverse=True)[: -(-len(trials) // _KEEP)]
        promising = {trial.key for trial in best}
        # Trials that were trained to their end before cost nothing.
        study = self.store.study(study_name(self.job), self.job.settings)
        finished = {run.key for run in study.runs() if run.status in ("done", "diverged")}
        chosen = [
            trial
            for trial in trials
            if trial.key in promising or all(of_seed.key in finished for of_seed in _with_seeds(trial, self.seeds))
        ]
        return {**dict.fromkeys(first, -math.inf), **self._trained(stage, chosen, self.job)}

    def per_seed(self, stage: str, trial: Trial, seeds: Sequence[int]) -> list[float]:
        """The scores of one trial with other seeds."""
        trials = _with_seeds(trial, seeds)
        scores = self._run(stage, trials, self.job)
        return [scores[of_seed.key] for of_seed in trials]

    def _trained(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        groups = {trial.key: _with_seeds(trial, self.seeds) for trial in trials}
        scores = self._run(stage, list(chain.from_iterable(groups.values())), job)
        return {key: fmean(scores[trial.key] for trial in group) for key, group in groups.items()}

    def _run(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        self.on_stage(stage, len(trials))
        study = carry_out(self.store, self.backend, job, self.watcher, trials, KIND)
        runs = {run.key: run for run in study.runs()}
        scores = {}
        for trial in trials:
            run = runs[trial.key]
            value = run.metrics[self.metric.name] if run.diverged_at is None else math.inf
            better = value if self.metric.higher_is_better else -value
            scores[trial.key] = better if math.isfinite(value) else -math.inf
        return scores


def _with_seeds(trial: Trial, seeds: Sequence[int]) -> list[Trial]:
    return [replace(trial, seed=seed) for seed in seeds]


def study_name(job: Job) -> str:
    return f"{KIND} {job.text}"
