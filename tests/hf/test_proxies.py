"""Proxies: small models for the targets of released pairs, their sizes, their counts, and the ladders above them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import mssp
from mssp.hf import proxy
from mssp.hf.meta import config_of, on_meta
from mssp.planning.growth import Growth
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.shape import Shape
from tests.hf.tiny_models import FAMILIES
from tests.hf.tiny_models import config_of as tiny_config

PAIRS = Path(__file__).parent / "pairs"
OLMOE = {
    "model_type": "olmoe", "hidden_size": 256, "intermediate_size": 64, "num_experts": 16, "num_experts_per_tok": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 6, "vocab_size": 128,
}  # fmt: skip


def target_of(pair: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((PAIRS / pair / "target.json").read_text(encoding="utf-8"))
    return content


def sizes(shape: Shape) -> tuple[int, ...]:
    return shape.width, shape.expert_width, shape.experts, shape.active, shape.depth


# -- the targets of the six pairs --------------------------------------------------------------------------------------

# With as many experts a model of more than two billion parameters gets fewer. Experts are in eight groups in DeepSeek.
AT_512 = {
    "qwen3-235b": ((512, 192, 16, 8, 94), 1.0),
    "mixtral-8x22b": ((512, 1344, 8, 2, 56), 16384 / 1344 / 12),
    "gpt-oss-120b": ((512, 512, 24, 4, 36), 1.0),
    "deepseek-v2": ((512, 152, 16, 6, 60), 1536 / 152 / 10),
    "glm-4.5": ((512, 152, 16, 8, 92), 1536 / 152 / 10),
    "deepseek-v3": ((512, 144, 16, 8, 61), 2048 / 144 / 14),
}


@pytest.mark.parametrize("pair", AT_512)
def test_the_proxy_of_a_released_model_grows_to_it(pair: str) -> None:
    large = target_of(pair)
    found = proxy(large, 512)
    shape, kappa = AT_512[pair]
    assert sizes(found.chosen.shape) == shape
    assert found.chosen.growth.kappa == pytest.approx(kappa)
    assert abs(math.log(found.chosen.growth.kappa)) < math.log(1.05)
    assert (found.notes, found.chosen.stability) == ([], "stable")
    small = on_meta(config_of(found.config))
    assert found.chosen.parameters == sum(each.numel() for each in small.parameters())
    with without_plan_warnings():
        plan = mssp.hf.plan(large, found.config, lr=1e-3)
        named = mssp.hf.by_name(plan, large, found.config)
    assert plan.base is not None
    assert sizes(plan.base) == shape
    assert not [warning for warning in plan.warnings if "the theory holds it fixed" in warning]
    assert {parameter.info.role for parameter in named.parameters} >= {"router", "expert_in", "expert_out", "hidden"}


def test_heads_ranks_and_dense_layers_are_in_proportion() -> None:
    """DeepSeek-V3 over 14: 128 heads, ranks 1536 and 512, dense layers of 18432; groups and dense layers stay."""
    config = proxy(target_of("deepseek-v3"), 512).config
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 9)
    assert (config["q_lora_rank"], config["kv_lora_rank"], config["intermediate_size"]) == (108, 36, 1312)
    kept = ("qk_nope_head_dim", "v_head_dim", "n_group", "topk_group", "n_shared_experts", "first_k_dense_replace")
    assert [config[key] for key in kept] == [128, 128, 8, 4, 1, 3]
    assert config["vocab_size"] == 129280


def test_key_heads_divide_the_heads_and_there_is_at_least_one() -> None:
    """GPT-OSS over 5.625: of 64 heads 11 and a bit, of 8 key heads one and a bit. Qwen3-235B over 4: of 64 and 4."""
    assert proxy(target_of("gpt-oss-120b"), 512).config["num_attention_heads"] == 11
    assert proxy(target_of("gpt-oss-120b"), 512).config["num_key_value_heads"] == 1
    config = proxy(target_of("qwen3-235b"), 1024).config
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (16, 1, 128)


def test_heads_divide_the_width_where_a_family_asks_for_it() -> None:
    """DeepSeek-V2 over 10 has 12.8 heads, and takes divisors of 512 alone."""
    assert proxy(target_of("deepseek-v2"), 512).config["num_attention_heads"] == 16


def test_value_heads_of_linear_attention_stay_a_multiple_of_its_key_heads() -> None:
    config = proxy(target_of("qwen3.5-397b"), 512).config
    assert (config["linear_num_value_heads"], config["linear_num_key_heads"]) == (8, 2)
    assert (config["shared_expert_intermediate_size"], config["linear_key_head_dim"]) == (128, 128)


def test_heads_that_share_out_the_width_need_whole_ones() -> None:
    with pytest.raises(ValueError, match="width must be a multiple of the size of a head, 128, got 500"):
        proxy(target_of("mixtral-8x22b"), 500)


# -- alternatives ------------------------------------------------------------------------------------------------------


def qwen3_parameters(shape: Shape, heads: int, key_heads: int) -> tuple[int, int]:
    """All and the active parameters of a Qwen3-MoE, by hand: heads of 128, a vocabulary of 151,936, untied."""
    width = shape.width
    attention = 2 * width * 128 * heads + 2 * width * 128 * key_heads + 2 * 128
    expert = 3 * width * shape.expert_width
    layer = attention + 2 * width + shape.experts * width + shape.experts * expert
    total = shape.depth * layer + 2 * 151936 * width + width
    return total, total - shape.depth * (shape.experts - shape.active) * expert


# N_e, M, K, the regime and κ, in the order of the table, at widths where two active experts are left and not.
OF_QWEN3 = {
    512: [
        (192, 128, 8, "I", 1.0, "stable"),
        (1536, 32, 2, "any", 0.5, "unstable: κ^-1/2 = 1.4"),
        (192, 32, 2, "any", 4.0, "unstable: κ^1/2 = 2"),
        (192, 16, 8, "any", 1.0, "stable"),
        (1536, 128, 8, "any", 0.125, "unstable: κ^-1/2 = 2.8"),
    ],
    1024: [
        (384, 128, 8, "I", 1.0, "stable"),
        (1536, 32, 2, "II", 1.0, "stable"),
        (384, 32, 2, "III", 4.0, "stable: tied"),
        (384, 32, 8, "any", 1.0, "stable"),
        (1536, 128, 8, "any", 0.25, "unstable: κ^-1/2 = 2"),
    ],
}


@pytest.mark.parametrize("width", OF_QWEN3)
def test_alternatives_are_counted_and_judged(width: int) -> None:
    found = proxy(target_of("qwen3-235b"), width)
    rows = [
        (each.shape.expert_width, each.shape.experts, each.shape.active, str(each.growth.regime), each.growth.kappa)
        for each in found.alternatives
    ]
    assert [(*row, each.stability) for row, each in zip(rows, found.alternatives, strict=True)] == OF_QWEN3[width]
    assert (found.parameters, found.active_parameters) == qwen3_parameters(found.target, 64, 4)
    for each in found.alternatives:
        counted = qwen3_parameters(each.shape, width // 64, 1)
        assert (each.parameters, each.active_parameters) == counted
        assert each.cost == counted[1] / found.active_parameters


def test_what_is_left_of_a_share_is_said() -> None:
    """K of 4 over 5.625: two active experts, of which κ is 2 in Regime III's growth. They share 1/3 of their start."""
    third = proxy(target_of("gpt-oss-120b"), 512).alternatives[2]
    assert (sizes(third.shape), third.stability) == ((512, 512, 64, 2, 36), "stable: share 0.33")


@pytest.mark.parametrize(
    ("regime", "shape"),
    [("I", (1024, 384, 128, 8)), ("II", (1024, 1536, 32, 2)), ("III", (1024, 384, 32, 2)), ("any", (1024, 384, 32, 8))],
)
def test_a_regime_chooses(regime: str, shape: tuple[int, ...]) -> None:
    found = proxy(target_of("qwen3-235b"), 1024, regime=regime)
    assert sizes(found.chosen.shape)[:4] == shape
    assert str(found.chosen.growth.regime) == regime


def test_a_regime_that_leaves_one_expert_to_choose_is_refused() -> None:
    message = (
        "regime II divides the width and the 8 active experts by one number: at a width of 512 there would be 1 of "
        "them, where two are the fewest that a router chooses between; a width of 1024 or 1536 or 2048 or 2560 has a"
    )
    with pytest.raises(ValueError, match=message):
        proxy(target_of("qwen3-235b"), 512, regime="II")


def test_small_models_keep_their_experts_and_large_ones_get_fewer() -> None:
    """At a depth of four layers the proxy of Qwen3-235B has 0.3 billion parameters, at 94 it would have 3.8."""
    assert sizes(proxy(target_of("qwen3-235b"), 512, depth=4).chosen.shape) == (512, 192, 128, 8, 4)
    assert sizes(proxy(target_of("qwen3-235b"), 512).chosen.shape) == (512, 192, 16, 8, 94)


def test_a_number_of_experts_can_be_asked_for() -> None:
    """32 of 128: eight active ones of 1536/8, or two, of 1536/2 where κ is 1."""
    found = proxy(target_of("qwen3-235b"), 512, experts=32)
    assert [sizes(each.shape)[1:4] for each in found.alternatives] == [
        (192, 32, 8), (768, 32, 2), (1536, 32, 2), (192, 32, 2),
    ]  # fmt: skip
    assert [each.growth.kappa for each in found.alternatives] == [1, 1, 0.5, 4]
    assert sizes(found.chosen.shape)[1:4] == (192, 32, 8)


def test_a_kappa_far_from_one_is_explained() -> None:
    small = OLMOE | {"intermediate_size": 24, "hidden_size": 4096, "num_attention_heads": 64, "head_dim": 64}
    found = proxy(small, 256)  # 24 units over 16 are 1.5
    assert found.chosen.growth.kappa == 0.75
    assert found.notes == [
        "κ is 0.75: with 4 active experts it is 1 at an expert width of 1.5, and this growth has 2",
    ]
    assert str(found).endswith(found.notes[0])


# -- ladders -----------------------------------------------------------------------------------------------------------


def test_rungs_stand_between_the_proxy_and_the_target() -> None:
    """Widths 512, 1024, 2048 below 4096; experts grow with them."""
    found = proxy(target_of("qwen3-235b"), 512, rungs=3)
    assert [sizes(each.shape) for each in found.rungs] == [
        (512, 192, 16, 8, 94), (1024, 384, 32, 8, 94), (2048, 768, 64, 8, 94),
    ]  # fmt: skip
    assert found.rungs[0] is found.chosen
    assert "The ladder from the chosen one to the target" in str(found)
    for before, after in zip(found.rungs, [*found.rungs[1:]], strict=False):
        assert Growth(before.shape, after.shape).kappa == 1
        with without_plan_warnings():
            mssp.hf.by_name(mssp.hf.plan(after.config, before.config, lr=1e-3), after.config, before.config)


def test_a_ladder_of_regime_two_has_whole_numbers_of_active_experts() -> None:
    """Widths are those where K is whole: between 2 and 8 these are 3 and 5, of 1024 to 4096."""
    found = proxy(target_of("qwen3-235b"), 1024, regime="II", rungs=3)
    assert [sizes(each.shape)[:4] for each in found.rungs] == [
        (1024, 1536, 32, 2), (1536, 1536, 48, 3), (2560, 1536, 80, 5),
    ]  # fmt: skip
    assert {str(each.growth.regime) for each in found.rungs} == {"II"}


def test_a_ladder_in_depth() -> None:
    found = proxy(target_of("deepseek-v3"), 896, depth=8, rungs=3)
    assert [each.shape.depth for each in found.rungs] == [8, 16, 31]
    assert [each.config["first_k_dense_replace"] for each in found.rungs] == [3, 3, 3]


def test_a_ladder_needs_room() -> None:
    with pytest.raises(
        ValueError, match="rungs: from a width of 128 to one of 256 there is no room for 9 models whose"
    ):
        proxy(OLMOE, 128, rungs=9)


# -- configs -----------------------------------------------------------------------------------------------------------


# Their first blocks alone have not all kinds of blocks, or refer to blocks that come later.
OF_WHOLE_DEPTH = ("nemotron_h", "mistral_large4_text")


@pytest.mark.parametrize("family", [*FAMILIES])
def test_a_proxy_of_every_family_is_a_model_of_it(family: str) -> None:
    """Half of the width and of the depth; plans by name need the same parts in both, with sizes that can be told."""
    large = tiny_config(family, Shape(128, 96, 8, 4, 4))
    found = proxy(large, 64, depth=None if family in OF_WHOLE_DEPTH else 2)
    assert found.chosen.growth.kappa == 1
    assert found.config["model_type"] == family
    with without_plan_warnings():
        plan = mssp.hf.plan(large, found.config, lr=1e-3)
        assert mssp.hf.by_name(plan, large, found.config).parameters


def test_a_key_stands_in_the_config_under_the_name_that_it_had() -> None:
    """Qwen3-MoE says num_experts, which the class knows as num_local_experts."""
    config = proxy(target_of("qwen3-235b"), 512).config
    assert (config["num_experts"], "num_local_experts" in config) == (16, False)


def test_what_is_of_the_large_model_alone_is_left_out() -> None:
    large = OLMOE | {"_name_or_path": "a/b", "auto_map": {}, "quantization_config": {}, "torch_dtype": "bfloat16"}
    assert proxy(large, 128).config == {
        "model_type": "olmoe", "hidden_size": 128, "intermediate_size": 32, "num_experts": 16, "num_experts_per_tok": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 6, "vocab_size": 128,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def test_of_a_multimodal_model_the_proxy_is_of_its_text_part() -> None:
    found = proxy({"model_type": "some_vision_model", "text_config": OLMOE}, 128)
    assert found.config["model_type"] == "olmoe"


def test_kinds_of_layers_are_those_of_the_first_or_of_layers_far_apart() -> None:
    full = ["linear_attention"] * 3 + ["full_attention"]
    large = target_of("qwen3.5-397b")
    assert proxy(large, 512, depth=8).config["layer_types"] == full * 2
    # The first three of sixty would all be linear; of the layers 0, 30 and 59 the last one is full.
    assert proxy(large, 512, depth=3).config["layer_types"] == [*full[:2], "full_attention"]


def test_heads_of_single_layers_are_divided_as_those_of_all_layers_are() -> None:
    """A deeper part keeps the layers that its kinds of layers are of."""
    kinds = ["full_attention", "sliding_attention"]
    large = tiny_config(
        "step3p5", Shape(128, 96, 8, 4, 4), layer_types=kinds * 2, swiglu_limits=None
    ).text_config.to_dict()
    assert large["per_layer_config"] == {"1": {"num_attention_heads": 12}, "3": {"num_attention_heads": 12}}
    small, shallow = proxy(large, 64).config, proxy(large, 64, depth=2).config
    assert small["per_layer_config"] == {1: {"num_attention_heads": 6}, 3: {"num_attention_heads": 6}}
    assert (small["num_attention_heads"], shallow["layer_types"]) == (4, kinds)
    assert shallow["per_layer_config"] == {1: {"num_attention_heads": 6}}


def test_half_of_the_layers_have_experts() -> None:
    large = target_of("deepseek-v3")
    found = [proxy(large, 512, depth=depth).config["first_k_dense_replace"] for depth in (6, 5, 2, 1)]
    assert found == [3, 1, 1, 0]


def test_heads_beyond_all_models_are_refused() -> None:
    large = target_of("qwen3-235b") | {"num_attention_heads": 2**40, "num_key_value_heads": 4}
    with pytest.raises(ValueError, match="num_attention_heads must be at most 65,536 for a proxy, got 1099511627776"):
        proxy(large, 512)


def test_dense_models_have_one_proxy() -> None:
    llama = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    found = proxy(llama, 512, rungs=3)
    assert [(each.shape.width, each.config["intermediate_size"]) for each in found.rungs] == [
        (512, 1792), (1024, 3584), (2048, 7168),
    ]  # fmt: skip
    assert (found.config["num_attention_heads"], found.config["num_key_value_heads"]) == (4, 1)
    assert [each.stability for each in found.alternatives] == ["stable"]
    assert found.active_parameters == found.parameters == 8030261248


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 512}, "width must be at most that of the large model, 256, got 512"),
        ({"width": 128, "depth": 7}, "depth must be at most that of the large model, 6, got 7"),
        ({"width": 128, "experts": 17}, "experts must be at most that of the large model, 16, got 17"),
        ({"width": 128, "experts": 1}, "experts must be 2 or more for a router to choose between, got 1"),
    ],
)
def test_small_models_are_smaller(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        proxy(OLMOE, **settings)


# -- the Hub -----------------------------------------------------------------------------------------------------------


def test_a_name_on_the_hub_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def downloaded(name: str, file: str) -> str:
        asked.append((name, file))
        (tmp_path / file).write_text(json.dumps(OLMOE), encoding="utf-8")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    assert proxy("somebody/some-model", 128).chosen.shape.width == 128
    assert asked == [("somebody/some-model", "config.json")]


def test_without_a_network_a_config_of_the_cache_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(OLMOE), encoding="utf-8")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, which: str(file))
    assert proxy("somebody/some-model", 128).chosen.shape.width == 128


def test_without_a_network_one_line_says_so() -> None:
    with pytest.raises(
        ValueError, match="somebody/some-model is no path here, and the Hub does not give its"
    ) as raised:
        proxy("somebody/some-model", 128)
    assert "offline" in str(raised.value)
    assert "\n" not in str(raised.value)
