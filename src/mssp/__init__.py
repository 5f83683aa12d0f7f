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
    from mssp.apply.description import describe
    from mssp.apply.groups import check_schedule, param_groups, scale_gradients
    from mssp.apply.initial_weights import initialize
    from mssp.coordcheck.module_runs import check
    from mssp.hf.suggestions import suggest_claims
    from mssp.measure.forward import verify
    from mssp.measure.monitoring import monitor
    from mssp.planning.parameter import ParamInfo
    from mssp.planning.plans import Plan, plan
    from mssp.planning.power import Power
    from mssp.planning.recipe import PlanWarning, Recipe
    from mssp.planning.rules import Rule
    from mssp.planning.setting import rule
    from mssp.planning.shape import Shape
    from mssp.train.step_comparison import same_step

_HOMES = {
    "_environment": ("__version__",),
    "apply": ("check_schedule", "describe", "initialize", "param_groups", "scale_gradients"),
    "coordcheck": ("check",),
    "hf": ("suggest_claims",),
    "measure": ("monitor", "verify"),
    "planning": ("ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Rule", "Shape", "plan", "rule"),
    "train": ("same_step",),
}
__all__ = [
    "ParamInfo", "Plan", "PlanWarning", "Power", "Recipe", "Rule", "Shape", "check", "check_schedule", "describe",
    "hf", "initialize", "monitor", "param_groups", "plan", "rule", "same_step", "scale_gradients",
    "suggest_claims", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES, modules=("hf",))
