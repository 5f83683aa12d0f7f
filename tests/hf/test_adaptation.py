"""What an adapted model holds on to: its base, its ties, its plan; and what a probe of its modules depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

import mssp
from mssp.hf.meta import on_meta
from mssp.hf.probing import Gates, gates_of
from tests.hf.tiny_models import BASE, TARGET, config_of, logits, model_of, plan_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:experts start alike:mssp.PlanWarning", "ignore:without mssp this checkpoint:mssp.PlanWarning"
)


def test_a_plan_from_another_base_is_refused() -> None:
    model = model_of(config_of("olmoe", TARGET))
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    elsewhere = mssp.plan(TARGET, mssp.Shape(32, 32, 4, 2, 2), regime="III", lr=1e-3)
    with pytest.raises(ValueError, match=r"the base config is Shape\(N=64.*the plan's base is Shape\(N=32"):
        mssp.initialize(model, elsewhere)


@pytest.mark.parametrize("change", [{"num_hidden_layers": 9}, {"num_experts_per_tok": 3}])
def test_a_table_for_another_model_is_refused(change: dict[str, Any]) -> None:
    target, base = (config_of("olmoe", shape).to_dict() for shape in (TARGET, BASE))
    with pytest.raises(ValueError, match="the plan is for another model"):
        mssp.hf.by_name(plan_of(), target | change, base)
    with pytest.raises(ValueError, match="they must be the same model"):
        mssp.hf.by_name(plan_of(), target, base | {"hidden_size": 32})


def test_the_table_leaves_configs_alone() -> None:
    target, base = (config_of("olmoe", shape) for shape in (TARGET, BASE))
    before = target.to_dict()
    mssp.hf.by_name(plan_of(), target, base)
    assert target.to_dict() == before


@pytest.mark.parametrize(("dtype", "share"), [(torch.bfloat16, "0.0039"), (torch.float16, "0.00049")])
def test_parameters_in_half_precision_are_warned_of(dtype: torch.dtype, share: str) -> None:
    model = AutoModelForCausalLM.from_config(config_of("olmoe", TARGET), dtype=dtype)
    said = rf"parameters in {str(dtype)[6:]}, as model\.embed_tokens\.weight: an update of less than {share} of"
    with pytest.warns(mssp.PlanWarning, match=said):
        mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))  # nothing is trained


# -- ties -------------------------------------------------------------------------------------------------------------


def tied_model(device: str = "cpu") -> nn.Module:
    config = config_of("olmoe", TARGET)
    config.tie_word_embeddings = True
    return on_meta(config) if device == "meta" else model_of(config)


def test_a_readout_that_is_no_longer_tied_is_noticed() -> None:
    model = tied_model("meta")
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    model.to_empty(device="cpu")  # which makes two parameters of one
    with pytest.raises(ValueError, match=r"was tied to the embedding when .* and is not now: call model.tie_weights"):
        mssp.initialize(model, plan_of(init_std=0.02))
    model.tie_weights()  # type: ignore[operator]
    mssp.initialize(model, plan_of(init_std=0.02))
    assert model.get_submodule("lm_head").mssp_factor == 0.5


def test_a_tied_readout_is_said_to_be_scaled_once() -> None:
    model = tied_model()
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    mssp.initialize(model, plan_of(init_std=0.02))  # no word of scaling: the model does it, and warnings are errors
    with pytest.warns(mssp.PlanWarning, match=r"logits start at the order of √N: say init_std of embedding"):
        mssp.initialize(model, plan_of(init_std={"hidden": 0.02}))


@pytest.mark.parametrize("family", ["olmoe", "ernie4_5_moe"])  # one with a readout of its own, one with a tied one
def test_the_row_of_padding_stays_zero(family: str) -> None:
    model: Any = model_of(config_of(family, TARGET, pad_token_id=5))
    mssp.hf.adapt(model, base=config_of(family, BASE))
    mssp.initialize(model, plan_of(readout="mup"))
    weight = model.get_input_embeddings().weight
    assert [row for row in range(len(weight)) if not weight[row].any()] == [5]


# -- the plan in the config -------------------------------------------------------------------------------------------


def test_an_initialized_model_keeps_its_plan(tmp_path: Path) -> None:
    model = model_of(config_of("dots1", TARGET))
    mssp.hf.adapt(model, base=config_of("dots1", BASE))
    mssp.initialize(model, plan_of(readout="mup"))
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    read = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    mssp.hf.adapt(read)
    assert torch.equal(logits(read), logits(model))


def test_a_later_plan_replaces_the_kept_one() -> None:
    model: Any = model_of(config_of("dots1", TARGET))
    mssp.hf.adapt(model, base=config_of("dots1", BASE), plan=plan_of())
    mssp.initialize(model, plan_of(aggregation_mult=3.0))
    assert model.config.mssp["plan"]["aggregation_mult"] == 3.0
    mssp.hf.adapt(model, base=config_of("dots1", BASE))  # the base of the kept plan
    assert model.config.mssp["plan"]["aggregation_mult"] == 3.0
    mssp.hf.release(model)
    mssp.hf.adapt(model, base=config_of("dots1", BASE))
    assert not hasattr(model.config, "mssp")


def test_what_is_no_plan() -> None:
    with pytest.raises(ValueError, match=r"plan must be what mssp\.plan returns, got '"):
        mssp.hf.adapt(model_of(config_of("olmoe", TARGET)), plan=plan_of().json())  # type: ignore[arg-type]


def test_gates_of_a_wide_router_are_seen_too() -> None:
    """Whose inputs and weights must not be the same numbers: every token would be sure of one expert."""
    sizes = {"hidden_size": 2048, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False}
    router = OlmoeTopKRouter(CONFIG_MAPPING["olmoe"](**sizes))
    assert gates_of(router, 2048, 64, "router") == Gates("softmax", "softmax", 8)


def test_gates_are_not_what_somebody_says() -> None:
    model = model_of(config_of("mixtral", TARGET))
    with pytest.raises(ValueError, match=r"makes renormalised gates, which running it shows: leave out gate 'sigmoid'"):
        mssp.hf.adapt(model, gate="sigmoid")


# -- modules are run whatever is set around them ----------------------------------------------------------------------


def test_memory_is_asked_for_on_the_meta_device() -> None:
    model = on_meta(config_of("qwen3_next", TARGET))
    mssp.hf.adapt(model, base=config_of("qwen3_next", BASE))
    with pytest.raises(ValueError, match=r"to_empty\(device=...\) first, tie again what is tied$"):
        mssp.initialize(model, plan_of())


# -- structures that are not known ------------------------------------------------------------------------------------


def test_an_unknown_part_of_a_block_allows_no_residual_factor() -> None:
    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    model: Any = model_of(config_of("olmoe", TARGET))
    for block in model.model.layers:
        block.extra = Extra()  # frozen, so that it needs no role; what it writes to nobody knows
    mssp.hf.adapt(model, base=config_of("olmoe", BASE))
    with pytest.raises(ValueError, match="which modules of a block write to the residual stream is not known"):
        mssp.initialize(model, plan_of())


def test_norms_over_a_single_key_head_are_those_of_the_queries() -> None:
    config = config_of("olmoe", TARGET)
    config.num_key_value_heads = 1  # its norm is as large as a head
    model = model_of(config)
    mssp.hf.adapt(model)
    roles = {info.name.rpartition("self_attn.")[2]: info.role for info in mssp.describe(model)}
    assert (roles["q_norm.weight"], roles["k_norm.weight"]) == ("norm", "norm")


def test_blocks_are_compared_with_the_base_s_own() -> None:
    sizes = {
        "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 16, "v_head_dim": 16, "vocab_size": 64, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    config = CONFIG_MAPPING["mimo_v2_flash"]  # whose later blocks have more key heads than the first
    model = on_meta(config(**(sizes | {"num_key_value_heads": 4})))
    mssp.hf.adapt(model, base=config(**sizes))
    sides = {info.name: (info.base_fan_out, info.fan_out) for info in mssp.describe(model)}
    found = [sides[f"model.layers.{block}.self_attn.k_proj.weight"] for block in range(3)]
    assert found == [(32, 64), (64, 128), (64, 128)]
    deeper = on_meta(config(**(sizes | {"num_hidden_layers": 5})))
    mssp.hf.adapt(deeper, base=config(**sizes))
    sides = {info.name: (info.base_fan_out, info.fan_out) for info in mssp.describe(deeper)}
    found = [sides[f"model.layers.{block}.self_attn.k_proj.weight"] for block in range(5)]
    assert found == [(32, 32), *[(64, 64)] * 4]  # those that the base lacks are like its later ones
