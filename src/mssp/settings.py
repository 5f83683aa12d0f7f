"""What a user may ask of a plan, and the words for what they may not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType

from mssp.rules import BIASES, GAINS, ROLES

READOUTS = ("zero", "mup", "scheme")
WEIGHT_ROLES = tuple(role for role in ROLES if role not in GAINS | BIASES)
ALL = "all"  # in init_std and init_mult: every weight matrix


class PlanWarning(UserWarning):
    """Something the theory does not cover, or a setting that has no effect."""


@dataclass(frozen=True)
class Recipe:
    """What the theory holds fixed while a model grows; say it, and a plan warns when it changes."""

    betas: tuple[float, float] | None = None
    batch: int | None = None
    steps: int | None = None
    warmup: int | None = None

    def __post_init__(self) -> None:
        if self.betas is not None and not (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        for name, least in (("batch", 1), ("steps", 1), ("warmup", 0)):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, int) or given < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, got {given!r}")


def check(
    lr: float,
    eps: float | None,
    weight_decay: float,
    readout: str,
    optimizer: str,
    grad_scale: bool,
    aggregation_mult: float,
    recipe: Recipe,
) -> None:
    """Refuse numbers and combinations that mean nothing."""
    positive("lr", lr)
    positive("aggregation_mult", aggregation_mult)
    if eps is not None:
        positive("eps", eps)
    if not (_is_number(weight_decay) and weight_decay >= 0):
        raise ValueError(f"weight_decay must be a number of at least 0, got {weight_decay!r}")
    if weight_decay and optimizer != "adamw":
        raise ValueError(f"weight_decay is for adamw, not {optimizer}: set it to 0 or use adamw")
    if readout not in READOUTS:
        raise ValueError(f"unknown readout {readout!r}: use one of {', '.join(READOUTS)}")
    adams_own = {"eps": eps, "grad_scale": grad_scale or None, "betas": recipe.betas}
    for name, given in adams_own.items():
        if optimizer == "sgd" and given is not None:
            raise ValueError(f"{name} is Adam's: leave it out with sgd")


def positive(name: str, given: float) -> float:
    if not _is_number(given) or given <= 0:
        raise ValueError(f"{name} must be a positive number, got {given!r}")
    return float(given)


def by_role(name: str, given: float | Mapping[str, float] | None, allowed: tuple[str, ...]) -> Mapping[str, float]:
    """A setting per role, checked; a bare number means every weight."""
    if given is None:
        given = {}
    entries = given if isinstance(given, Mapping) else {ALL: given}
    for role in entries:
        if role not in allowed:
            known = f"use one of {', '.join(allowed)}"
            if role in ROLES:
                raise ValueError(f"{name} does not apply to {role}: gains start at 1 and biases at 0; {known}")
            raise ValueError(f"unknown role {role!r} in {name}: {known}")
    return MappingProxyType({role: positive(f"{name} of {role}", number) for role, number in sorted(entries.items())})


def changes(tuned_with: Recipe, recipe: Recipe) -> list[str]:
    """What differs between the run that was tuned and the one that is planned."""
    before, after = asdict(tuned_with), asdict(recipe)
    return [
        f"{name} changes from {before[name]} to {after[name]}: the theory carries hyperparameters at a fixed {name}"
        for name in before
        if None not in (before[name], after[name]) and before[name] != after[name]
    ]


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
