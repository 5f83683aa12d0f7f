"""Families with state spaces, convolutions, linear attention, or indexers that choose what attention sees."""

from __future__ import annotations

import mssp
from tests.hf.families.entries import DENSE_LAYERS, HEAD, OWN_STARTS, SHARED_EXPERTS, Planned, Refused, Sizes
from tests.hf.families.usual import low_ranks


def _linear_then_full(shape: mssp.Shape) -> Sizes:
    return {"layer_types": ["linear_attention"] * (shape.depth - 1) + ["full_attention"]}


def _kimis_names(shape: mssp.Shape) -> Sizes:
    """Low ranks for keys and values alone, and the names that Kimi's config has for numbers of experts."""
    sizes = {key: size for key, size in low_ranks(shape).items() if key not in ("q_lora_rank", "n_routed_experts")}
    return sizes | {"num_experts": shape.experts, "num_experts_per_token": shape.active} | _linear_then_full(shape)


def jamba(shape: mssp.Shape) -> Sizes:
    attention = {"attn_layer_period": shape.depth, "attn_layer_offset": shape.depth - 1}
    experts = {"num_experts": shape.experts, "intermediate_size": shape.expert_width}
    return experts | attention | {"expert_layer_period": 1, "expert_layer_offset": 0, "mamba_d_state": 8}


def granitemoehybrid(shape: mssp.Shape) -> Sizes:
    heads = {"mamba_n_heads": shape.width // 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
    experts = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width}
    more = {"shared_intermediate_size": 2 * shape.width, "mamba_chunk_size": 16}
    return experts | heads | more | _linear_then_full(shape)


def nemotron_h(shape: mssp.Shape) -> Sizes:
    """Two blocks for every layer of other families: one that mixes tokens, and one with experts or a dense layer."""
    mixers = ["linear_attention"] * (shape.depth - 1) + ["full_attention"]
    rest = ["mlp"] + ["moe"] * (shape.depth - 1)
    blocks = [kind for pair in zip(mixers, rest, strict=True) for kind in pair]
    experts = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    dense = {"intermediate_size": 2 * shape.width, "moe_shared_expert_intermediate_size": 2 * shape.width}
    heads = {"mamba_num_heads": shape.width // 8, "mamba_head_dim": 16, "ssm_state_size": 8}
    more = {"n_groups": shape.width // 32, "chunk_size": 16, "head_dim": HEAD}
    return experts | dense | heads | more | {"layers_block_type": blocks, "num_hidden_layers": len(blocks)}


def lfm2_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "num_dense_layers": 1}
    layers = {"layer_types": ["conv"] * (shape.depth - 1) + ["full_attention"]}
    return sizes | layers | {"intermediate_size": 2 * shape.width, "conv_bias": True, "tie_word_embeddings": False}


def kimi_linear(shape: mssp.Shape) -> Sizes:
    return _kimis_names(shape) | {"linear_num_heads": shape.width // HEAD, "linear_head_dim": HEAD}


def bailing_hybrid(shape: mssp.Shape) -> Sizes:
    return _kimis_names(shape) | {"head_dim": HEAD, "num_nextn_predict_layers": 0}


def deepseek_v32(shape: mssp.Shape) -> Sizes:
    return low_ranks(shape) | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}


def glm_moe_dsa(shape: mssp.Shape) -> Sizes:
    return deepseek_v32(shape) | {"indexer_types": ["full"] + ["shared"] * (shape.depth - 1)}


def axk2(shape: mssp.Shape) -> Sizes:
    return deepseek_v32(shape) | {"gated_norm_rank": 8}


_USUAL = (DENSE_LAYERS, SHARED_EXPERTS)
_INDEXERS = "indexers get no gradient, and stay as they start"
PLANNED: dict[str, Planned] = {
    "granitemoehybrid": Planned(
        granitemoehybrid,
        "renormalised",
        (SHARED_EXPERTS, OWN_STARTS),
        own=("D", "dt_bias"),
        spread=("A_log",),
        writers=9,
        note="decay rates start as the base's do, spread over the heads",
    ),
    "nemotron_h": Planned(
        nemotron_h,
        "renormalised",
        (DENSE_LAYERS, SHARED_EXPERTS, OWN_STARTS),
        own=("D", "dt_bias"),
        spread=("A_log",),
        blocks=2,
        note="one module a block; decay rates start as the base's do, spread over the heads",
    ),
    "lfm2_moe": Planned(lfm2_moe, "renormalised", (DENSE_LAYERS,)),
    "kimi_linear": Planned(kimi_linear, "renormalised", (*_USUAL, OWN_STARTS), own=("A_log", "dt_bias")),
    "bailing_hybrid": Planned(bailing_hybrid, "renormalised", (*_USUAL, OWN_STARTS), own=("A_log", "dt_bias")),
    "deepseek_v32": Planned(deepseek_v32, "renormalised", _USUAL, note=_INDEXERS),
    "glm_moe_dsa": Planned(glm_moe_dsa, "renormalised", _USUAL, note=_INDEXERS),
    "axk2": Planned(axk2, "renormalised", _USUAL, note=_INDEXERS),
}
REFUSED: dict[str, Refused] = {
    "jamba": Refused(
        jamba,
        "model.layers.*.mamba.x_proj.weight: a state-space parameter (Mamba 1), for which no rule is confirmed",
        "all channels of a Mamba 1 layer share the few numbers that `x_proj` makes, and the gradients that come back "
        "through them do not fall with the width ([record](../records/2026-11-19-families.md))",
    ),
}
NOT_YET: tuple[str, ...] = ()
