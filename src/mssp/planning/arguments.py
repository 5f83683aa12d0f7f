"""Validates the arguments of ``plan()``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mssp._constraints import Constraint, positive
from mssp.planning.recipe import Recipe
from mssp.planning.rules import BIASES, GAINS, PARTS, RARE_ROLES, ROLES
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

WEIGHT_ROLES = tuple(role for role in ROLES if role not in GAINS | BIASES)
ALL = "all"  # in init_std and init_mult: every weight matrix
WITH_LR = (*ROLES, *RARE_ROLES, *PARTS)  # what a learning-rate multiplier may name
WITH_STD = (ALL, *WEIGHT_ROLES, *PARTS)  # what a standard deviation or its multiplier may name

# Where eps is tuned: at the base, as the learning rate is, or at "base width 1"; or one eps for all parameters.
EPS_RULES = RELATIVE, ABSOLUTE, GLOBAL = ("relative", "absolute", "global")
# The factor on residual branches: 1/L, or 1 at every depth.
RESIDUAL_RULES = BY_DEPTH, ALWAYS_ONE = ("depth", "one")


def _number_or_roles(argument: Any) -> Any:
    return argument if isinstance(argument, Mapping) else positive.take(argument)


NUMBER_OR_ROLES = Constraint("a positive number, or a mapping of roles to positive numbers", _number_or_roles)


def check(plan: Plan) -> None:
    """Refuse settings that do not go together. Each by itself was checked when ``plan()`` was called."""
    optimizer = plan.setting.optimizer
    if plan.weight_decay and not optimizer.decays:
        raise ValueError(f"weight_decay is for adamw, not {optimizer}: set it to 0 or use adamw")
    uses_adam = optimizer.default_eps is not None  # itself, or for the roles that it leaves to its ``rest``
    adam_settings = {
        "eps": plan.eps,
        "eps_rule": None if plan.eps_rule == RELATIVE else plan.eps_rule,
        "grad_scale": plan.grad_scale or None,
        "betas": plan.recipe.betas,
    }
    for name, value in adam_settings.items():
        if value is not None and not uses_adam:
            raise ValueError(f"{name} is Adam's: leave it out with {optimizer}")
    if plan.rest_lr is not None and optimizer.rest is None:
        raise ValueError(f"rest_lr is for optimizers that leave roles to another one: leave it out with {optimizer}")


def shapes(target: Shape, base: Shape | None) -> tuple[Shape, Shape | None]:
    """Both shapes with ``inputs`` filled in: the target's default to 1, the base's to the target's."""
    if base is not None and base.inputs is not None and target.inputs is None:
        raise ValueError(f"the base has inputs {base.inputs}: say the target's too")
    target = target.with_inputs(1)
    return target, None if base is None else base.with_inputs(target.inputs)


def recipes(recipe: Recipe | None, tuned_with: Recipe | None) -> tuple[Recipe, Recipe]:
    """The recipe of the target and the one that the base was tuned with.

    What ``recipe`` leaves open is taken from ``tuned_with``. If only one of the two is given, it is used for both.
    """
    new_recipe = (recipe or Recipe()).filled(tuned_with or Recipe())
    return new_recipe, new_recipe if tuned_with is None else tuned_with


def by_role(name: str, argument: float | Mapping[str, float] | None, allowed: tuple[str, ...]) -> Mapping[str, float]:
    """A checked setting of numbers by role. A bare number is stored under ``all`` and means every weight matrix."""
    if argument is None:
        argument = {}
    entries = argument if isinstance(argument, Mapping) else {ALL: argument}
    for role in entries:
        if role not in allowed:
            choices = f"use one of {', '.join(allowed)}"
            if role in ROLES:
                raise ValueError(f"{name} does not apply to {role}: gains start at 1 and biases at 0; {choices}")
            raise ValueError(f"unknown role {role!r} in {name}: {choices}")
    return MappingProxyType({role: positive(f"{name} of {role}", number) for role, number in sorted(entries.items())})


def without_effect(plan: Plan) -> list[str]:
    """The settings of a plan that change none of its numbers, in words."""
    messages = []
    for name in ("init_std", "init_mult"):
        of_roles = [role for role in getattr(plan, name) if role not in (ALL, *PARTS)]
        ignored = [role for role in of_roles if plan.rule(role).zero]
        messages += [f"{name} of {role} has no effect: this plan starts it at zero" for role in ignored]
    for name in ("decay_by_multiplier", "decay_gains"):
        if getattr(plan, name) and not plan.weight_decay:
            messages.append(f"{name} has no effect: the plan has no weight decay")
    if plan.grad_scale and plan.eps_rule == GLOBAL:
        messages.append("grad_scale has no effect: with eps_rule 'global' there is one eps, and nothing to scale")
    return messages
