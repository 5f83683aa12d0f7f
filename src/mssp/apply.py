"""A plan on a model: initial weights, parameter groups, and the checks that both arrived.

Everything is worked out before anything is written: a call that fails has touched nothing.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mssp.description import Claims, described_parameters, name_cleaner
from mssp.initial import fill
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.recipe import PlanWarning
from mssp.planning.validation import ALL

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from mssp.planning.plans import Plan, Values

# Gates whose weights sum to one over the experts: with equal experts the router's gradient cancels.
_SUMMING_GATES = ("softmax", "renormalised")
_GATES = ("sigmoid", *_SUMMING_GATES)
_OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_HALF = (torch.bfloat16, torch.float16)
# Learning rates may be float32 tensors, and schedules round; wrong values are off by far more.
_RATIO_TOLERANCE = 1e-6


@runtime_checkable
class Multiplies(Protocol):
    """A module whose forward pass has factors that a plan sets, by the names of its attributes."""

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]: ...


@runtime_checkable
class Routes(Protocol):
    """A router that says how it routes, so that a plan which does not go with it is refused."""

    @property
    def gate_kind(self) -> str: ...

    @property
    def random_routing(self) -> bool: ...


@runtime_checkable
class Draws(Protocol):
    """A module with random numbers beside its parameters, drawn by the seed and its own name."""

    def draw_for_plan(self, seed: int, name: str) -> None: ...


@runtime_checkable
class KeepsPlan(Protocol):
    """A module that saves the plan it was initialized by with its checkpoints."""

    def keep_plan(self, plan: Plan) -> None: ...


def initialize(
    model: nn.Module,
    plan: Plan,
    claims: Claims | None = None,
    *,
    seed: int = 0,
    gate: str | None = None,
    random_routing: bool = False,
) -> None:
    """Give every trainable parameter its initial value, in place, and the models of ``mssp.nn`` their multipliers.

    The values depend on the seed and the parameter's name alone: not on order, device, wrapping or sharding.

    Args:
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        gate: ``sigmoid``, ``softmax`` or ``renormalised``, to be warned where it does not go with tied experts.
        random_routing: you add routing noise, or a random router bias afterwards, which zero routers with top-K need.

    The routers of ``mssp.nn`` say both of themselves.
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed must be a whole number, got {seed!r}")
    described = _described(model, plan, claims)
    check_routing(plan, model, [info for info, _, _ in described], gate, random_routing)
    _check_precision(plan, described)
    multipliers = list(_multipliers(model, plan))
    kept = [info.name for info, _, _ in described if info.start == OWN]
    for info, parameter, _ in described:
        if parameter.is_meta:
            also = f" and what keeps the model's own values ({', '.join(kept[:2])}, …)" if kept else ""
            raise ValueError(
                f"{info.name} is on the meta device: call model.to_empty(device=...) first, tie again what is tied, "
                f"and fill its buffers{also}"
            )
        if not parameter.is_floating_point():
            raise ValueError(f"{info.name} has dtype {parameter.dtype}: initial weights are floating-point numbers")
        if 0 in (parameter.stride(axis) for axis, size in enumerate(parameter.shape) if size > 1):
            raise ValueError(f"{info.name} is an expanded view, whose entries share memory: clone it first")
    with torch.no_grad():
        for info, parameter, values in described:
            fill(parameter, info, values, seed)
        clean = name_cleaner(model)
        for name, module in model.named_modules():
            if isinstance(module, Draws):
                module.draw_for_plan(seed, clean(name))
    for module, _, name, factor in multipliers:
        setattr(module, name, factor)
    for module in model.modules():
        if isinstance(module, KeepsPlan):
            module.keep_plan(plan)


def param_groups(model: nn.Module, plan: Plan, claims: Claims | None = None) -> list[dict[str, Any]]:
    """Parameter groups for ``torch.optim``: ``torch.optim.AdamW(mssp.param_groups(model, plan))``.

    Parameters with equal values share a group. ``lr`` starts at ``initial_lr``; a loop that sets learning rates itself
    multiplies ``initial_lr`` by its schedule's factor. ``lr_scale`` is the scale ratio, ``lr_mult`` what was tuned.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for info, parameter, values in _described(model, plan, claims):
        key = (info.role, *(_rounded(x) for x in (values.lr, values.eps, values.weight_decay, values.grad_scale)))
        if key not in groups:
            groups[key] = {
                "params": [],
                **_group_settings(plan, info.role, values),
                "fans": (info.fan_in, info.fan_out),
            }
        groups[key]["params"].append(parameter)
    _name_apart(list(groups.values()))
    return list(groups.values())


def optimizer_for(model: nn.Module, plan: Plan, claims: Claims | None = None) -> Optimizer:
    """The plan's optimizer with its groups, and with scaled gradients where the plan asks for them."""
    make: Callable[..., Optimizer] = _OPTIMIZERS[plan.optimizer]
    # The default is what schedules with a rate of their own (a floor) are relative to: the rate that was tuned.
    optimizer = make(param_groups(model, plan, claims), lr=plan.lr)
    if plan.grad_scale:
        scale_gradients(optimizer)
    return optimizer


def verify(model: nn.Module, optimizer: Optimizer, plan: Plan, claims: Claims | None = None) -> None:
    """Raise unless every trainable parameter is held once, with the plan's values, and the model has its factors.

    Call it after building or reloading. Learning rates may be anywhere on a schedule (see :func:`check_schedule`).
    """
    expected_class = _OPTIMIZERS[plan.optimizer]
    # The nearest class of torch's own is compared (AdamW derives from Adam); others pass by their values.
    nearest = next((kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim")), None)
    if nearest not in (expected_class, torch.optim.Optimizer, None):
        raise ValueError(f"the plan is for {expected_class.__name__}, the optimizer is {type(optimizer).__name__}")
    described = _described(model, plan, claims)
    held = _groups_by_parameter(optimizer, {id(parameter): info.name for info, parameter, _ in described})
    for info, parameter, values in described:
        if id(parameter) not in held:
            raise ValueError(f"{info.name} is in no group of the optimizer")
        group = held[id(parameter)]
        wanted = _group_settings(plan, info.role, values)
        del wanted["name"], wanted["lr"]  # which a schedule moves
        for key, number in wanted.items():
            # OneCycleLR starts below the planned rate and notes it as its maximum.
            found = group.get("max_lr", group.get(key)) if key == "initial_lr" else group.get(key)
            if not same_values(found, number):
                raise ValueError(f"{info.name} ({info.role}) has {key} {found}, the plan says {number}")
    if plan.grad_scale and not _scales_gradients(optimizer):
        raise ValueError("the plan scales gradients instead of eps: call mssp.scale_gradients(optimizer)")
    for module, path, name, factor in _multipliers(model, plan):
        if not same_values(getattr(module, name), factor):
            raise ValueError(f"{path}{name} is {getattr(module, name)}, the plan says {factor}")
    check_schedule(optimizer, plan)


def _groups_by_parameter(optimizer: Optimizer, names: dict[int, str]) -> dict[int, dict[str, Any]]:
    """The group that holds each parameter, by id; no parameter twice, and none that the model does not train."""
    held: dict[int, dict[str, Any]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in names:
                shape = tuple(parameter.shape)
                raise ValueError(f"group {index} holds a parameter {shape} that the model does not train")
            if id(parameter) in held:
                raise ValueError(f"{names[id(parameter)]} is in two groups")
            held[id(parameter)] = group
    return held


def inner_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer that makes the steps: Accelerate's is a shell around it, without hooks of its own."""
    inner = optimizer
    while isinstance(getattr(inner, "optimizer", None), torch.optim.Optimizer):
        inner = inner.optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    return inner


def check_schedule(optimizer: Optimizer, plan: Plan) -> float:
    """The factor by which a schedule scales all learning rates right now; raises unless it is the same for all."""
    factors: list[float] = []
    for index, group in enumerate(optimizer.param_groups):
        if not {"name", "lr_scale", "lr_mult"} <= group.keys() or not group["lr_scale"] * group["lr_mult"] > 0:
            raise ValueError(f"group {index} has no name, lr_scale and lr_mult: it was not made by mssp.param_groups")
        factors.append(float(group["lr"]) / (plan.lr * group["lr_mult"] * group["lr_scale"]))
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


def scale_gradients(optimizer: Optimizer) -> RemovableHandle:
    """Scale each group's gradients by its ``grad_scale`` right before every step, for plans made with ``grad_scale``.

    To Adam this is the same as scaling eps, without numbers that underflow. Clip gradients before the step, as usual.
    After a step ``.grad`` holds scaled gradients until it is zeroed.
    """
    for index, group in enumerate(optimizer.param_groups):
        if "grad_scale" not in group:
            raise ValueError(f"group {index} has no grad_scale: it was not made by mssp.param_groups")
    if _scales_gradients(optimizer):
        raise ValueError("the optimizer scales gradients already: call mssp.scale_gradients once")
    return optimizer.register_step_pre_hook(_scale_before_step)


def _scales_gradients(optimizer: Optimizer) -> bool:
    # Asked of the optimizer itself, so that a removed hook is not taken for a present one.
    return _scale_before_step in getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()


def _scale_before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(callable(given) for given in (*args[1:], *kwargs.values())):  # the first is the optimizer itself
        raise ValueError("scaled gradients do not go with step(closure): the closure would make them anew, unscaled")
    for group in optimizer.param_groups:
        gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
        if gradients and group["grad_scale"] != 1.0:
            torch._foreach_mul_(gradients, group["grad_scale"])


def _described(model: nn.Module, plan: Plan, claims: Claims | None) -> list[tuple[ParamInfo, Tensor, Values]]:
    described = described_parameters(model, claims)
    values = plan.resolve(info for info, _ in described)
    return [(info, parameter, values[info.name]) for info, parameter in described]


def _multipliers(model: nn.Module, plan: Plan) -> Iterator[tuple[object, str, str, float]]:
    """Every factor of the forward pass that the plan sets: the module, its path, the attribute's name, the value."""
    clean = name_cleaner(model)
    for path, module in model.named_modules():
        if isinstance(module, Multiplies):
            prefix = clean(path)
            for name, factor in module.plan_multipliers(plan).items():
                yield module, f"{prefix}." if prefix else "", name, factor


def multipliers_of(model: nn.Module, plan: Plan) -> dict[str, float]:
    """The factors of the forward pass that :func:`initialize` sets, by the paths of their attributes."""
    return {f"{path}{name}": factor for _, path, name, factor in _multipliers(model, plan)}


def check_routing(
    plan: Plan, model: nn.Module, infos: Sequence[ParamInfo], gate: str | None = None, random_routing: bool = False
) -> None:
    """Refuse a plan that the model's routers would not survive, and warn where they would learn late."""
    if gate not in (*_GATES, None):
        raise ValueError(f"unknown gate {gate!r}: use one of {', '.join(_GATES)}")
    known = [module for module in model.modules() if isinstance(module, Routes)]
    gates = {gate or "", *(router.gate_kind for router in known)}
    random_routing = random_routing or (bool(known) and all(router.random_routing for router in known))
    routers = [info for info in infos if info.role == "router"]
    target = plan.target
    if routers and plan.roles["router"].zero and target.active < target.experts and not random_routing:
        unknown = "add routing noise, or a random router bias once initialized, and pass random_routing=True"
        takes_noise = any(isinstance(router, Draws) for router in known)
        how = "construct it with noise" if takes_noise else unknown
        raise ValueError(
            f"router '{routers[0].name}' would start at zero and route to {target.active} of {target.experts}, which "
            f"ties every expert: {how}; or plan with scheme 'mup'"
        )
    for summing in sorted(gates & set(_SUMMING_GATES)) if routers and plan.roles["expert_in"].tied else ():
        _warn(
            f"experts start equal, and a {summing} gate gives the router no gradient until they differ: "
            "use a sigmoid gate"
        )
    for info in infos:
        if info.tied_readout:
            _warn_of_tied_readout(plan, info.name, _scales_logits(model, plan))


def _scales_logits(model: nn.Module, plan: Plan) -> bool:
    """Whether the model has the factor of a tied readout itself: on its head, or as an attribute of its own."""
    known = [module for module in model.modules() if isinstance(module, Multiplies)]
    return any(isinstance(each, nn.Linear) or "tied_readout" in each.plan_multipliers(plan) for each in known)


def _warn_of_tied_readout(plan: Plan, name: str, scaled: bool) -> None:
    factor = plan.multiplier("tied_readout", relative=True)
    what = f"{name} is embedding and readout in one: it follows the embedding"
    if not scaled:
        _warn(f"{what}; scale logits by {factor:.4g}")
    if plan.base is not None and not {"embedding", ALL} & set(plan.init_std):
        # With a base the factor is relative to what was tuned there, and a std of 1 was not.
        _warn(f"{what} and starts with a std of 1, so that logits start at the order of √N: say init_std of embedding")


def _check_precision(plan: Plan, described: list[tuple[ParamInfo, Tensor, Values]]) -> None:
    """In Regime II under MSSP expert_out starts √M larger, and its updates are no larger: relative to it they fall as
    N^-1/2, below what half precision can hold."""
    half = [info.name for info, parameter, _ in described if info.role == "expert_out" and parameter.dtype in _HALF]
    init = plan.rule("expert_out").init_std
    if half and plan.regime == "II" and init is not None and init.get("M", 0) > 0:
        _warn(
            f"{half[0]} is in half precision: in Regime II its relative updates fall as N^-1/2 and are rounded away; "
            "keep float32 parameters (and use autocast), or an optimizer with float32 master weights"
        )


def _warn(message: str) -> None:
    warnings.warn(message, PlanWarning, stacklevel=4)


def _group_settings(plan: Plan, role: str, values: Values) -> dict[str, Any]:
    settings = {
        "lr": values.lr,
        "initial_lr": values.lr,
        "lr_scale": values.lr_scale,
        "lr_mult": plan.lr_mult.get(role, 1.0),
        "eps": values.eps,
        "grad_scale": values.grad_scale,
        "weight_decay": values.weight_decay,
        "name": role,
    }
    return settings if plan.recipe.betas is None else {**settings, "betas": plan.recipe.betas}


def _name_apart(groups: list[dict[str, Any]]) -> None:
    """Names that tell groups apart: the role, with the fans where one role has several groups."""
    several = {role for role, count in Counter(group["name"] for group in groups).items() if count > 1}
    taken: Counter[str] = Counter()
    for group in groups:
        fan_in, fan_out = group.pop("fans")
        if group["name"] in several:
            group["name"] += f" {fan_in}->{fan_out}"
        taken[group["name"]] += 1
        if taken[group["name"]] > 1:  # the same sides, grown from different ones
            group["name"] += f" ({taken[group['name']]})"


def _rounded(number: float | None) -> str:
    return f"{number:.12g}" if number is not None else ""


def same_values(found: Any, wanted: Any) -> bool:
    """Whether a setting of a group (a number, a pair of them, None) is the one that was wanted, but for rounding."""
    if wanted is None or found is None:
        return found is wanted
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    return all(math.isclose(float(a), float(b), rel_tol=_RATIO_TOLERANCE) for a, b in pairs)
