"""How long a report and a resumed sweep take on a large run store, and how much memory.

    ./dev bench store
    ./dev bench store --runs 20000
    ./dev bench store --beside OTHER/src      # the package of another checkout on the same store, in the same run

The store holds a finished sweep, but for one chunk: resuming trains that chunk. Results are random numbers, which a
store keeps as it keeps others. Times are of whole commands, imports included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import mssp
from mssp.data import load
from mssp.ladders.mlp import MLPLadder
from mssp.ladders.tuned import Tuned
from mssp.planning.setting import Setting
from mssp.replicas import Schedule
from mssp.store.runs import Chunk, Result, Store
from mssp.sweep.execution import Job, Local
from mssp.sweep.transfer import Contender, LearningRates, trials

OURS = str(Path(mssp.__file__).parents[1])
WIDTHS, RATES, RATIO, STEPS, BATCH, VALIDATION = (16, 32, 48, 64), 64, 1.1, 4, 10, 100
SETTINGS = [
    Setting.of(scheme, regime, optimizer)
    for regime in ("I", "II", "III")
    for optimizer in ("sgd", "adam")
    for scheme in ("mssp", "mup")
]
METRICS = [f"{part}_{name}" for part in ("train", "validation") for name in ("loss", "accuracy", "top5")]


def flags(seeds: int) -> list[str]:
    """The flags of the sweep that the store belongs to."""
    words = "--regime I II III --optimizer sgd adam --scheme mssp mup --multipliers ones --device cpu --widths"
    rates = f"--lr-points {RATES} --lr-ratio {RATIO} --seeds {seeds}"
    sizes = f"{rates} --steps {STEPS} --batch {BATCH} --validation {VALIDATION} --data clusters"
    return [*words.split(), *map(str, WIDTHS), *sizes.split()]


def fill(path: Path, seeds: int) -> int:
    """Make the store of the sweep, in which one chunk is pending; returns the number of its runs."""
    job = Job(load("clusters"), Schedule(STEPS, BATCH, validation=VALIDATION), MLPLadder)
    contenders = {Contender(setting): Tuned(0.01) for setting in SETTINGS}
    widths = {setting.regime: WIDTHS for setting in SETTINGS if setting.regime is not None}
    planned = trials(contenders, widths, seeds, LearningRates(RATES, RATIO))
    random = np.random.default_rng(0)
    with Store(path) as store:
        study = store.study(job.study_name("sweep"), job.settings)
        study.add(Local(torch.device("cpu")).chunks(planned, job))
        for chunk in iter(study.claim, None):
            last = chunk
            study.finish(chunk, results(chunk, random))
        store._write("UPDATE chunk SET status = 'pending' WHERE number = ?", last.index)
        for table in ("metric", "curve"):
            store._write(f"DELETE FROM {table} WHERE run IN (SELECT id FROM run WHERE chunk = ?)", last.index)
    return len(planned)


def results(chunk: Chunk, random: np.random.Generator) -> list[Result]:
    numbers = random.uniform(0.1, 0.9, (len(chunk.runs), len(METRICS) + 1))
    return [
        Result(run.key, dict(zip([*METRICS, "first_loss"], row.tolist(), strict=True)), seconds=0.1)
        for run, row in zip(chunk.runs, numbers, strict=True)
    ]


# A process takes over the peak of the one that started it, so the command reads its own.
_COMMAND = """
import sys
from pathlib import Path
from mssp.cli.commands import main
code = main(sys.argv[1:])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
Path("peak").write_text(peak.split()[1])
sys.exit(code)
"""


def measured(arguments: list[str], source: str, folder: Path) -> tuple[float, float]:
    """Seconds and GiB of memory that a command takes with the package of one source tree."""
    environment = {**os.environ, "PYTHONPATH": source}
    began = time.perf_counter()
    command = [sys.executable, "-c", _COMMAND, *arguments]
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, int((folder / "peak").read_text()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200_000)
    parser.add_argument("--beside", action="append", default=[], metavar="SRC")
    parser.add_argument("--keep", type=Path, help="where the store is kept, or is there already")
    asked = parser.parse_args()
    seeds = max(2, asked.runs // (len(SETTINGS) * len(WIDTHS) * RATES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        full = asked.keep or folder / "full.sqlite"
        began = time.perf_counter()
        if not full.exists():
            runs = fill(full, seeds)
            size = f"{full.stat().st_size / 2**20:.0f} MiB"
            print(f"a store of {runs:,} runs, {size}, made in {time.perf_counter() - began:.0f} s")
        for source in [*asked.beside, OURS]:
            for title, command in (
                ("report", ["report", "runs.sqlite", "-o", "report.html"]),
                ("resume", ["sweep", *flags(seeds), "--store", "runs.sqlite"]),
            ):
                shutil.copy(full, folder / "runs.sqlite")
                seconds, gib = measured(command, source, folder)
                print(f"{title} {seconds:6.1f} s {gib:5.2f} GiB   {source}", flush=True)


if __name__ == "__main__":
    main()
