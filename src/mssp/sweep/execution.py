"""How a study is carried out: claim a chunk, train it, commit it, until nothing is left.

A study is a stored set of runs. A trial is one training to do, a run is its row in the store, and a chunk is a group of
runs that train together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mssp._constraints import function, kind_of, one_of, several, shown, switch, takes, word
from mssp.data.dataset import Dataset
from mssp.ladders.ladder import Ladder, Ladders
from mssp.replicas import Feed, Replica, Schedule, Trained, train
from mssp.replicas.lockstep import PRECISIONS
from mssp.replicas.training import replicas_that_fit
from mssp.store.runs import Chunk, NewRun, Result, Run, Store, Study
from mssp.sweep.trial import Trial, in_chunks

_MAX_CHUNK_SIZE = {"cpu": 64, "cuda": 4096}  # replicas: larger chunks are hardly faster, and their results come later
_FINAL_DIVISOR = 20  # training metrics are means over the last twentieth of the steps: 50 of the paper's 1000
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
    """Everything that all runs of a study share.

    Training curves take disk space; ``keep_curves=False`` leaves them out for large grids.
    """

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
        """Refuse a schedule that needs more examples than the data set has."""
        self.data.batches(0, self.schedule.batch, self.schedule.steps)  # raises where there are too few
        held_out = self.schedule.validation
        if held_out is not None and held_out > len(self.data.validation):
            raise ValueError(
                f"{held_out} validation examples were asked for, {self.data.name} has {len(self.data.validation)}"
            )

    @property
    def text(self) -> str:
        """The job in words, for headings and for the names of studies."""
        held_out = f", {self.schedule.validation} held out" if self.schedule.validation else ""
        return f"{self.data.name}, {self.schedule.steps} steps of {self.schedule.batch}{held_out}, {self.precision}"

    def study_name(self, kind: str) -> str:
        """The name of its study in a store, whose first word says which command made it."""
        return f"{kind} {self.text}"

    @property
    def settings(self) -> dict[str, Any]:
        """What all runs of one study must have in common: data, length, batch, validation and precision."""
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

    def waiting(self, reasons: Mapping[int, str]) -> None: ...


class Backend(Protocol):
    """Computes runs: in this process, or on a cluster."""

    def chunks(self, trials: Sequence[Trial], job: Job, known: Collection[str] = ()) -> list[list[NewRun]]:
        """Group trials into chunks of runs to add to a study. A trial that cannot be trained is refused.

        Args:
            known: the keys of the runs that the study has, which are left out.
        """
        ...

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Train these trials to the end; leave other pending runs of the study alone."""
        ...


def plan_chunks(
    trials: Sequence[Trial], job: Job, device: torch.device, known: Collection[str] = ()
) -> list[list[NewRun]]:
    """Group trials, each once, into chunks of runs that fit on a device. A trial that cannot be trained is refused.

    Trials whose keys are known are left out of the chunks that they would be in.
    """
    job.check()
    unique = {trial.key: trial for trial in trials}.values()
    sizes = {}
    for trial in one_of_each_kind(unique):
        ladder = job.ladder(trial)
        program = ladder.program(trial.width)
        program.check(trial.plan(ladder))
        what, batch = f"one replica of width {trial.width}", job.schedule.batch
        fitting = replicas_that_fit(program, trial.setting.optimizer, batch, device, what=what)
        # Settings of one group differ in scheme and readout, which take no memory: each gives the group the same size.
        sizes[trial.group_key] = min(fitting, _MAX_CHUNK_SIZE[device.type])
    new_in_chunks = ([trial for trial in chunk if trial.key not in known] for chunk in in_chunks(list(unique), sizes))
    return [
        [NewRun(trial.key, trial.parameters, trial.json()) for trial in chunk] for chunk in filter(None, new_in_chunks)
    ]


def one_of_each_kind(trials: Iterable[Trial]) -> list[Trial]:
    """One trial of each setting and size: where these can be trained, so can all."""
    return list({(trial.group_key, trial.setting): trial for trial in trials}.values())


def train_trials(
    trials: Sequence[Trial], feed: Feed, job: Job, on_step: Callable[[int], None] | None = None
) -> list[Result]:
    """Train trials of one :attr:`Trial.group_key` in lockstep; ``seconds`` of a result is its share of the time."""
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
    """The metrics of a run: means over its last training steps, validation results, and the loss of its first step."""
    loss = trained.curves["loss"]
    final_steps = max(1, len(loss) // _FINAL_DIVISOR)
    training = {f"train_{name}": float(np.mean(curve[-final_steps:])) for name, curve in trained.curves.items()}
    validation = {f"validation_{name}": value for name, value in trained.validation.items()}
    return {**training, **validation, "first_loss": float(loss[0])}


@dataclass
class Local:
    """Runs trials in this process, on one device."""

    device: torch.device
    _feed: Feed | None = None

    def chunks(self, trials: Sequence[Trial], job: Job, known: Collection[str] = ()) -> list[list[NewRun]]:
        return plan_chunks(trials, job, self.device, known)

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        """Train chunk by chunk, wait for chunks that other processes hold, and take over those of dead processes."""
        chunk_numbers = begin(study, job, watcher, trials)
        if not trials or is_finished(study, chunk_numbers):
            return
        if self._feed is None or self._feed.data is not job.data:  # the stages of a search share one feed
            self._feed = job.ladder(trials[0]).feed(self.device)

        def stepped(replicas: int) -> None:
            study.heartbeat()
            watcher.stepped(replicas)

        while True:
            chunk = study.claim(chunk_numbers)
            if chunk is not None:
                with giving_back_on_error(study, chunk):
                    chunk_trials = trials_of(study, chunk.runs)
                    results = train_trials(chunk_trials, self._feed, job, stepped)
                    study.finish(chunk, results)
                watcher.finished(results)
            elif is_finished(study, chunk_numbers):
                return
            else:
                watcher.waiting(study.waiting_for(chunk_numbers))
                time.sleep(_POLL_SECONDS)


def trials_of(study: Study, runs: Iterable[Run]) -> list[Trial]:
    """The trials of stored runs; a ValueError names the study of a run that is none."""
    with naming(study):
        return [Trial.of(run) for run in runs]


@contextmanager
def naming(study: Study) -> Iterator[None]:
    """Names the study in errors about its runs, unless the store has named it."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(str(study.store.path)):
            raise
        raise ValueError(f"study {shown(study.name)} in {study.store.path}: {error}") from None


def unchecked_text(study: Study) -> str:
    """Says, as the rest of a sentence, how many runs have no checksum; empty where all have one."""
    unchecked = study.unchecked()
    return f", {unchecked} of them unchecked: an older mssp kept them without a checksum" if unchecked else ""


@takes(store=kind_of(Store), trials=several(kind_of(Trial)), kind=word)
def carry_out(store: Store, backend: Backend, job: Job, watcher: Watcher, trials: Sequence[Trial], kind: str) -> Study:
    """Add trials to the job's study and train them. A trial that cannot be trained is refused before the study is made.

    Args:
        kind: the first word of the study's name.
    """
    name = job.study_name(kind)
    known = store.open_study(name).keys() if name in store.studies() else set()
    chunks = backend.chunks(trials, job, known)
    study = store.study(name, job.settings)
    study.add(chunks)
    backend.run(study, job, watcher, trials)
    return study


@contextmanager
def giving_back_on_error(study: Study, chunk: Chunk) -> Iterator[None]:
    """Gives a chunk back if the block raises: as failed after an error, as pending after an interruption."""
    try:
        yield
    except Exception as error:
        study.fail(chunk, f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        study.release(chunk)
        raise


def is_finished(study: Study, chunk_numbers: Collection[int]) -> bool:
    """Whether no run of these chunks is running or pending. Raises ValueError, with the first error, if one failed."""
    counts = study.counts(chunk_numbers)
    if counts["failed"]:
        failed = next(run for run in study.runs("failed") if run.chunk in chunk_numbers)
        raise ValueError(f"{counts['failed']} runs failed: {failed.error}")
    return not (counts["running"] or counts["pending"])


def begin(study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> set[int]:
    """Make failed chunks of these trials pending again, start the watcher, and return the numbers of their chunks."""
    chunk_numbers = study.chunks_with([trial.key for trial in trials])
    study.retry_failed(chunk_numbers)
    counts = study.counts(chunk_numbers)
    watcher.start(sum(counts.values()), counts["done"] + counts["diverged"], job.schedule.steps)
    return chunk_numbers
