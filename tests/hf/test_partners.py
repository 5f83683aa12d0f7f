"""Which block of the base a block is compared with, where blocks are of several kinds that have sizes of their own."""

from __future__ import annotations

import re
import warnings

import pytest

import mssp
import mssp.hf
from mssp.planning.recipe import PlanWarning
from tests.hf.tiny_models import BASE, TARGET, config_of, model_of, plan_of

FULL, SLIDING, DENSE, SPARSE = "full_attention", "sliding_attention", "dense", "sparse"
# Eight key heads in sliding attention, of the size of the base's width; half as many as queries' in full attention.
BASE_KEYS = {FULL: 32, SLIDING: 64}


def fans_of_keys(*layers: str, mlps: tuple[str, ...] = (DENSE, SPARSE, SPARSE)) -> list[tuple[int | None, int | None]]:
    """The sides at the base of every block's matrix of keys; the base has full attention, then sliding."""
    model = model_of(config_of("mimo_v2_flash", TARGET, layer_types=list(layers), mlp_layer_types=list(mlps)))
    mssp.hf.adapt(model, base=config_of("mimo_v2_flash", BASE))
    infos = {info.name: info for info in mssp.describe(model)}
    names = [f"model.layers.{block}.self_attn.k_proj.weight" for block in range(TARGET.depth)]
    return [(infos[name].base_fan_in, infos[name].base_fan_out) for name in names]


def test_blocks_are_compared_with_blocks_of_their_kind() -> None:
    full, sliding = (64, BASE_KEYS[FULL]), (64, BASE_KEYS[SLIDING])
    assert fans_of_keys(FULL, SLIDING, SLIDING) == [full, sliding, sliding]
    # The base's second block is one of sliding attention, and the first block of full attention is dense there.
    assert fans_of_keys(FULL, FULL, SLIDING, mlps=(DENSE, DENSE, SPARSE)) == [full, full, sliding]


def test_modules_of_one_name_are_told_apart_by_their_parameters() -> None:
    """The base has no block of full attention with experts; only sliding attention has sinks, so its keys are known."""
    assert fans_of_keys(FULL, SLIDING, FULL)[2] == (64, BASE_KEYS[FULL])


def test_sides_that_the_optimizer_does_not_read_may_be_unknown() -> None:
    """The base has no block of sliding attention with experts, and its blocks have different numbers of heads."""
    layers = {"layer_types": [SLIDING, SLIDING, FULL], "mlp_layer_types": [DENSE, SPARSE, SPARSE]}
    base_layers = {"layer_types": [SLIDING, FULL], "num_attention_heads_per_layer": [4, 2]}
    model = model_of(config_of("laguna", TARGET, **layers))
    mssp.hf.adapt(model, base=config_of("laguna", BASE, **base_layers))
    name = "model.layers.1.self_attn.q_proj.weight"
    [info] = [info for info in mssp.describe(model) if info.name == name]
    assert (info.base_fan_in, info.base_fan_out) == (64, None)
    assert plan_of().resolve([info])[name].lr == pytest.approx(5e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        sgd = plan_of(optimizer="sgd", weight_decay=0.0)
    with pytest.raises(
        ValueError, match=re.escape(f"'{name}' has fan_out 128, and neither the plan nor the model says")
    ):
        sgd.resolve([info])
