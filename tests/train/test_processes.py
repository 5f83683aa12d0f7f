"""Runs of several processes: the same run as that of one, and one that goes on, also by another number of processes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mssp.train import Ended, RunSettings, Step, Training
from mssp.train.processes import Processes
from tests.ranks import check_on_ranks
from tests.train.runs import assert_same_runs, tensors_in, tiny, training_in

LAYOUTS = ("ddp", "fsdp", "ep")


class StoppedError(Exception):
    pass


def stop_at_three(step: Step) -> None:
    if step.step == 3:
        raise StoppedError


def settings_of(layout: str | None = None) -> RunSettings:
    """Micro-batches of one sequence: balanced loads are those of a micro-batch, whichever process computes it."""
    watch = {"monitor_every": None}  # which needs whole parameters
    return tiny(model={"noise": 0.0}, training={"layout": layout, "micro_batch": 1}, watch=watch)


def trained(folder: Path, layout: str, *, resume: bool = False, stopped: bool = False) -> Ended | None:
    """A run of the processes of this group, without the noise that each process draws for itself."""
    processes = Processes(dist.get_rank(), dist.get_world_size())
    training = Training(
        settings_of(layout), folder, processes=processes, resume=resume, watch=stop_at_three if stopped else _go_on
    )
    try:
        return training.run()
    except StoppedError:
        return None
    finally:
        dist.barrier()


def _go_on(step: Step) -> None:
    pass


def runs_on_ranks(folder: str) -> None:
    for layout in LAYOUTS:
        trained(Path(folder, layout), layout)
    trained(Path(folder, "stopped"), "fsdp", stopped=True)
    trained(Path(folder, "stopped"), "fsdp", resume=True)
    trained(Path(folder, "half"), "fsdp", stopped=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes under every layout, and of one process beside them."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "ranks").mkdir()
    check_on_ranks(2, folder / "ranks", partial(runs_on_ranks, str(folder)))
    training_in(folder / "one", settings_of()).run()
    return folder


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "run.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_processes_train_as_one(folder: Path, layout: str) -> None:
    assert losses(folder / layout) == pytest.approx(losses(folder / "one"), rel=2e-5)
    one = tensors_in(folder / "one/checkpoints/step-00000006")
    wanted = {name: tensor for name, tensor in one.items() if name.startswith("model.")}
    read = training_in(folder / layout, settings_of(), resume=True)  # by one process
    assert read.step == 6
    for name, tensor in read.module.state_dict().items():
        torch.testing.assert_close(tensor, wanted[f"model.{name}"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_processes_that_were_stopped_go_on_exactly(folder: Path) -> None:
    assert_same_runs(folder / "fsdp", folder / "stopped")


@pytest.mark.slow
def test_another_number_of_processes_goes_on(folder: Path) -> None:
    ended = training_in(folder / "half", settings_of(), resume=True).run()
    assert ended.step == 6
    assert losses(folder / "half") == pytest.approx(losses(folder / "one"), rel=2e-5)
