"""Tiny runs for tests, and what they left: logs and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mssp.train import RunSettings, Training
from mssp.train.loop import Watcher
from mssp.train.processes import Processes

TINY: dict[str, Any] = {
    "about": "a tiny model for tests",
    "model": {
        "width": 32, "expert_width": 16, "experts": 4, "active": 2, "depth": 2, "head": 16, "vocabulary": 256,
        "noise": 0.1,
    },
    "plan": {"lr": 0.01, "regime": "III"},
    "data": {"sequence": 16, "validation": 4},
    "training": {"steps": 6, "tokens_per_step": 64, "save_every": 2, "validate_every": 3, "warmup": 2},
    "watch": {"routers_every": 2, "monitor_every": 3},
}  # fmt: skip


def tiny(**sections: dict[str, Any]) -> RunSettings:
    """The tiny run with other entries, section by section."""
    merged = {name: {**TINY[name], **sections.get(name, {})} if name != "about" else TINY[name] for name in TINY}
    return RunSettings.of({**{name: section for name, section in sections.items() if name not in TINY}, **merged})


def training_in(folder: Path, settings: RunSettings | None = None, *, resume: bool = False,
                watch: Watcher = lambda step: None) -> Training:  # fmt: skip
    return Training(
        settings or tiny(), folder, processes=Processes(), device=torch.device("cpu"), resume=resume, watch=watch
    )


def tensors_in(checkpoint: Path) -> dict[str, Tensor]:
    return {name: value for file in checkpoint.glob("*.safetensors") for name, value in load_file(file).items()}


def assert_same_runs(one: Path, other: Path) -> None:
    """Two runs have the same log, and the same newest checkpoint, to the bit."""
    assert (one / "run.jsonl").read_bytes() == (other / "run.jsonl").read_bytes()
    newest = [max((run / "checkpoints").glob("step-*")) for run in (one, other)]
    assert newest[0].name == newest[1].name
    first, second = map(tensors_in, newest)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
