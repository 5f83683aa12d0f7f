"""Checks that a model and its optimizer have the values of a plan, and that the model can train under it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mssp._constraints import a_module, a_plan, an_optimizer, claims, optional, takes
from mssp.apply.description import Claims, planned_multipliers, planned_parameters
from mssp.apply.groups import check_schedule, group_settings, optimizer_class, same_values, scales_gradients
from mssp.apply.protocols import HasOwnValues, Multiplies, Routes
from mssp.apply.sharding import is_sharded
from mssp.planning.arguments import ALL
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.power import Power
from mssp.planning.recipe import PlanWarning
from mssp.planning.rules import BIASES, GAINS
from mssp.planning.scope import SMALL_SPREAD
from mssp.planning.setting import II

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from mssp.planning.plans import Plan, Values

# Gates that sum to one over the experts: with equal experts the router's gradient cancels.
SOFTMAX = "softmax"
_SUMMING_GATES = (SOFTMAX, "renormalised")
GATE_KINDS = ("sigmoid", *_SUMMING_GATES)
_HALF = (torch.bfloat16, torch.float16)  # precisions that round small updates away
FULL_PRECISION = "keep float32 parameters (and use autocast), or an optimizer with float32 master weights"


@takes(model=a_module, optimizer=an_optimizer, plan=a_plan, claims=optional(claims))
def verify(model: nn.Module, optimizer: Optimizer, plan: Plan, claims: Claims | None = None) -> None:
    """Raise unless every trainable parameter is held once, with the plan's values, and the model has its factors.

    Call it after building or reloading. Learning rates may be anywhere on a schedule (see :func:`check_schedule`).
    """
    expected_class = optimizer_class(plan)
    # Its nearest base class in torch is compared (AdamW derives from Adam); of other optimizers the values alone are.
    nearest = next((base for base in type(optimizer).__mro__ if base.__module__.startswith("torch.optim")), None)
    if nearest not in (expected_class, torch.optim.Optimizer, None):
        raise ValueError(f"the plan is for {expected_class.__name__}, the optimizer is {type(optimizer).__name__}")
    described = planned_parameters(model, plan, claims)
    group_of = _groups_by_parameter(optimizer, {id(parameter): info.name for info, parameter, _ in described})
    for info, parameter, values in described:
        if id(parameter) not in group_of:
            raise ValueError(f"{info.name} is in no group of the optimizer")
        group = group_of[id(parameter)]
        planned = group_settings(plan, values)
        del planned["name"], planned["lr"]  # a schedule moves the lr
        for key, number in planned.items():
            # OneCycleLR starts below the planned rate, which it keeps as its maximum.
            held = group.get("max_lr", group.get(key)) if key == "initial_lr" else group.get(key)
            if not same_values(held, number):
                raise ValueError(f"{info.name} ({info.role}) has {key} {held}, the plan says {number}")
    if plan.grad_scale and not scales_gradients(optimizer):
        raise ValueError("the plan scales gradients instead of eps: call mssp.scale_gradients(optimizer)")
    for module, path, name, factor in planned_multipliers(model, plan):
        if not same_values(getattr(module, name), factor):
            raise ValueError(f"{path}{name} is {getattr(module, name)}, the plan says {factor}")
    for module in model.modules():
        if isinstance(module, HasOwnValues):
            module.check_own_values()
    check_schedule(optimizer, plan)
    check_precision(plan, described)
    check_parts(plan, [info for info, _, _ in described])
    _warn_of_small_spread(plan, described)


def _warn_of_small_spread(plan: Plan, described: Sequence[tuple[ParamInfo, Tensor, Values]]) -> None:
    """Warn of routers whose logits lie so close together that all tokens may choose the same experts."""
    for info, parameter, _ in described:
        if info.role == "router" and plan.target.active < plan.target.experts and not parameter.is_meta:
            weights = parameter.to_local() if is_sharded(parameter) else parameter
            spread = float(weights.detach().float().square().mean().sqrt()) * plan.target.width**0.5
            if spread < SMALL_SPREAD:
                _warn(
                    f"{info.name}: its logits have a spread of {spread:.2g} for inputs of order 1, with which all "
                    "tokens may come to choose the same experts: balance their loads, and watch them"
                )
                return


def _groups_by_parameter(optimizer: Optimizer, names: dict[int, str]) -> dict[int, dict[str, Any]]:
    """The group that holds each parameter, by id. No parameter may be held twice, or without being trained."""
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


def check_routing(plan: Plan, model: nn.Module, infos: Sequence[ParamInfo], gate: str | None = None) -> None:
    """Warn where the model's routers or its readout do not go with the plan."""
    gates = {gate or "", *(router.gate_kind for router in model.modules() if isinstance(router, Routes))}
    is_routed = any(info.role == "router" for info in infos)
    has_own_eps = plan.gates_sum_to_one or plan.roles["expert_in"].shared == 0
    for summing in sorted(gates & set(_SUMMING_GATES)) if is_routed and not has_own_eps else ():
        _warn(
            f"experts start alike, and under a {summing} gate what moves the router is how they differ, which falls as "
            "N^-1/2 beside the plan's eps: plan with gates_sum_to_one=True"
        )
    factors = {} if plan.growth is None else plan.growth.factors
    if is_routed and SOFTMAX in gates and not math.isclose(factors.get("K", 1.0), factors.get("M", 1.0)):
        missing = factors["M"] / factors["K"]
        _warn(
            f"softmax gates of the chosen experts sum to less the fewer they are of all, here {1 / missing:.3g} times "
            f"what they sum to at the base: multiply the sum over experts by {missing:.3g} (in configs, "
            "routed_scaling_factor), or renormalise the gates"
        )
    for info in infos:
        if info.tied_readout:
            _warn_of_tied_readout(plan, info.name, _scales_logits(model, plan))


def _scales_logits(model: nn.Module, plan: Plan) -> bool:
    """Whether a module of the model has the factor of a tied readout: its head, or one that names the factor."""
    return any(
        isinstance(module, nn.Linear) or "tied_readout" in module.plan_multipliers(plan)
        for module in model.modules()
        if isinstance(module, Multiplies)
    )


def _warn_of_tied_readout(plan: Plan, name: str, scaled: bool) -> None:
    factor = plan.multiplier("tied_readout", relative=True)
    tied = f"{name} is embedding and readout in one: it follows the embedding"
    if not scaled:
        _warn(f"{tied}; scale logits by {factor:.4g}")
    if plan.base is not None and not {"embedding", ALL} & set(plan.init_std):
        # With a base the factor is relative to what was tuned there, which a std of 1 was not.
        _warn(f"{tied} and starts with a std of 1, so that logits start at the order of √N: say init_std of embedding")


def check_parts(plan: Plan, infos: Sequence[ParamInfo]) -> None:
    """Warn of parts of hidden that the plan names and that no parameter of the model is described as."""
    missing = [part for part in plan.parts if all(info.part != part for info in infos)]
    if missing:
        _warn(
            f"the plan's numbers of {', '.join(missing)} have no effect: no hidden matrix of the model is described as "
            f"{'that part' if len(missing) == 1 else 'one of these parts'} (ParamInfo's part)"
        )


def check_precision(plan: Plan, described: Sequence[tuple[ParamInfo, Tensor, Values]]) -> None:
    """Warn of parameters in half precision that are too coarse for their updates, at the plan's rates.

    In Regime II under MSSP they come to be, at any rate: expert_out starts √M larger while its updates are no larger,
    and relative to it they fall as N^-1/2.
    """
    half = [(info, parameter.dtype, values) for info, parameter, values in described if parameter.dtype in _HALF]
    init = plan.setting.rule("expert_out").init_std
    experts = [info.name for info, _, _ in half if info.role == "expert_out"]
    if experts and plan.setting.regime is II and isinstance(init, Power) and init.get("M"):
        _warn(
            f"{experts[0]} is in half precision: in Regime II its relative updates fall as N^-1/2 and are rounded "
            f"away; {FULL_PRECISION}"
        )
    lost: dict[str, tuple[float, str]] = {}
    for info, dtype, values in half:
        spacing = spacing_at(_initial_size(info, values), dtype)
        if plan.setting.optimizer_of(info.role).moments and values.lr < spacing:
            lost.setdefault(info.role, (values.lr / spacing, info.name))
    if lost:
        roles = ", ".join(f"{role} ({share:.2g})" for role, (share, _) in lost.items())
        precision = str(half[0][1]).removeprefix("torch.")
        _warn(
            f"{next(iter(lost.values()))[1]} is in {precision}, where a first update, of the size of the learning "
            "rate, is less than the distance to the next number, and is rounded away or too large: as shares of it, "
            f"{roles}; {FULL_PRECISION}"
        )


def spacing_at(size: float, dtype: torch.dtype) -> float:
    """The distance between a number of this size and the next one; 0 at 0.

    >>> spacing_at(1.0, torch.bfloat16), spacing_at(0.02, torch.bfloat16)
    (0.0078125, 0.0001220703125)
    """
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(size)) if size else 0.0


def _initial_size(info: ParamInfo, values: Values) -> float:
    """The size of a parameter's entries at the start."""
    if info.role in GAINS | BIASES:
        usual = 1.0 if info.role in GAINS else 0.0
        return usual if info.start is None else 0.0 if info.start == OWN else abs(info.start)
    return 0.0 if values.zero else values.init_std


def _warn(message: str) -> None:
    warnings.warn(message, PlanWarning, stacklevel=5)
