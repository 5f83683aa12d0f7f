"""How a study is carried out: claim a chunk, train it, commit it, until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mssp._constraints import function, kind_of, one_of, several, switch, takes, word
from mssp.data.dataset import Dataset
from mssp.ladders.ladder import Ladder, Ladders
from mssp.replicas import Feed, Replica, Schedule, Trained, train
from mssp.replicas.lockstep import PRECISIONS
from mssp.replicas.training import replicas_that_fit
from mssp.store.runs import Chunk, NewRun, Result, Store, Study
from mssp.sweep.trial import Trial, in_chunks

_LARGEST = {"cpu": 64, "cuda": 4096}  # replicas in a chunk: more are hardly faster, and results come later
_LAST = 20  # the last twentieth of the steps is averaged: 50 of the paper's 1000
_POLL_SECONDS = 1.0


@takes(
    data=kind_of(Dataset),
    schedule=kind_of(Schedule),
    ladders=function,
    precision=one_of(PRECISIONS),
    keep_curves=switch,
)
@dataclass(frozen=True)
class Job:
    """Everything that all runs of a study share. Curves take room: a large grid may go without them."""

    data: Dataset
    schedule: Schedule
    ladders: Ladders
    precision: str = "float32"
    keep_curves: bool = True

    def ladder(self, trial: Trial) -> Ladder:
        """The ladder to which a trial's model belongs."""
        assert trial.setting.regime is not None
        return self.ladders(trial.setting.regime, self.data, trial.active)

    def check(self) -> None:
        """Refuse a schedule that needs more data than there are."""
        self.data.batches(0, self.schedule.batch, self.schedule.steps)
        held_out = self.schedule.validation
        if held_out is not None and held_out > len(self.data.validation):
            raise ValueError(
                f"{held_out} validation examples were asked for, {self.data.name} has {len(self.data.validation)}"
            )

    @property
    def text(self) -> str:
        """The job in words, for people and for the names of studies."""
        held_out = f", {self.schedule.validation} held out" if self.schedule.validation else ""
        return f"{self.data.name}, {self.schedule.steps} steps of {self.schedule.batch}{held_out}, {self.precision}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its study, whose runs must not differ in data or length."""
        return {
            "data": self.data.name,
            "checksum": self.data.checksum,
            "steps": self.schedule.steps,
            "batch": self.schedule.batch,
            "validation": self.schedule.validation,
            "precision": self.precision,
        }


class Watcher(Protocol):
    """Follows the progress of a study."""

    def start(self, runs: int, done: int, steps: int) -> None: ...

    def stepped(self, replicas: int) -> None: ...

    def finished(self, results: Sequence[Result]) -> None: ...


class Backend(Protocol):
    """Where runs are computed."""

    def chunks(self, trials: Sequence[Trial], job: Job) -> list[list[NewRun]]:
        """Trials as runs, in chunks that train together. A trial that cannot be planned is refused here."""
        ...

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Finish these trials of a study, and no other runs that wait there."""
        ...


def plan_chunks(trials: Sequence[Trial], job: Job, device: torch.device) -> list[list[NewRun]]:
    """Trials as runs, each once, in chunks that fit on a device. A trial that cannot be trained is refused here."""
    job.check()
    unique = {trial.key: trial for trial in trials}.values()
    sizes = {}
    for trial in {(trial.alike, trial.setting): trial for trial in unique}.values():
        ladder = job.ladder(trial)
        program = ladder.program(trial.width)
        program.check(trial.plan(ladder))
        fitting = replicas_that_fit(program, trial.setting.optimizer, job.schedule.batch, device)
        sizes[trial.alike] = min(fitting, _LARGEST[device.type])
    chunks = in_chunks(list(unique), sizes)
    return [[NewRun(trial.key, trial.parameters, trial.json()) for trial in chunk] for chunk in chunks]


def train_trials(
    trials: Sequence[Trial], feed: Feed, job: Job, on_step: Callable[[int], None] | None = None
) -> list[Result]:
    """Train trials together that are alike."""
    started = time.perf_counter()
    ladder = job.ladder(trials[0])
    program = ladder.program(trials[0].width)
    replicas = [Replica(trial.plan(ladder), trial.seed) for trial in trials]
    all_trained = train(program, replicas, feed, job.schedule, precision=job.precision, on_step=on_step)
    seconds = (time.perf_counter() - started) / len(trials)
    return [
        Result(trial.key, _metrics(trained), trained.curves if job.keep_curves else {}, trained.diverged_at, seconds)
        for trial, trained in zip(trials, all_trained, strict=True)
    ]


def _metrics(trained: Trained) -> dict[str, float]:
    """Means over the last steps of training, results on the validation set, and the loss of the first step."""
    loss = trained.curves["loss"]
    last = max(1, len(loss) // _LAST)
    train = {f"train_{name}": float(np.mean(curve[-last:])) for name, curve in trained.curves.items()}
    validation = {f"validation_{name}": value for name, value in trained.validation.items()}
    return {**train, **validation, "first_loss": float(loss[0])}


@dataclass
class Local:
    """This process, on one device."""

    device: torch.device
    _feed: Feed | None = None

    def chunks(self, trials: Sequence[Trial], job: Job) -> list[list[NewRun]]:
        return plan_chunks(trials, job, self.device)

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Train chunk by chunk, wait for chunks that other processes hold, and take over those of dead processes."""
        numbers = begin(study, job, watcher, trials)
        if not trials:
            return
        if self._feed is None or self._feed.data is not job.data:  # stages of a search share it
            self._feed = job.ladder(trials[0]).feed(self.device)

        def stepped(replicas: int) -> None:
            study.heartbeat()
            watcher.stepped(replicas)

        while True:
            chunk = study.claim(numbers)
            if chunk is not None:
                with committing(study, chunk):
                    of_chunk = [Trial.from_json(run.spec) for run in chunk.runs]
                    results = train_trials(of_chunk, self._feed, job, stepped)
                    study.finish(chunk, results)
                watcher.finished(results)
            elif is_finished(study, numbers):
                return
            else:
                time.sleep(_POLL_SECONDS)


@takes(store=kind_of(Store), trials=several(kind_of(Trial)), kind=word)
def carry_out(store: Store, backend: Backend, job: Job, watcher: Watcher, trials: Sequence[Trial], kind: str) -> Study:
    """Finish the trials of a study. Trials that cannot be run are refused before the study is made."""
    chunks = backend.chunks(trials, job)
    study = store.study(f"{kind} {job.text}", job.settings)
    study.add(chunks)
    backend.run(study, job, watcher, trials)
    return study


@contextmanager
def committing(study: Study, chunk: Chunk) -> Iterator[None]:
    """Gives a chunk back if it is not finished inside: as failed after an error, as free after an interruption."""
    try:
        yield
    except Exception as error:
        study.fail(chunk, f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        study.release(chunk)
        raise


def is_finished(study: Study, numbers: Collection[int]) -> bool:
    """Whether nothing is left to do in these chunks; raises the error of one that failed in another process."""
    counts = study.counts(numbers)
    if counts["failed"]:
        failed = next(run for run in study.runs("failed") if run.chunk in numbers)
        raise ValueError(f"{counts['failed']} runs failed: {failed.error}")
    return not counts["running"] + counts["pending"]


def begin(study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> set[int]:
    """The numbers of the chunks that hold these trials; those that failed can be claimed again."""
    numbers = study.chunks_with([trial.key for trial in trials])
    study.retry_failed(numbers)
    counts = study.counts(numbers)
    watcher.start(sum(counts.values()), counts["done"] + counts["diverged"], job.schedule.steps)
    return numbers
