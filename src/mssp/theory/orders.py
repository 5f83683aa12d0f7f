"""The predicted orders of every term for any growth, from how the sizes grow and how experts start (docs/growth.md).

The paper derives exponents for three growths, in which all sizes follow the width. For any other, orders are products
of what the initial aggregate, an expert's way back and the learned parts have grown by since the smallest model:

    a = b (ρ + (1 - ρ)/K)^1/2    the aggregate of the experts' starts; b is the boost of expert_out, ρ the shared part
    r = b (N_e/N)^1/2            one expert's way back through its start, beside what it has learned
    c = (N/(K N_e))^1/2          what K experts of width N_e send back through their starts: κ^-1/2
    s = (M/K)^1/2                how far routing specialises: an expert gets K/M of the tokens, those that are alike

Where κ is below 1, c grows, and no start of the experts balances all terms. What is learned of alike tokens adds up
further: by measurement, terms that pass through an expert lie between their order under random routing and s times it,
and those that pass through two learned factors up to s² times it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mssp._estimates import slope_of
from mssp.measure.quantities import (
    ACTIVATION,
    AGGREGATE,
    BACKWARD,
    EFFECTIVE,
    FEATURE_CHANGE,
    PROPAGATING,
    Quantity,
)
from mssp.planning.plans import Plan
from mssp.planning.setting import MSSP
from mssp.theory.propagation import Exponent, slack, starts_after, whole


@dataclass(frozen=True)
class Grown:
    """What a, r, c and s are, and the width, each over what it is at the smallest size."""

    a: float
    r: float
    c: float
    s: float
    width: float

    @property
    def own(self) -> float:
        """What goes through an expert's own start: c where it grows."""
        return max(1.0, self.c)

    @property
    def start_of_out(self) -> float:
        """What comes back through the start of an expert's second layer."""
        return max(self.r, self.a**2)


Order = Callable[[Grown], float]


def _one(grown: Grown) -> float:
    return 1.0


def _with_alike_tokens(order: Order, power: int = 1) -> Order:
    """An order under routing that gives an expert tokens which are alike, the more so the fewer of them it gets."""

    def raised(grown: Grown) -> float:
        return order(grown) * max(1.0, grown.s) ** power

    return raised


def _a(grown: Grown) -> float:
    return grown.a


def _a_own(grown: Grown) -> float:
    return grown.a * grown.own


def _least_of_changes(grown: Grown) -> float:
    return min(grown.a, grown.r**2)


def _most_of_changes(grown: Grown) -> float:
    return max(grown.a * grown.own, grown.r**2)


def _own(grown: Grown) -> float:
    return grown.own


def _own_start(grown: Grown) -> float:
    return grown.own * grown.start_of_out


def _least_own_start(grown: Grown) -> float:
    return min(1.0, _own_start(grown))


def _r_squared(grown: Grown) -> float:
    return grown.r**2


def _start_of_out(grown: Grown) -> float:
    return grown.start_of_out


# The lowest and the highest order of each term. Terms on the way back are times 1/N.
_ORDERS: Mapping[Quantity, tuple[Order, Order]] = {
    AGGREGATE("init"): (_a, _a),
    AGGREGATE("A21"): (_a, _with_alike_tokens(_a_own)),
    AGGREGATE("A22"): (_least_of_changes, _with_alike_tokens(_most_of_changes, 2)),
    AGGREGATE("propagating"): (_least_of_changes, _with_alike_tokens(_most_of_changes, 2)),
    AGGREGATE("effective"): (_one, _with_alike_tokens(_one)),
    AGGREGATE("cross"): (_one, _with_alike_tokens(_one, 2)),
    BACKWARD("A4"): (_least_own_start, _with_alike_tokens(_own_start)),
    BACKWARD("A5"): (_own, _with_alike_tokens(_own)),
    BACKWARD("A6"): (_r_squared, _with_alike_tokens(_start_of_out)),
    BACKWARD("E"): (_one, _with_alike_tokens(_one)),
    PROPAGATING("expert_in"): (_one, _with_alike_tokens(_own)),
    FEATURE_CHANGE(): (_one, _with_alike_tokens(_one)),
    **dict.fromkeys(map(EFFECTIVE, ("router", "expert_in", "expert_out")), (_one, _with_alike_tokens(_one))),
    **dict.fromkeys(
        (*map(EFFECTIVE, ("embedding", "readout")), *map(ACTIVATION, ("embedding", "expert_in"))), (_one, _one)
    ),
}


class Orders:
    """The predicted exponents of one scheme over shapes of any growth.

    >>> from mssp import Shape, plan
    >>> smallest = Shape(64, 16, 4, 2, 1)  # K and N_e stay, so that κ falls as 1/N
    >>> plans = {n: plan(Shape(n, 16, n // 16, 2, 1), smallest, regime="any", lr=1.0) for n in (64, 128, 256)}
    >>> orders = Orders(plans)
    >>> predicted = orders.exponent(BACKWARD("A5"), 5)
    >>> str(orders.exponent(AGGREGATE("init"), 0).power), str(predicted.power - predicted.slack), str(predicted.power)
    ('0', '-1/2', '0')
    """

    def __init__(self, plans: Mapping[int, Plan]) -> None:
        self._sizes = [math.log(size) for size in plans]
        first, *_ = (absolute(plan) for plan in plans.values())
        self._grown = [_over(absolute(plan), first) for plan in plans.values()]
        self._is_mssp = next(iter(plans.values())).setting.scheme is MSSP

    def exponent(self, name: Quantity, step: int) -> Exponent | None:
        """After so many updates; None for a quantity of which nothing is predicted, and of μP for all but the start."""
        term = whole(name)
        if term not in _ORDERS or not (self._is_mssp or term == AGGREGATE("init")):
            return None
        if step < starts_after(term):
            return Exponent(None)
        lowest, highest = (self._power(order, name) for order in _ORDERS[term])
        return Exponent(highest, highest - min(highest, lowest) + slack(name))

    def stable(self, name: Quantity) -> Fraction | None:
        """What maximal scale stability asks of a quantity: that it stays, on the way back beside 1/N."""
        return self._power(_one, name) if whole(name) in _ORDERS else None

    def _power(self, order: Order, name: Quantity) -> Fraction:
        is_back = name.kind is BACKWARD
        logs = [math.log(order(grown) / (grown.width if is_back else 1.0)) for grown in self._grown]
        return Fraction(slope_of(self._sizes, logs)).limit_denominator(100)


def absolute(plan: Plan) -> Grown:
    """a, r, c and s of a plan's own shape, but for constants that are the same at all sizes."""
    shape, values = plan.target, plan.roles["expert_out"]
    boost = values.init_std * shape.expert_width**0.5
    average = math.sqrt(values.shared + (1 - values.shared) / shape.active)
    return Grown(
        a=boost * average,
        r=boost * math.sqrt(shape.expert_width / shape.width),
        c=math.sqrt(shape.width / (shape.active * shape.expert_width)),
        s=math.sqrt(shape.experts / shape.active),
        width=float(shape.width),
    )


def _over(grown: Grown, first: Grown) -> Grown:
    pairs = zip(vars(grown).values(), vars(first).values(), strict=True)
    return Grown(*(number / at_first for number, at_first in pairs))
