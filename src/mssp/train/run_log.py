"""The log of a run: what was computed in ``run.jsonl``, and how fast and on what machine in ``machine.jsonl``.

A line is one JSON object, whose ``kind`` comes first. What is computed is the same however often a run was stopped: a
run that goes on cuts ``run.jsonl`` back to its checkpoint. Times and machines are not, and have a file of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mssp._estimates import finite
from mssp.measure.alarms import Alarm

RUN, MACHINE = "run.jsonl", "machine.jsonl"
Sink = Callable[[int, Mapping[str, float]], object]


class RunLog:
    """The two files of a run's folder, and sinks such as TensorBoard, which get numbers by name.

    Args:
        folder: None for a process that writes nothing.
        sinks: functions of the step and the numbers of a line.
    """

    def __init__(self, folder: Path | None, sinks: tuple[Sink, ...] = ()) -> None:
        self._folder, self._sinks = folder, sinks

    def write(self, kind: str, step: int | None = None, **entries: Any) -> None:
        """A line about what was computed."""
        self._append(RUN, kind, step, entries)

    def write_alarm(self, alarm: Alarm) -> None:
        """A line about an alarm, whose kind stands under ``alarm``, since ``kind`` says what a line is."""
        entries = asdict(alarm)
        kind, step = entries.pop("kind"), entries.pop("step")
        self.write("alarm", step, alarm=kind, **entries, text=str(alarm))

    def write_machine(self, kind: str, step: int | None = None, **entries: Any) -> None:
        """A line about the machine: times, memory, where the run was started and stopped."""
        self._append(MACHINE, kind, step, entries)

    def size(self) -> int:
        """The bytes of what was computed so far, for :meth:`cut_back`."""
        path = None if self._folder is None else self._folder / RUN
        return path.stat().st_size if path is not None and path.exists() else 0

    def cut_back(self, size: int) -> None:
        """Take back what was written after a checkpoint, whose log had this size."""
        if self._folder is None:
            return
        path = self._folder / RUN
        there = path.stat().st_size if path.exists() else 0
        if there < size:
            raise ValueError(
                f"{path} has {there} bytes, and had {size} at the checkpoint: it was changed, and the run cannot go on "
                "with a whole log; put it back"
            )
        if there:
            os.truncate(path, size)

    def _append(self, name: str, kind: str, step: int | None, entries: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        line = {"kind": kind, **({} if step is None else {"step": step}), **_finite(entries)}
        # Opened and closed for each line, so that a run that dies leaves whole lines.
        with (self._folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
        if step is not None:
            for sink in self._sinks:
                sink(step, dict(_numbers(entries, kind)))


def _finite(value: Any) -> Any:
    """A value without what JSON does not have: numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return finite(value) if isinstance(value, float) else value


def _numbers(entries: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    """The numbers of a line by names such as ``step/loss`` or ``step/lr/router``."""
    named: list[tuple[str, float]] = []
    for key, value in entries.items():
        if isinstance(value, Mapping):
            named += _numbers(value, f"{prefix}/{key}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            named.append((f"{prefix}/{key}", float(value)))
    return named
