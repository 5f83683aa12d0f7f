"""The paper's models, and the fastest ways to compute their experts.

    Router -> Routing -> Experts      MoE holds both;  MLPMoE and GPT are built of them

Every module says what its parameters are, and ``mssp.initialize(model, plan)`` gives it weights and multipliers.
It imports planning and apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.nn.experts.paths import ExpertWeights
    from mssp.nn.gpt import GPT, GPTConfig, GPTOutput
    from mssp.nn.mlp import MLPConfig, MLPMoE
    from mssp.nn.moe import Experts, MoE, apply_experts
    from mssp.nn.router import Router, RouterStatistics, Routing, route

_HOMES = {
    "experts.paths": ("ExpertWeights",),
    "gpt": ("GPT", "GPTConfig", "GPTOutput"),
    "mlp": ("MLPConfig", "MLPMoE"),
    "moe": ("Experts", "MoE", "apply_experts"),
    "router": ("Router", "RouterStatistics", "Routing", "route"),
}
__all__ = [
    "GPT", "ExpertWeights", "Experts", "GPTConfig", "GPTOutput", "MLPConfig", "MLPMoE", "MoE", "Router",
    "RouterStatistics", "Routing", "apply_experts", "route",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
