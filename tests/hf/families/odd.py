"""Families whose blocks are unlike Llama's: scaled streams, several streams, routers of their own."""

from __future__ import annotations

import mssp
from tests.hf.families.entries import (
    DENSE_LAYERS,
    HEAD,
    HYPER_CONNECTIONS,
    SCALED_EMBEDDINGS,
    SHARED_EXPERTS,
    TIED,
    Planned,
    Refused,
    Sizes,
)
from tests.hf.families.usual import low_ranks


def llama4_text(shape: mssp.Shape) -> Sizes:
    layers = {"moe_layers": list(range(1, shape.depth)), "intermediate_size_mlp": 2 * shape.width}
    experts = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width}
    return experts | layers | {"head_dim": HEAD, "attention_chunk_size": 8}


def phimoe(shape: mssp.Shape) -> Sizes:
    """With noise that lets the router of a tiny model hear of a second expert that is nearly as good."""
    experts = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width, "num_experts_per_tok": 2}
    return experts | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.3}


def dbrx(shape: mssp.Shape) -> Sizes:
    heads = shape.width // HEAD
    ffn = {"moe_num_experts": shape.experts, "moe_top_k": shape.active, "ffn_hidden_size": shape.expert_width}
    attention = {"kv_n_heads": heads // 2, "clip_qkv": 8.0, "rope_theta": 1e4}
    names = {"d_model": shape.width, "n_heads": heads, "n_layers": shape.depth, "max_seq_len": 64}
    return names | {"attn_config": attention, "ffn_config": ffn}


def longcat_flash(shape: mssp.Shape) -> Sizes:
    ranks = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": shape.experts, "zero_expert_num": shape.experts // 2, "moe_topk": shape.active}
    widths = {"expert_ffn_hidden_size": shape.expert_width, "ffn_hidden_size": 2 * shape.width}
    heads = {"num_hidden_layers": 2 * shape.depth, "num_key_value_heads": shape.width // HEAD, "head_dim": 8}
    return ranks | experts | widths | heads


def gemma4_text(shape: mssp.Shape) -> Sizes:
    """With heads of two sizes, and without the inputs of every layer that are made of the embeddings."""
    experts = {"num_experts": shape.experts, "top_k_experts": shape.active, "moe_intermediate_size": shape.expert_width}
    heads = {"head_dim": HEAD, "global_head_dim": 2 * HEAD, "sliding_window": 8}
    layers = {"layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"]}
    rest = {"intermediate_size": 2 * shape.width, "enable_moe_block": True, "hidden_size_per_layer_input": 0}
    return experts | heads | layers | rest


def hy_v4(shape: mssp.Shape) -> Sizes:
    sizes = {key: size for key, size in low_ranks(shape).items() if key != "first_k_dense_replace"}
    return sizes | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "hc_mult": 2}


def deepseek_v4(shape: mssp.Shape) -> Sizes:
    """With attention to compressed tokens in all blocks but the first, and routers that no table replaces."""
    experts = {"num_local_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    ranks = {"head_dim": HEAD, "q_lora_rank": 24, "o_groups": 2, "o_lora_rank": 16}
    layers = {
        "layer_types": ["sliding_attention"] + ["heavily_compressed_attention"] * (shape.depth - 1),
        "mlp_layer_types": ["moe"] * shape.depth,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 4},
    }
    return experts | ranks | layers | {"hc_mult": 2, "sliding_window": 8}


def qwen4_exp_text(shape: mssp.Shape) -> Sizes:
    experts = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    heads = {"linear_num_key_heads": shape.width // 32, "linear_num_value_heads": shape.width // 16, "head_dim": HEAD}
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 2 * shape.width}
    indexer = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 4}
    layers = {"layer_types": ["linear_attention"] * (shape.depth - 1) + ["indexed_attention"]}
    return experts | heads | sizes | indexer | layers | {"indexer_compress_ratio": 2, "hc_count": 2, "hc_lowrank": 8}


def inkling_text(shape: mssp.Shape) -> Sizes:
    experts = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "n_shared_experts": 2}
    heads = {"swa_num_attention_heads": shape.width // HEAD, "swa_num_key_value_heads": shape.width // HEAD // 2}
    sizes = {"head_dim": HEAD, "swa_head_dim": HEAD, "d_rel": 4, "rel_extent": 16, "sliding_window_size": 8}
    layers = {
        "layer_types": ["hybrid_sliding"] + ["hybrid"] * (shape.depth - 1),
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return (
        experts
        | heads
        | sizes
        | layers
        | {"intermediate_size": 2 * shape.width, "num_experts_per_tok": 2, "logits_mup_width_multiplier": 1.0}
    )


def doge(shape: mssp.Shape) -> Sizes:
    experts = {"is_moe": True, "num_experts": 4 * shape.experts, "num_experts_per_tok": shape.active}
    return experts | {"intermediate_size": 2 * shape.width}


def zaya(shape: mssp.Shape) -> Sizes:
    experts = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "num_experts_per_tok": 1}
    return experts | {"head_dim": HEAD, "router_hidden_size": 32}


def jetmoe(shape: mssp.Shape) -> Sizes:
    experts = {"num_local_experts": shape.experts, "intermediate_size": shape.expert_width}
    return experts | {"kv_channels": HEAD, "tie_word_embeddings": False}


PLANNED: dict[str, Planned] = {
    "llama4_text": Planned(
        llama4_text, "sigmoid", (DENSE_LAYERS, SHARED_EXPERTS), note="gates on the inputs of experts"
    ),
    "phimoe": Planned(
        phimoe, "sigmoid", active=2, note="two experts a token, each with its share among those nearly as good"
    ),
    "inkling_text": Planned(
        inkling_text,
        "renormalised",
        (DENSE_LAYERS, SHARED_EXPERTS),
        active=2,
        note="gates of chosen and shared experts add up to one together: both numbers must stay "
        "([record](../records/2026-11-19-families.md))",
    ),
    "dbrx": Planned(dbrx, "renormalised", note="experts one after another along one axis"),
    "longcat_flash": Planned(
        longcat_flash,
        "softmax",
        writers=15,
        taken_out=(0.5**0.5,) * 12,
        note="two attentions in a block; experts that hand on their input",
    ),
    "gemma4_text": Planned(
        gemma4_text,
        "renormalised",
        (TIED, SCALED_EMBEDDINGS),
        taken_out=(2**0.5,) * 3,
        note="a dense layer beside the experts of every block",
    ),
}
_NO_RULE = "a weight of hyper-connections, for which no rule is confirmed"
_NOT_A_SUM = "model.layers.* does not only add to its input what its branches give: "
REFUSED: dict[str, Refused] = {
    "hy_v4": Refused(hy_v4, f"model.layers.*.attn_hc.fn: {_NO_RULE}", HYPER_CONNECTIONS),
    "deepseek_v4": Refused(deepseek_v4, f"model.layers.*.attn_hc.fn: {_NO_RULE}", HYPER_CONNECTIONS),
    "qwen4_exp_text": Refused(
        qwen4_exp_text,
        "model.layers.*.attn_hyper_connection.block_inject_weight.weight: a gate of hyper-connections, which reads",
        "hyper-connections: gates of its residual streams read all streams at once, and no layout says how many there "
        "are ([record](../records/2026-11-19-families.md))",
    ),
    "doge": Refused(
        doge,
        f"{_NOT_A_SUM}model.layers.*.input_residual, model.layers.*.post_attention_residual stand on the residual "
        "stream, and no residual factor damps what that does in deep models",
        "gains multiply the residual stream twice in every block, and nothing damps what they add up to in depth; the "
        "router takes a token's scores from other tokens, later ones among them "
        "([record](../records/2026-11-19-families.md))",
    ),
    "zaya": Refused(
        zaya,
        f"{_NOT_A_SUM}model.layers.*.post_attention_residual_scale.hidden_states_bias, "
        "model.layers.*.post_attention_residual_scale.residual_scale",
        "gains and biases of the residual stream twice in every block, and nothing damps what they add up to in depth "
        "([record](../records/2026-11-19-families.md))",
    ),
    "jetmoe": Refused(
        jetmoe,
        "model.layers.*.self_attention.experts.bias: a part of experts of attention: their width is the size of "
        "all key heads, that of the experts in the MLP another, and a plan has one width of experts",
        "experts of two widths in every block, those of attention and those of the MLP: a plan has one width of "
        "experts ([record](../records/2026-11-19-families.md))",
    ),
}
NOT_YET: tuple[str, ...] = ()
