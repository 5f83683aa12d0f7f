"""What the rules themselves imply: how initial weights, learning rates, eps, gradients and factors grow over shapes.

Exponents are slopes in log-log of the plans' own numbers, so that a rule changed in ``rules.py`` changes them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from mssp._estimates import slope_of
from mssp.measure.quantities import AGGREGATION, EPS, FAITHFULNESS, GRADIENT, RATE, WEIGHTS, Quantity
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import ADAM, MSSP
from mssp.theory.propagation import Exponent, slack

_UPDATES_OF_DELAY = 1  # by how many updates a zero readout delays every gradient but its own


class Implied:
    """The exponents that follow from the rules of one scheme over several shapes.

    >>> from mssp import Shape
    >>> shapes = {n: Shape(n, 16, n // 16, n // 16, 1) for n in (64, 128, 256)}
    >>> implied = Implied({n: plan(shape, regime="II", optimizer="sgd", lr=1.0) for n, shape in shapes.items()})
    >>> implied.exponent("weights/expert_out", 0), implied.exponent("gradient/expert_out", 2)
    (Exponent(power=Fraction(1, 2), slack=Fraction(0, 1)), Exponent(power=Fraction(-2, 1), slack=Fraction(0, 1)))

    Args:
        plans: by the size that grows, as the rules give them. Multipliers do not matter if they are the same for all.
        equal_shares: gates sum to one over the experts.
    """

    def __init__(self, plans: Mapping[int, Plan], *, equal_shares: bool = False) -> None:
        self._plans, self._first = plans, next(iter(plans.values()))
        setting = self._first.setting
        # Where the dynamics are those of MSSP, the rule of eps says how large gradients are.
        with without_plan_warnings():  # nobody trains by these
            self._gradients = {
                size: plan(member.target, regime=setting.regime, scheme=MSSP, optimizer=ADAM, lr=1.0)
                for size, member in plans.items()
                if setting.regime in setting.scheme.stable
            }
        # With equal experts and gates that sum to one, a router changes nothing, and so has no gradient yet.
        self._router_waits = equal_shares and self.tied()

    def exponent(self, name: str, step: int) -> Exponent | None:
        """After so many updates; None for a quantity that the rules do not determine."""
        quantity = Quantity.named(name)
        kind, role = quantity.kind, quantity.of
        if kind is AGGREGATION:
            return _slope({size: plan.multiplier("aggregation") for size, plan in self._plans.items()})
        if role not in self._first.all_roles:
            return None
        if self._router_waits and role == "router" and kind not in (WEIGHTS, EPS) and step <= self._starts(role) + 1:
            return None  # what is measured is rounding
        kinds = {
            WEIGHTS: self._initial,
            RATE: self._rate,
            EPS: self._eps,
            GRADIENT: self._gradient,
            FAITHFULNESS: self._faithfulness,
        }
        return kinds[kind](role, step) if kind in kinds else None

    def _initial(self, role: str, step: int) -> Exponent:
        zero = any(plan.all_roles[role].zero for plan in self._plans.values())
        return Exponent(None) if zero else self._of("init_std", role)

    def _rate(self, role: str, step: int) -> Exponent | None:
        # The first update of a layer is its learning rate times one gradient. Later ones add up as they align, and
        # with weight decay no update is as large as the learning rate says.
        is_first = step == self._starts(role) + 1
        return self._of("lr", role) if is_first and not self._first.weight_decay else None

    def _eps(self, role: str, step: int) -> Exponent | None:
        if self._first.setting.optimizer.eps is None:
            return None
        # To Adam, scaling gradients up is scaling eps down.
        values = {size: plan.all_roles[role] for size, plan in self._plans.items()}
        return _slope({size: (numbers.eps or math.nan) / numbers.grad_scale for size, numbers in values.items()})

    def _gradient(self, role: str, step: int) -> Exponent | None:
        if not self._gradients:
            return None
        if step < self._starts(role):
            return Exponent(None)
        like_eps = _slope({size: plan.all_roles[role].eps or math.nan for size, plan in self._gradients.items()})
        return Exponent(like_eps.power, slack(GRADIENT(role)))

    def _faithfulness(self, role: str, step: int) -> Exponent | None:
        gradient, eps = self._gradient(role, step), self._eps(role, step)
        if gradient is None or gradient.power is None or eps is None or eps.power is None:
            return None
        # A gradient that is still below its order leaves eps above it.
        return Exponent(eps.power - gradient.power + gradient.slack, gradient.slack)

    def _starts(self, role: str) -> int:
        """The number of updates after which a role has a gradient."""
        waits = self._first.roles["readout"].zero and role not in ("readout", "readout_bias")
        return _UPDATES_OF_DELAY if waits else 0

    def tied(self) -> bool:
        """Whether experts start equal."""
        return self._first.roles["expert_in"].starts_equal

    def _of(self, value: str, role: str) -> Exponent:
        return _slope({size: getattr(plan.all_roles[role], value) for size, plan in self._plans.items()})


def _slope(numbers: Mapping[int, float]) -> Exponent:
    slope = slope_of([math.log(size) for size in numbers], [math.log(number) for number in numbers.values()])
    # The rules' powers are multiples of a half, but shapes of no one family may have others.
    return Exponent(Fraction(slope).limit_denominator(100))
