"""Trains the trials of a search and returns their scores.

The trials become runs of a study in a store, so that none trains twice and a killed search resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from mssp.store.runs import FINISHED, Store
from mssp.sweep.execution import Backend, Job, Watcher, carry_out, naming
from mssp.sweep.metrics import METRICS, Metric
from mssp.sweep.search import Scores
from mssp.sweep.transfer import metric_of
from mssp.sweep.trial import Trial

KIND = "tune"  # the first word of the study's name
_FIRST_LOOK_DIVISOR = 8  # a first look takes an eighth of the steps
_PROMISING_DIVISOR = 4  # after the first look, the best quarter of the trials is trained to the end
_FEWEST_FOR_A_LOOK = 64  # a first look at fewer trials saves too little


@dataclass(frozen=True)
class Evaluator:
    """Gives trials their scores: means over seeds, larger is better, minus infinity where a seed diverged.

    Args:
        early_stop: train all trials for an eighth of the steps first, and only the best quarter of them to the end. The
            others count as diverged.
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
        if not self.early_stop or len(trials) < _FEWEST_FOR_A_LOOK:
            return self._mean_scores(stage, trials, self.job)
        schedule = self.job.schedule
        short_job = replace(self.job, schedule=replace(schedule, steps=max(1, schedule.steps // _FIRST_LOOK_DIVISOR)))
        first_scores = self._mean_scores(f"{stage}, a first look", trials, short_job)
        ranked = sorted(trials, key=lambda trial: first_scores[trial.key], reverse=True)
        promising = {trial.key for trial in ranked[: -(-len(trials) // _PROMISING_DIVISOR)]}
        # Trials that were trained to the end before cost nothing, so they are chosen too.
        study = self.store.study(self.job.study_name(KIND), self.job.settings)
        finished = {run.key for run in study.each_run() if run.status in FINISHED}
        chosen = [
            trial
            for trial in trials
            if trial.key in promising or all(member.key in finished for member in _with_seeds(trial, self.seeds))
        ]
        return {**dict.fromkeys(first_scores, -math.inf), **self._mean_scores(stage, chosen, self.job)}

    def per_seed(self, stage: str, trial: Trial, seeds: Sequence[int]) -> list[float]:
        """The scores of one trial with other seeds."""
        trials = _with_seeds(trial, seeds)
        scores = self._scores(stage, trials, self.job)
        return [scores[member.key] for member in trials]

    def _mean_scores(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        """The means over seeds of the scores of trials."""
        groups = {trial.key: _with_seeds(trial, self.seeds) for trial in trials}
        scores = self._scores(stage, list(chain.from_iterable(groups.values())), job)
        return {key: fmean(scores[trial.key] for trial in group) for key, group in groups.items()}

    def _scores(self, stage: str, trials: Sequence[Trial], job: Job) -> Scores:
        """The scores of trials, each with its own seed."""
        self.on_stage(stage, len(trials))
        study = carry_out(self.store, self.backend, job, self.watcher, trials, KIND)
        scores = dict.fromkeys((trial.key for trial in trials), -math.inf)
        with naming(study):
            for run in study.each_run(study.chunks_with(scores.keys())):
                if run.key in scores and run.diverged_at is None:
                    value = metric_of(run, self.metric.name)
                    score = value if self.metric.higher_is_better else -value
                    scores[run.key] = score if math.isfinite(value) else -math.inf
        return scores


def _with_seeds(trial: Trial, seeds: Sequence[int]) -> list[Trial]:
    return [replace(trial, seed=seed) for seed in seeds]
