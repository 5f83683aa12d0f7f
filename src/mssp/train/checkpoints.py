"""Checkpoints of a run: model, optimizer, random state and place in the data, written whole or not at all.

    RUN/settings.json, plan.json          what the run is
    RUN/checkpoints/step-00000100/        one checkpoint: state.json, and tensors as safetensors, a file per process

Tensors are written by ``torch.distributed.checkpoint``, so that another number of processes, or another layout, can
read them. Nothing is pickled. A checkpoint is written into a folder of another name, which is renamed once everything
is on the disk; ``state.json`` has the size of every file, by which a damaged checkpoint is known.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX
from torch.optim import Optimizer

from mssp._documents import parsed
from mssp._files import write_whole
from mssp.planning.recipe import PlanWarning
from mssp.train.processes import Processes

STATE, FOLDER = "state.json", "checkpoints"
_NAME = re.compile(r"step-(\d+)$")
_SPARE = 1.05  # of the disk's space, over the bytes of the tensors
_RANDOM = "random.cpu."  # followed by the number of the process


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on the disk."""

    path: Path
    step: int
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of a run's folder."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self._folder, self._keep, self._processes = folder / FOLDER, keep, processes

    def newest(self) -> Checkpoint | None:
        """The newest whole checkpoint. Damaged and half-written ones are passed over, with a warning."""
        for step, path in sorted(_numbered(self._folder), reverse=True):
            try:
                return Checkpoint(path, step, _state_in(path))
            except ValueError as error:
                warnings.warn(f"{path} is passed over: {error}", PlanWarning, stacklevel=2)
        return None

    def save(self, step: int, module: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, and remove those that are too many. If it fails, those before it are as they were."""
        target = self._folder / f"step-{step:08d}"
        if target.exists():
            return target
        tensors = tensors_of(module, optimizer)
        tensors[f"{_RANDOM}{self._processes.rank}"] = torch.get_rng_state()
        unfinished = self._folder / f".{target.name}.part"
        self._processes.on_first(lambda: self._make_room(unfinished, tensors))
        with _cleaned_up(unfinished, self._processes):
            writer = HuggingFaceStorageWriter(str(unfinished), save_distributed=True)
            with _plain_errors(target):
                state_dict_saver.save(tensors, storage_writer=writer, no_dist=not self._processes.several)
            self._processes.on_first(lambda: self._finish(unfinished, target, {**state, "step": step}))
        return target

    def _finish(self, unfinished: Path, target: Path, state: Mapping[str, Any]) -> None:
        """Give a checkpoint whose tensors are written its state and its name."""
        sizes = {file.name: file.stat().st_size for file in sorted(unfinished.iterdir())}
        write_whole(unfinished / STATE, json.dumps({**state, "files": sizes}, indent=1) + "\n")
        _to_disk(unfinished)
        os.replace(unfinished, target)
        _to_disk(self._folder, files=False)
        for _, path in sorted(_numbered(self._folder))[: -self._keep]:
            shutil.rmtree(path)

    def _make_room(self, unfinished: Path, tensors: Mapping[str, Tensor]) -> None:
        self._folder.mkdir(exist_ok=True)
        for other in self._folder.glob(".*.part"):
            shutil.rmtree(other)
        needed = int(_SPARE * sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise OSError(
                f"the checkpoint needs {needed / 2**20:,.0f} MiB, and {self._folder} has {free / 2**20:,.0f} MiB left: "
                "make room, and go on with --resume"
            )
        unfinished.mkdir()


def load(checkpoint: Checkpoint, module: nn.Module, optimizer: Optimizer | None, processes: Processes) -> None:
    """Read a checkpoint into a model and its optimizer, in place; and the random state, by as many processes."""
    reader = HuggingFaceStorageReader(str(checkpoint.path))
    saved = reader.read_metadata().state_dict_metadata
    wanted = tensors_of(module, optimizer, like=saved)
    own_random = f"{_RANDOM}{processes.rank}"
    if own_random in saved and optimizer is not None:
        wanted[own_random] = torch.get_rng_state()
    missing, odd = set(wanted) - set(saved), _of_model(saved) - _of_model(wanted)
    if missing or odd:
        name = min(missing or odd)
        what = f"it has no {name}" if missing else f"it has {name}, which the model has not"
        raise ValueError(f"{checkpoint.path} is the checkpoint of another model: {what}")
    for name, tensor in wanted.items():
        there, here = tuple(saved[name].size), tuple(tensor.shape)  # type: ignore[union-attr]
        if there != here:
            raise ValueError(
                f"{checkpoint.path} is the checkpoint of another model: {name} is {there} there, {here} here"
            )
    with _plain_errors(checkpoint.path):
        state_dict_loader.load(wanted, storage_reader=reader, no_dist=not processes.several)
    _put(wanted, module, optimizer)
    if own_random in wanted:
        torch.set_rng_state(wanted[own_random])


# -- the tensors of a run ----------------------------------------------------------------------------------------------

_MODEL, _OPTIMIZER = "model.", "optimizer."


def tensors_of(
    module: nn.Module, optimizer: Optimizer | None, like: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name. With ``like``, a new optimizer has room for the states that are named there.

    Numbers of the optimizer are written as vectors of one entry, which safetensors can hold in parts.
    """
    tensors = {f"{_MODEL}{name}": value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    if optimizer is None:
        return tensors
    for name, parameter in _trained(module, optimizer):
        state = optimizer.state.get(parameter, {})
        if like is not None:
            prefix = f"{_OPTIMIZER}{name}:"
            kinds = [key.removeprefix(prefix) for key in like if key.startswith(prefix)]
            state = {kind: _room(kind, parameter) for kind in kinds}
        for kind, value in state.items():
            tensors[f"{_OPTIMIZER}{name}:{kind}"] = value.reshape(1) if value.dim() == 0 else value
    return tensors


def _put(tensors: Mapping[str, Tensor], module: nn.Module, optimizer: Optimizer | None) -> None:
    """Hand the tensors that were read to the optimizer, and those of no memory of their own to the model."""
    own = {name: tensors[f"{_MODEL}{name}"] for name in module.state_dict() if name.endswith(_EXTRA_STATE_KEY_SUFFIX)}
    module.load_state_dict(own, strict=False)
    if optimizer is None:
        return
    for name, parameter in _trained(module, optimizer):
        prefix = f"{_OPTIMIZER}{name}:"
        read = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if read:
            optimizer.state[parameter] = {
                kind: value.reshape(()) if kind == "step" else value for kind, value in read.items()
            }


def _room(kind: str, parameter: Tensor) -> Tensor:
    if kind == "step":
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter, requires_grad=False)


def _trained(module: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in module.named_parameters():
        if id(parameter) in held:
            yield name, parameter


def _of_model(names: Mapping[str, Any]) -> set[str]:
    return {name for name in names if name.startswith(_MODEL)}


# -- files -------------------------------------------------------------------------------------------------------------


def _numbered(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("step-*"):
        if found := _NAME.match(path.name):
            yield int(found[1]), path


def _state_in(path: Path) -> Mapping[str, Any]:
    """The state of a checkpoint, after a look at the sizes of its files."""
    file = path / STATE
    if not file.is_file():
        raise ValueError(f"it has no {STATE}: it was not written to its end")
    state = parsed(file.read_bytes())
    if not isinstance(state, Mapping) or not isinstance(state.get("files"), Mapping):
        raise ValueError(f"its {STATE} does not list its files")
    for name, size in state["files"].items():
        there = (path / name).stat().st_size if (path / name).is_file() else None
        if there != size:
            raise ValueError(f"its file {name} has {'no' if there is None else there} bytes of {size}")
    return state


@contextmanager
def _cleaned_up(unfinished: Path, processes: Processes) -> Iterator[None]:
    """Leaves nothing half-written behind."""
    try:
        yield
    finally:
        if processes.is_first and unfinished.exists():
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Errors of ``torch.distributed.checkpoint`` as what they are on every process: an OSError, or a ValueError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process is meant
            yield
    except CheckpointException as error:
        reasons = [failure[0] for failure in error.failures.values()]
        for reason in reasons:
            if isinstance(reason, OSError):
                raise OSError(reason.errno, reason.strerror or str(reason), str(path)) from error
        raise ValueError(f"{path}: {' '.join(str(reasons[0]).split())}") from error


def _to_disk(folder: Path, files: bool = True) -> None:
    """Wait until a folder and its files are on the disk: a machine may fail after a rename."""
    for path in [*(folder.iterdir() if files else ()), folder]:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
