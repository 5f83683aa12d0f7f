"""How far a sum of finitely many terms is from its order: what is not aligned in it adds up too, and slower.

What a layer's own update does to its output, ΔW x, is a sum over the layer's n inputs, and over those of K experts in
the sum over experts. Predictions are of its aligned part, of order n. The rest is random and of order n^1/2:

    size² = n² u² x² (ρ + (1 - ρ)/n)

with u and x the sizes of update and input, and ρ the share of its square that is aligned. Few steps on few tokens align
little: ρ is 0.03 to 0.06 in experts of small language models, where a sum over 32 to 128 hidden units falls as N^-0.1
to N^-0.2 beside its order. ρ is measured (``alignment/p`` is size/(u x)), and taken to be the same at all sizes, as
theory says. It knows nothing of u, x and n, so that a learning rate or an input that grows with the width is no less
of a miss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from mssp._estimates import slope_of
from mssp.measure.quantities import AGGREGATE, ALIGNMENT_P, EFFECTIVE, Quantity
from mssp.planning.parameter import with_fans
from mssp.planning.plans import Plan

# A router's terms may be random for long, for which its predictions leave room, and a readout's are mostly aligned.
_ROLES = ("expert_in", "expert_out")


def alignment_of(name: Quantity) -> Quantity | None:
    """The quantity that shows how aligned the terms of a sum are; None for what is no such sum."""
    if name == AGGREGATE("effective"):
        return ALIGNMENT_P("aggregate")
    return ALIGNMENT_P(name.of) if name.kind is EFFECTIVE and name.of in _ROLES else None


def excess(name: Quantity, plans: Mapping[int, Plan], alignment: npt.NDArray[np.float64]) -> Fraction:
    """By how much the exponent of a sum differs from that of its order over these sizes: 0, or less where sums grow.

    >>> from mssp import Shape, plan
    >>> plans = {n: plan(Shape(n, n // 2, n // 16, n // 16, 1), regime="III", lr=1.0) for n in (64, 128, 256)}
    >>> random = np.array([32.0, 64.0, 128.0]).reshape(3, 1, 1) ** 0.5
    >>> [float(excess(EFFECTIVE("expert_out"), plans, alignment)) for alignment in (random, random**2)]
    [-0.5, 0.0]

    Args:
        alignment: the sum over the sizes of its factors, [sizes, steps, seeds]; zero where nothing has moved yet.
    """
    terms = np.array([_terms(name, plan) for plan in plans.values()], dtype=np.float64)
    if len(set(terms)) == 1 or terms.min() <= 1:
        return Fraction(0)
    logs = [math.log(size) for size in plans]
    slopes = []
    for at_step in alignment.transpose(1, 0, 2):
        if np.isfinite(at_step).all() and at_step.all():
            shares = (np.square(at_step).mean(1) / terms - 1) / (terms - 1)
            aligned = min(max(float(shares.mean()), 0.0), 1.0)
            slopes.append(slope_of(logs, np.log(aligned + (1 - aligned) / terms).tolist()) / 2)
    return Fraction(float(np.mean(slopes)) if slopes else 0.0).limit_denominator(100)


def _terms(name: Quantity, plan: Plan) -> float:
    """The number of terms of a sum."""
    shape = plan.target
    return shape.active * shape.expert_width if name.kind is AGGREGATE else with_fans(name.of, shape)["fan_in"]
