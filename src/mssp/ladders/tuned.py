"""Tuned learning rates and multipliers of the paper's MLP MoEs, and the plans that use them at every width.

The paper finds best multipliers up to a million times away from 1, and update terms six orders of magnitude apart
without tuning. So schemes can be compared only after tuning each of them, here at N = 128. Another way to compare them
starts from one *plain* model that all of them share, and that people use: initial weights of standard deviation
fan_in^-1/2 and one learning rate, tuned at its width. At this width all schemes are the same model, except for experts
that start equal and parameters that start at zero. Schemes differ in how the model changes as it grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from mssp._constraints import between, kind_of, mapping, optional, positive, positive_int, takes, word
from mssp.ladders.mlp import family
from mssp.planning.arguments import BY_DEPTH, RELATIVE
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import SGD, SP, Setting
from mssp.planning.shape import Shape

_VALUES = ("lr", "init_mult", "lr_mult", "aggregation_mult", "base_width", "top5")
TUNED_ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")


@takes(
    lr=positive,
    init_mult=positive,
    lr_mult=mapping,
    aggregation_mult=positive,
    base_width=optional(positive_int),
    top5=optional(between(0, 1)),
)
@dataclass(frozen=True)
class Tuned:
    """The values tuned for one setting: the learning rate, and multipliers of the numbers that the rules give.

    Args:
        lr_mult: learning-rate multipliers by role.
        init_mult: the global multiplier of initial weights.
        aggregation_mult: the factor on the aggregation's K^-1.
        base_width: the width of the plain model that these values belong to; None if they multiply the rules' numbers.
        top5: the validation top-5 accuracy that was reported with these values.
    """

    lr: float
    init_mult: float = 1.0
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    aggregation_mult: float = 1.0
    base_width: int | None = None
    top5: float | None = None

    @classmethod
    def of(cls, plan: Plan) -> Tuned:
        """The tuned values of a plan. A plan that sets more than these is refused, and not used in part."""
        unsupported = {
            "base": plan.base is not None,
            "init_std": bool(plan.init_std),
            "init_mult by role": bool(set(plan.init_mult) - {"all"}),
            "weight decay": plan.weight_decay != 0,
            "eps": plan.eps != plan.setting.optimizer.default_eps,
            "betas": plan.recipe.betas is not None,
            "as_printed": plan.as_printed,
            "grad_scale": plan.grad_scale,
            "lr_mult of parts of hidden": bool(plan.parts),
            "eps_rule": plan.eps_rule != RELATIVE,
            "residual_rule": plan.residual_rule != BY_DEPTH,
        }
        for name, is_set in unsupported.items():
            if is_set:
                raise ValueError(f"the plan's {name} cannot be used here: only a plan like those of mssp tune can")
        return cls(plan.lr, plan.init_mult.get("all", 1.0), dict(plan.lr_mult), plan.aggregation_mult)


def planned(shape: Shape, tuned: Tuned, setting: Setting) -> Plan:
    """The plan for the shape of a family's member, with the values tuned for the family.

    >>> from mssp.ladders.mlp import family
    >>> tuned = Tuned(1.0, base_width=64)
    >>> for width in (64, 256):
    ...     plans = [planned(family("II", width), tuned, Setting.of(scheme, "II", "sgd")) for scheme in ("mup", "mssp")]
    ...     print(width, [plan.roles["expert_out"].init_std for plan in plans])
    64 [0.25, 0.25]
    256 [0.25, 0.5]
    """
    start = _start(shape, setting) if tuned.base_width is None else _grown(shape, tuned.base_width, setting)
    return start.retuned(
        lr=tuned.lr,
        lr_mult=tuned.lr_mult,
        init_mult=tuned.init_mult,
        aggregation_mult=start.aggregation_mult * tuned.aggregation_mult,
    )


@lru_cache(maxsize=64)
def _start(shape: Shape, setting: Setting) -> Plan:
    """The plan by the rules alone, without tuned values, which thousands of trials share."""
    return _quiet_plan(shape, **setting.words())


@lru_cache(maxsize=64)
def _grown(shape: Shape, base_width: int, setting: Setting) -> Plan:
    """The plan without tuned values that grows from the plain model of width ``base_width``."""
    if setting.regime is None:
        raise ValueError(f"{setting} has no regime: what grows from the plain model of width {base_width} is not known")
    base = family(setting.regime, base_width, shape.inputs)
    active, remainder = divmod(base.experts * shape.active, shape.experts)
    if remainder:
        share = f"{shape.active} of {shape.experts} experts active"
        raise ValueError(f"{share} is no whole number of the {base.experts} at the base's width {base_width}")
    base = replace(base, active=active)
    plain = _quiet_plan(base, scheme=SP, optimizer=SGD)
    return _quiet_plan(
        shape,
        base,
        **setting.words(),
        init_std={role: plain.roles[role].init_std for role in TUNED_ROLES if role != "readout"},
        # The plain model averages over its experts, by a factor that schemes without an average of their own keep.
        aggregation_mult=1.0 if setting.scheme.averages else 1 / base.active,
    )


def _quiet_plan(*shapes: Shape, **settings: Any) -> Plan:
    with without_plan_warnings():
        return plan(*shapes, lr=1.0, **settings)


def data_with_tuned_multipliers() -> tuple[str, ...]:
    return tuple(_tables())


@takes(data=word, setting=kind_of(Setting), active=optional(positive_int))
def multipliers_for(data: str, setting: Setting, active: int | None = None) -> Tuned:
    """The tuned values for one setting of the MLP MoE, from the package's table.

    >>> multipliers_for("tinyimagenet", Setting.of("mssp", "II", "sgd")).lr_mult["readout"]
    65536.0
    """
    if data not in _tables():
        names = ", ".join(_tables())
        raise ValueError(f"no multipliers were tuned for {data!r} (there are for {names}): mssp tune finds them")
    words = setting.words()
    keys = {name: words[name] for name in ("optimizer", "regime", "readout")} | {"active": active}
    for entry in entries(data):
        if words["scheme"] in entry["schemes"] and all(entry[name] == value for name, value in keys.items()):
            return Tuned(**{name: entry[name] for name in _VALUES if name in entry})
    routing = "all experts" if active is None else f"{active} of 8 experts"
    raise ValueError(
        f"no multipliers were tuned on {data} for {setting.optimizer}, Regime {setting.regime}, {setting.scheme}, "
        f"{routing}, readout {setting.readout}: mssp tune finds them"
    )


def entries(data: str) -> list[dict[str, Any]]:
    """The entries of the package's table for a dataset, one for each setting."""
    return list(_tables()[data]["entries"])


@cache
def _tables() -> dict[str, Any]:
    """The package's table of tuned values, by dataset."""
    text = files("mssp.ladders").joinpath("tuned_multipliers.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables
