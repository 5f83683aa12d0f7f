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


def test_sides_that_the_optimizer_does_not_read_may_be_unknown() -> None:
    """The base has no block of full attention with experts: how many key heads it would have is not known."""
    layers = {"layer_types": [FULL, SLIDING, FULL], "mlp_layer_types": [DENSE, SPARSE, SPARSE]}
    model = model_of(config_of("mimo_v2_flash", TARGET, **layers))
    mssp.hf.adapt(model, base=config_of("mimo_v2_flash", BASE))
    name = "model.layers.2.self_attn.k_proj.weight"
    [info] = [info for info in mssp.describe(model) if info.name == name]
    assert (info.base_fan_in, info.base_fan_out) == (64, None)
    assert plan_of().resolve(mssp.describe(model))[name].lr == pytest.approx(5e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        sgd = plan_of(optimizer="sgd", weight_decay=0.0)
    with pytest.raises(
        ValueError, match=re.escape(f"'{name}' has fan_out 64, and neither the plan nor the model says")
    ):
        sgd.resolve(mssp.describe(model))
