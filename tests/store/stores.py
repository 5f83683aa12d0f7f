"""A small sweep, and processes that work at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mssp.store.runs import Chunk, NewRun, Result, Store, Study

SETTINGS = {"steps": 3, "data": {"name": "cifar10", "batch": 50}, "betas": [0.9, 0.95]}


def new_runs(chunks: int, size: int) -> list[list[NewRun]]:
    return [[NewRun(f"{c}-{r}", {"width": 64 * c, "seed": r}, "{}") for r in range(size)] for c in range(chunks)]


def results(chunk: Chunk, loss: float = 1.0) -> list[Result]:
    return [Result(run.key, {"loss": loss}, {"loss": np.ones(3, np.float32)}, None, 0.5) for run in chunk.runs]


def claimed(study: Study) -> Chunk:
    chunk = study.claim()
    assert chunk is not None
    return chunk


def sound_store(path: Path) -> bytes:
    with Store(path) as store:
        study = store.study("sweep", SETTINGS)
        study.add(new_runs(8, 50))
        chunk = claimed(study)
        study.finish(chunk, results(chunk))
    return path.read_bytes()


def beside(path: Path) -> set[str]:
    return {entry.name for entry in path.parent.iterdir()}


WORKER = """
import sys, time
from mssp.store.runs import Result, Store
path, pause = sys.argv[1], float(sys.argv[2])
with Store(path) as store:
    study = store.study("sweep", {"steps": 3, "data": {"name": "cifar10", "batch": 50}, "betas": [0.9, 0.95]})
    for chunk in iter(study.claim, None):
        print(chunk.index, flush=True)
        time.sleep(pause)
        study.finish(chunk, [Result(run.key, {"loss": 2.0}) for run in chunk.runs])
"""


def worker(path: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(path), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def busy_worker(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has claimed a chunk and holds it as long as it lives."""
    with worker(path, 600) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()
