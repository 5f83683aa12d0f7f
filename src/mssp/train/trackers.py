"""Trackers that a run's numbers go to beside its log: TensorBoard, wandb and trackio, imported when they are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mssp.train.run_log import Sink

TRACKERS = ("tensorboard", "wandb", "trackio")
_MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}


def sinks(names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> tuple[Sink, ...]:
    """What writes a line's numbers to each tracker. One that is not installed is refused by name."""
    return tuple(_sink(name, folder, settings) for name in names)


def _sink(name: str, folder: Path, settings: Mapping[str, Any]) -> Sink:
    try:
        module = import_module(_MODULES[name])
    except ImportError:
        raise ValueError(f"--track {name} needs the package {name}: pip install {name}") from None
    if name == "tensorboard":
        writer = module.SummaryWriter(log_dir=str(folder / "tensorboard"))

        def write(step: int, numbers: Mapping[str, float]) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        return write
    # wandb and trackio have the same two functions.
    run = module.init(project="mssp", name=folder.resolve().name, config=dict(settings))
    return lambda step, numbers: run.log(dict(numbers), step=step)
