"""The paper's models, and the fastest ways to compute their experts.

    Router -> Routing -> Experts      MoE holds both;  MLPMoE and GPT are built of them

Every module says what its parameters are, and ``mssp.initialize(model, plan)`` gives it weights and multipliers.
"""

from mssp.nn.expert_paths import ExpertWeights
from mssp.nn.experts import Experts, apply_experts
from mssp.nn.gpt import GPT, GPTConfig, GPTOutput
from mssp.nn.mlp import MLPConfig, MLPMoE
from mssp.nn.moe import MoE
from mssp.nn.router import Router, RouterStatistics, Routing, route

__all__ = [
    "GPT", "ExpertWeights", "Experts", "GPTConfig", "GPTOutput", "MLPConfig", "MLPMoE", "MoE", "Router",
    "RouterStatistics", "Routing", "apply_experts", "route",
]  # fmt: skip
