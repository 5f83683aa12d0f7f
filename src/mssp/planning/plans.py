"""Plans: the numbers of a target, from the rules and from what was tuned at a base.

A base is a small model whose hyperparameters were tuned. The target is the model that a plan carries them to.

    value at the target = tuned value x Power(target) / Power(base)         with a base
                          tuned value x Power(target)                       without ("base width 1")

This holds for learning rate, eps, aggregation, residual, and for initial weights where a std was tuned (otherwise the
constant is 1). Weight decay gets the inverse factor of its learning rate. Options (``decay_by_multiplier``,
``decay_gains``, ``eps_rule``, ``residual_rule``) change single cells of this, as the paper's authors have them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from inspect import signature
from types import MappingProxyType
from typing import Any, Literal

from mssp._constraints import kind_of, mapping, one_of, optional, positive, positive_or_zero, switch, takes
from mssp.planning import arguments, plan_file, printing, recipe, scope
from mssp.planning.arguments import (
    ABSOLUTE,
    ALL,
    ALWAYS_ONE,
    BY_DEPTH,
    EPS_RULES,
    GLOBAL,
    RELATIVE,
    RESIDUAL_RULES,
    WITH_LR,
    WITH_STD,
)
from mssp.planning.growth import Growth, infer, outside_theory, refuse_unplannable, undecided
from mssp.planning.parameter import Dims, ParamInfo, check_fits, own_dims, parse_layout, with_fans
from mssp.planning.power import Factor, Power
from mssp.planning.recipe import PlanWarning, Recipe, without_plan_warnings
from mssp.planning.rules import BIASES, GAINS, PARTS, RARE_ROLES, ROLES, Rule, router_eps_of_shares, router_start
from mssp.planning.setting import (
    ADAMW,
    MSSP,
    OPTIMIZER,
    READOUTS,
    REGIME,
    SCHEME,
    ZERO,
    Optimizer,
    Regime,
    Scheme,
    Setting,
)
from mssp.planning.shape import Shape
from mssp.planning.sides import SidesByPlace, carried, completed, taken


@dataclass(frozen=True)
class Values:
    """The numbers of one parameter, for an initializer and an optimizer. ``eps`` is None for SGD."""

    role: str
    init_std: float
    lr: float
    lr_scale: float  # the scale ratio alone, without the user's multiplier
    eps: float | None
    grad_scale: float
    weight_decay: float
    shared: float  # the part of an expert's initial output that all experts share
    zero: bool
    source: str
    matrices: int = 2  # through which an expert's output goes: a gated one has three
    lr_mult: float = 1.0  # the user's multiplier
    part: str | None = None  # of a hidden matrix, if the plan names it

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            overflows = isinstance(number, float) and not math.isfinite(number)
            if overflows or (number == 0 and name in ("lr", "eps")):
                raise ValueError(f"{name} of {self.role} comes to {number}: outside the range of floating point")

    @property
    def starts_equal(self) -> bool:
        """Whether all experts start equal."""
        return self.shared == 1

    @property
    def shared_weights(self) -> float:
        """The part of this matrix's initial variance that all experts share, so that their outputs share ``shared``."""
        return float(self.shared ** (1 / self.matrices))

    def json(self) -> dict[str, float | bool | str | None]:
        """The values as plan files have them: ``tied`` stands for ``shared``, which is written where it is a part."""
        names = ("init_std", "lr", "lr_scale", "eps", "grad_scale", "weight_decay")
        numbers = {name: getattr(self, name) for name in names}
        shared = {} if self.shared in (0, 1) else {"shared": self.shared}
        return {**numbers, "tied": self.shared == 1, "zero": self.zero, "source": self.source, **shared}


# The factors of the forward pass and of the loss, which are multipliers and not parameters.
_FORWARD = {
    "aggregation": Power(K=-1),
    "residual": Power(L=-1),
    "tied_readout": Power(N=-1),
    "scaled_embedding": Power(N=Fraction(-1, 2)),
    "load_balance": Power(K=-1),
}


@dataclass(frozen=True)
class Plan:
    """The hyperparameters of one model, by role: immutable, printable, and all that other packages need.

    :func:`mssp.plan` makes it, and describes the fields.
    """

    target: Shape
    base: Shape | None
    setting: Setting
    lr: float
    eps: float | None
    weight_decay: float
    grad_scale: bool
    lr_mult: Mapping[str, float]
    init_mult: Mapping[str, float]
    init_std: Mapping[str, float]
    aggregation_mult: float
    recipe: Recipe
    tuned_with: Recipe
    rest_lr: float | None = None
    gates_sum_to_one: bool = False
    sides: SidesByPlace = field(default_factory=dict)
    decay_by_multiplier: bool = False
    decay_gains: bool = False
    eps_rule: str = RELATIVE
    residual_rule: str = BY_DEPTH
    warnings: tuple[str, ...] = field(default=(), compare=False)

    # -- its setting, in words ---------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        return self.setting.scheme.name

    @property
    def optimizer(self) -> str:
        return self.setting.optimizer.name

    @property
    def regime(self) -> str | None:
        return None if self.setting.regime is None else self.setting.regime.name

    @property
    def readout(self) -> str:
        return self.setting.readout

    @property
    def as_printed(self) -> bool:
        return self.setting.as_printed

    # -- the numbers --------------------------------------------------------------------------------------------------

    def rule(self, role: str) -> Rule:
        """The rule of one role, with this plan's choices, and what follows from its shapes and gates."""
        rule = self.setting.rule(role)
        if role == "router" and rule.zero and self.target.active < self.target.experts:
            rule = replace(rule, init_std=router_start, source="derived")  # top-K of zeros would choose at random
        if role == "router" and rule.eps is not None and self.gates_sum_to_one and self._experts_start_alike:
            rule = replace(rule, eps=router_eps_of_shares, source="derived")
        if self.eps_rule == GLOBAL and rule.eps is not None:
            rule = replace(rule, eps=Power())
        return rule.without_depth() if self.residual_rule == ALWAYS_ONE else rule

    @property
    def _experts_start_alike(self) -> bool:
        return self._shared(self.setting.rule("expert_in")) > 0

    def _shared(self, rule: Rule) -> float:
        """The part of an expert's start that all share: the rule's, or as much as the growth asks for."""
        if rule.shared is not None:
            return rule.shared
        return 0.0 if self.growth is None else self.growth.share

    @property
    def growth(self) -> Growth | None:
        """The growth from the base to the target; None without a base."""
        return None if self.base is None else Growth(self.base, self.target)

    @cached_property
    def roles(self) -> Mapping[str, Values]:
        """The numbers of every role, for matrices with the sides that the role has in this model."""
        return MappingProxyType({role: self._values_of_role(role) for role in ROLES})

    @cached_property
    def all_roles(self) -> Mapping[str, Values]:
        """The same with rare roles, which plan files and tables of roles leave out."""
        rare = {role: self._values_of_role(role) for role in RARE_ROLES}
        return MappingProxyType({**self.roles, **rare})

    @cached_property
    def parts(self) -> Mapping[str, Values]:
        """The numbers of the parts of ``hidden`` that this plan's multipliers and standard deviations name."""
        named = {*self.lr_mult, *self.init_mult, *self.init_std}
        return MappingProxyType({part: self._values_of_role("hidden", part) for part in PARTS if part in named})

    def _values_of_role(self, role: str, part: str | None = None) -> Values:
        base = with_fans(role, self.base) if self.base else None
        return self._values(self.rule(role), with_fans(role, self.target), base, part)

    def _values(self, rule: Rule, target: Dims, base: Dims | None, part: str | None = None) -> Values:
        def scale(factor: Factor) -> float:
            return factor.value(target) if base is None else factor.ratio(target, base)

        lr_scale = scale(rule.lr)
        is_absolute = self.eps_rule == ABSOLUTE
        eps_scale = 1.0 if rule.eps is None else rule.eps.value(target) if is_absolute else scale(rule.eps)
        eps = None if rule.eps is None or self.eps is None else self.eps * (1.0 if self.grad_scale else eps_scale)
        lr_mult = math.prod(self.lr_mult.get(name, 1.0) for name in (rule.role, part) if name)
        decay_scale = lr_scale * (lr_mult if self.decay_by_multiplier else 1.0)
        decays = self.decay_gains or rule.role not in GAINS | BIASES
        return Values(
            role=rule.role,
            init_std=self._init_std(rule, target, base, part),
            lr=self.tuned_lr(rule.role) * lr_mult * lr_scale,
            lr_scale=lr_scale,
            eps=eps,
            grad_scale=1 / eps_scale if self.grad_scale else 1.0,
            weight_decay=self.weight_decay / decay_scale if decays else 0.0,
            shared=self._shared(rule),
            zero=rule.zero,
            source=rule.source,
            lr_mult=lr_mult,
            part=part,
        )

    def tuned_lr(self, role: str) -> float:
        """The learning rate tuned at the base for the optimizer that moves this role."""
        if self.rest_lr is None or self.setting.optimizer_of(role) is self.setting.optimizer:
            return self.lr
        return self.rest_lr

    def _init_std(self, rule: Rule, target: Dims, base: Dims | None, part: str | None) -> float:
        if rule.init_std is None:
            return 0.0
        if rule.role in GAINS:  # the value they start from, to which no multiplier applies
            return rule.init_std.value(target)
        names = [name for name in (part, rule.role, ALL) if name]  # multipliers are multiplied, one std is taken
        multiplier = math.prod(self.init_mult.get(name, 1.0) for name in reversed(names))
        tuned = next((self.init_std[name] for name in names if name in self.init_std), None)
        if tuned is not None and base is not None:
            return tuned * multiplier * rule.init_std.ratio(target, base)
        return (tuned or 1.0) * multiplier * rule.init_std.value(target, base)

    def resolve(self, infos: Iterable[ParamInfo]) -> dict[str, Values]:
        """The numbers of every parameter, by name. A matrix with fans of its own gets its own values.

        A side is taken to grow as its role's does, unless its size at the base is given: by the description
        (``base_fan_in``), or by the plan's own ``sides``.
        """
        infos = self.completed(infos)
        first_of: dict[tuple[Any, ...], ParamInfo] = {}  # in a deep model, many parameters have the same sides
        for info in infos:
            first_of.setdefault(_sides(info), info)
        for info in first_of.values():
            check_fits(info, self.target)
        matrices = _matrices_of_experts(infos)
        values = {sides: replace(self._own_values(info), matrices=matrices) for sides, info in first_of.items()}
        return {info.name: values[_sides(info)] for info in infos}

    def completed(self, infos: Iterable[ParamInfo]) -> list[ParamInfo]:
        """The descriptions with the sides at the base that this plan knows of them."""
        return [completed(info, self.sides) for info in infos]

    def _own_values(self, info: ParamInfo) -> Values:
        rule = self.rule(info.role)
        target, base, grows_as_role = own_dims(info, self.target, self.base, rule.symbols)
        values = self._values(rule, target, base, info.part if info.part in self.parts else None)
        return values if grows_as_role else replace(values, source="derived")

    @property
    def scope(self) -> list[tuple[str, str]]:
        """What of this plan is the paper's, what is derived, and what is not stable: sentences, each under a word."""
        return scope.scope_of(self)

    # -- multipliers of the forward pass ------------------------------------------------------------------------------

    def multiplier(
        self,
        which: Literal["aggregation", "residual", "tied_readout", "scaled_embedding", "load_balance"],
        relative: bool = False,
    ) -> float:
        """A factor of the forward pass. For models that are not ours, ``relative`` gives it over the base's factor.

        ``tied_readout`` scales the logits of a model whose readout is its embedding. ``scaled_embedding`` scales the
        embeddings of a model that multiplies them by the root of its width, so that they stay what they were.
        ``load_balance`` scales the coefficient of a load-balancing loss that is K where routing is uniform, as that of
        transformers; the coefficient of one that is 1 there stays as it is.
        """
        if which not in _FORWARD:
            raise ValueError(f"unknown multiplier {which!r}: use one of {', '.join(_FORWARD)}")
        is_one = which == "residual" and self.residual_rule == ALWAYS_ONE
        power = _FORWARD[which] if self.setting.scheme.averages and not is_one else Power()
        factor = self.aggregation_mult if which == "aggregation" else 1.0
        if relative and self.base:
            return factor * power.ratio(self.target.dims, self.base.dims)
        return factor * power.value(self.target.dims)

    # -- a plan as a document -----------------------------------------------------------------------------------------

    @takes(target=kind_of(Shape), recipe=optional(kind_of(Recipe)))
    def extend(self, target: Shape, recipe: Recipe | None = None) -> Plan:
        """The same tuned values carried to another target. A plan from A to B extended to C is the plan from A to C.

        What ``recipe`` and ``target.inputs`` leave open stays as it is.
        """
        filled, _ = arguments.recipes(recipe, self.recipe)
        settings = {name: getattr(self, name) for name in signature(plan).parameters}
        target = target.with_inputs(self.target.inputs)
        sides = carried(self.sides, self.target, self.base, target)
        return plan(**{**settings, "target": target, "recipe": filled, "sides": sides})

    def with_sides(self, sides: SidesByPlace) -> Plan:
        """The same plan with the sides of the model's matrices; numbers of roles that were computed are kept."""
        return self._with(sides=taken(sides))

    def retuned(
        self,
        *,
        lr: float,
        lr_mult: Mapping[str, float],
        init_mult: float | Mapping[str, float],
        aggregation_mult: float,
    ) -> Plan:
        """The same plan with other tuned values, for searches that make thousands: ``plan`` takes four times longer."""
        return replace(
            self,
            lr=positive("lr", lr),
            lr_mult=arguments.by_role("lr_mult", lr_mult, WITH_LR),
            init_mult=arguments.by_role("init_mult", init_mult, WITH_STD),
            aggregation_mult=positive("aggregation_mult", aggregation_mult),
        )

    def with_warnings(self, more: Iterable[str]) -> Plan:
        """The same plan with more warnings; numbers that were computed are kept."""
        return self._with(warnings=(*self.warnings, *more))

    def _with(self, **changes: Any) -> Plan:
        changed = replace(self, **changes)
        vars(changed).update({"roles": self.roles} if "roles" in vars(self) else {})
        return changed

    def json(self) -> str:
        return plan_file.dumps(self)

    @property
    def hash(self) -> str:
        """A digest of the plan's settings. No computed digits enter it, so that it is the same on every machine."""
        return plan_file.digest(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read what ``json()`` wrote; a ValueError says what is wrong with anything else."""
        return plan_file.loads(text, _from_settings)

    def diff(self, other: Plan) -> printing.Diff:
        """What differs from another plan; it prints as a table, and is false when nothing differs."""
        return printing.diff(self, other)

    def markdown(self) -> str:
        return printing.markdown(self)

    def __str__(self) -> str:
        return printing.text(self)

    def __hash__(self) -> int:
        return hash(self.hash)

    def __reduce__(self) -> tuple[Any, ...]:
        return Plan.from_json, (self.json(),)


@takes(
    target=kind_of(Shape),
    base=optional(kind_of(Shape)),
    lr=positive,
    eps=optional(positive),
    weight_decay=positive_or_zero,
    as_printed=switch,
    grad_scale=switch,
    lr_mult=optional(mapping),
    init_mult=optional(arguments.NUMBER_OR_ROLES),
    init_std=optional(arguments.NUMBER_OR_ROLES),
    aggregation_mult=positive,
    recipe=optional(kind_of(Recipe)),
    tuned_with=optional(kind_of(Recipe)),
    rest_lr=optional(positive),
    gates_sum_to_one=switch,
    sides=optional(mapping),
    decay_by_multiplier=switch,
    decay_gains=switch,
    eps_rule=one_of(EPS_RULES),
    residual_rule=one_of(RESIDUAL_RULES),
    scheme=SCHEME,
    optimizer=OPTIMIZER,
    regime=optional(REGIME),
    readout=one_of(READOUTS),
)
def plan(
    target: Shape,
    base: Shape | None = None,
    *,
    lr: float,
    scheme: str | Scheme = MSSP,
    optimizer: str | Optimizer = ADAMW,
    regime: str | Regime | None = None,
    eps: float | None = None,
    weight_decay: float = 0.0,
    readout: str = ZERO,
    as_printed: bool = False,
    grad_scale: bool = False,
    lr_mult: Mapping[str, float] | None = None,
    init_mult: float | Mapping[str, float] | None = None,
    init_std: float | Mapping[str, float] | None = None,
    aggregation_mult: float = 1.0,
    recipe: Recipe | None = None,
    tuned_with: Recipe | None = None,
    rest_lr: float | None = None,
    gates_sum_to_one: bool = False,
    sides: SidesByPlace | None = None,
    decay_by_multiplier: bool = False,
    decay_gains: bool = False,
    eps_rule: str = RELATIVE,
    residual_rule: str = BY_DEPTH,
) -> Plan:
    """Carry hyperparameters tuned at ``base`` to ``target``.

    >>> base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
    >>> target = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=8)
    >>> carried = plan(target, base, lr=4e-3, weight_decay=0.1)
    >>> carried.regime, carried.roles["expert_in"].lr, carried.roles["expert_in"].shared
    ('III', 0.0005, 1.0)

    Args:
        target, base: dimensions; without a base every Power is evaluated on the target itself.
        lr, eps, weight_decay: as tuned at the base (eps 1e-8 unless said; weight decay is for adamw).
        regime: I, II, III, or ``any`` for every other growth; inferred from base to target.
        readout: ``zero``, ``mup`` (std 1/N) or ``scheme`` (the scheme's own).
        as_printed: the paper's table without our corrections (docs/errata.md).
        grad_scale: keep eps and scale gradients instead: the same to Adam, with far more room (docs/faithfulness.md).
        lr_mult: tuned learning-rate multipliers by role. Here and below, parts of ``hidden`` (``attention_in``,
            ``attention_out``, ``ffn_in``, ``ffn_out``) may be named too. Their multipliers multiply that of ``hidden``.
        init_mult: tuned init multipliers: a number, or by role with ``all`` for every weight.
        init_std: standard deviations tuned at the base: a number, or by role with ``all``. Otherwise the constant is 1.
            That of a part is taken before that of ``hidden``.
        aggregation_mult: a tuned factor on the aggregation multiplier.
        recipe, tuned_with: batch, steps, warmup and betas at the target and at the base, to be warned of changes.
        rest_lr: for an optimizer that leaves some roles to another one: the learning rate tuned for those.
        gates_sum_to_one: the gates of the chosen experts are shares of one (softmax, renormalised), which matters to
            the router's eps where experts start alike.
        sides: the sides of the model's matrices by place, which :func:`mssp.hf.plan` reads off two configs.
        decay_by_multiplier: divide the weight decay by ``lr_mult`` too, so that lr times decay is one for all roles.
        decay_gains: give gains and biases weight decay too.
        eps_rule: ``relative``, eps as tuned at the base; ``absolute``, eps as it would be at width 1, while lr is
            relative to the base; or ``global``, one eps for all.
        residual_rule: ``depth``, residual branches are multiplied by 1/L; or ``one``, by 1, and no number follows L.
    """
    setting, unsaid = Setting.of(scheme, regime, optimizer, readout, as_printed), list[str]()
    target, base = arguments.shapes(target, base)
    recipe, tuned_with = arguments.recipes(recipe, tuned_with)
    unchecked = Plan(
        target=target,
        base=base,
        setting=setting,
        lr=lr,
        eps=setting.optimizer.default_eps if eps is None else eps,
        weight_decay=weight_decay,
        grad_scale=grad_scale,
        lr_mult=arguments.by_role("lr_mult", lr_mult, WITH_LR),
        init_mult=arguments.by_role("init_mult", init_mult, WITH_STD),
        init_std=arguments.by_role("init_std", init_std, WITH_STD),
        aggregation_mult=aggregation_mult,
        recipe=recipe,
        tuned_with=tuned_with,
        rest_lr=rest_lr,
        gates_sum_to_one=gates_sum_to_one,
        sides=taken(sides),
        decay_by_multiplier=decay_by_multiplier,
        decay_gains=decay_gains,
        eps_rule=eps_rule,
        residual_rule=residual_rule,
    )
    arguments.check(unchecked)
    if setting.regime is None and not setting.scheme.regime_free:
        setting, unsaid = replace(setting, regime=infer(base, target)), undecided(base, target)
    refuse_unplannable(base, target, setting.regime)
    return _warned(replace(unchecked, setting=setting.checked()), unsaid)


def _warned(plan: Plan, unsaid: list[str]) -> Plan:
    """The plan with its warnings, which are also raised as Python warnings."""
    messages = unsaid + outside_theory(plan.base, plan.target, plan.setting.regime)
    messages += recipe.changes(plan.tuned_with, plan.recipe)
    messages += arguments.without_effect(plan)
    if plan.residual_rule == ALWAYS_ONE and plan.base is not None and plan.base.depth != plan.target.depth:
        messages.append(
            f"the depth changes from {plan.base.depth} to {plan.target.depth}, and with residual_rule 'one' no number "
            "follows it: the paper's factor of residual branches is 1/L"
        )
    plan = replace(plan, warnings=tuple(messages))
    assert {**plan.roles, **plan.parts}  # numbers beyond floating point are refused now, not when they are used
    for message in messages:
        warnings.warn(message, PlanWarning, stacklevel=4)
    return plan


def _sides(info: ParamInfo) -> tuple[Any, ...]:
    """Everything in a description on which the numbers of a parameter depend."""
    return info.role, info.part, info.experts, info.fan_in, info.fan_out, info.base_fan_in, info.base_fan_out


def _matrices_of_experts(infos: Iterable[ParamInfo]) -> int:
    """Through how many matrices an expert's output goes: three where two stand side by side before the last."""
    beside = {"expert_in": 0, "expert_out": 0}
    for info in infos:
        if info.role in beside:
            beside[info.role] += max((count for _, count in parse_layout(info.layout)), default=1) if info.layout else 1
    return 3 if beside["expert_in"] > beside["expert_out"] > 0 else 2


def _from_settings(settings: Mapping[str, Any]) -> Plan:
    with without_plan_warnings():  # the warnings were raised when the plan was made
        return plan(**settings)
