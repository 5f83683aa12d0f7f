"""GPT-OSS: experts with inputs first, gate and up interleaved, biases everywhere, a sink for each head."""

from __future__ import annotations

import torch

from mssp.hf.experts import FusedExperts
from tests.hf.by_hand import ROOT_2, ROOT_3, ByHand, adapted, check

LAYER = "model.layers.*."
EXPERTS = "model.layers.*.mlp.experts."
# 8 heads of 16 on N = 128 (4 on 64 at the base), 4 of them for keys (2): every side grows with N.
BY_HAND = {
    "model.embed_tokens.weight": ByHand("embedding", (1, 128), 0.02, 1e-3, 5e-9, 0.1),
    f"{LAYER}input_layernorm.weight": ByHand("norm", (1, 128), 1.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}post_attention_layernorm.weight": ByHand("norm", (1, 128), 1.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.q_proj.weight": ByHand("hidden", (128, 128), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}self_attn.k_proj.weight": ByHand("hidden", (128, 64), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}self_attn.v_proj.weight": ByHand("hidden", (128, 64), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}self_attn.o_proj.weight": ByHand("hidden", (128, 128), ROOT_2, 5e-4, 1e-8 / 3, 0.2),
    f"{LAYER}self_attn.q_proj.bias": ByHand("bias", (1, 128), 0.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.k_proj.bias": ByHand("bias", (1, 64), 0.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.v_proj.bias": ByHand("bias", (1, 64), 0.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.o_proj.bias": ByHand("bias", (1, 128), 0.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}self_attn.sinks": ByHand("bias", (1, 8), 0.0, 1e-3, 1e-8 / 3, 0.0),
    f"{LAYER}mlp.router.weight": ByHand("router", (128, 8), ROOT_2, 5e-4, 1e-8 / 6, 0.2),
    f"{LAYER}mlp.router.bias": ByHand("router_bias", (1, 8), 0.0, 1e-3, 1e-8 / 6, 0.0, "derived"),
    f"{EXPERTS}gate_up_proj": ByHand("expert_in", (128, 96), ROOT_2, 5e-4, 1e-8 / 12, 0.2),
    f"{EXPERTS}gate_up_proj_bias": ByHand("expert_in_bias", (1, 96), 0.0, 1e-3, 1e-8 / 12, 0.0, "derived"),
    f"{EXPERTS}down_proj": ByHand("expert_out", (96, 128), ROOT_3, 1e-3 / 3, 1e-8 / 12, 0.3),
    f"{EXPERTS}down_proj_bias": ByHand("expert_out_bias", (1, 128), 0.0, 1e-3, 1e-8 / 12, 0.0, "derived"),
    "model.norm.weight": ByHand("final_norm", (1, 128), 1.0, 1e-3, 5e-9, 0.0),
    "lm_head.weight": ByHand("readout", (128, 128), 0.0, 5e-4, 1e-8, 0.2),
}


def test_every_value() -> None:
    check("gpt_oss", BY_HAND)


def test_gate_and_up_are_interleaved_columns() -> None:
    model, _ = adapted("gpt_oss")
    experts = FusedExperts.of(model.get_submodule("model.layers.1.mlp.experts"), "experts")
    assert {name: info.layout for name, info in experts.tensors.items()} == {
        "gate_up_proj": "in (out 2)", "gate_up_proj_bias": "(out 2)", "down_proj": "in out", "down_proj_bias": "out",
    }  # fmt: skip
    stack = torch.arange(2.0 * 3 * 8).view(2, 3, 8)  # two experts, three inputs, gate and up of four
    parts = experts.parts("gate_up_proj", stack)
    assert parts["gate"][0].tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]
    assert parts["up"][1].tolist() == [[25, 27, 29, 31], [33, 35, 37, 39], [41, 43, 45, 47]]
    bias = experts.parts("gate_up_proj_bias", torch.arange(8.0).view(1, 8))
    assert (bias["gate"].tolist(), bias["up"].tolist()) == ([[0, 2, 4, 6]], [[1, 3, 5, 7]])
    assert list(experts.parts("down_proj", stack)) == [""]
    # As the module itself takes them apart: where the gate is 0, its gated activation is, whatever up is.
    rows = torch.randn(5, 192)
    rows[:, 0::2] = 0.0
    assert not experts.module._apply_gate(rows).any()  # type: ignore[operator]


def test_residual_and_aggregation() -> None:
    model, _ = adapted("gpt_oss")
    for block in range(3):
        for name, factor in (("self_attn", 2 / 3), ("mlp", 2 / 3), ("mlp.experts", 1.0)):
            found = model.get_submodule(f"model.layers.{block}.{name}").mssp_factor
            assert found == factor, name  # L x1.5; gates that are shares of one need no factor
