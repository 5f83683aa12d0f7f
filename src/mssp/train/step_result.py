"""The outcome of a comparison of steps: by role and by parameter, what is the same, what is off, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mssp._tables import align, number

Verdict = Literal["same", "follows", "off"]
_MARKS: Mapping[Verdict, str] = {"same": "", "follows": "(follows)", "off": "OFF"}


@dataclass(frozen=True)
class Compared:
    """One quantity under a layout, over that of the one-device run.

    Args:
        values: in each process; for decay that the plan does not have, what there is of it instead.
        verdict: ``same``; ``off``; or ``follows``, where it differs as it must because a gradient does.
    """

    values: tuple[float, ...]
    verdict: Verdict

    def json(self) -> dict[str, Any]:
        return {"values": list(self.values), "verdict": self.verdict}

    def __str__(self) -> str:
        return f"{in_words(self.values)}\t{_MARKS[self.verdict]}"


@dataclass(frozen=True)
class RoleStep:
    """The parameters of one role.

    Args:
        decay: None where neither the plan nor the step has any.
        is_decayed: whether the plan decays them. If not, ``decay`` has the step's own over the learning rate.
    """

    parameters: int
    gradient: Compared
    update: Compared
    decay: Compared | None
    is_decayed: bool

    @property
    def same(self) -> bool:
        return all(each is None or each.verdict != "off" for each in (self.gradient, self.update, self.decay))

    def json(self) -> dict[str, Any]:
        decay = None if self.decay is None else self.decay.json()
        return {
            "parameters": self.parameters,
            "gradient": self.gradient.json(),
            "update": self.update.json(),
            "decay": decay,
            "is_decayed": self.is_decayed,
        }


@dataclass(frozen=True)
class ParameterStep:
    """One parameter: its role, and its gradient."""

    role: str
    gradient: Compared


@dataclass(frozen=True)
class Reported:
    """A number that steps report: in each process, None where it was not said, and that of the one-device run."""

    values: tuple[float, ...] | None
    one_device: float
    verdict: Verdict

    def json(self) -> dict[str, Any]:
        values = None if self.values is None else list(self.values)
        return {"values": values, "one_device": self.one_device, "verdict": self.verdict}


@dataclass(frozen=True)
class SameStep:
    """Whether a step under a layout is that of one device.

    Args:
        clip: the norm from which gradients are clipped; None where they are not.
        roles, parameters: what was compared.
        causes: what is likely wrong, in sentences.
        notes: what the comparison could not tell.
    """

    layout: str
    processes: int
    rows: int
    tokens: int
    optimizer: str
    clip: float | None
    loss: Reported
    norm: Reported
    roles: Mapping[str, RoleStep]
    parameters: Mapping[str, ParameterStep]
    causes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is off."""
        return all(role.same for role in self.roles.values()) and "off" not in (self.loss.verdict, self.norm.verdict)

    def json(self) -> dict[str, Any]:
        """The result as a document."""
        return {
            "layout": self.layout,
            "processes": self.processes,
            "rows": self.rows,
            "tokens": self.tokens,
            "optimizer": self.optimizer,
            "clip": self.clip,
            "loss": self.loss.json(),
            "norm": self.norm.json(),
            "roles": {role: step.json() for role, step in self.roles.items()},
            "parameters": {
                name: {"role": step.role, "gradient": step.gradient.json()} for name, step in self.parameters.items()
            },
            "causes": list(self.causes),
            "notes": list(self.notes),
            "verdict": "pass" if self.passed else "fail",
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def heading(self) -> str:
        """The comparison in a line."""
        clip = "" if self.clip is None else f", clipped at {number(self.clip)}"
        several = "es" * (self.processes > 1)
        return (
            f"{self.layout} on {self.processes} process{several} · {self.rows} rows, {self.tokens} predicted tokens"
            f" · {self.optimizer}{clip}"
        )

    def lines(self) -> list[str]:
        """The result for people: what stands in the table is a multiple of the one-device run's."""
        header = ["role", "parameters", "gradient", "update", "decay"]
        rows = [
            [role, str(step.parameters), str(step.gradient), str(step.update), str(step.decay or "–")]
            for role, step in self.roles.items()
        ]
        numbers = [_said("loss", self.loss), _said("norm of all gradients", self.norm)]
        if self.passed:
            verdict = ["pass: the step is that of one device"]
        else:
            verdict = ["FAIL: the step is not that of one device", *(f"  {cause}" for cause in self.causes)]
        return [self.heading, "", *align([header, *rows]), "", *numbers, *self.notes, "", *verdict]


def _said(name: str, reported: Reported) -> str:
    if reported.values is None:
        return f"{name}: not reported, {reported.one_device:.6g} on one device"
    values = sorted({f"{value:.6g}" for value in reported.values}, key=float)
    line = f"{name}: {' to '.join(_ends(values))}, {reported.one_device:.6g} on one device  {_MARKS[reported.verdict]}"
    return line.rstrip()


def _ends(values: Sequence[str]) -> Sequence[str]:
    return values if len(values) < 3 else (values[0], values[-1])


def in_words(values: Sequence[float]) -> str:
    """A value that is the same in all processes, or the least and the greatest.

    >>> in_words([2.0, 2.0]), in_words([0.5, 1.5]), in_words([1.0004])
    ('2.00', '0.50 to 1.50', '1.0004')
    """
    low, high = min(values), max(values)
    if f"{low:.2f}" != f"{high:.2f}":
        return f"{low:.2f} to {high:.2f}"
    middle = (low + high) / 2
    is_near_one = 1e-4 < abs(middle - 1) < 0.005
    return f"{middle:.4f}" if is_near_one else f"{middle:.2f}"
