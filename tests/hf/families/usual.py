"""Families with Llama's blocks, or nearly: attention and experts between norms, on one residual stream."""

from __future__ import annotations

import mssp
from tests.hf.families.entries import DENSE_LAYERS, HEAD, OWN_STARTS, SHARED_EXPERTS, TIED, Planned, Refused, Sizes


def _low_ranks(shape: mssp.Shape) -> Sizes:
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
    return _low_ranks(shape) | {"topk_method": "greedy", "head_dim": 8}


def deepseek_v3(shape: mssp.Shape) -> Sizes:
    return _low_ranks(shape) | {"num_mtp_layers": 0}


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
}
REFUSED: dict[str, Refused] = {}
NOT_YET: tuple[str, ...] = (
    "aria_text",
    "axk1",
    "beam",
    "exaone_moe",
    "flint",
    "glm4_moe_lite",
    "granitemoe",
    "granitemoe_swa",
    "hunyuan_v1_moe",
    "laguna",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m3_vl_text",
    "mistral4",
    "mistral_large4_text",
    "qwen3_5_moe_text",
    "solar_open",
)
