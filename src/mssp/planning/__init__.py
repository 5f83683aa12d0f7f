"""The prescription: from two shapes and what was tuned on the small one to the numbers of the large one.

    Shape  ->  rules  ->  Plan

It needs the standard library alone, and imports only the private modules at the root of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.planning.parameter import ParamInfo
    from mssp.planning.plans import Plan, Values, plan
    from mssp.planning.power import Power
    from mssp.planning.recipe import PlanWarning, Recipe
    from mssp.planning.rules import Rule, rule
    from mssp.planning.shape import Shape

_HOMES = {
    "parameter": ("ParamInfo",),
    "plans": ("Plan", "Values", "plan"),
    "power": ("Power",),
    "recipe": ("PlanWarning", "Recipe"),
    "rules": ("Rule", "rule"),
    "shape": ("Shape",),
}
__all__ = ["ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Rule", "Shape", "Values", "plan", "rule"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
