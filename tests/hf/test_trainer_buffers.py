"""Buffers in the Trainer under a plan: what routers keep beside their weights comes back with a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    TrainerCallback,
)
from transformers.conversion_mapping import (
    WeightRenaming,
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

import mssp
import mssp.hf
from mssp.hf.trainer import samples_of, unread_tensors
from tests.hf import tiny_models
from tests.hf.test_trainer import BASE, TARGET, plan, resuming, trainer_for
from tests.hf.tiny_models import initialized, model_of

pytestmark = pytest.mark.filterwarnings("ignore:without mssp this checkpoint:mssp.PlanWarning")


class WithMemoryConfig(OlmoeConfig):  # type: ignore[misc]
    model_type = "olmoe_with_memory"


class WithMemory(OlmoeForCausalLM):  # type: ignore[misc]
    """A model of nobody's, whose memory of loads has another name on disk, and one that checkpoints do not have."""

    config_class = WithMemoryConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for block in self.model.layers:
            block.mlp.gate.seen_loads = nn.Buffer(torch.zeros(config.num_experts))
            block.mlp.gate.last_loads = nn.Buffer(torch.zeros(config.num_experts), persistent=False)


@pytest.fixture(scope="module")
def _with_memory() -> Iterator[None]:
    family = WithMemoryConfig.model_type
    AutoConfig.register(family, WithMemoryConfig)
    AutoModelForCausalLM.register(WithMemoryConfig, WithMemory)
    renamed = WeightRenaming("mlp.loads_seen", "mlp.gate.seen_loads")
    register_checkpoint_conversion_mapping(family, [*(get_checkpoint_conversion_mapping("olmoe") or []), renamed])
    yield
    del CONFIG_MAPPING._extra_content[family], AutoModelForCausalLM._model_mapping._extra_content[WithMemoryConfig]


def config_of(family: str, shape: mssp.Shape) -> Any:
    if family == WithMemoryConfig.model_type:
        return WithMemoryConfig(**tiny_models.config_of("olmoe", shape).to_dict() | {"model_type": family})
    # All layers have experts, also in a model of one.
    layers = {"mlp_layer_types": ["sparse"] * shape.depth} if family in ("hy_v3", "exaone_moe") else {}
    if family == "exaone_moe":
        sizes = {"num_experts": shape.experts, "moe_intermediate_size": shape.expert_width, "sliding_window": 8}
        return CONFIG_MAPPING[family](**tiny_models.usual_sizes(shape), **sizes, **layers, first_k_dense_replace=0)
    return tiny_models.config_of(family, shape, **layers)


@cache
def _adapted(family: str) -> nn.Module:
    model = model_of(config_of(family, TARGET))
    mssp.hf.adapt(model, base=config_of(family, BASE))
    return model


def model_for(chosen: mssp.Plan, family: str) -> nn.Module:
    return initialized(copy.deepcopy(_adapted(family)), chosen)


def corrections(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What routers add to their scores, or remember of their loads."""
    for name, buffer in model.named_buffers():
        if "correction" in name or "seen_loads" in name:
            yield name, buffer


class Balancing(TrainerCallback):  # type: ignore[misc]
    """Moves one entry of every correction by .125 after each step, as those who balance loads without a loss do."""

    def on_step_end(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        for _, buffer in corrections(model):
            buffer[-1] += 0.125


every_family = pytest.mark.parametrize("family", ["minimax_m2", "exaone_moe", "hy_v3", WithMemoryConfig.model_type])


@every_family
@pytest.mark.usefixtures("_with_memory")
def test_corrections_of_routers_come_back(tmp_path: Path, family: str) -> None:
    chosen = plan()
    callbacks = [mssp.hf.PlanCallback(chosen), Balancing()]
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "callbacks": callbacks}
    trainer_for(tmp_path, chosen, model=model_for(chosen, family), **saving).train()
    found: list[float] = []

    class Witness(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
            found.extend(float(buffer[-1]) for _, buffer in corrections(model) if not found[2:])

    second = resuming(tmp_path, chosen, model=model_for(chosen, family))
    second.add_callback(Witness())
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert found[:2] == [0.25, 0.25]  # two steps in each of two layers


@every_family
@pytest.mark.usefixtures("_with_memory")
def test_the_best_corrections_are_those_of_one_checkpoint(tmp_path: Path, family: str) -> None:
    chosen = plan(readout="mup", lr=0.1)  # far too high: the first steps are the best
    trainer = trainer_for(
        tmp_path, chosen, model=model_for(chosen, family), callbacks=[mssp.hf.PlanCallback(chosen), Balancing()],
        save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
        max_steps=3,
    )  # fmt: skip
    trainer.train()
    step = int(str(trainer.state.best_model_checkpoint).rpartition("-")[2])
    assert step < 3
    assert {float(buffer[-1]) for _, buffer in corrections(trainer.model)} == {0.125 * step}


def test_any_entry_of_a_buffer_is_seen_to_have_moved() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loads = nn.Buffer(torch.zeros(257, dtype=torch.bfloat16))
            self.steps = nn.Buffer(torch.tensor(3))
            self.scratch = nn.Buffer(torch.zeros(2), persistent=False)

    layer = Layer()
    saved = samples_of(layer)
    assert set(saved) == {"loads", "steps"}
    layer.scratch[0] = 1
    layer._buffers["loads"] = layer.loads.float()
    assert unread_tensors(layer, saved) == []  # the same numbers in another precision
    layer.get_buffer("loads")[100] = 0.5
    layer.steps.add_(1)
    assert unread_tensors(layer, saved) == ["loads", "steps"]
