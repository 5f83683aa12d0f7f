"""What a probe sees inside the experts of Hugging Face models is exactly what they compute."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts

import mssp
from mssp.hf import experts
from mssp.measure.moe_layers import MoELayer, stacked_layer
from mssp.measure.moe_terms import FORWARD, expert_terms
from mssp.measure.quantities import BACKWARD
from mssp.measure.recording import recorded, wide_copy

SIZES = {"hidden_size": 16, "num_experts_per_tok": 2, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
FAMILIES: dict[str, Any] = {
    "mixtral": {"num_local_experts": 6, "intermediate_size": 12},
    "olmoe": {"num_experts": 6, "intermediate_size": 12},
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 12, "norm_topk_prob": True},
    "deepseek_v3": {"n_routed_experts": 6, "moe_intermediate_size": 12, "n_group": 2, "topk_group": 1,
                    "first_k_dense_replace": 0},
    "dots1": {"n_routed_experts": 6, "moe_intermediate_size": 12, "first_k_dense_replace": 0, "n_shared_experts": 1},
    "gpt_oss": {"num_local_experts": 6, "intermediate_size": 12, "num_key_value_heads": 1},
}  # fmt: skip


def moe_block(family: str, implementation: str) -> nn.Module:
    """A MoE layer with experts that differ, in float64 where the family computes in it."""
    config = transformers.CONFIG_MAPPING[family](**SIZES, **FAMILIES[family])
    config._experts_implementation = implementation
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=implementation)
    block: nn.Module = model.model.layers[0].mlp.double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return block


def the_layer(block: nn.Module) -> MoELayer:
    (moe,) = experts.moe_layers(block)
    return stacked_layer(moe)


def run(block: nn.Module, layer: MoELayer, x: Tensor) -> tuple[Any, Tensor]:
    parts = [layer.router, layer.experts]
    with recorded(parts, with_calls=parts) as passed:
        block(x)
    return passed, passed[layer.experts].y.squeeze(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_terms_of_a_foreign_layer_add_up(family: str) -> None:
    torch.manual_seed(0)
    block = moe_block(family, "eager")
    start = copy.deepcopy(block)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    x_0 = torch.randn(1, 5, 16, dtype=torch.float64)
    x = (x_0 + 0.2 * torch.randn_like(x_0)).requires_grad_()
    first_layer, layer = the_layer(start), the_layer(block)
    (before, _), (now, out) = run(start, first_layer, x_0), run(block, layer, x)
    first, last = first_layer.moment(before, wide_copy), layer.moment(now, wide_copy)
    back = torch.randn_like(out)
    terms = expert_terms(first, last, layer.hidden, [back[None]])

    total = sum((terms.forward[name] for name in FORWARD), torch.zeros(()))
    # Routers compute in float32 whatever they are given.
    torch.testing.assert_close(total.squeeze(0), out, rtol=1e-6, atol=1e-7)

    to_logits = layer.through_gates(layer.routings(now), sum(terms.to_gates[0], torch.zeros(())))
    by_router = to_logits.to(torch.float64) @ layer.router.get_parameter("weight").detach()
    found = sum((terms.backward[0][name] for name in BACKWARD.terms), by_router)
    wanted = torch.autograd.grad(now[layer.experts].output_edges, x, [back])[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_both_expert_implementations_are_seen_alike(family: str) -> None:
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    found = []
    for implementation in ("eager", "batched_mm"):
        torch.manual_seed(1)
        block = moe_block(family, implementation)
        layer = the_layer(block)
        passed, _ = run(block, layer, x)
        found.append((layer.moment(passed, wide_copy), passed[layer.experts].y))
    (one, y), (other, z) = found
    torch.testing.assert_close(y, z, rtol=1e-6, atol=1e-7)
    assert torch.equal(one.weights.w_in, other.weights.w_in)
    torch.testing.assert_close(one.gates, other.gates)


def test_a_class_without_flags_may_cut_off_what_its_experts_compute() -> None:
    config = transformers.CONFIG_MAPPING["step3p5"](hidden_size=4, n_routed_experts=2, moe_intermediate_size=2)
    stacks = experts.FusedExperts.of(Step3p7Experts(config, swiglu_limit=0.5), "experts")
    pre = torch.tensor([[3.0, -3.0, 2.0, 0.25]])  # gate, gate, up, up
    torch.testing.assert_close(stacks.hidden(pre), torch.tensor([[0.25, -0.142278 * 0.25]]), rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:experts start alike:mssp.PlanWarning")
def test_a_monitor_sees_inside_stacked_experts() -> None:
    config = transformers.OlmoeConfig(**SIZES, **FAMILIES["olmoe"], num_key_value_heads=2, max_position_embeddings=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    mssp.hf.adapt(model)
    plan = mssp.plan(mssp.Shape.from_config(config), regime="III", lr=0.01)
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    tokens = torch.arange(8).view(1, 8)
    with mssp.monitor(model, plan, optimizer=optimizer, every=1) as watched:
        for _ in range(3):
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
    first, last = watched.lines[0].sizes, watched.lines[-1].sizes
    inside = ("effective/expert_in", "propagating/expert_out", "aggregate/effective", "backward/A5", "experts/distance")
    assert all(first[name] == 0 and last[name] > 0 for name in inside)
    assert 1 <= last["router/load"] <= 3  # two of six experts active: at most three times the mean


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_what_an_expert_does_is_measured_on_the_tokens_that_it_gets(family: str) -> None:
    """As it is where each expert is a module of its own, which sees no other tokens."""
    torch.manual_seed(0)
    block = moe_block(family, "eager")
    start = copy.deepcopy(block)
    with torch.no_grad():
        for parameter in block.get_submodule("experts").parameters():  # the routing stays
            parameter.add_(torch.randn_like(parameter) * 0.1)
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    first_layer, layer = the_layer(start), the_layer(block)
    (before, _), (now, _) = run(start, first_layer, x), run(block, layer, x)
    first, last = first_layer.moment(before, wide_copy), layer.moment(now, wide_copy)
    terms = expert_terms(first, last, layer.hidden, [])

    chosen = layer.routings(now)[0].chosen
    assert chosen is not None
    update = last.weights.w_out - first.weights.w_out
    rows: dict[str, list[Tensor]] = {"effective/expert_out": [], "activation/expert_in": [], "input/expert_out": []}
    for token, experts_of_token in enumerate(chosen.tolist()):
        for expert in experts_of_token:
            pre = last.pre[0, token, expert]
            hidden = layer.hidden(pre)
            rows["activation/expert_in"].append(pre)
            rows["input/expert_out"].append(hidden)
            rows["effective/expert_out"].append(hidden @ update[0, expert])
    for name, of_pairs in rows.items():
        by_hand = torch.stack(of_pairs).square().mean().sqrt()
        torch.testing.assert_close(terms.sizes[name][0], by_hand, rtol=1e-6, atol=0.0, msg=name)
    gates = last.gates[0].gather(1, chosen) * last.aggregation
    entering = torch.stack(rows["input/expert_out"]) * gates.reshape(-1, 1)
    torch.testing.assert_close(terms.sizes["input/aggregate"][0], entering.square().mean().sqrt(), rtol=1e-6, atol=0.0)
