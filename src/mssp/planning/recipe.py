"""What the theory holds fixed while a model grows: batch, steps, warmup and betas."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from mssp._constraints import Constraint, UnfitError, at_least, optional, positive_int, positive_or_zero, takes


class PlanWarning(UserWarning):
    """Something the theory does not cover, or a setting that has no effect."""


@contextmanager
def without_plan_warnings() -> Iterator[None]:
    """Silences the warnings of plans, for code that makes many plans out of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        yield


def _betas(argument: Any) -> tuple[float, ...]:
    if not isinstance(argument, list | tuple) or len(argument) != 2:
        raise UnfitError
    betas = tuple(map(positive_or_zero.take, argument))
    if max(betas) >= 1:
        raise UnfitError
    return betas


BETAS = Constraint("two numbers in [0, 1)", _betas)


@takes(betas=optional(BETAS), batch=optional(positive_int), steps=optional(positive_int), warmup=optional(at_least(0)))
@dataclass(frozen=True)
class Recipe:
    """How a model is trained. A plan warns of what changes from base to target, where both recipes say it."""

    betas: tuple[float, float] | None = None
    batch: int | None = None
    steps: int | None = None
    warmup: int | None = None

    def filled(self, other: Recipe) -> Recipe:
        """This recipe, with what it leaves open taken from another."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})


def changes(tuned_with: Recipe, recipe: Recipe) -> list[str]:
    """What differs between the recipe of the base and that of the target, in words."""
    before, after = asdict(tuned_with), asdict(recipe)
    return [
        f"{name} changes from {before[name]} to {after[name]}: the theory carries hyperparameters at a fixed {name}"
        for name in before
        if None not in (before[name], after[name]) and before[name] != after[name]
    ]
