"""Kills runs of ``mssp train`` at random moments, lets them go on, and compares all that they leave with a run that
nobody killed: the log, the weights and the optimizer's state, to the bit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import SIGKILL, SIGTERM, Signals

import torch
from safetensors.torch import load_file

from tests.kills.harness import DifferenceError

_STEPS = 30
RECIPE = f"""
about = "a tiny model that is killed"
[model]
width = 32
expert_width = 16
experts = 4
active = 2
depth = 2
head = 16
vocabulary = 256
noise = 0.1
[plan]
lr = 0.01
regime = "III"
[data]
sequence = 32
validation = 4
[training]
steps = {_STEPS}
tokens_per_step = 128
warmup = 5
save_every = 4
validate_every = 6
[watch]
routers_every = 3
monitor_every = 7
"""


@dataclass(frozen=True)
class Killed:
    """A kill: by which signal, and how many lines the log had when the signal was sent."""

    signal: Signals
    lines: int
    checkpoints: int

    def __str__(self) -> str:
        return f"{self.signal.name} after {self.lines} lines of the log, {self.checkpoints} checkpoints"


class Trainings:
    """Runs of one recipe in a folder, of which one was never killed.

    Args:
        processes: how many processes train together, under torchrun.
    """

    def __init__(self, folder: Path, processes: int = 1) -> None:
        self._folder, self._processes = folder, processes
        (folder / "tiny.toml").write_text(RECIPE, encoding="utf-8")
        self._ended("whole", self._started("whole").wait())

    def kill(self, random: Random, times: int) -> list[Killed]:
        """Kill one run so many times, let it go on each time, and compare what it comes to."""
        name = f"killed-{random.getrandbits(32)}"
        killed = []
        for _ in range(times):
            process = self._started(name)
            signal = random.choice((SIGKILL, SIGKILL, SIGTERM))
            self._wait_for(process, name, random.randrange(1, _STEPS + 10))
            time.sleep(random.uniform(0, 0.03))
            lines, checkpoints = self._lines(name), len(list(self._run(name).glob("checkpoints/step-*")))
            # The launcher's own end would end its processes kindly: they are killed with it.
            os.killpg(process.pid, signal)
            process.wait()
            killed.append(Killed(signal, lines, checkpoints))
        self._ended(name, self._started(name).wait())
        self.compare(name)
        shutil.rmtree(self._run(name))
        return killed

    def _run(self, name: str) -> Path:
        return self._folder / name

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        resume = ["--resume"] if (self._run(name) / "settings.json").exists() else ["--recipe", "tiny.toml"]
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self._processes)]
        launcher = several if self._processes > 1 else []
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *launcher, "-m", "mssp", "train", *resume, "--out", name, "--device", "cpu"],
                cwd=self._folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _ended(self, name: str, code: int) -> None:
        if code:
            said = (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
            raise DifferenceError(f"{name} ended with {code}: {said[-500:]}")

    def _wait_for(self, process: subprocess.Popen[bytes], name: str, lines: int) -> None:
        while process.poll() is None and self._lines(name) < lines:
            time.sleep(0.002)

    def _lines(self, name: str) -> int:
        log = self._run(name) / "run.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def compare(self, name: str) -> None:
        """Refuse a run that differs from the one that was never killed."""
        whole, killed = self._run("whole"), self._run(name)
        if (whole / "run.jsonl").read_bytes() != (killed / "run.jsonl").read_bytes():
            raise DifferenceError(f"{name}: run.jsonl differs")
        newest = [max(run.glob("checkpoints/step-*")) for run in (whole, killed)]
        if newest[0].name != newest[1].name or list(killed.glob("checkpoints/.*")):
            raise DifferenceError(f"{name}: its checkpoints are {sorted(killed.glob('checkpoints/*'))}")
        tensors = [
            {key: tensor for file in each.glob("*.safetensors") for key, tensor in load_file(file).items()}
            for each in newest
        ]
        different = [key for key in tensors[0] if not torch.equal(tensors[0][key], tensors[1][key])]
        if different or tensors[0].keys() != tensors[1].keys():
            raise DifferenceError(f"{name}: {', '.join(different[:3]) or 'names'} differ")
