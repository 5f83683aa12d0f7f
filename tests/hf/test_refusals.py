"""What the adapter refuses, by name, and with nothing changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, GraniteConfig, JambaConfig

import mssp
import mssp.hf
from mssp.planning.recipe import PlanWarning, without_plan_warnings
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, model_of, plan_of, traces


@contextmanager
def refused(model: nn.Module, message: str) -> Iterator[None]:
    """The message is one line, and the model is what it was: weights, config, attributes and hooks."""
    before = {name: each.clone() for name, each in model.state_dict().items()}
    held: Any = getattr(model, "config", None)
    config = None if held is None else copy.deepcopy(held.to_dict())
    traces_before = traces(model)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert traces(model) == traces_before
    assert held is None or held.to_dict() == config
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def olmoe(**changes: Any) -> nn.Module:
    return model_of(config_of("olmoe", TARGET, **changes))


OLMOE_BASE = config_of("olmoe", BASE)


# -- models -----------------------------------------------------------------------------------------------------------


def test_parameters_without_a_rule_at_any_shape() -> None:
    """A base of the same width does not help, and so it is not asked for."""
    model = model_of(config_of("hy_v4", BASE))
    with pytest.raises(ValueError, match=r"layers\.\*\.attn_hc\.fn: .* would keep all residual streams equal$"):
        mssp.hf.adapt(model, base=config_of("hy_v4", BASE, n_routed_experts=8))


def test_parameters_for_which_no_rule_is_confirmed() -> None:
    config = JambaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, attn_layer_period=4, attn_layer_offset=3,
        mamba_d_state=4, mamba_dt_rank=4, use_mamba_kernels=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with refused(
        model,
        "model.layers.*.mamba.x_proj.weight: a state-space parameter (Mamba 1), for which no rule is confirmed: all "
        "channels share the few numbers that it makes, and the gradients that come back through them do not fall with "
        "the width; give a base in which it has the same shape",
    ):
        mssp.hf.adapt(model)


def test_a_parameter_that_is_not_understood() -> None:
    model = olmoe()
    block = model.get_submodule("model.layers.1.mlp")
    block.register_parameter("temperature", nn.Parameter(torch.ones(7)))
    with refused(model, "has parameters that are not understood: model.layers.*.mlp.temperature (7,)"):
        mssp.hf.adapt(model, base=OLMOE_BASE)
    block.get_parameter("temperature").requires_grad_(False)  # what is not trained needs no role
    mssp.hf.adapt(model, base=OLMOE_BASE)
    mssp.hf.release(model)


def test_a_bias_of_a_readout_that_is_the_embedding() -> None:
    """With a readout of its own the bias has a role."""
    model = model_of(config_of("ernie4_5_moe", TARGET, use_bias=True))
    message = (
        "the readout is the embedding, and has a bias: a plan multiplies the logits of such a readout, and would "
        "multiply its bias too; build the model without the bias, or with a readout of its own"
    )
    with refused(model, message):
        mssp.hf.adapt(model)
    model = model_of(config_of("ernie4_5_moe", TARGET, use_bias=True, tie_word_embeddings=False))
    mssp.hf.adapt(model)
    assert [info.role for info in mssp.describe(model) if info.name == "lm_head.bias"] == ["readout_bias"]


def test_numbers_of_experts_that_share_one() -> None:
    """Inkling's shared experts have what the gates of the chosen ones leave them."""
    model, base = model_of(config_of("inkling_text", TARGET, num_experts_per_tok=4)), config_of("inkling_text", BASE)
    message = (
        "the gates of 4 chosen and 2 shared experts add up to one together, so that shared experts have 0.333 of it, "
        "and 0.5 at the base, where 2 and 2 share it: there is no rule for that; keep both numbers"
    )
    with refused(model, message):
        mssp.hf.adapt(model, base=base)
    with refused(model, "have 0.333 of it, and 0.667 at the base, where 4 and 8 share it"):
        mssp.hf.adapt(model, base=config_of("inkling_text", BASE, num_experts_per_tok=4, n_shared_experts=8))
    mssp.hf.adapt(model)
    with without_plan_warnings():
        plan = mssp.hf.plan(model.config, base, lr=1e-3)
    with refused(model, message):
        mssp.initialize(model, plan)


def test_models_without_experts_of_families_that_are_not_known_to_be_dense() -> None:
    config = GraniteConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    families = "gemma3_text, llama, mistral, olmo2, qwen2, qwen3"
    message = (
        "GraniteForCausalLM (model_type 'granite') has no experts, and its family is none that is known to be dense"
    )
    with refused(model, f"{message}: {families}"):
        mssp.hf.adapt(model)
    with pytest.raises(
        ValueError, match=re.escape(f"moe_num_experts, or a family that is known to be dense ({families})")
    ):
        mssp.hf.plan(config, config, lr=1e-3)


def test_models_that_are_not_of_transformers() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with refused(model, "Sequential is no model of transformers"):
        mssp.hf.adapt(model)


def test_quantised_models() -> None:
    model = olmoe()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}  # type: ignore[union-attr]
    with refused(model, "is quantised: plans are for models trained from scratch"):
        mssp.hf.adapt(model, base=OLMOE_BASE)
    model = olmoe()
    model.is_quantized = True  # type: ignore[assignment]
    with refused(model, "is quantised: plans are for models trained from scratch"):
        mssp.hf.adapt(model, base=OLMOE_BASE)
    model = olmoe()
    attention = model.get_submodule("model.layers.0.self_attn.q_proj")
    whole = nn.Parameter(torch.zeros(128, 128, dtype=torch.int8), requires_grad=False)
    attention.weight = whole
    with refused(model, "is quantised: model.layers.0.self_attn.q_proj.weight does not hold floating-point numbers"):
        mssp.hf.adapt(model, base=OLMOE_BASE)


def test_models_with_lora() -> None:
    plain = olmoe()
    wrapped = get_peft_model(plain, LoraConfig(target_modules=["q_proj"], r=2))
    for model in (wrapped, plain):  # LoRA is put into the model itself
        with refused(model, "carries adapters (LoRA): plans are for models trained from scratch"):
            mssp.hf.adapt(model, base=OLMOE_BASE)


@pytest.mark.parametrize(
    "adapters",
    [LoraConfig(target_modules=["q_proj"], r=2), IA3Config(target_modules=["q_proj"], feedforward_modules=[])],
)
def test_adapters_that_come_after_the_plan(adapters: Any) -> None:
    model = olmoe()
    mssp.hf.adapt(model, base=OLMOE_BASE)
    initialized(model, plan_of())
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan_of()))
    wrapped = get_peft_model(model, adapters)
    message = "OlmoeForCausalLM (model_type 'olmoe') carries adapters (LoRA): plans are for models trained from scratch"
    for each in (wrapped, model):
        for use in (mssp.initialize, mssp.param_groups):
            with refused(each, message):
                use(each, plan_of())
        with refused(each, message):
            mssp.verify(each, optimizer, plan_of())


# -- configs ----------------------------------------------------------------------------------------------------------

SIZES = config_of("deepseek_v3", TARGET).to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 16}, "n_routed_experts is 8, num_experts is 16"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "num_attention_heads 8 is no multiple of"),
        ({"n_group": 3}, "n_routed_experts 8 is no multiple of n_group 3"),
        ({"topk_group": 4}, "topk_group is 4 of n_group 2"),
        ({"first_k_dense_replace": 3}, "first_k_dense_replace is 3 of num_hidden_layers 3: no layer is left"),
        ({"num_experts_per_tok": 9}, "a token cannot use 9 of 8"),
        ({"hidden_size": None}, "the model config has no width: expected hidden_size"),
    ],
)
def test_configs_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    assert mssp.Shape.from_config(SIZES) == TARGET
    with pytest.raises(ValueError, match=re.escape(message)):
        mssp.Shape.from_config({**SIZES, **changes})
    model = model_of(config_of("deepseek_v3", TARGET))
    with refused(model, message):
        mssp.hf.adapt(model, base={**SIZES, **changes})


@pytest.mark.parametrize(
    ("family", "base", "message"),
    [
        ("olmoe", config_of("mixtral", BASE), "base and target must be of one architecture"),
        ("mixtral", config_of("gpt_oss", BASE), "the base is a gpt_oss, the model a mixtral: base and target must be"),
        ("mixtral", config_of("olmoe", BASE).to_dict(), "the base is a olmoe, the model a mixtral"),
        ("deepseek_v3", config_of("deepseek_v3", BASE, q_lora_rank=None), "the base has no model.layers.*.self_attn."),
        (
            "olmoe",
            7,
            "base must be the config of a model, as an object, a mapping, or the path of its file or folder, got 7",
        ),
        ("olmoe", "nowhere", "nowhere: there is no such file"),
    ],
)
def test_bases_of_another_architecture(family: str, base: Any, message: str) -> None:
    model = model_of(config_of(family, TARGET))
    with refused(model, message):
        mssp.hf.adapt(model, base=base)


# -- plans ------------------------------------------------------------------------------------------------------------


def test_plans_for_another_model() -> None:
    model = olmoe()
    wider = mssp.Shape(width=256, expert_width=96, experts=8, active=4, depth=3)
    with refused(model, "the plan is for another model"):
        mssp.hf.adapt(model, base=OLMOE_BASE, plan=plan_of(wider))
    more = mssp.Shape(width=128, expert_width=96, experts=16, active=8, depth=3)
    with refused(model, "its target is Shape(N=128, N_e=96, M=16, K=8, L=3, D=1), the model is Shape(N=128,"):
        mssp.hf.adapt(model, base=OLMOE_BASE, plan=plan_of(more))
    mssp.hf.adapt(model, base=OLMOE_BASE)
    for plan in (plan_of(wider), plan_of(more)):
        for use in (mssp.initialize, mssp.param_groups):
            with refused(model, "the plan is for another model"):
                use(model, plan)


def test_plans_for_another_depth_or_number_of_active_experts() -> None:
    """Which no parameter shows: the config does, when the model is adapted and when the plan is put on it."""
    deeper = mssp.Shape(width=128, expert_width=96, experts=8, active=4, depth=6)
    with pytest.warns(PlanWarning, match="the active share K/M changes"):
        all_active = plan_of(mssp.Shape(width=128, expert_width=96, experts=8, active=8, depth=3))
    for plan in (plan_of(deeper), all_active):
        model = olmoe()
        with refused(model, "the plan is for another model: its target is"):
            mssp.hf.adapt(model, base=OLMOE_BASE, plan=plan)
        mssp.hf.adapt(model, base=OLMOE_BASE)
        with refused(model, "the plan is for another model: its target is"):
            initialized(model, plan)


def test_bases_that_are_not_the_plans() -> None:
    model = olmoe()
    other = config_of("olmoe", mssp.Shape(width=64, expert_width=32, experts=4, active=2, depth=3))
    with refused(model, "the plan's base is Shape(N=64, N_e=32, M=4, K=2, L=2, D=1)"):
        mssp.hf.adapt(model, base=other, plan=plan_of())
