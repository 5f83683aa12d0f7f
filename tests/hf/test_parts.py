"""Which part of hidden a matrix of a Hugging Face model is, by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mssp
from mssp.hf.named_plan import by_name
from mssp.hf.vocabulary import info_of
from mssp.planning.recipe import without_plan_warnings
from tests.hf.tiny_models import BASE, TARGET, config_of

PARTS = {
    "attention_in": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_a_proj", "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.1.q_proj", "self_attn.qkv_proj",
        "mixer.q_proj",
    ),
    "attention_out": ("self_attn.o_proj", "self_attn.out_proj", "mixer.o_proj"),
    "ffn_in": (
        "mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj", "mlp.shared_expert.gate_proj", "mlp.shared_experts.up_proj",
        "shared_mlp.input_linear", "feed_forward.w1", "feed_forward.w3", "mlps.0.up_proj",
        "mixer.shared_experts.up_proj",
    ),
    "ffn_out": (
        "mlp.down_proj", "mlp.shared_expert.down_proj", "shared_mlp.output_linear", "feed_forward.w2",
        "mlps.1.down_proj",
    ),
    # Gates, linear attention under names of its own, state spaces, convolutions and indexers are hidden, and no more.
    None: (
        "self_attn.g_proj", "self_attn.gate_proj", "linear_attn.in_proj_qkvz", "linear_attn.out_proj", "mamba.in_proj",
        "mamba.out_proj", "conv.in_proj", "conv.out_proj", "self_attn.output_gate", "self_attn.indexer.wq_b",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, names in PARTS.items() for name in names])
def test_the_part_of_a_matrix(part: str | None, name: str) -> None:
    info = info_of(f"model.layers.3.{name}.weight", (64, 64))
    assert info is not None
    assert (info.role, info.part) == ("hidden", part)


def test_a_plan_by_name_has_the_numbers_of_parts() -> None:
    base, target = (config_of("qwen2_moe", shape) for shape in (replace(BASE, depth=TARGET.depth), TARGET))
    multipliers = {"hidden": 2.0, "attention_in": 4.0, "ffn_out": 0.5}
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=0.01, lr_mult=multipliers, residual_rule="one")
    table = by_name(plan, target, base).json()["parameters"]
    rows = {row[0]: row for row in table["rows"]}
    lr, note = (table["header"].index(name) for name in ("lr", "note"))
    wanted = {
        "self_attn.q_proj": ("0.04", "attention_in"),
        "self_attn.o_proj": ("0.01", ""),
        "mlp.shared_expert.up_proj": ("0.01", ""),
        "mlp.shared_expert.down_proj": ("0.005", "ffn_out"),
    }
    found = {name: rows[f"model.layers.*.{name}.weight"] for name in wanted}
    assert {name: (row[lr], row[note]) for name, row in found.items()} == wanted
