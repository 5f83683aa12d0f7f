"""Text models inside multimodal ones, and configs that hold the config of a text model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import mssp
import mssp.hf
from mssp.cli import main
from mssp.hf.meta import config_of as hf_config_of
from mssp.hf.meta import on_meta
from mssp.hf.text_parts import freeze_other_parts
from mssp.planning.recipe import PlanWarning
from tests.hf.test_refusals import refused
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, model_of, plan_of

SEEING = "qwen3_vl_moe_text"  # whose text model is there only inside a larger one
# Model types of larger configs, and families that have a class of text models with a head.
HOLDING = {"qwen3_5_moe": "qwen3_5_moe_text", "aria": "aria_text", "minimax_m3_vl": "minimax_m3_vl_text"}


def holding(model_type: str, shape: mssp.Shape) -> Any:
    return CONFIG_MAPPING[model_type](text_config=config_of(HOLDING[model_type], shape).to_dict())


def seeing(shape: mssp.Shape = TARGET) -> nn.Module:
    """All of it trained, as it comes."""
    return model_of(config_of(SEEING, shape)).requires_grad_(True)


# -- configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::mssp.planning.recipe.PlanWarning")
@pytest.mark.parametrize("model_type", HOLDING)
def test_larger_configs_are_planned_as_those_of_their_text_models(model_type: str) -> None:
    larger = [holding(model_type, shape) for shape in (TARGET, BASE)]
    text = [config_of(HOLDING[model_type], shape) for shape in (TARGET, BASE)]
    assert mssp.Shape.from_config(larger[0]) == TARGET
    expected = mssp.hf.plan(*text, lr=1e-3, regime="III")
    for configs in (larger, [config.to_dict() for config in larger], [larger[0], text[1]], [text[0], larger[1]]):
        plan = mssp.hf.plan(*configs, lr=1e-3, regime="III")
        assert plan == expected
        assert mssp.hf.by_name(plan, *configs).lines() == mssp.hf.by_name(expected, *text).lines()


@pytest.mark.filterwarnings("ignore::mssp.planning.recipe.PlanWarning")
def test_models_that_hold_their_text_model_are_planned_by_the_names_that_it_has_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["plan", "--lr", "0.001", "--regime", "III"]
    for which, shape in (("base", BASE), ("target", TARGET)):
        file = tmp_path / f"{which}.json"
        file.write_text(json.dumps(config_of(SEEING, shape).to_dict()), encoding="utf-8")
        flags += [f"--{which}-config", str(file)]
    assert main(flags) == 0
    names = [
        line.split()[0] for line in capsys.readouterr().out.splitlines() if " hidden " in line or "readout" in line
    ]
    assert "model.language_model.layers.*.self_attn.q_proj.weight" in names
    assert "lm_head.weight" in names
    assert not any("visual" in name for name in names)


def test_what_a_model_talks_with_is_not_planned() -> None:
    thinker = config_of("qwen3_omni_moe_text", TARGET)
    whole = CONFIG_MAPPING["qwen3_omni_moe"](thinker_config=thinker.to_dict())
    for config in (whole, whole.to_dict()):
        assert mssp.Shape.from_config(config) == TARGET
        assert type(hf_config_of(config)) is type(thinker)


def test_models_without_an_auto_class_are_built_by_their_own() -> None:
    config = config_of("mistral4", TARGET)
    with pytest.raises(ValueError, match="Unrecognized configuration class"):
        AutoModelForCausalLM.from_config(config)
    assert type(on_meta(config)).__name__ == "Mistral4ForCausalLM"
    assert "model.layers.*.mlp.gate.weight" in {
        row.name for row in mssp.hf.by_name(plan_of(), config, config_of("mistral4", BASE)).parameters
    }


# -- models -----------------------------------------------------------------------------------------------------------


def test_parts_beside_the_text_model_must_be_frozen() -> None:
    model = seeing()
    with refused(
        model,
        "Qwen3VLMoeForConditionalGeneration trains parts beside its text model, for which there is no rule: freeze "
        "model.visual (requires_grad_(False)), or adapt its text model alone, model.model.language_model",
    ):
        mssp.hf.adapt(model, base=config_of(SEEING, BASE))
    model.get_submodule("model.visual").requires_grad_(False)
    mssp.hf.adapt(model, base=config_of(SEEING, BASE))
    assert not any("visual" in info.name for info in mssp.describe(model))


def test_a_text_model_alone_is_adapted_and_its_readout_said_to_be_missing() -> None:
    larger, alone = seeing(), seeing().get_submodule("model.language_model")
    freeze_other_parts(larger)
    mssp.hf.adapt(larger, base=config_of(SEEING, BASE))
    with pytest.warns(PlanWarning, match="^Qwen3VLMoeTextModel has no readout, and the plan for it goes nowhere"):
        mssp.hf.adapt(alone, base=config_of(SEEING, BASE))  # the config of the larger base, or of its text model
    expected = plan_of().resolve(mssp.describe(larger))
    found = plan_of().resolve(mssp.describe(alone))
    assert {f"model.language_model.{name}": (values.lr, values.init_std) for name, values in found.items()} == {
        name: (values.lr, values.init_std) for name, values in expected.items() if name != "lm_head.weight"
    }
    initialized(alone, plan_of())
    mssp.verify(alone, torch.optim.AdamW(mssp.param_groups(alone, plan_of())), plan_of())


def test_a_text_model_alone_whose_readout_is_its_embedding_is_refused() -> None:
    alone = seeing().get_submodule("model.language_model")
    alone.config.tie_word_embeddings = True  # type: ignore[union-attr]
    with refused(
        alone, "Qwen3VLMoeTextModel has no readout, and its config says that this is the embedding used again"
    ):
        mssp.hf.adapt(alone)


def test_the_base_of_a_larger_model_may_be_that_of_its_text_model() -> None:
    sides = []
    for base in (config_of(SEEING, BASE), config_of(SEEING, BASE).text_config, config_of(SEEING, BASE).to_dict()):
        model = seeing()
        freeze_other_parts(model)
        mssp.hf.adapt(model, base=base)
        sides.append([(info.name, info.base_fan_in, info.base_fan_out) for info in mssp.describe(model)])
    assert sides[0] == sides[1] == sides[2]


def test_the_base_of_another_text_model_is_refused() -> None:
    model = seeing()
    freeze_other_parts(model)
    with pytest.raises(ValueError, match=re.escape("the base is a qwen3_moe, the model a qwen3_vl_moe_text")):
        mssp.hf.adapt(model, base=config_of("qwen3_moe", BASE))


def test_a_larger_model_without_a_text_model_is_refused() -> None:
    model = seeing()
    model.config.text_config = config_of("qwen3_moe", TARGET)  # type: ignore[union-attr]
    with pytest.raises(
        ValueError, match="Qwen3VLMoeForConditionalGeneration holds no text model with a Qwen3MoeConfig"
    ):
        mssp.hf.adapt(model)
