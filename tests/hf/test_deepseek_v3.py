"""DeepSeek-V3: low ranks of fixed size (MLA), a dense first layer, shared experts, sigmoids chosen by groups."""

from __future__ import annotations

import torch

from mssp.hf.experts import FusedExperts
from tests.hf.by_hand import ROOT_2, ROOT_3, ByHand, adapted, check

LAYER = "model.layers.*."
# 8 heads (4 at the base): 8 + 8 for queries and keys, 16 for values. Ranks 24 and 16 stay: from a rank to what grows,
# fan_in is fixed, so std and lr are as they were; only the gradient's 1/N is in eps. Gains on a rank are like those on
# a head: their gradient is of order 1, eps L^-1 = 1e-8/1.5. The shared expert is as wide as one routed expert.
BY_HAND = {
    "model.embed_tokens.weight": ByHand("embedding", (1, 128), 0.02, 1e-3, 5e-9, 0.1),
    f"{LAYER}input_layernorm.weight": ByHand("norm", (1, 128), 1.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}post_attention_layernorm.weight": ByHand("norm", (1, 128), 1.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.q_a_proj.weight": ByHand("hidden", (128, 24), ROOT_2, 5e-4, 1e-8 / 3, 0.2, "derived"),
    f"{LAYER}self_attn.q_a_layernorm.weight": ByHand("qk_norm", (1, 24), 1.0, 1e-3, 1e-8 / 1.5, 0.0, "derived"),
    f"{LAYER}self_attn.q_b_proj.weight": ByHand("hidden", (24, 128), 0.02, 1e-3, 1e-8 / 3, 0.1, "derived"),
    f"{LAYER}self_attn.kv_a_proj_with_mqa.weight": ByHand("hidden", (128, 24), ROOT_2, 5e-4, 1e-8 / 3, 0.2, "derived"),
    f"{LAYER}self_attn.kv_a_layernorm.weight": ByHand("qk_norm", (1, 16), 1.0, 1e-3, 1e-8 / 1.5, 0.0, "derived"),
    f"{LAYER}self_attn.kv_b_proj.weight": ByHand("hidden", (16, 192), 0.02, 1e-3, 1e-8 / 3, 0.1, "derived"),
    f"{LAYER}self_attn.o_proj.weight": ByHand("hidden", (128, 128), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}mlp.gate_proj.weight": ByHand("hidden", (128, 256), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}mlp.up_proj.weight": ByHand("hidden", (128, 256), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}mlp.down_proj.weight": ByHand("hidden", (256, 128), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}mlp.gate.weight": ByHand("router", (128, 8), ROOT_2, 5e-4, 1e-8 / 6, 0.2),
    f"{LAYER}mlp.experts.gate_up_proj": ByHand("expert_in", (128, 96), ROOT_2, 5e-4, 1e-8 / 12, 0.2),
    f"{LAYER}mlp.experts.down_proj": ByHand("expert_out", (96, 128), ROOT_3, 1e-3 / 3, 1e-8 / 12, 0.3),
    f"{LAYER}mlp.shared_experts.gate_proj.weight": ByHand("hidden", (128, 96), ROOT_2, 5e-4, 1e-8 / 3, 0.2, "derived"),
    f"{LAYER}mlp.shared_experts.up_proj.weight": ByHand("hidden", (128, 96), ROOT_2, 5e-4, 1e-8 / 3, 0.2, "derived"),
    f"{LAYER}mlp.shared_experts.down_proj.weight": ByHand(
        "hidden", (96, 128), ROOT_3, 1e-3 / 3, 1e-8 / 3, 0.3, "derived"
    ),
    "model.norm.weight": ByHand("final_norm", (1, 128), 1.0, 1e-3, 5e-9, 0.0),
    "lm_head.weight": ByHand("readout", (128, 128), 0.0, 5e-4, 1e-8, 0.2),
}


def test_every_value() -> None:
    check("deepseek_v3", BY_HAND)


def test_gate_and_up_are_halves_of_rows() -> None:
    model, _ = adapted("deepseek_v3")
    experts = FusedExperts.of(model.get_submodule("model.layers.1.mlp.experts"), "experts")
    layouts = {name: info.layout for name, info in experts.tensors.items()}
    assert layouts == {"gate_up_proj": "(2 out) in", "down_proj": "out in"}
    stack = torch.arange(2.0 * 4 * 3).view(2, 4, 3)  # two experts, gate and up of two, three inputs
    parts = experts.parts("gate_up_proj", stack)
    assert parts["gate"][0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parts["up"][1].tolist() == [[18, 19, 20], [21, 22, 23]]


def test_the_first_layer_is_dense_and_the_others_route() -> None:
    model, _ = adapted("deepseek_v3")
    assert "gate_kind" not in vars(model.get_submodule("model.layers.0.mlp"))
    for block in (1, 2):
        assert model.get_submodule(f"model.layers.{block}.mlp.gate").gate_kind == "renormalised"
        assert model.get_submodule(f"model.layers.{block}.mlp.experts").mssp_factor == 1.0
    for block in (0, 1, 2):
        assert model.get_submodule(f"model.layers.{block}.mlp").mssp_factor == 2 / 3


def test_what_corrects_the_choice_is_no_parameter_of_the_plan() -> None:
    model, _ = adapted("deepseek_v3")
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in dict(model.named_buffers())
