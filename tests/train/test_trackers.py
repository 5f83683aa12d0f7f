"""Trackers beside the log: each gets every number of a line, by name and step. Stand-ins are in place of packages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mssp.train.run_log import RunLog
from mssp.train.trackers import sinks

Seen = list[tuple[int, dict[str, float]]]


def like_wandb(seen: Seen, said: dict[str, Any]) -> ModuleType:
    module = ModuleType("wandb")

    def init(**settings: Any) -> SimpleNamespace:
        said.update(settings)
        return SimpleNamespace(log=lambda numbers, step: seen.append((step, numbers)))

    vars(module)["init"] = init
    return module


def like_tensorboard(seen: Seen) -> ModuleType:
    module = ModuleType("tensorboard")

    class SummaryWriter:
        def __init__(self, log_dir: str) -> None:
            self.folder = log_dir

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((step, {name: value}))

        def flush(self) -> None:
            pass

    vars(module)["SummaryWriter"] = SummaryWriter
    return module


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_runs_of_wandb_and_trackio(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, said = Seen(), dict[str, Any]()
    monkeypatch.setitem(sys.modules, name, like_wandb(seen, said))
    log = RunLog(tmp_path, sinks([name], tmp_path, {"training": {"steps": 3}}))
    log.write("step", 2, loss=1.5, lr={"router": 0.25}, text="words are no numbers")
    log.write("start", plan="no step, no numbers")
    assert (said["name"], said["config"]) == (tmp_path.name, {"training": {"steps": 3}})
    assert seen == [(2, {"step/loss": 1.5, "step/lr/router": 0.25})]


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", like_tensorboard(seen))
    log = RunLog(tmp_path, sinks(["tensorboard"], tmp_path, {}))
    log.write("validation", 4, loss=2.0, sequences=8)
    assert seen == [(4, {"validation/loss": 2.0}), (4, {"validation/sequences": 8.0})]


def test_one_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match=r"^--track trackio needs the package trackio: pip install trackio$"):
        sinks(["trackio"], tmp_path, {})
