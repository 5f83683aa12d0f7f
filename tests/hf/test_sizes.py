"""The sizes in configs of all Mixture-of-Experts families of transformers, against the models built from them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mssp.hf.meta import on_meta
from mssp.planning.configs import sizes_of

# What the defaults of a family lack, so that it has experts, or can be built at all.
NEEDED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "gemma4_text": {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_moe": {"num_experts": 64, "moe_topk": [8] * 32, "intermediate_size": 3072, "head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
STACK = ".experts.down_proj"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without what transformers says of tokens that a family's own defaults contradict."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    yield
    transformers.logging.set_verbosity(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("quiet")
def test_sizes_are_those_of_the_experts_of_every_family() -> None:
    found: dict[str, tuple[int, ...]] = {}
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = CONFIG_MAPPING[family](**NEEDED.get(family, {}))
            is_sparse = any("expert" in key for key in config.to_dict())
            parameters = dict(on_meta(config).named_parameters()) if is_sparse else {}
        except Exception:  # a family's own defaults may contradict each other, which raises errors of many kinds
            continue
        stacks = {tuple(each.shape) for name, each in parameters.items() if name.endswith(STACK) and each.ndim == 3}
        if not stacks:
            continue
        sizes = sizes_of(config)
        [(experts, *sides)] = stacks
        expected = (sizes["experts"], *sorted((sizes["width"], sizes["expert_width"])))
        assert (experts, *sorted(sides)) == expected, family
        found[family] = (sizes["width"], sizes["expert_width"], sizes["experts"], sizes["active"], sizes["depth"])
    assert len(found) > 45
    assert found["longcat_flash"] == (6144, 2048, 512, 12, 28)
    assert found["nemotron_h"] == (4096, 7688, 8, 2, 4)  # its config lists its blocks, and does not count them
    assert found["gemma4_text"] == (2304, 704, 128, 8, 30)
    assert found["hunyuan_v1_moe"] == (4096, 3072, 64, 8, 32)


def test_a_list_for_all_layers_is_one_size_or_none() -> None:
    config = {"hidden_size": 64, "moe_intermediate_size": [32, 32], "num_experts": 8, "num_hidden_layers": 2}
    assert sizes_of(config | {"moe_topk": [2, 2], "num_experts_per_tok": 2})["active"] == 2
    with pytest.raises(ValueError, match=r"moe_topk must be a positive whole number, got \[2, 4\]"):
        sizes_of(config | {"moe_topk": [2, 4]})
    with pytest.raises(ValueError, match=r"contradicts itself: num_experts_per_tok is 4, moe_topk is \[2, 2\]"):
        sizes_of(config | {"moe_topk": [2, 2], "num_experts_per_tok": 4})
