"""The plan that a model's config keeps: read back, beside a base that is given, and in a config of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import mssp
from tests.hf.test_refusals import refused
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, logits, model_of, plan_of, tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:experts start alike:mssp.PlanWarning", "ignore:without mssp this checkpoint:mssp.PlanWarning"
)


def saved(family: str, folder: Path, **settings: Any) -> Any:
    """An initialized model, which is also saved."""
    model: Any = model_of(config_of(family, TARGET))
    mssp.hf.adapt(model, base=config_of(family, BASE))
    initialized(model, plan_of(readout="mup", **settings))
    model.save_pretrained(folder)
    return model


def test_a_resumed_model_with_its_base_has_the_plan(tmp_path: Path) -> None:
    model = saved("dots1", tmp_path, aggregation_mult=1.5)
    for base in (config_of("dots1", BASE), config_of("dots1", BASE).to_dict(), None):
        read: Any = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        mssp.hf.adapt(read, base)
        assert torch.equal(logits(read), logits(model))
        assert read.config.mssp == model.config.mssp


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (
            mssp.Shape(32, 32, 4, 2, 2),
            "keeps a plan from another base, Shape(N=64, N_e=32, M=4, K=2, L=2, D=1), and the",
        ),
        (
            BASE,
            "keeps a plan from another base, which differs from the base given in num_key_value_heads (2 there, 4 he",
        ),
    ],
)
def test_a_resumed_model_with_another_base_is_refused(tmp_path: Path, base: mssp.Shape, message: str) -> None:
    saved("olmoe", tmp_path)
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    other = config_of("olmoe", base, num_key_value_heads=base.width // 16)
    with refused(read, message):
        mssp.hf.adapt(read, other)
    mssp.hf.release(read)  # which the message names
    mssp.hf.adapt(read, other)
    assert not hasattr(read.config, "mssp")


def test_a_kept_plan_for_another_model_is_refused(tmp_path: Path) -> None:
    saved("olmoe", tmp_path)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).config
    config.num_hidden_layers = 4
    larger = model_of(config)
    for base in (None, config_of("olmoe", BASE)):
        with refused(larger, "the model's config keeps a plan for another model: its target is Shape("):
            mssp.hf.adapt(larger, base)
    table = mssp.hf.by_name(plan_of(mssp.Shape.from_config(config)), config, config_of("olmoe", BASE))
    assert table.plan.target.depth == 4  # that of the plan it is given
    assert config.mssp["plan"]["target"]["depth"] == 3


def test_models_of_one_config_object_keep_plans_of_their_own(tmp_path: Path) -> None:
    config, base = config_of("olmoe", TARGET), config_of("olmoe", BASE)
    models: dict[str, Any] = {scheme: model_of(config) for scheme in ("mssp", "mup")}
    for scheme, model in models.items():
        mssp.hf.adapt(model, base)
        initialized(model, plan_of(scheme=scheme))
    assert not hasattr(config, "mssp")
    for scheme, model in models.items():
        assert model.config.mssp["plan"]["scheme"] == scheme
        model.save_pretrained(tmp_path / scheme)
        read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / scheme).eval()
        mssp.hf.adapt(read)
        assert read.config.mssp["plan"]["scheme"] == scheme
        assert torch.equal(logits(read), logits(model))
    sibling: Any = model_of(models["mup"].config)
    mssp.hf.release(sibling)
    assert models["mup"].config.mssp["plan"]["scheme"] == "mup"
    assert not hasattr(sibling.config, "mssp")


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss", "qwen3_next"])
def test_all_modules_of_a_model_share_its_own_config(family: str) -> None:
    """They read it while they run: a setting that did not reach them would have no effect."""
    shared = config_of(family, TARGET)
    model, other = model_of(shared), model_of(shared)
    before = {path for path, module in model.named_modules() if vars(module).get("config") is shared}
    mssp.hf.adapt(model, base=config_of(family, BASE), plan=plan_of(readout="mup"))
    assert {path for path, module in model.named_modules() if vars(module).get("config") is model.config} == before
    assert {path for path, module in other.named_modules() if vars(module).get("config") is shared} == before
    usual = shared._attn_implementation
    model.set_attn_implementation("eager")  # type: ignore[operator]
    assert model(tokens(), output_attentions=True).attentions[-1] is not None
    assert shared._attn_implementation == other.config._attn_implementation == usual  # type: ignore[union-attr]
    with torch.no_grad():
        made = model.generate(tokens(), max_new_tokens=3, do_sample=False)  # type: ignore[operator]
    assert made.shape == (2, 15)
    assert torch.equal(logits(copy.deepcopy(model)), logits(model))
