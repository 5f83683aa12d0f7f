"""What the theory holds fixed while a model grows: batch, steps, warmup and betas."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from mssp._constraints import positive_int, positive_or_zero


class PlanWarning(UserWarning):
    """Something the theory does not cover, or a setting that has no effect."""


@dataclass(frozen=True)
class Recipe:
    """What the theory holds fixed while a model grows. A plan warns of what changes, if both recipes say it."""

    betas: tuple[float, float] | None = None
    batch: int | None = None
    steps: int | None = None
    warmup: int | None = None

    def __post_init__(self) -> None:
        if self.betas is not None:
            try:
                betas = tuple(positive_or_zero("betas", beta) for beta in self.betas)
            except (TypeError, ValueError):
                betas = ()
            if len(betas) != 2 or max(betas) >= 1:
                raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
            object.__setattr__(self, "betas", betas)
        for name in ("batch", "steps", "warmup"):
            number = getattr(self, name)
            no_warmup = name == "warmup" and type(number) is int and number == 0
            if number is not None and not no_warmup:
                object.__setattr__(self, name, positive_int(name, number))

    def filled(self, other: Recipe) -> Recipe:
        """This recipe, with what it leaves open taken from another."""
        return replace(other, **{name: value for name, value in asdict(self).items() if value is not None})


def changes(tuned_with: Recipe, recipe: Recipe) -> list[str]:
    """What differs between the run that was tuned and the one that is planned."""
    before, after = asdict(tuned_with), asdict(recipe)
    return [
        f"{name} changes from {before[name]} to {after[name]}: the theory carries hyperparameters at a fixed {name}"
        for name in before
        if None not in (before[name], after[name]) and before[name] != after[name]
    ]
