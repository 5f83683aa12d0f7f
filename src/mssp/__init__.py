"""Scale Mixture-of-Experts models without re-tuning them.

    Shape  ->  rules  ->  Plan  ->  your model and optimizer

Exports are lazy: planning never imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp import hf
    from mssp._environment import __version__ as __version__
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

_HOMES = {
    "_environment": ("__version__",),
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
__all__ = [
    "ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Rule", "Shape", "check", "check_schedule", "describe",
    "hf", "initialize", "monitor", "param_groups", "plan", "rule", "scale_gradients", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, modules=("hf",))
