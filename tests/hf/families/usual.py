"""Families with Llama's blocks, or nearly: attention and experts between norms, on one residual stream."""

from __future__ import annotations

import mssp
from tests.hf.families.entries import DENSE_LAYERS, HEAD, OWN_STARTS, SHARED_EXPERTS, TIED, Planned, Refused, Sizes


def low_ranks(shape: mssp.Shape) -> Sizes:
    """MLA: ranks of fixed size between sides that grow; the first layer is dense, one expert is shared."""
    return {
        "n_routed_experts": shape.experts,
        "moe_intermediate_size": shape.expert_width,
        "intermediate_size": 2 * shape.width,
        "num_key_value_heads": shape.width // HEAD,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_group": 2,
        "topk_group": 2,
    }


def mixtral(shape: mssp.Shape) -> Sizes:
    return {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width}


def olmoe(shape: mssp.Shape) -> Sizes:
    return {"num_experts": shape.experts, "intermediate_size": shape.expert_width}


def qwen2_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    return sizes | {"shared_expert_intermediate_size": 2 * shape.width, "intermediate_size": 2 * shape.width}


def qwen3_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"intermediate_size": 2 * shape.width, "norm_topk_prob": True}


def qwen3_next(shape: mssp.Shape) -> Sizes:
    heads = {"linear_num_key_heads": shape.width // 32, "linear_num_value_heads": shape.width // 16}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": HEAD}
    layers = {"layer_types": ["linear_attention"] * (shape.depth - 1) + ["full_attention"]}
    return qwen2_moe(shape) | heads | sizes | layers


def deepseek_v2(shape: mssp.Shape) -> Sizes:
    return low_ranks(shape) | {"topk_method": "greedy", "head_dim": 8}


def deepseek_v3(shape: mssp.Shape) -> Sizes:
    return low_ranks(shape) | {"num_mtp_layers": 0}


def gpt_oss(shape: mssp.Shape) -> Sizes:
    sizes = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"sliding_window": 8}


def glm4_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    more = {"intermediate_size": 2 * shape.width, "n_group": 2, "topk_group": 2, "first_k_dense_replace": 1}
    return sizes | more | {"use_qk_norm": True, "attention_bias": True, "num_mtp_layers": 0}


def granitemoeshared(shape: mssp.Shape) -> Sizes:
    return mixtral(shape) | {"shared_intermediate_size": 2 * shape.width}


def dots1(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    more = {"intermediate_size": 2 * shape.width, "first_k_dense_replace": 1, "n_shared_experts": 1}
    return sizes | more | {"norm_topk_prob": False, "sliding_window": 8}


def ernie4_5_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"moe_num_experts": shape.experts, "moe_k": shape.active, "moe_intermediate_size": shape.expert_width}
    more = {"intermediate_size": 2 * shape.width, "moe_num_shared_experts": 1}
    return sizes | more | {"tie_word_embeddings": True}


def flex_olmo(shape: mssp.Shape) -> Sizes:
    return olmoe(shape)


def afmoe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"intermediate_size": 2 * shape.width, "num_dense_layers": 1, "num_shared_experts": 1}


def cohere2_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"num_shared_experts": 1, "tie_word_embeddings": True, "sliding_window": 8}


def minimax_m2(shape: mssp.Shape) -> Sizes:
    return mixtral(shape) | {"head_dim": HEAD}


def hy_v3(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {"mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1)}
    return sizes | layers | {"intermediate_size": 2 * shape.width, "num_shared_experts": 1}


def kolibri1(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {"layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"]}
    return sizes | layers | {"shared_expert_intermediate_size": 2 * shape.width, "sliding_window": 8}


def aria_text(shape: mssp.Shape) -> Sizes:
    sizes = {"moe_num_experts": shape.experts, "moe_topk": shape.active, "intermediate_size": shape.expert_width}
    return sizes | {"head_dim": HEAD, "moe_num_shared_experts": 2}


def axk1(shape: mssp.Shape) -> Sizes:
    layers = {"mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1)}
    return {key: size for key, size in low_ranks(shape).items() if key != "first_k_dense_replace"} | layers


def beam(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return sizes | layers | {"intermediate_size": 2 * shape.width, "n_group": 2, "topk_group": 2, "sliding_window": 8}


def exaone_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "num_shared_experts": 1}
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return sizes | layers | {"intermediate_size": 2 * shape.width, "sliding_window": 8}


def flint(shape: mssp.Shape) -> Sizes:
    layers = {"layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"], "mlp_only_layers": [0]}
    return qwen2_moe(shape) | layers | {"head_dim": HEAD, "sliding_window": 8}


def glm4_moe_lite(shape: mssp.Shape) -> Sizes:
    return axk1(shape)


def granitemoe(shape: mssp.Shape) -> Sizes:
    return mixtral(shape)


def granitemoe_swa(shape: mssp.Shape) -> Sizes:
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "layer_rope_theta": [10000.0] * shape.depth,
    }
    return granitemoeshared(shape) | layers | {"sliding_window": 8}


def hunyuan_v1_moe(shape: mssp.Shape) -> Sizes:
    sizes = {"num_experts": shape.experts, "moe_topk": shape.active, "intermediate_size": shape.expert_width}
    return sizes | {"head_dim": HEAD}


def laguna(shape: mssp.Shape) -> Sizes:
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
        "num_attention_heads_per_layer": [shape.width // HEAD] * shape.depth,
    }
    return qwen2_moe(shape) | layers | {"head_dim": HEAD, "sliding_window": 8}


def mellum(shape: mssp.Shape) -> Sizes:
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return qwen3_moe(shape) | layers | {"sliding_window": 8}


def mimo_v2_flash(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    heads = {"head_dim": HEAD, "v_head_dim": 8, "swa_num_attention_heads": shape.width // HEAD}
    layers = {
        "layer_types": ["full_attention"] + ["sliding_attention"] * (shape.depth - 1),
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return sizes | heads | layers | {"intermediate_size": 2 * shape.width, "sliding_window": 8}


def minimax(shape: mssp.Shape) -> Sizes:
    layers = {"layer_types": ["linear_attention"] * (shape.depth - 1) + ["full_attention"]}
    return mixtral(shape) | layers | {"head_dim": HEAD}


def minimax_m3_vl_text(shape: mssp.Shape) -> Sizes:
    dense = {"dense_intermediate_size": 2 * shape.width, "shared_intermediate_size": 2 * shape.width}
    layers = {
        "layer_types": ["full_attention"] * shape.depth,
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return mixtral(shape) | dense | layers | {"head_dim": HEAD, "rotary_dim": 8}


def mistral4(shape: mssp.Shape) -> Sizes:
    return low_ranks(shape)


def qwen3_5_moe_text(shape: mssp.Shape) -> Sizes:
    return qwen3_next(shape)


def solar_open(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | {"n_shared_experts": 1}


PLANNED = {
    "mixtral": Planned(mixtral, "renormalised"),
    "olmoe": Planned(olmoe, "softmax"),
    "qwen2_moe": Planned(qwen2_moe, "softmax", (SHARED_EXPERTS,)),
    "qwen3_moe": Planned(qwen3_moe, "renormalised"),
    "qwen3_next": Planned(qwen3_next, "renormalised", (SHARED_EXPERTS, OWN_STARTS), own=("A_log", "dt_bias")),
    "deepseek_v2": Planned(deepseek_v2, "softmax", (DENSE_LAYERS, SHARED_EXPERTS)),
    "deepseek_v3": Planned(deepseek_v3, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "gpt_oss": Planned(gpt_oss, "renormalised"),
    "glm4_moe": Planned(glm4_moe, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "granitemoeshared": Planned(granitemoeshared, "renormalised", (SHARED_EXPERTS,), writers=9),
    "dots1": Planned(dots1, "sigmoid", (DENSE_LAYERS, SHARED_EXPERTS)),
    "ernie4_5_moe": Planned(ernie4_5_moe, "renormalised", (TIED, DENSE_LAYERS, SHARED_EXPERTS)),
    "flex_olmo": Planned(flex_olmo, "softmax"),
    "afmoe": Planned(afmoe, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "cohere2_moe": Planned(cohere2_moe, "renormalised", (TIED, SHARED_EXPERTS)),
    "minimax_m2": Planned(minimax_m2, "renormalised"),
    "hy_v3": Planned(hy_v3, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "kolibri1": Planned(kolibri1, "sigmoid", (SHARED_EXPERTS,)),
    "aria_text": Planned(aria_text, "renormalised", (SHARED_EXPERTS,)),
    "axk1": Planned(axk1, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "beam": Planned(beam, "renormalised", (DENSE_LAYERS,), rescales=True, note="blocks rescale the stream"),
    "exaone_moe": Planned(exaone_moe, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "flint": Planned(flint, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "glm4_moe_lite": Planned(glm4_moe_lite, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "granitemoe": Planned(granitemoe, "renormalised"),
    "granitemoe_swa": Planned(granitemoe_swa, "renormalised", (SHARED_EXPERTS,), writers=9),
    "hunyuan_v1_moe": Planned(hunyuan_v1_moe, "renormalised", (SHARED_EXPERTS,)),
    "laguna": Planned(laguna, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "mellum": Planned(mellum, "renormalised", (DENSE_LAYERS,)),
    "mimo_v2_flash": Planned(mimo_v2_flash, "renormalised", (DENSE_LAYERS,)),
    "minimax_m3_vl_text": Planned(minimax_m3_vl_text, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "mistral4": Planned(mistral4, "renormalised", (DENSE_LAYERS, SHARED_EXPERTS)),
    "qwen3_5_moe_text": Planned(
        qwen3_5_moe_text, "renormalised", (SHARED_EXPERTS, OWN_STARTS), own=("A_log", "dt_bias")
    ),
    "solar_open": Planned(solar_open, "renormalised", (SHARED_EXPERTS,)),
}
REFUSED = {
    "minimax": Refused(
        minimax,
        "post_attention_layernorm stands on the residual stream, and no residual factor damps what that does",
        "two norms of every block stand on the residual stream: nothing damps what their gains add up to in depth",
    ),
}
NOT_YET: tuple[str, ...] = ()
