"""Validates the arguments of ``plan()``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mssp._constraints import Constraint, positive
from mssp.planning.recipe import Recipe
from mssp.planning.rules import BIASES, GAINS, ROLES
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

WEIGHT_ROLES = tuple(role for role in ROLES if role not in GAINS | BIASES)
ALL = "all"  # in init_std and init_mult: every weight matrix


def _number_or_roles(came: Any) -> Any:
    return came if isinstance(came, Mapping) else positive.take(came)


NUMBER_OR_ROLES = Constraint("a positive number, or a mapping of roles to positive numbers", _number_or_roles)


def check(plan: Plan) -> None:
    """Refuse combinations that mean nothing; the plan's single values have been checked as they came in."""
    optimizer = plan.setting.optimizer
    if plan.weight_decay and not optimizer.decays:
        raise ValueError(f"weight_decay is for adamw, not {optimizer}: set it to 0 or use adamw")
    adams_own = {"eps": plan.eps, "grad_scale": plan.grad_scale or None, "betas": plan.recipe.betas}
    for name, given in adams_own.items():
        if optimizer.default_eps is None and given is not None:
            raise ValueError(f"{name} is Adam's: leave it out with {optimizer}")
    if plan.rest_lr is not None and optimizer.rest is None:
        raise ValueError(f"rest_lr is for optimizers that leave roles to another one: leave it out with {optimizer}")


def shapes(target: Shape, base: Shape | None) -> tuple[Shape, Shape | None]:
    """Both shapes, with the inputs they left out: 1 for the target, the target's for the base."""
    if base is not None and base.inputs is not None and target.inputs is None:
        raise ValueError(f"the base has inputs {base.inputs}: say the target's too")
    target = target.with_inputs(1)
    return target, None if base is None else base.with_inputs(target.inputs)


def recipes(recipe: Recipe | None, tuned_with: Recipe | None) -> tuple[Recipe, Recipe]:
    """Both recipes: what the new one leaves open stays as tuned; if only one is given, both are that."""
    now = (recipe or Recipe()).filled(tuned_with or Recipe())
    return now, now if tuned_with is None else tuned_with


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
