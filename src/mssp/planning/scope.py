"""The scope of a plan: what of it is the paper's, what is derived and measured here, and what is not stable."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mssp._tables import number
from mssp.planning.arguments import BY_DEPTH
from mssp.planning.growth import Growth
from mssp.planning.setting import ANY, I

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

# Logits that start closer together than this choose the same experts for all tokens, once the router has moved a little
# (docs/growth.md has the measurement).
SMALL_SPREAD = 0.1
_BALANCED = 0.02  # how far from 1 κ may be before a plan speaks of it


def scope_of(plan: Plan) -> list[tuple[str, str]]:
    """Sentences on a plan's growth and its router, each under a word. Plans without a base have no growth."""
    lines = [] if plan.growth is None else _of_growth(plan, plan.growth)
    if routes_from_small_start(plan):
        spread = logit_spread(plan)
        advice = "; it is small: all tokens may choose the same experts, balance their loads" * (spread < SMALL_SPREAD)
        lines.append(("router", f"its logits start with a spread of {number(spread)}{advice}"))
    return lines


def logit_spread(plan: Plan) -> float:
    """The standard deviation of the router's initial logits, for inputs with entries of order 1."""
    return float(plan.roles["router"].init_std * plan.target.width**0.5)


def routes_from_small_start(plan: Plan) -> bool:
    """Whether the router chooses some of the experts, and starts smaller the wider the model is."""
    chooses = plan.target.active < plan.target.experts and plan.setting.scheme.averages
    return chooses and plan.setting.regime in (I, ANY) and not plan.roles["router"].zero


def _of_growth(plan: Plan, growth: Growth) -> list[tuple[str, str]]:
    regime, scheme = plan.setting.regime, plan.setting.scheme
    if growth.target.is_dense:
        over_depth = ", 1/L over depth" if plan.residual_rule == BY_DEPTH else ""
        return [("growth", f"{growth}; a dense model: μP over width{over_depth}")]
    kappa = f"κ = k n_e / n = {number(growth.kappa)}"
    if regime is not ANY:
        return [("growth", f"{growth}; {kappa}" + (f"; Regime {regime} of the paper" if regime is not None else ""))]
    lines = [("growth", f"{growth}; {kappa}; no regime of the paper")]
    lines.append(("paper", "all numbers but those of routers and experts are those of the paper's table"))
    if not scheme.stable:
        return lines
    derived = "routers and experts are derived for any growth, and measured on small models (docs/growth.md)"
    lines.append(("derived", f"{derived}; expert_out starts × {number(_boost(plan, growth))}, min(k, n/n_e)^1/2"))
    if growth.kappa > 1 + _BALANCED:
        lines.append(("shared", _of_share(growth)))
    if growth.kappa < 1 - _BALANCED:
        compromise = number(growth.kappa**0.25)
        lines.append((
            "unstable",
            "κ < 1: what comes back through the experts' starts grows as κ^-1/2, here × "
            f"{number(growth.kappa**-0.5)}, whatever their std; init_mult expert_in={compromise} (κ^1/4) was measured "
            "to lower that exponent",
        ))  # fmt: skip
    return lines


def _boost(plan: Plan, growth: Growth) -> float:
    """By how much expert_out starts larger than its N_e^-1/2 alone would have it."""
    start = plan.rule("expert_out").init_std
    assert start is not None
    return start.ratio(growth.target.dims, growth.base.dims) * math.sqrt(growth.factors["N_e"])


def _of_share(growth: Growth) -> str:
    why = "κ > 1: experts that start independent would average out"
    if growth.target.active == 1:
        return f"{why}, but one active expert is no average: they share nothing"
    if growth.base.active == 1:
        return f"{why}, and the base has one active expert, so they start equal"
    if growth.share == 1:
        return f"{why}; κ is beyond the base's K of {growth.base.active}, so they start equal, and still fall short"
    return f"{why}, so they share {number(growth.share)} of their start, (κ - 1) / (K - 1)"
