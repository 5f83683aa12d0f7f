"""Trains chunks of runs as tasks on a Ray cluster: on a running cluster, or on a local one that it starts.

This process claims the chunks and commits their results, so the store is a file of this machine, as it is without Ray.
If a worker dies, another worker trains its chunk again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch

from mssp._environment import pick_device
from mssp.store.runs import Chunk, NewRun, Result, Study
from mssp.sweep.execution import (
    Job,
    Watcher,
    begin,
    giving_back_on_error,
    is_finished,
    plan_chunks,
    train_trials,
    trials_of,
)
from mssp.sweep.trial import Trial

_RETRIES = 5  # of a task whose worker died
_WAIT_SECONDS = 1.0
_CHUNKS_PER_WORKER = 2  # chunks claimed at a time, so that a worker starts the next one as soon as one ends


class Ray:
    """Runs trials on a Ray cluster: one task per GPU, or on CPUs, with as many threads as this process has."""

    def __init__(self, device: str = "auto") -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("--backend ray needs Ray: pip install 'mssp[ray]'") from None
        os.environ.setdefault(
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
        )  # Ray's future default; setting it avoids a warning
        self._ray: Any = ray  # Ray's own types are incomplete
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        resources = self._ray.cluster_resources()
        gpus = resources.get("GPU", 0)
        self._on_gpu = device != "cpu" and gpus >= 1
        if device.startswith("cuda") and not self._on_gpu:
            raise ValueError(f"device {device!r} cannot be used here: the Ray cluster has no GPU")
        self._threads = torch.get_num_threads()
        self._workers = int(gpus) if self._on_gpu else max(1, int(resources.get("CPU", 1) // self._threads))

    def chunks(self, trials: Sequence[Trial], job: Job, known: Collection[str] = ()) -> list[list[NewRun]]:
        """Chunks that fit on this machine; a worker with less memory trains a chunk in parts."""
        gpu_is_here = self._on_gpu and torch.cuda.is_available()
        return plan_chunks(trials, job, pick_device("cuda" if gpu_is_here else "cpu"), known)

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        chunk_numbers = begin(study, job, watcher, trials)
        resources = {"num_gpus": 1} if self._on_gpu else {"num_cpus": self._threads}
        task = self._ray.remote(max_retries=_RETRIES, **resources)(_train_chunk)
        shared_job = self._ray.put(job)  # each machine gets it once, not once per task
        in_flight: dict[Any, Chunk] = {}
        while True:
            while (
                len(in_flight) < _CHUNKS_PER_WORKER * self._workers
                and (chunk := study.claim(chunk_numbers)) is not None
            ):
                trials_of(study, chunk.runs)  # refuses what is none, and sends texts, which are small
                specs = [run.spec for run in chunk.runs]
                in_flight[task.remote(specs, shared_job, self._on_gpu, self._threads)] = chunk
            if not in_flight:
                if is_finished(study, chunk_numbers):
                    return
                watcher.waiting(study.waiting_for(chunk_numbers))
                time.sleep(_WAIT_SECONDS)
                continue
            ready, _ = self._ray.wait(list(in_flight), timeout=_WAIT_SECONDS)
            study.heartbeat()
            for reference in ready:
                chunk = in_flight.pop(reference)
                with giving_back_on_error(study, chunk):
                    try:
                        results: list[Result] = self._ray.get(reference)
                    except self._ray.exceptions.RayTaskError as error:
                        raise error.cause from None  # the error itself, without the worker's traceback
                    study.finish(chunk, results)
                watcher.finished(results)


def _train_chunk(specs: list[str], job: Job, on_gpu: bool, threads: int) -> list[Result]:
    """The task of a worker: it uses as many threads as the calling process, so that sums have the same order."""
    torch.set_num_threads(threads)
    trials = [Trial.from_json(spec) for spec in specs]
    feed = job.ladder(trials[0]).feed(torch.device("cuda" if on_gpu else "cpu"))
    return train_trials(trials, feed, job)
