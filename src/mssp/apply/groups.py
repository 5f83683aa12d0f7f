"""Turns a plan into parameter groups of an optimizer, and checks that a schedule keeps the plan's ratios."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from statistics import median_low
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mssp._constraints import a_module, a_plan, an_optimizer, claims, function, optional, takes
from mssp.apply.description import Claims, planned_parameters

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from mssp.planning.plans import Plan, Values

# Learning rates may be float32 tensors, and schedules round; wrong values are off by far more.
_RATIO_TOLERANCE = 1e-6


@takes(model=a_module, plan=a_plan, claims=optional(claims))
def param_groups(model: nn.Module, plan: Plan, claims: Claims | None = None) -> list[dict[str, Any]]:
    """Parameter groups for ``torch.optim``: ``torch.optim.AdamW(mssp.param_groups(model, plan))``.

    Parameters with equal values share a group, and each part of ``hidden`` that the plan names has groups of its own.
    ``lr`` starts at ``initial_lr``; a loop that sets learning rates itself multiplies ``initial_lr`` by its schedule's
    factor. ``lr_scale`` is the scale ratio, ``lr_mult`` what was tuned.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for info, parameter, values in planned_parameters(model, plan, claims):
        numbers = (values.lr, values.eps, values.weight_decay, values.grad_scale)
        key = (info.role, values.part, *map(_rounded, numbers))
        fans = {"fans": (info.fan_in, info.fan_out)}
        group = groups.setdefault(key, {"params": [], **group_settings(plan, values), **fans})
        group["params"].append(parameter)
    _name_apart(list(groups.values()))
    return list(groups.values())


@takes(model=a_module, plan=a_plan, claims=optional(claims), made_by=optional(function))
def optimizer_for(
    model: nn.Module,
    plan: Plan,
    claims: Claims | None = None,
    *,
    made_by: Callable[..., Optimizer] | None = None,
    **options: Any,
) -> Optimizer:
    """The plan's optimizer with its groups, and with scaled gradients where the plan asks for them.

    ``made_by`` is a class to take in place of torch's, and ``options`` are arguments of it, such as ``fused=True``.
    """
    make: Callable[..., Optimizer] = made_by or optimizer_class(plan)
    # A schedule with a rate of its own, such as a floor, is relative to the default, which is therefore the tuned rate.
    optimizer = make(param_groups(model, plan, claims), lr=plan.lr, **options)
    if plan.grad_scale:
        scale_gradients(optimizer)
    return optimizer


def optimizer_class(plan: Plan) -> type[Optimizer]:
    """The class in ``torch.optim`` that a plan is for."""
    optimizer: type[Optimizer] = getattr(torch.optim, plan.setting.optimizer.title)
    return optimizer


def inner_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer that makes the steps. Accelerate wraps it in one that has no hooks."""
    inner = optimizer
    while isinstance(getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    return inner


@takes(optimizer=an_optimizer, plan=a_plan)
def check_schedule(optimizer: Optimizer, plan: Plan) -> float:
    """The factor by which a schedule scales all learning rates right now; raises unless it is the same for all."""
    factors: list[float] = []
    for index, group in enumerate(optimizer.param_groups):
        if not {"name", "lr_scale", "lr_mult"} <= group.keys() or not group["lr_scale"] * group["lr_mult"] > 0:
            raise ValueError(f"group {index} has no name, lr_scale and lr_mult: it was not made by mssp.param_groups")
        tuned = plan.tuned_lr(group["name"].partition(" ")[0])  # the role, without what tells its groups apart
        factors.append(float(group["lr"]) / (tuned * group["lr_mult"] * group["lr_scale"]))
    if not factors:
        raise ValueError("the optimizer has no groups")
    usual = median_low(factors)
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        if not math.isclose(factor, usual, rel_tol=_RATIO_TOLERANCE):
            raise ValueError(
                f"learning rates left the plan's ratios: group '{group['name']}' has lr {float(group['lr']):.4g}, "
                f"{factor:.4g} of its planned value, where most have {usual:.4g}; "
                "a schedule must scale each group's initial_lr by one factor"
            )
    return usual


@takes(optimizer=an_optimizer)
def scale_gradients(optimizer: Optimizer) -> RemovableHandle:
    """Scale each group's gradients by its ``grad_scale`` right before every step, for plans made with ``grad_scale``.

    To Adam this is the same as scaling eps, without numbers that underflow. Clip gradients before the step, as usual.
    After a step ``.grad`` holds scaled gradients until it is zeroed.
    """
    for index, group in enumerate(optimizer.param_groups):
        if "grad_scale" not in group:
            raise ValueError(f"group {index} has no grad_scale: it was not made by mssp.param_groups")
    if scales_gradients(optimizer):
        raise ValueError("the optimizer scales gradients already: call mssp.scale_gradients once")
    return optimizer.register_step_pre_hook(_scale_before_step)


def scales_gradients(optimizer: Optimizer) -> bool:
    """Whether :func:`scale_gradients` is in force."""
    # The optimizer itself knows whether the hook was removed again.
    return _scale_before_step in getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()


def _scale_before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(callable(argument) for argument in (*args[1:], *kwargs.values())):  # the first is the optimizer itself
        raise ValueError("scaled gradients do not go with step(closure): the closure would make them anew, unscaled")
    for group in optimizer.param_groups:
        gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
        if gradients and group["grad_scale"] != 1.0:
            torch._foreach_mul_(gradients, group["grad_scale"])


def group_settings(plan: Plan, values: Values) -> dict[str, Any]:
    """The settings of a group of the optimizer: everything but its parameters."""
    settings = {
        "lr": values.lr,
        "initial_lr": values.lr,
        "lr_scale": values.lr_scale,
        "lr_mult": values.lr_mult,
        "eps": values.eps,
        "grad_scale": values.grad_scale,
        "weight_decay": values.weight_decay,
        "name": values.role if values.part is None else f"{values.role} {values.part}",
    }
    return settings if plan.recipe.betas is None else {**settings, "betas": plan.recipe.betas}


def _name_apart(groups: list[dict[str, Any]]) -> None:
    """Give the groups of one role different names, by their fans."""
    several = {role for role, count in Counter(group["name"] for group in groups).items() if count > 1}
    taken: Counter[str] = Counter()
    for group in groups:
        fan_in, fan_out = group.pop("fans")
        if group["name"] in several:
            group["name"] += f" {fan_in}->{fan_out}"
        taken[group["name"]] += 1
        if taken[group["name"]] > 1:  # the same fans, which differ at the base
            group["name"] += f" ({taken[group['name']]})"


def _rounded(number: float | None) -> str:
    return f"{number:.12g}" if number is not None else ""


def same_values(held: Any, planned: Any) -> bool:
    """Whether a setting of a group (a number, a pair of numbers, or None) is the planned one, up to rounding."""
    if planned is None or held is None:
        return held is planned
    pairs = zip(held, planned, strict=True) if isinstance(planned, tuple) else [(held, planned)]
    return all(math.isclose(float(a), float(b), rel_tol=_RATIO_TOLERANCE) for a, b in pairs)
