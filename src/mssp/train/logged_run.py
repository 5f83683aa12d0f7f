"""Reads a run's log back: curves by name, validation losses, measured sizes, alarms, speed.

The log is ``run.jsonl``, with ``machine.jsonl`` beside it, or a file that :func:`mssp.monitor` wrote. It is read
strictly: what no run writes is refused by the file and the number of the line. A run may be going on, or may have been
killed: a last line that is cut short is left out, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mssp._constraints import path as a_path
from mssp._constraints import shown, takes
from mssp._documents import one_line, parsed
from mssp.measure.quantities import EFFECTIVE, Quantity
from mssp.planning.shape import Shape
from mssp.train.run_log import MACHINE, RUN
from mssp.train.settings import flat

Curve = dict[int, float | None]  # by step; None where the number was not finite
_PROBE = "probe/loss"  # on the batch of which sizes are measured
_ROUTERS, _UPDATES = "routers/", "step/"  # how the names of the routers' health and of updates begin


@dataclass(frozen=True)
class LoggedAlarm:
    """An alarm as the log has it (see :class:`mssp.measure.alarms.Alarm`); the value is None if it was not finite."""

    step: int
    kind: str
    layer: str
    value: float | None
    limit: float
    layers: int
    cause: str
    remedy: str


@dataclass
class LoggedRun:
    """What a log says of a run.

    Args:
        plan: the hash of the plan.
        model: where the log says it, the model's sizes; of a monitored run nothing is known of them.
        settings: all entries by names such as ``training.steps``.
        numbers: of every step, such as ``loss``, ``norm``, ``lr/router``, ``routers/load`` and ``step/router``.
        validation: losses.
        sizes: of the terms that were measured.
        loads: of every expert, by layer and step, as shares of the tokens' choices.
        speed: numbers about the machine, such as ``tokens_per_second``.
        starts: where the run was started and went on, each with its step.
        notes: what a reader should know of the log itself.
    """

    path: Path
    plan: str | None = None
    model: Shape | None = None
    parameters: int | None = None
    data: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, Curve] = field(default_factory=dict)
    validation: Curve = field(default_factory=dict)
    sizes: dict[Quantity, Curve] = field(default_factory=dict)
    loads: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    speed: dict[str, Curve] = field(default_factory=dict)
    alarms: list[LoggedAlarm] = field(default_factory=list)
    starts: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last step that the log has."""
        curves = (*self.numbers.values(), self.validation, *self.sizes.values())
        return max((step for curve in curves for step in curve), default=0)

    @property
    def steps(self) -> int | None:
        """How many steps were to be trained."""
        steps = self.settings.get("training.steps")
        return steps if isinstance(steps, int) else None

    @property
    def clip(self) -> float | None:
        """The largest norm of the gradients, above which they were clipped."""
        clip = self.settings.get("training.clip")
        return float(clip) if isinstance(clip, int | float) else None


@takes(path=a_path)
def logged_run(path: str | Path) -> LoggedRun:
    """The run of a log, or of a run's folder. ValueError names the line that no run writes.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "sizes.jsonl")
    >>> _ = path.write_text('{"step": 0, "sizes": {"gradient/router": 0.5}}\\n{"step": 10, "sizes": {"grad')
    >>> run = logged_run(path)
    >>> run.sizes, run.notes
    ({'gradient/router': {0: 0.5}}, ['The last line of sizes.jsonl is cut short, and is left out.'])
    >>> folder.cleanup()
    """
    path = Path(path)
    path = path / RUN if path.is_dir() else path
    run = LoggedRun(path)
    reader = _Reader(run)
    for number, line in _lines(path, run):
        with_place = f"{path}: line {number}"
        try:
            reader.read(line, is_first=number == 1)
        except ValueError as error:
            raise ValueError(f"{with_place}: {one_line(str(error))}") from None
    if not reader.has_begun:
        raise ValueError(f"{path} is no log of a run: it has no whole line")
    machine = path.with_name(MACHINE)
    if path.name == RUN and machine.is_file():
        for number, line in _lines(machine, run):
            try:
                reader.read_machine(line)
            except ValueError as error:
                raise ValueError(f"{machine}: line {number}: {one_line(str(error))}") from None
    return run


def _lines(path: Path, run: LoggedRun) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a file with the numbers of their lines."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                document = parsed(line)
                if not isinstance(document, dict):
                    raise ValueError(f"it must be an object, got {shown(document)}")
            except ValueError as error:
                if not line.endswith(b"\n"):
                    run.notes.append(f"The last line of {path.name} is cut short, and is left out.")
                    return
                raise ValueError(f"{path}: line {number}: {one_line(str(error))}") from None
            yield number, document


class _Reader:
    """Puts the lines of a log into a run."""

    def __init__(self, run: LoggedRun) -> None:
        self._run, self.has_begun, self._is_monitor = run, False, False
        self._last: dict[str, int] = {}  # the last step by the kind of line

    def read(self, line: Mapping[str, Any], is_first: bool) -> None:
        if is_first:
            self._is_monitor = "kind" not in line and "sizes" in line
        if is_first and not self._is_monitor:
            if line.get("kind") != "start" or "plan" not in line:
                raise ValueError(f"it must be the start of a run, as mssp train writes it to {RUN}")
            self._start(line)
        else:
            kind = "monitor" if self._is_monitor else _text(line, "kind")
            if kind not in _KINDS:
                raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {shown(kind)}")
            getattr(self, f"_{kind}")(line)
        self.has_begun = True

    def _start(self, line: Mapping[str, Any]) -> None:
        run = self._run
        run.plan = _text(line, "plan")
        try:
            run.model = Shape(**_object(line, "shape"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"shape is not that of a model: {error}") from None
        run.parameters = _whole(line, "parameters")
        run.data = Path(_text(_object(line, "data"), "path")).name
        run.settings = dict(flat(_object(line, "settings")))

    def _step(self, line: Mapping[str, Any]) -> None:
        step = self._next_step(line, "step")
        for name, value in line.items():
            if name == "lr":
                rates = _object(line, "lr")
                for group in rates:
                    EFFECTIVE(group.partition(" ")[0])  # refuses what is no role
                self._keep({f"lr/{group}": rate for group, rate in rates.items()}, step)
            elif name == "routers":
                self._watched(_object(line, "routers"), step)
            elif name == "loads":
                self._loads(_object(line, "loads"), step)
            elif name not in ("kind", "step"):
                self._keep({name: value}, step)

    def _keep(self, numbers: Mapping[str, Any], step: int) -> None:
        for name in numbers:
            self._run.numbers.setdefault(name, {})[step] = _number(numbers, name)

    def _watched(self, numbers: Mapping[str, Any], step: int) -> None:
        """Numbers of the routers' health, and of the updates of roles."""
        for name in numbers:
            if name.startswith(_UPDATES):
                EFFECTIVE(name.removeprefix(_UPDATES))
            elif not name.startswith(_ROUTERS):
                raise ValueError(f"{shown(name)} is no number about routers or updates")
        self._keep(numbers, step)

    def _loads(self, loads: Mapping[str, Any], step: int) -> None:
        for layer, shares in loads.items():
            if not isinstance(shares, list) or not shares or not all(map(_is_number, shares)):
                raise ValueError(f"loads of {shown(layer)} must be a list of numbers, got {shown(shares)}")
            of_layer = self._run.loads.setdefault(layer, {})
            if any(len(shares) != len(before) for before in list(of_layer.values())[:1]):
                raise ValueError(f"loads of {shown(layer)} must be of as many experts as before, got {len(shares)}")
            of_layer[step] = [float(share) for share in shares]

    def _validation(self, line: Mapping[str, Any]) -> None:
        self._run.validation[self._next_step(line, "validation")] = _number(line, "loss")

    def _monitor(self, line: Mapping[str, Any]) -> None:
        step = self._next_step(line, "monitor")
        sizes = _object(line, "sizes")
        for name in sizes:
            value = _number(sizes, name)
            if name.startswith((_ROUTERS, _UPDATES)):
                self._watched({name: value}, step)
            elif name == _PROBE:
                self._keep({name: value}, step)
            else:
                self._run.sizes.setdefault(Quantity.named(name), {})[step] = value
        if not self._is_monitor:
            return
        if "plan" in line:
            self._run.plan = _text(line, "plan")
        if "loss" in line:
            self._keep({_PROBE: line["loss"]}, step)
        alarms = line.get("alarms", [])
        if not isinstance(alarms, list) or not all(isinstance(each, dict) for each in alarms):
            raise ValueError(f"alarms must be a list of objects, got {shown(alarms)}")
        self._run.alarms += [_alarm(each, _text(each, "kind")) for each in alarms]

    def _alarm(self, line: Mapping[str, Any]) -> None:
        self._run.alarms.append(_alarm(line, _text(line, "alarm")))

    def read_machine(self, line: Mapping[str, Any]) -> None:
        """A line about the machine. A run that went on has lines of some steps twice, and the later one counts."""
        kind = _text(line, "kind")
        step = _whole(line, "step")
        if kind == "start":
            self._run.starts.append(line)
        elif kind == "speed":
            for name in line.keys() - {"kind", "step"}:
                self._run.speed.setdefault(name, {})[step] = _number(line, name)
        elif kind != "checkpoint":
            raise ValueError(f"kind must be one of start, speed, checkpoint, got {shown(kind)}")

    def _next_step(self, line: Mapping[str, Any], kind: str) -> int:
        step, last = _whole(line, "step"), self._last.get(kind, -1)
        if step <= last:
            raise ValueError(f"step must be more than {last}, which the line before has, got {step}")
        self._last[kind] = step
        return step


_KINDS = ("step", "validation", "monitor", "alarm")  # of lines after the first


def _alarm(entries: Mapping[str, Any], kind: str) -> LoggedAlarm:
    limit = _number(entries, "limit")
    if limit is None:
        raise ValueError("limit must be a number, got null")
    step, layers, value = _whole(entries, "step"), _whole(entries, "layers"), _number(entries, "value")
    layer, cause, remedy = (_text(entries, name) for name in ("layer", "cause", "remedy"))
    return LoggedAlarm(step, kind, layer, value, limit, layers, cause, remedy)


# -- entries of a line -------------------------------------------------------------------------------------------------


def _entry(entries: Mapping[str, Any], name: str) -> Any:
    if name not in entries:
        raise ValueError(f"{name} is missing")
    return entries[name]


def _text(entries: Mapping[str, Any], name: str) -> str:
    value = _entry(entries, name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {shown(value)}")
    return value


def _whole(entries: Mapping[str, Any], name: str) -> int:
    value = _entry(entries, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0 on, got {shown(value)}")
    return value


def _number(entries: Mapping[str, Any], name: str) -> float | None:
    value = _entry(entries, name)
    if value is None:
        return None
    if not _is_number(value):
        raise ValueError(f"{name} must be a number or null, got {shown(value)}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _object(entries: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = _entry(entries, name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {shown(value)}")
    return value
