"""Chunks of replicas as tasks on a Ray cluster: the one that is there, or a local one that is started.

This process claims chunks and commits their results, so the store lives here, and is the same as without Ray. A worker
that dies takes nothing with it: its chunk is trained again, on another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from mssp._environment import pick_device
from mssp.store.runs import Chunk, NewRun, Result, Study
from mssp.sweep.execution import Job, Watcher, begin, committing, is_finished, plan_chunks, train_trials
from mssp.sweep.trial import Trial

_RETRIES = 5  # of a chunk whose worker died
_WAIT_SECONDS = 1.0
_AHEAD = 2  # chunks per worker that are claimed at once: the next is there when one ends


class Ray:
    """A Ray cluster with one task per GPU, or per CPU machine where there is none."""

    def __init__(self, device: str = "auto") -> None:
        try:
            import ray
        except ImportError:
            raise ValueError("--backend ray needs Ray: pip install 'mssp[ray]'") from None
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do anyway, without its warning
        self._ray: Any = ray  # whose own types do not go far
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        has = self._ray.cluster_resources()
        gpus = has.get("GPU", 0)
        self._on_gpu = device != "cpu" and gpus >= 1
        if device.startswith("cuda") and not self._on_gpu:
            raise ValueError(f"device {device!r} cannot be used here: the Ray cluster has no GPU")
        self._threads = torch.get_num_threads()
        self._workers = int(gpus) if self._on_gpu else max(1, int(has.get("CPU", 1) // self._threads))

    def chunks(self, trials: Sequence[Trial], job: Job) -> list[list[NewRun]]:
        """As on this machine; a worker with less memory trains a chunk in parts."""
        here = self._on_gpu and torch.cuda.is_available()
        return plan_chunks(trials, job, pick_device("cuda" if here else "cpu"))

    def run(self, study: Study, job: Job, watcher: Watcher, trials: Sequence[Trial]) -> None:
        asked = begin(study, job, watcher, trials)
        resources = {"num_gpus": 1} if self._on_gpu else {"num_cpus": self._threads}
        task = self._ray.remote(max_retries=_RETRIES, **resources)(_train_chunk)
        shared = self._ray.put(job)  # once for all tasks of a machine
        flying: dict[Any, Chunk] = {}
        while True:
            while len(flying) < _AHEAD * self._workers and (chunk := study.claim(asked)) is not None:
                specs = [run.spec for run in chunk.runs]
                flying[task.remote(specs, shared, self._on_gpu, self._threads)] = chunk
            if not flying:
                if is_finished(study, asked):
                    return
                time.sleep(_WAIT_SECONDS)  # another process is at the rest
                continue
            ready, _ = self._ray.wait(list(flying), timeout=_WAIT_SECONDS)
            study.heartbeat()
            for reference in ready:
                chunk = flying.pop(reference)
                with committing(study, chunk):
                    results = self._results(reference)
                    study.finish(chunk, results)
                watcher.finished(results)

    def _results(self, reference: Any) -> list[Result]:
        try:
            return list(self._ray.get(reference))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None  # what went wrong, without the worker's own traceback


def _train_chunk(specs: list[str], job: Job, on_gpu: bool, threads: int) -> list[Result]:
    """What a worker does. As many threads as the process that asked has: the same sums, in the same order."""
    torch.set_num_threads(threads)
    trials = [Trial.from_json(spec) for spec in specs]
    feed = job.ladder(trials[0]).feed(torch.device("cuda" if on_gpu else "cpu"))
    return train_trials(trials, feed, job)
