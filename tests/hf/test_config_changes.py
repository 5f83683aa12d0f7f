"""What is told of when it changes from base to target: every entry of every family that is no size and not harmless."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

import mssp
import mssp.hf
from mssp.planning.config_changes import changed_factors
from mssp.planning.configs import entries_of, outside_the_paper
from mssp.planning.recipe import without_plan_warnings
from tests.hf.test_named_plan import GROWN, OLMOE
from tests.hf.tiny_models import BASE, TARGET, config_of

# All of which a change is not told of, over all families: read one by one.
SIZES = """
    d_model dense_intermediate_size expert_ffn_hidden_size ffn_hidden_size gated_norm_rank hc_lowrank
    hidden_size_per_layer_input index_n_heads intermediate_size intermediate_size_mlp kv_lora_rank linear_num_heads
    linear_num_key_heads linear_num_value_heads mamba_dt_rank mamba_n_heads mamba_num_heads
    moe_shared_expert_intermediate_size n_heads n_layers num_key_value_heads o_lora_rank q_lora_rank router_hidden_size
    shared_expert_intermediate_size shared_intermediate_size swa_num_attention_heads swa_num_key_value_heads
    zero_expert_num num_attention_heads
"""
# Those that a plan reads itself.
OF_SHAPES = {
    "expert_ffn_hidden_size", "moe_intermediate_size", "moe_k", "moe_num_experts", "moe_topk", "n_routed_experts",
    "num_experts", "num_experts_per_tok", "num_experts_per_token", "num_hidden_layers", "num_layers",
    "num_local_experts", "hidden_size", "intermediate_size", "top_k_experts",
}  # fmt: skip
HARMLESS = """
    _name_or_path bos_token_id chunk_size chunk_size_feed_forward compress_rope_theta enable_moe_fp32_combine
    eod_token_id eos_token_id initializer_range is_encoder_decoder mamba_chunk_size mamba_ssm_cache_dtype
    max_position_embeddings max_seq_len max_window_layers model_max_length model_type moe_layer_end_index
    num_logits_to_keep output_attentions output_hidden_states pad_token_id pretraining_tp rescale_prenorm_residual
    residual_in_fp32 return_dict rope_theta seed sep_token_id transformers_version use_associative_scan use_cache
    use_mamba_kernels use_mambapy vocab_size vocab_size_per_layer_input
"""


def families() -> dict[str, dict[str, Any]]:
    """The families of causal language models whose config speaks of experts, each with its own defaults."""
    found = {}
    for config_class in MODEL_FOR_CAUSAL_LM_MAPPING:
        if config_class.model_type == "gemma4_assistant":  # its defaults are refused by its own class
            continue
        entries = dict(entries_of(config_class()))
        if re.search("expert|moe", json.dumps(entries, default=str)):
            found[config_class.model_type] = entries
    return found


def changed(value: Any) -> Any:
    """Another value of the same kind; None for what is not a number, a switch or a word."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 2 * value + 1
    return f"{value}_other" if isinstance(value, str) else None


def test_every_entry_of_every_family_is_a_size_or_harmless_or_told_of() -> None:
    found = families()
    assert len(found) >= 56
    silent, told = set[str](), set[str]()
    for entries in found.values():
        for key, value in entries.items():
            if (other := changed(value)) is not None:
                notes = changed_factors({key: value}, {key: other}, OF_SHAPES)
                (told if notes else silent).add(key)
    assert silent == {*SIZES.split(), *HARMLESS.split(), *OF_SHAPES & (silent | told)}
    assert len(told) > 150


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("afmoe", "route_scale", 2.5),
        ("afmoe", "mup_enabled", True),
        ("cohere2_moe", "logit_scale", 0.25),
        ("cohere2_moe", "shared_expert_combination_strategy", "sum"),
        ("hy_v3", "router_scaling_factor", 1.5),
        ("laguna", "moe_routed_scaling_factor", 2.5),
        ("mimo_v2_flash", "attention_value_scale", 0.5),
        ("minimax", "mlp_beta_factor", 3.5),
        ("gpt_oss", "swiglu_limit", 9.0),
        ("qwen3_next", "linear_key_head_dim", 64),
        # Entries that only some families have, or that are switches.
        ("minimax", "full_attn_alpha_factor", 3.5),
        ("olmoe", "clip_qkv", 8.0),
        ("qwen3_moe", "rms_norm_eps", 1e-3),
        ("granitemoe", "embedding_multiplier", 12.0),
        ("qwen2_moe", "hidden_act", "gelu"),
        ("deepseek_v3", "attention_dropout", 0.1),
    ],
)
def test_a_factor_that_changes_is_told_of(family: str, key: str, value: Any) -> None:
    """Also where the base's config leaves it out, and has the family's default."""
    base = CONFIG_MAPPING[family]().to_dict()
    was = "none" if base[key] is None else base[key]
    message = f"{key} changes from {was} to {value}: the theory holds it fixed"
    assert message in outside_the_paper(base, base | {key: value})


def test_a_default_that_one_config_leaves_out_counts() -> None:
    with without_plan_warnings():
        left_out = mssp.hf.plan(OLMOE | GROWN | {"rms_norm_eps": 1e-3}, OLMOE, lr=1.0)
        same = mssp.hf.plan(OLMOE | GROWN | {"rms_norm_eps": 1e-5, "hidden_act": "silu"}, OLMOE, lr=1.0)
    assert "rms_norm_eps changes from 1e-05 to 0.001: the theory holds it fixed" in left_out.warnings
    assert not [warning for warning in same.warnings if "holds it fixed" in warning]


def test_a_family_that_nobody_knows_is_told_of_too() -> None:
    base = {"model_type": "x", "hidden_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2,
            "intermediate_size": 4}  # fmt: skip
    assert changed_factors(base | {"gain_of_blocks": 1.0}, base | {"gain_of_blocks": 0.5}) == [
        "gain_of_blocks changes from 1.0 to 0.5: the theory holds it fixed"
    ]
    parts = [{"ffn_config": {"ffn_hidden_size": size, "moe_loss_weight": size / 8}} for size in (8, 16)]
    assert changed_factors(*parts) == ["moe_loss_weight changes from 1.0 to 2.0: the theory holds it fixed"]
    kinds = [{"layer_types": ["full"] * 2}, {"layer_types": ["full", "linear"] * 2}]
    assert changed_factors(*kinds) == ["layer_types changes from full to full, linear: the theory holds it fixed"]
    many = [{f"factor_{index}": value for index in range(9)} for value in (1, 2)]
    [line] = changed_factors(*many)
    assert line.startswith("factor_0 changes from 1 to 2; factor_1 changes from 1 to 2; ")
    assert line.endswith(": the theory holds all of these fixed")


@pytest.mark.parametrize("family", ["olmoe", "deepseek_v3", "qwen3_next", "gpt_oss", "afmoe"])
def test_sizes_that_grow_are_not_told_of(family: str) -> None:
    base, target = (config_of(family, shape).to_dict() for shape in (BASE, TARGET))
    assert not [note for note in outside_the_paper(base, target) if "fixed" in note]
