"""Families of text models that are there only inside multimodal ones, which hold their readout."""

from __future__ import annotations

import mssp
from tests.hf.families.entries import (
    DENSE_LAYERS,
    HEAD,
    HYPER_CONNECTIONS,
    OWN_STARTS,
    SHARED_EXPERTS,
    Planned,
    Refused,
    Sizes,
)
from tests.hf.families.usual import glm4_moe, low_ranks, qwen3_moe


def qwen3_vl_moe_text(shape: mssp.Shape) -> Sizes:
    return qwen3_moe(shape) | {"tie_word_embeddings": False, "rope_parameters": _rotation([2, 3, 3])}


def glm4v_moe_text(shape: mssp.Shape) -> Sizes:
    return glm4_moe(shape) | {"rope_parameters": _rotation([2, 1, 1]) | {"partial_rotary_factor": 0.5}}


def unlimited_ocr_text(shape: mssp.Shape) -> Sizes:
    sizes = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    layers = {
        "layer_types": ["reference_sliding_attention"] * shape.depth,
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    return sizes | layers | {"intermediate_size": 2 * shape.width, "n_shared_experts": 1, "sliding_window": 8}


def deepseek_ocr2_text(shape: mssp.Shape) -> Sizes:
    return {
        key: size for key, size in unlimited_ocr_text(shape).items() if key not in ("layer_types", "sliding_window")
    }


def ernie4_5_vl_moe_text(shape: mssp.Shape) -> Sizes:
    sizes: Sizes = {"moe_num_experts": shape.experts, "moe_k": shape.active, "intermediate_size": 2 * shape.width}
    layers = {"mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1)}
    sizes["rope_parameters"] = _rotation([3, 3, 2])
    return sizes | layers | {"moe_intermediate_size": [shape.expert_width, shape.expert_width // 2]}


def muse_spark_text(shape: mssp.Shape) -> Sizes:
    layers = {
        "layer_types": ["sliding_attention"] * (shape.depth - 1) + ["full_attention"],
        "layer_rope_theta": [10000.0] * shape.depth,
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
    }
    sizes = {"num_local_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "head_dim": HEAD}
    return sizes | layers | {"intermediate_size": 2 * shape.width, "moe_hidden_size": shape.width}


def glm5_next_text(shape: mssp.Shape) -> Sizes:
    return low_ranks(shape) | {"qk_rope_head_dim": 0}


def mistral_large4_text(shape: mssp.Shape) -> Sizes:
    layers = {
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
        "layer_types": ["indexed_attention"] * shape.depth,
        "indexer_types": ["full"] * shape.depth,
        "no_rope_layers": [1] * shape.depth,
        "kv_source_layers": [*range(shape.depth)],
    }
    sizes = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
    return (
        {key: size for key, size in low_ranks(shape).items() if key not in ("q_lora_rank", "first_k_dense_replace")}
        | sizes
        | layers
    )


def step3p5(shape: mssp.Shape) -> Sizes:
    """With more heads where attention sees a window, and values of experts that are cut off in the last block."""
    experts = {"n_routed_experts": shape.experts, "moe_intermediate_size": shape.expert_width}
    widths = {"intermediate_size": 2 * shape.width, "share_expert_dim": 2 * shape.width, "head_dim": HEAD}
    heads = {"num_sliding_attention_heads": 3 * shape.width // (2 * HEAD), "sliding_window": 8}
    layers = {
        "layer_types": ["sliding_attention"] + ["full_attention"] * (shape.depth - 1),
        "mlp_layer_types": ["dense"] + ["sparse"] * (shape.depth - 1),
        "swiglu_limits": [0.0] * (shape.depth - 1) + [7.0],
    }
    return experts | widths | heads | layers


def _rotation(sections: list[int]) -> Sizes:
    """Of positions in three dimensions: the pairs of a head that each of them rotates."""
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}


def _patches(shape: mssp.Shape) -> Sizes:
    """A tower of one block for images, which writes vectors of the text model's width."""
    sizes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": shape.width}
    return sizes | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0], "image_size": 28}


def _seeing(shape: mssp.Shape) -> Sizes:
    return {"vision_config": _patches(shape)}


def _seeing_and_hearing(shape: mssp.Shape) -> Sizes:
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "d_model": 16}
    hearing = sizes | {"output_dim": shape.width, "downsample_hidden_size": 8, "num_mel_bins": 16}
    return _seeing(shape) | {"audio_config": hearing}


def _patching(shape: mssp.Shape) -> Sizes:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return {"vision_config": sizes | {"head_dim": 8}}


def _looking(shape: mssp.Shape) -> Sizes:
    sizes = {"hidden_size": 16, "mlp_ratio": 2.0, "num_hidden_layers": 1, "num_attention_heads": 2}
    return {"vision_config": sizes | {"image_size": 28, "patch_size": 14}}


def _hearing(shape: mssp.Shape) -> Sizes:
    return {"audio_config": {"out_hidden_size": shape.width}}


def _reading(shape: mssp.Shape) -> Sizes:
    """Two towers of one block for pages."""
    sam: Sizes = {
        "hidden_size": 16,
        "output_channels": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 64,
    }
    sam |= {"global_attn_indexes": [0], "mlp_dim": 16, "downsample_channels": [8, 16]}
    encoder = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return {"vision_config": {"sam_config": sam, "encoder_config": encoder | {"num_key_value_heads": 2}}}


_DENSE_AND_SHARED = (DENSE_LAYERS, SHARED_EXPERTS)
PLANNED = {
    "deepseek_ocr2_text": Planned(
        deepseek_ocr2_text, "softmax", _DENSE_AND_SHARED, larger="deepseek_ocr2", beside=_reading
    ),
    "glm4v_moe_text": Planned(glm4v_moe_text, "renormalised", _DENSE_AND_SHARED, larger="glm4v_moe", beside=_seeing),
    "mistral_large4_text": Planned(
        mistral_large4_text,
        "renormalised",
        (*_DENSE_AND_SHARED, OWN_STARTS),
        own=("softmax_scaling.scale", "softmax_scaling.bias"),
        larger="mistral_large4",
        beside=_patching,
    ),
    "qwen3_omni_moe_text": Planned(
        qwen3_vl_moe_text, "renormalised", larger="qwen3_omni_moe_thinker", beside=_seeing_and_hearing
    ),
    "qwen3_vl_moe_text": Planned(qwen3_vl_moe_text, "renormalised", larger="qwen3_vl_moe", beside=_seeing),
    "step3p5": Planned(step3p5, "renormalised", _DENSE_AND_SHARED, larger="step3p7", beside=_looking),
    "unlimited_ocr_text": Planned(
        unlimited_ocr_text, "softmax", _DENSE_AND_SHARED, larger="unlimited_ocr", beside=_reading
    ),
}
REFUSED = {
    "ernie4_5_vl_moe_text": Refused(
        ernie4_5_vl_moe_text,
        "has experts of several sizes",
        "experts of two sizes in every block, those for text and those for images: a plan has one size of experts, and "
        "which share of tokens an expert sees depends on the images in a batch",
        larger="ernie4_5_vl_moe",
    ),
    "glm5_next_text": Refused(
        glm5_next_text,
        "model.language_model.layers.*.attn_hc.fn: a weight of hyper-connections, for which no rule is confirmed",
        HYPER_CONNECTIONS,
        larger="glm5_next",
    ),
    "muse_spark_text": Refused(
        muse_spark_text,
        "has a norm after each expert",
        "a norm after each expert: its gains do not average over experts as the sum in the theory does",
        larger="muse_spark",
        beside=_hearing,
    ),
}
NOT_YET: tuple[str, ...] = ()
