"""Checkpoints: whole or not there, found again, refused where they belong to something else."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mssp.planning.recipe import PlanWarning
from mssp.train import Step, checkpoints
from mssp.train.checkpoints import Checkpoints, load
from mssp.train.processes import Processes
from mssp.train.trained_model import load_model
from tests.train.runs import assert_same_runs, tiny, training_in


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    training_in(folder).run()
    return folder


def newest_of(folder: Path) -> checkpoints.Checkpoint | None:
    return Checkpoints(folder, 2, Processes()).newest()


def test_the_last_ones_are_kept(whole_run: Path) -> None:
    assert sorted(path.name for path in (whole_run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    newest = newest_of(whole_run)
    assert newest is not None
    assert (newest.step, newest.state["processes"]) == (6, 1)


def cut(path: Path) -> None:
    [file] = path.glob("*.safetensors")
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "has .* bytes of "),
        (lambda path: (path / "state.json").unlink(), "it has no state.json: it was not written to its end"),
        (lambda path: (path / "state.json").write_text("{"), "it is not JSON"),
        (lambda path: next(path.glob("*.safetensors")).unlink(), "has no bytes of"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(whole_run: Path, tmp_path: Path, damage: Any, reason: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    damage(folder / "checkpoints/step-00000006")
    with pytest.warns(PlanWarning, match=f"step-00000006 is passed over: .*{reason}"):
        newest = newest_of(folder)
    assert newest is not None
    assert newest.step == 4


def test_a_half_written_one_is_no_checkpoint(whole_run: Path, tmp_path: Path) -> None:
    """A process that dies while it writes leaves a folder of another name, which the next one removes."""
    folder = tmp_path / "run"
    shutil.copytree(whole_run, folder)
    shutil.rmtree(folder / "checkpoints/step-00000006")
    (folder / "checkpoints/.step-00000006.part").mkdir()
    (folder / "checkpoints/.step-00000006.part/shard").write_bytes(b"half")
    training_in(folder, resume=True).run()
    assert_same_runs(whole_run, folder)
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(step: Step) -> None:
        if step.step == 3:
            full = SimpleNamespace(total=1, used=1, free=2**12)
            monkeypatch.setattr(shutil, "disk_usage", lambda path: full)

    with pytest.raises(OSError, match=r"the checkpoint needs 0 MiB, and .* has 0 MiB left: make room, and go on with"):
        training_in(tmp_path / "run", watch=fill).run()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]


def test_a_disk_that_fills_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(step: Step) -> None:
        if step.step == 3:
            monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_item", broken)
            monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_files_from_queue", broken)

    with pytest.raises(OSError, match="No space left on device"):
        training_in(tmp_path / "run", watch=fill).run()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]


def test_the_checkpoint_of_another_model_is_refused(whole_run: Path, tmp_path: Path) -> None:
    newest = newest_of(whole_run)
    assert newest is not None
    wider = training_in(tmp_path / "wider", tiny(model={"expert_width": 32}))
    with pytest.raises(
        ValueError, match=r"is the checkpoint of another model: .* is \(4, 16, 32\) there, \(4, 32, 32\)"
    ):
        load(newest, wider.module, wider.optimizer, Processes())
    deeper = training_in(tmp_path / "deeper", tiny(model={"depth": 3}))
    with pytest.raises(ValueError, match=r"is the checkpoint of another model: it has no model\.blocks\.2\."):
        load(newest, deeper.module, deeper.optimizer, Processes())


def test_the_trained_model_is_read_again(whole_run: Path) -> None:
    model, tokenizer = load_model(whole_run)
    goes_on = training_in(whole_run, resume=True)
    assert tokenizer == "bytes"
    assert model.blocks[0].residual == 0.5  # type: ignore[index,union-attr]
    for (name, one), (_, other) in zip(model.named_parameters(), goes_on.module.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: it has no settings\.json"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match=r"holds no run: it has no settings\.json"):
        training_in(tmp_path, resume=True)
