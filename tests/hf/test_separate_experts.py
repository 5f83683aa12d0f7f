"""Experts that are modules of their own, and the names that experts have on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedModel

import mssp

pytestmark = pytest.mark.filterwarnings("ignore:without mssp this checkpoint:mssp.PlanWarning")

SIZES = {"intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 32, "num_attention_heads": 2}
BASE = OlmoeConfig(hidden_size=32, num_experts=4, num_experts_per_tok=2, **SIZES)
LARGE = OlmoeConfig(hidden_size=64, num_experts=8, num_experts_per_tok=4, **SIZES)


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return out


class SparseBlock(nn.Module):
    """As older releases and models of their own code have it: sigmoid gates, a loop over experts."""

    def __init__(self, config: OlmoeConfig) -> None:
        super().__init__()
        self.active = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(
            Expert(config.hidden_size, config.intermediate_size) for _ in range(config.num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = self.gate(x).sigmoid().topk(self.active, dim=-1)
        weights = torch.zeros(*x.shape[:-1], len(self.experts), dtype=x.dtype).scatter(-1, chosen, gates)
        return sum((weights[..., m, None] * expert(x) for m, expert in enumerate(self.experts)), torch.zeros_like(x))


class Block(nn.Module):
    def __init__(self, config: OlmoeConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size)
        self.mlp = SparseBlock(config)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mlp(self.input_layernorm(x))
        return out


class OwnModel(PreTrainedModel):  # type: ignore[misc] # transformers is taken as it comes
    config_class = OlmoeConfig

    def __init__(self, config: OlmoeConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        out: Tensor = self.lm_head(self.norm(x))
        return out


def planned(**settings: Any) -> mssp.Plan:
    return mssp.plan(mssp.Shape.from_config(LARGE), mssp.Shape.from_config(BASE), lr=0.01, **settings)


def test_a_model_with_one_module_per_expert() -> None:
    model, plan = OwnModel(LARGE), planned(readout="mup")
    with pytest.raises(
        ValueError, match=r"layers\.0\.mlp has experts that are modules of their own.*: say gate, one of"
    ):
        mssp.hf.adapt(model, base=BASE)
    assert not [name for name in vars(model) if name == "param_infos"]
    mssp.hf.adapt(model, base=BASE, gate="sigmoid")
    mssp.initialize(model, plan)
    tokens = torch.arange(8).view(1, 8)
    before = model(tokens)

    # Regime II: expert_in N^-1/2, expert_out M^1/2 N_e^-1/2, drawn for each expert by itself.
    experts: Any = model.get_submodule("layers.0.mlp.experts")
    assert experts[3].w1.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert experts[3].w2.weight.std().item() == pytest.approx(8**0.5 * 64**-0.5, rel=0.05)
    assert not torch.equal(experts[0].w1.weight, experts[1].w1.weight)
    # Active experts double, so every expert counts half as much.
    assert [expert.mssp_factor for expert in experts] == [0.5] * 8
    for expert in experts:
        expert.mssp_factor = 1.0
    assert (model(tokens) - before).norm() > 0.01 * before.norm()

    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.experts\.0\.mssp_factor is 1\.0, the plan says 0\.5"):
        mssp.verify(model, optimizer, plan)
    mssp.initialize(model, plan)
    mssp.verify(model, optimizer, plan)
    model(tokens).logsumexp(-1).sum().backward()
    optimizer.step()


def test_separate_experts_are_tied_across_modules() -> None:
    # N, N_e, M and K grow: one matrix for all experts of a layer.
    config = OlmoeConfig(hidden_size=64, num_experts=8, num_experts_per_tok=4, **(SIZES | {"intermediate_size": 128}))
    model = OwnModel(config)
    mssp.hf.adapt(model, base=BASE, gate="sigmoid")
    mssp.initialize(model, mssp.plan(mssp.Shape.from_config(config), mssp.Shape.from_config(BASE), lr=0.01))
    experts: Any = model.get_submodule("layers.0.mlp.experts")
    first, *others = experts
    for name in ("w1", "w2", "w3"):
        assert all(torch.equal(getattr(first, name).weight, getattr(expert, name).weight) for expert in others)
    assert not torch.equal(first.w1.weight, first.w3.weight)


def test_experts_on_disk_have_the_values_of_the_stack(tmp_path: Path) -> None:
    model, plan = OlmoeForCausalLM(LARGE), planned()
    mssp.hf.adapt(model, base=BASE)
    mssp.initialize(model, plan)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 # no mapping
    infos = mssp.hf.checkpoint_infos({name: tuple(tensor.shape) for name, tensor in tensors.items()}, LARGE, BASE)
    on_disk = plan.resolve(infos.values())
    assert infos.keys() == tensors.keys()
    in_memory = plan.resolve(mssp.describe(model))
    stack = "model.layers.0.mlp.experts"
    for name, values in on_disk.items():
        partner = name if name in in_memory else f"{stack}.{'down_proj' if 'down_proj' in name else 'gate_up_proj'}"
        assert values == in_memory[partner]
    for expert in range(8):
        up = tensors[f"{stack}.{expert}.up_proj.weight"]
        assert up.std().item() == pytest.approx(on_disk[f"{stack}.{expert}.up_proj.weight"].init_std, rel=0.06)
    assert infos["model.layers.0.self_attn.q_norm.weight"].role == "norm"
    with pytest.raises(ValueError, match=r"not understood: model\.layers\.\*\.mlp\.strange \(3,\)"):
        mssp.hf.checkpoint_infos({"model.layers.0.mlp.strange": (3,)}, LARGE)
