"""Carry out a study: claim a chunk, train it, commit it, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mssp.data.dataset import Dataset
from mssp.ladders.ladder import Ladder, Ladders
from mssp.replicas import Feed, Replica, Schedule, Trained, train
from mssp.replicas.training import replicas_that_fit
from mssp.store.runs import Chunk, NewRun, Result, Store, Study
from mssp.sweep.trial import Trial, in_chunks

_LARGEST = {"cpu": 64, "cuda": 4096}  # replicas in a chunk: more are hardly faster, and results arrive later
_LAST = 20  # the last twentieth of training is averaged: 50 steps of the paper's 1000
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """What all runs of a study share. Curves take room: a large grid may go without."""

    data: Dataset
    schedule: Schedule
    ladders: Ladders
    precision: str = "float32"
    keep_curves: bool = True

    def ladder(self, trial: Trial) -> Ladder:
        """The ladder that a trial's model is of."""
        assert trial.setting.regime is not None
        return self.ladders(trial.setting.regime, self.data, trial.active)

    def check(self) -> None:
        """Refuse a schedule that the data are too few for."""
        self.data.batches(0, self.schedule.batch, self.schedule.steps)
        held_out = self.schedule.validation
        if held_out is not None and held_out > len(self.data.validation):
            raise ValueError(
                f"{held_out} validation examples were asked for, {self.data.name} has {len(self.data.validation)}"
            )

    @property
    def text(self) -> str:
        """For people, and for the names of studies."""
        held_out = f", {self.schedule.validation} held out" if self.schedule.validation else ""
        return f"{self.data.name}, {self.schedule.steps} steps of {self.schedule.batch}{held_out}, {self.precision}"

    @property
    def settings(self) -> dict[str, Any]:
        """What tells studies apart: runs of one store must not mix data or lengths."""
        return {
            "data": self.data.name,
            "checksum": self.data.checksum,
            "steps": self.schedule.steps,
            "batch": self.schedule.batch,
            "validation": self.schedule.validation,
            "precision": self.precision,
        }


class Watcher(Protocol):
    """Someone to tell how a study goes."""

    def start(self, runs: int, done: int, steps: int) -> None: ...

    def stepped(self, replicas: int) -> None: ...

    def finished(self, results: Sequence[Result]) -> None: ...


class Backend(Protocol):
    """Where runs are computed."""

    def chunks(self, trials: Sequence[Trial], job: Job) -> list[list[NewRun]]:
        """Trials as runs, those that train together side by side; what cannot be planned is refused here."""
        ...

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Finish these trials of a study; what else is waiting there goes on waiting."""
        ...


def plan_chunks(trials: Sequence[Trial], job: Job, device: torch.device) -> list[list[NewRun]]:
    """Trials as runs, each once, in chunks that fit on a device. What could not be trained is refused here."""
    job.check()
    different = {trial.key: trial for trial in trials}.values()
    sizes = {}
    for trial in {(trial.alike, trial.setting): trial for trial in different}.values():
        ladder = job.ladder(trial)
        program = ladder.program(trial.width)
        program.check(trial.plan(ladder))
        fitting = replicas_that_fit(program, trial.setting.optimizer, job.schedule.batch, device)
        sizes[trial.alike] = min(fitting, _LARGEST[device.type])
    chunks = in_chunks(list(different), sizes)
    return [[NewRun(trial.key, trial.parameters, trial.json()) for trial in chunk] for chunk in chunks]


def train_trials(
    trials: Sequence[Trial], feed: Feed, job: Job, on_step: Callable[[int], None] | None = None
) -> list[Result]:
    """Train alike trials together."""
    started = time.perf_counter()
    ladder = job.ladder(trials[0])
    program = ladder.program(trials[0].width)
    replicas = [Replica(trial.plan(ladder), trial.seed) for trial in trials]
    outcomes = train(program, replicas, feed, job.schedule, precision=job.precision, on_step=on_step)
    seconds = (time.perf_counter() - started) / len(trials)
    return [
        Result(trial.key, summary(done), done.curves if job.keep_curves else {}, done.diverged_at, seconds)
        for trial, done in zip(trials, outcomes, strict=True)
    ]


def summary(trained: Trained) -> dict[str, float]:
    """One number each: the mean of the last steps of training, the validation set, and the first step's loss."""
    steps = len(trained.curves["loss"])
    last = max(1, steps // _LAST)
    train = {f"train_{name}": float(np.mean(curve[-last:])) for name, curve in trained.curves.items()}
    validation = {f"validation_{name}": value for name, value in trained.validation.items()}
    return {**train, **validation, "first_loss": float(trained.curves["loss"][0])}


@dataclass
class Local:
    """This process, on one device."""

    device: torch.device
    _feed: Feed | None = None

    def chunks(self, trials: Sequence[Trial], job: Job) -> list[list[NewRun]]:
        return plan_chunks(trials, job, self.device)

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Chunks that others are at are waited for, and taken over should they die."""
        asked = begin(study, job, watcher, trials)
        if not trials:
            return
        if self._feed is None or self._feed.data is not job.data:  # stages of a search share it
            self._feed = job.ladder(trials[0]).feed(self.device)
        feed = self._feed
        while True:
            chunk = study.claim(asked)
            if chunk is None:
                if is_finished(study, asked):
                    return
                time.sleep(_POLL_SECONDS)
                continue

            def stepped(replicas: int) -> None:
                study.heartbeat()
                watcher.stepped(replicas)

            with committing(study, chunk):
                results = train_trials(trials_of(chunk), feed, job, stepped)
                study.finish(chunk, results)
            watcher.finished(results)


def carry_out(store: Store, backend: Backend, job: Job, watcher: Watcher, trials: Sequence[Trial], kind: str) -> Study:
    """Finish the trials of a study, which is made where it is not there; what cannot be run is refused before."""
    chunks = backend.chunks(trials, job)
    study = store.study(f"{kind} {job.text}", job.settings)
    study.add(chunks)
    backend.run(study, job, watcher, trials)
    return study


@contextmanager
def committing(study: Study, chunk: Chunk) -> Iterator[None]:
    """A chunk is finished inside, or else given back: as failed where its own error says why."""
    try:
        yield
    except Exception as error:
        study.fail(chunk, f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        study.release(chunk)
        raise


def is_finished(study: Study, asked: Collection[int]) -> bool:
    """Whether nothing is left to do; an error of a chunk that someone else gave up is raised."""
    counts = study.counts(asked)
    if counts["failed"]:
        failed = next(run for run in study.runs("failed") if run.chunk in asked)
        raise ValueError(f"{counts['failed']} runs failed: {failed.error}")
    return not counts["running"] + counts["pending"]


def trials_of(chunk: Chunk) -> list[Trial]:
    return [Trial.from_json(run.spec) for run in chunk.runs]


def begin(study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> set[int]:
    """The chunks that hold what was asked for, those that failed among them ready to be tried again."""
    asked = study.chunks_with([trial.key for trial in trials])
    study.retry_failed(asked)
    counts: Mapping[str, int] = study.counts(asked)
    watcher.start(sum(counts.values()), counts["done"] + counts["diverged"], job.schedule.steps)
    return asked
