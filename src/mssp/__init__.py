"""Scale Mixture-of-Experts models without re-tuning them.

    Shape  ->  rules  ->  Plan  ->  your model and optimizer

Exports are lazy: planning never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mssp import hf
    from mssp.apply import check_schedule, initialize, param_groups, scale_gradients, verify
    from mssp.coordcheck.module_runs import check
    from mssp.description import describe
    from mssp.measure.monitor import monitor
    from mssp.param_info import ParamInfo
    from mssp.planning import Plan, plan
    from mssp.power import Power
    from mssp.rules import Rule, rule
    from mssp.settings import PlanWarning, Recipe
    from mssp.shape import Shape

__version__ = "0.1.0"
_HOMES = {
    "apply": ("check_schedule", "initialize", "param_groups", "scale_gradients", "verify"),
    "coordcheck.module_runs": ("check",),
    "description": ("describe",),
    "measure.monitor": ("monitor",),
    "param_info": ("ParamInfo",),
    "planning": ("Plan", "plan"),
    "power": ("Power",),
    "rules": ("Rule", "rule"),
    "settings": ("PlanWarning", "Recipe"),
    "shape": ("Shape",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Rule", "Shape", "check", "check_schedule", "describe",
    "hf", "initialize", "monitor", "param_groups", "plan", "rule", "scale_gradients", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "hf":  # a module, imported when it is asked for
        return import_module("mssp.hf")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mssp' has no attribute {name!r}")
    return getattr(import_module(f"mssp.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
