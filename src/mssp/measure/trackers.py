"""Where lines of a monitored run go: files, TensorBoard, wandb, functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mssp._constraints import shown
from mssp._estimates import finite
from mssp.measure.alarms import Alarm


@dataclass(frozen=True)
class Line:
    """The sizes that were measured after a number of steps.

    Args:
        loss: on the probe batch; None where it has none.
        plan: the hash of the run's plan, on its first line.
        alarms: those that were raised at this step.
    """

    step: int
    sizes: dict[str, float]
    loss: float | None = None
    plan: str | None = None
    alarms: tuple[Alarm, ...] = ()

    def json(self) -> str:
        """One JSON object; numbers that are not finite are null, and what is missing is left out.

        >>> Line(0, {"gradient/router": 0.5, "faithfulness/router": float("inf")}, loss=2.0).json()
        '{"step": 0, "loss": 2.0, "sizes": {"gradient/router": 0.5, "faithfulness/router": null}}'
        """
        written: dict[str, Any] = {"step": self.step}
        if self.plan is not None:
            written["plan"] = self.plan
        if self.loss is not None:
            written["loss"] = finite(self.loss)
        written["sizes"] = {name: finite(size) for name, size in self.sizes.items()}
        if self.alarms:
            written["alarms"] = [{**asdict(alarm), "value": finite(alarm.value)} for alarm in self.alarms]
        return json.dumps(written, allow_nan=False)

    def scalars(self) -> dict[str, float]:
        """Everything by name; the loss is called ``probe/loss``, since it is not the training loss."""
        return self.sizes if self.loss is None else {"probe/loss": self.loss, **self.sizes}


Writer = Callable[[Line], None]
_PLACES = (
    "a path, a TensorBoard writer (add_scalar), a wandb run (log), a function of a step and a dict, or a list of these"
)


def writers(to: Any) -> list[Writer]:
    """What writes lines to a path, an object with ``add_scalar`` or ``log``, a function, or several of them."""
    if to is None:
        return []
    if isinstance(to, list | tuple):
        return [writer for target in to for writer in writers(target)]
    if isinstance(to, str | os.PathLike):
        return [_to_file(Path(to))]
    if isinstance(to, type | nn.Module | Tensor):  # they can be called, and a tensor has a logarithm
        raise ValueError(f"to must be {_PLACES}, got {shown(to)}")
    if hasattr(to, "add_scalar"):
        return [lambda line: _add_scalars(to.add_scalar, line)]
    if hasattr(to, "log"):
        return [lambda line: to.log(line.scalars(), step=line.step)]
    if callable(to):
        return [lambda line: to(line.step, line.scalars())]
    raise ValueError(f"to must be {_PLACES}, got {shown(to)}")


def _to_file(path: Path) -> Writer:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")

    def write(line: Line) -> None:
        # The file is opened and closed for each line, so that a run that dies leaves whole lines.
        with path.open("a", encoding="utf-8") as file:
            file.write(line.json() + "\n")

    return write


def _add_scalars(add_scalar: Callable[[str, float, int], object], line: Line) -> None:
    for name, value in line.scalars().items():
        add_scalar(name, value, line.step)
