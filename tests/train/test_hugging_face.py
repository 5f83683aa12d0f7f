"""Hugging Face models in the loop: the same step as the Trainer's, checkpoints, and models as others read them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import mssp
from mssp.data import TokenOrder, python_tokens
from mssp.planning.recipe import PlanWarning
from mssp.train import RunSettings
from mssp.train.trained_model import load_model, save_pretrained
from tests.hf.tiny_models import BASE, TARGET, config_of
from tests.train.runs import assert_same_runs, training_in

SEQUENCE, SEQUENCES = 16, 4


def settings_for(family: str, folder: Path, **training: Any) -> RunSettings:
    for name, shape in (("target", TARGET), ("base", BASE)):
        sizes = config_of(family, shape, vocab_size=256, output_router_logits=True).to_dict()
        (folder / f"{name}.json").write_text(json.dumps(sizes))
    return RunSettings.of(
        {
            "model": {"config": str(folder / "target.json")},
            "plan": {"base": str(folder / "base.json"), "lr": 4e-3, "weight_decay": 0.1, "init_std": 0.02},
            "data": {"sequence": SEQUENCE, "validation": 2},
            "training": {
                "steps": 3, "tokens_per_step": SEQUENCE * SEQUENCES, "schedule": "constant", "save_every": 2, **training
            },
            "watch": {"routers_every": None},
        }
    )  # fmt: skip


def by_the_trainer(model: nn.Module, plan: mssp.Plan, folder: Path, parts: int) -> tuple[dict[str, Tensor], float]:
    """The weights after one step of the Trainer on the first rows of the data, and the norm of its gradients."""
    rows = torch.from_numpy(TokenOrder(python_tokens(), "train", sequence=SEQUENCE).rows(0, SEQUENCES))
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=SEQUENCES // parts,
        gradient_accumulation_steps=parts, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
        max_grad_norm=1.0, dataloader_pin_memory=False, lr_scheduler_type="constant", logging_steps=1,
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan, fused=True),
        callbacks=[mssp.hf.PlanCallback(plan)],
    )
    trainer.train()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return weights, trainer.state.log_history[0]["grad_norm"]


@pytest.mark.parametrize("family", ["olmoe", "qwen3_moe"])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_is_that_of_the_trainer(family: str, parts: int, tmp_path: Path) -> None:
    warnings.simplefilter("ignore", PlanWarning)
    training = training_in(tmp_path / "run", settings_for(family, tmp_path, micro_batch=SEQUENCES // parts))
    plan = training.model.plan
    other = mssp.hf.from_config(str(tmp_path / "target.json"), plan, base=str(tmp_path / "base.json"))
    for (name, one), (_, two) in zip(training.module.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two), name
    step = training.one_step()
    weights, norm = by_the_trainer(other, plan, tmp_path / "trainer", parts)
    assert step.norm == pytest.approx(norm, rel=1e-6)
    for name, parameter in training.module.named_parameters():
        assert float((parameter.detach() - weights[name]).abs().max()) <= 1e-6, name


def test_a_model_goes_on_and_is_read_by_others(tmp_path: Path) -> None:
    warnings.simplefilter("ignore", PlanWarning)
    settings = settings_for("olmoe", tmp_path)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    training_in(whole, settings).run()
    first = training_in(stopped, settings)
    first.one_step()
    training_in(stopped, settings, resume=True).run()
    assert_same_runs(whole, stopped)
    save_pretrained(whole, tmp_path / "plain", folded=True)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    model, tokenizer = load_model(whole)
    rows = torch.arange(16).view(1, 16)
    with torch.no_grad():
        torch.testing.assert_close(read(rows).logits, model(rows).logits)
    assert tokenizer == "bytes"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"balance": 0.1}}, "balance is for mssp.nn.GPT: a Hugging Face model has its losses"),
        ({"model": {"config": "nowhere.json"}}, "nowhere.json"),
        ({"plan": {"base": {"width": 8}, "lr": 1e-3}}, r"\[plan\] base must be the path of the base's config"),
    ],
)
def test_what_is_refused(sections: dict[str, Any], message: str, tmp_path: Path) -> None:
    document = settings_for("olmoe", tmp_path).json()
    for name, entries in sections.items():
        document[name] = entries if name == "plan" else {**document[name], **entries}
    with pytest.raises((ValueError, OSError), match=message):
        training_in(tmp_path / "run", RunSettings.of(document))
