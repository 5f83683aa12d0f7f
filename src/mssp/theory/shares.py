"""Gates that are shares of one among K of M experts: what a finite number of them does to the router's way back.

A gradient at the logits is what comes back to the gates times the derivative of the gates, which for shares is

    dφ_i / dψ_j = φ_i (δ_ij - φ_j)

Times K it is of order 1, as the paper's gates are. But it is still growing to that order where experts are few: with
one expert active there is no derivative at all. From 8 to 32 experts, half of them active, this alone raises exponents
over the width by 0.2; from 64 to 128 by 0.07. It is computed here for logits that are standard normal, as at the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from mssp._estimates import slope_of
from mssp.planning.plans import Plan

_TOKENS = 4096


def rise(plans: Mapping[int, Plan]) -> Fraction:
    """By how much the exponents of the router's way back are raised over these sizes; 0 where K stays.

    >>> from mssp import Shape, plan
    >>> few = {n: plan(Shape(n, 16, n // 8, n // 16, 1), regime="II", lr=1.0) for n in (64, 128, 256)}
    >>> many = {n: plan(Shape(n, 16, n // 8, n // 16, 1), regime="II", lr=1.0) for n in (1024, 2048, 4096)}
    >>> f"{float(rise(few)):.1f} {float(rise(many)):.1f}"
    '0.2 0.0'
    """
    sizes = {size: _derivative(each.target.experts, each.target.active) for size, each in plans.items()}
    if len(set(sizes.values())) == 1 or not all(sizes.values()):
        return Fraction(0)
    slope = slope_of([math.log(size) for size in sizes], [math.log(each) for each in sizes.values()])
    return max(Fraction(slope).limit_denominator(100), Fraction(0))


def _derivative(experts: int, active: int) -> float:
    """The root mean square, over all experts, of what independent gradients at K-fold gates come to at the logits."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((_TOKENS, experts))
    back = random.standard_normal((_TOKENS, active))
    chosen = np.sort(logits, 1)[:, -active:]
    gates = np.exp(chosen - chosen.max(1, keepdims=True))
    gates /= gates.sum(1, keepdims=True)
    at_logits = active * gates * (back - (gates * back).sum(1, keepdims=True))
    return float(np.sqrt(np.square(at_logits).sum() / (_TOKENS * experts)))
