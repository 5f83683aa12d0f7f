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
    from mssp.planning.rules import Rule
    from mssp.planning.setting import Optimizer, Regime, Scheme, Setting, rule
    from mssp.planning.shape import Shape

_HOMES = {
    "parameter": ("ParamInfo",),
    "plans": ("Plan", "Values", "plan"),
    "power": ("Power",),
    "recipe": ("PlanWarning", "Recipe"),
    "rules": ("Rule",),
    "setting": ("Optimizer", "Regime", "Scheme", "Setting", "rule"),
    "shape": ("Shape",),
}
__all__ = [
    "Optimizer", "ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Regime", "Rule", "Scheme", "Setting", "Shape",
    "Values", "plan", "rule",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
