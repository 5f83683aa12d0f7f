"""Factors that a model's own forward pass has, found by running it with stand-ins, and what stands on its stream."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MiniMaxConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3ForCausalLM
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashMLA
from transformers.models.olmoe.modeling_olmoe import OlmoeDecoderLayer, OlmoeForCausalLM

import mssp
import mssp.hf
from mssp.hf.factors import FACTOR_ATTRIBUTE, detach, factor_of
from mssp.hf.meta import on_meta
from mssp.hf.own_factors import own_factors
from mssp.hf.rehearsal import Factor, Size, rehearsal
from mssp.hf.vocabulary import of_all_blocks
from mssp.planning.recipe import PlanWarning
from tests.hf.tiny_models import (
    BASE,
    DENSE_BASE,
    DENSE_TARGET,
    TARGET,
    config_of,
    dense_config_of,
    initialized,
    logits,
    model_of,
    plan_of,
    tokens,
)

WIDER = mssp.Shape(width=256, expert_width=96, experts=8, active=4, depth=3)


def built(kind: type[nn.Module], family: str, shape: mssp.Shape, **changes: Any) -> Any:
    torch.manual_seed(0)
    return kind(config_of(family, shape, **changes)).eval()


def own(model: nn.Module) -> dict[str, float]:
    """The factors that are neither on branches nor on experts."""
    planned = {"residual", "aggregation", "tied readout"}
    return {
        path: factor_of(module)
        for path, module in model.named_modules()
        if FACTOR_ATTRIBUTE in vars(module) and vars(module)["plan_multipliers"].label not in planned
    }


def sizes_into_blocks(model: nn.Module) -> list[float]:
    sizes: list[float] = []
    blocks = model.get_submodule("model.layers")
    handles = [
        block.register_forward_pre_hook(lambda block, args: sizes.append(args[0].square().mean().sqrt().item()))
        for block in blocks.children()
    ]
    logits(model)
    for handle in handles:
        handle.remove()
    return sizes


# -- models with factors under names that nobody knows ----------------------------------------------------------------


class Swollen(nn.Embedding):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.yeast = self.embedding_dim**0.5

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input) * self.yeast
        return out


class SwollenForCausalLM(OlmoeForCausalLM):  # type: ignore[misc]
    """Embeddings times the root of the width."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.embed_tokens = Swollen(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.post_init()


class ShyRouter(nn.Module):
    """Logits of normalised inputs over the root of the width."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.wg = nn.Linear(config.hidden_size, config.num_experts, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.reshape(-1, x.shape[-1])
        scores = self.wg(F.rms_norm(x, x.shape[-1:]) * x.shape[-1] ** -0.5)
        gates, chosen = scores.softmax(-1).topk(self.top_k)
        return scores, gates, chosen


class ShyForCausalLM(OlmoeForCausalLM):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for block in self.model.layers:
            block.mlp.gate = ShyRouter(config)
        self.post_init()


class DeafRouter(nn.Module):
    """The same with a matrix of its own: no module gives what the factor multiplies."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.randn(config.num_experts, config.hidden_size) * 0.02)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.reshape(-1, x.shape[-1])
        scores = F.linear(F.rms_norm(x, x.shape[-1:]) * x.shape[-1] ** -0.5, self.weight)
        gates, chosen = scores.softmax(-1).topk(self.top_k)
        return scores, gates, chosen


class DeafForCausalLM(OlmoeForCausalLM):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for block in self.model.layers:
            block.mlp.gate = DeafRouter(config)


class LatentForCausalLM(DeepseekV3ForCausalLM):  # type: ignore[misc]
    """LongCat's attention: latent queries and keys times the root of the width over their rank."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for number, block in enumerate(self.model.layers):
            block.self_attn = LongcatFlashMLA(config, number)
        self.post_init()


class FaintBlock(OlmoeDecoderLayer):  # type: ignore[misc]
    """What branches give is added over the root of the number of blocks."""

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        share = self.self_attn.config.num_hidden_layers**-0.5
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + share * attended
        out: Tensor = hidden_states + share * self.mlp(self.post_attention_layernorm(hidden_states))
        return out


class FaintForCausalLM(OlmoeForCausalLM):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers = nn.ModuleList(FaintBlock(config, number) for number in range(config.num_hidden_layers))
        self.post_init()


PLANTED: dict[str, tuple[type[nn.Module], str, dict[str, float]]] = {
    "embeddings": (SwollenForCausalLM, "olmoe", {"model.embed_tokens": 2**-0.5}),
    "router": (ShyForCausalLM, "olmoe", {f"model.layers.{block}.mlp.gate.wg": 2**0.5 for block in range(3)}),
    "latents": (
        LatentForCausalLM,
        "deepseek_v3",
        {f"model.layers.{block}.self_attn.{name}_b_proj": 2**-0.5 for block in range(3) for name in ("q", "kv")},
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_factors_that_depend_on_the_width_are_taken_out(planted: str) -> None:
    kind, family, expected = PLANTED[planted]
    model, plan = built(kind, family, TARGET), plan_of(readout="mup")
    mssp.hf.adapt(model, base=config_of(family, BASE))
    initialized(model, plan)
    assert own(model) == pytest.approx(expected)
    mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan)), plan, probe={"input_ids": tokens()})
    table = "\n".join(mssp.hf.by_name(plan, config_of(family, TARGET), config_of(family, BASE)).lines())
    assert "own factor" not in table  # of the family itself
    expected_logits = logits(model)
    folded = copy.deepcopy(model)
    mssp.hf.fold(folded)
    torch.testing.assert_close(logits(folded), expected_logits, rtol=1e-4, atol=1e-6)
    detach(model.get_submodule(next(iter(expected))))
    with pytest.raises(ValueError, match=r"multiplied by 1, and the plan's (own|scaled).* factor is .*: it is missing"):
        mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan)), plan, probe={"input_ids": tokens()})


@pytest.mark.parametrize("planted", PLANTED)
def test_with_its_factors_a_model_computes_what_the_base_s_constants_give(planted: str) -> None:
    """Every place of a rehearsal has the numbers of the base, which it has not without the factors."""
    kind, family, expected = PLANTED[planted]
    model, small = (on_meta_of(kind, family, shape) for shape in (TARGET, BASE))
    factors = {
        name: Factor(name, factor, stands_for_input=not name.endswith("q_b_proj"))
        for path, factor in expected.items()
        for name in [of_all_blocks(path)]
    }
    with rehearsal(model) as at_target, rehearsal(small) as at_base:
        before: dict[str, list[float]] = {}
        for size in at_base.sizes():
            before.setdefault(size.place, []).append(size.rms)
        plain, corrected = at_target.sizes(), at_target.sizes(list(factors.values()))

    def is_known(size: Size) -> bool:  # dense layers and experts have numbers of their own
        return any(size.rms == pytest.approx(rms, rel=1e-3) for rms in before[size.place])

    assert not all(map(is_known, plain))
    assert all(map(is_known, corrected))


def on_meta_of(kind: type[nn.Module], family: str, shape: mssp.Shape) -> nn.Module:
    with torch.device("meta"):
        return kind(config_of(family, shape))


def test_a_factor_on_what_is_added_to_the_stream_is_taken_out() -> None:
    model = built(FaintForCausalLM, "olmoe", TARGET)
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    initialized(model, plan_of())
    # L x 1.5 makes the plan's factor 2/3, and the model's own falls by the root of 1.5.
    for block in model.model.layers:
        for writer in (block.self_attn, block.mlp):
            assert factor_of(writer) == pytest.approx(1.5**-0.5)


def test_a_factor_that_no_output_carries_is_refused() -> None:
    model = built(DeafForCausalLM, "olmoe", TARGET)
    message = "what model.layers.*.mlp.gate gets has 0.7071 times the numbers of a model of other sizes"
    for base in (config_of("olmoe", BASE), None):
        with pytest.raises(ValueError, match=re.escape(message)):
            mssp.hf.adapt(model, base=base)


def test_without_a_base_the_root_of_the_width_alone_is_known() -> None:
    model = built(SwollenForCausalLM, "olmoe", TARGET)
    mssp.hf.adapt(model)
    plan = mssp.hf.plan(model.config, config_of("olmoe", BASE), lr=1e-3, regime="III", init_std=0.02)
    initialized(model, plan)
    assert own(model) == pytest.approx({"model.embed_tokens": 2**-0.5})
    with pytest.raises(ValueError, match=r"what model\.layers\.\*\.mlp\.gate\.wg gives .* pass base, the config"):
        mssp.hf.adapt(built(ShyForCausalLM, "olmoe", TARGET))


def test_numbers_into_blocks_are_those_of_the_base() -> None:
    """AFMoE multiplies embeddings by the root of the width: 8 times 0.02 at the base, 16 times at the target."""
    for shape in (BASE, WIDER):
        model = model_of(config_of("afmoe", shape, mup_enabled=True))
        mssp.hf.adapt(model, base=config_of("afmoe", BASE, mup_enabled=True))
        initialized(model, plan_of(shape))
        first, *_ = sizes_into_blocks(model)
        assert first == pytest.approx(0.16, rel=0.03), shape


def test_a_changed_constant_is_no_factor_of_sizes() -> None:
    """It is warned of when the plan is made, and not taken out in silence."""
    model = model_of(config_of("dots1", TARGET, routed_scaling_factor=2.5))
    mssp.hf.adapt(model, base=config_of("dots1", BASE, routed_scaling_factor=1.0))
    initialized(model, plan_of())
    assert own(model) == {}
    model = model_of(dense_config_of("gemma3_text", DENSE_TARGET))
    model.get_input_embeddings().scalar_embed_scale = 5.0  # type: ignore[operator]
    mssp.hf.adapt(model, base=dense_config_of("gemma3_text", DENSE_BASE))
    initialized(model, plan_of(DENSE_TARGET, DENSE_BASE, regime=None))
    assert own(model) == pytest.approx({"model.embed_tokens": 8 / 5})


@pytest.mark.parametrize("family", ["nemotron_h", "granitemoehybrid"])
def test_decay_rates_that_count_many_heads_are_no_factor_of_sizes(family: str) -> None:
    """With four times the heads: initial weights have the rates of the base, spread over the heads."""
    target = mssp.Shape(width=256, expert_width=128, experts=8, active=4, depth=2)
    assert own_factors(on_meta(config_of(family, target)), on_meta(config_of(family, BASE))) == {}


def test_without_a_base_a_model_that_cannot_be_halved_is_said_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(entries: Any) -> Any:
        raise ValueError("heads do not fit")

    monkeypatch.setattr("mssp.hf.own_factors.at_half_width", refused)
    says = (
        r"no model of half the width of this OlmoeForCausalLM can be built \(pass base\): heads do not fit: whether "
        "its forward pass has factors that depend on sizes is not known$"
    )
    with pytest.warns(PlanWarning, match=says):
        assert own_factors(on_meta(config_of("olmoe", TARGET))) == {}


# -- the residual stream ----------------------------------------------------------------------------------------------


def minimax(width: int = 64) -> Any:
    return MiniMaxConfig(
        vocab_size=128, hidden_size=width, intermediate_size=32, num_hidden_layers=3, num_attention_heads=width // 16,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        layer_types=["full_attention"] * 3,
    )  # fmt: skip


def test_a_norm_that_stands_on_the_stream_is_refused_by_name() -> None:
    message = (
        "model.layers.* does not only add to its input what its branches give: model.layers.*.post_attention_layernorm "
        "stands on the residual stream, and no residual factor damps what that does in deep models"
    )
    for base in (minimax(32), None):
        with pytest.raises(ValueError, match=re.escape(message)):
            mssp.hf.adapt(on_meta(minimax()), base=base)


def test_a_block_that_does_something_else_to_the_stream_is_refused() -> None:
    class Bent(OlmoeDecoderLayer):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
            out: Tensor = torch.tanh(super().forward(hidden_states, **kwargs))
            return out

    model = model_of(config_of("olmoe", TARGET))
    model.model.layers[1].__class__ = Bent  # type: ignore[union-attr, index]
    with pytest.raises(ValueError, match="something else changes the residual stream"):
        mssp.hf.adapt(model, base=config_of("olmoe", BASE))


def test_gains_and_biases_of_the_stream_are_refused_by_name_whatever_it_is() -> None:
    class Sprung(OlmoeDecoderLayer):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
            out: Tensor = super().forward(hidden_states * self.coil, **kwargs) + self.rust
            return out

    model = model_of(config_of("olmoe", TARGET))
    for block in model.get_submodule("model.layers").children():
        block.register_parameter("coil", nn.Parameter(torch.ones(TARGET.width)))
        block.register_parameter("rust", nn.Parameter(torch.zeros(TARGET.width)))
        block.__class__ = Sprung
    message = "model.layers.*.coil, model.layers.*.rust stand on the residual stream, and no residual factor damps"
    with pytest.raises(ValueError, match=re.escape(message)):
        mssp.hf.adapt(model, base=config_of("olmoe", BASE))


# -- nothing is left behind -------------------------------------------------------------------------------------------


def everything(model: nn.Module) -> Iterator[Any]:
    for path, module in model.named_modules():
        yield path, list(vars(module)), module.training, [id(value) for value in vars(module).values()]
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield name, id(tensor), None if tensor is None or tensor.is_meta else tensor.double().sum().item()


def test_a_rehearsal_leaves_no_trace() -> None:
    model = model_of(config_of("qwen3_next", TARGET)).train()
    seen: list[str] = []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append("ran"))  # type: ignore[union-attr, index]
    state, before = torch.get_rng_state(), list(everything(model))
    with rehearsal(model) as run:
        assert run.sizes()
        assert run.flows()
    assert list(everything(model)) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert seen == []
    with pytest.raises(RuntimeError, match="stopped"), rehearsal(model):
        raise RuntimeError("stopped")
    assert list(everything(model)) == before


def test_a_model_that_does_not_run_is_said_to_be_unknown() -> None:
    class Broken(OlmoeForCausalLM):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyError("nobody\nknows")

    model = built(Broken, "olmoe", TARGET)
    before = list(everything(model))
    with pytest.warns(PlanWarning, match="Broken does not run with stand-ins: 'nobody.*is not known") as caught:
        assert own_factors(model, on_meta(config_of("olmoe", BASE))) == {}
    assert "\n" not in str(caught[0].message)
    assert list(everything(model)) == before
