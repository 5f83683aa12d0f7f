"""A Mixture-of-Experts model of Hugging Face, scaled without tuning again, with the Trainer.

    python examples/hf_trainer.py

A small OLMoE is what was tuned; the large one takes its values over by a plan, which is made of the two configs. Four
lines of what follows are about it: ``adapt``, ``initialize``, ``optimizer_factory`` and ``PlanCallback``. The text is
the source of Python's own library, byte by byte: nothing is downloaded.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import OlmoeConfig, OlmoeForCausalLM, PrinterCallback, Trainer, TrainingArguments

import mssp
from mssp.data import TokenOrder, python_tokens

STEPS, BATCH, LENGTH = 100, 8, 64
HEAD = 16  # its size is fixed, so that heads grow in number with the width


def config(width: int, experts: int, active: int) -> OlmoeConfig:
    """Experts of fixed width, of which there are more in a wider model (Regime II)."""
    return OlmoeConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=width // HEAD,
        num_experts=experts,
        num_experts_per_tok=active,
        max_position_embeddings=LENGTH,
        pad_token_id=None,
        eos_token_id=None,
    )


SMALL = config(width=64, experts=8, active=2)
LARGE = config(width=256, experts=32, active=8)
TUNED: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "init_std": {"all": 0.1, "embedding": 1.0}}


def windows(seed: int) -> list[dict[str, Tensor]]:
    order = TokenOrder(python_tokens(), "train", sequence=LENGTH, seed=seed)
    rows = torch.from_numpy(order.rows(0, STEPS * BATCH))[:, :-1]
    return [{"input_ids": row, "labels": row} for row in rows]  # the model itself shifts labels by one


def train(config: OlmoeConfig, plan: mssp.Plan, folder: Path, seed: int = 0) -> list[float]:
    """The loss at every step; the last checkpoint in ``folder`` has the plan beside it."""
    model = OlmoeForCausalLM(config)
    mssp.hf.adapt(model, base=SMALL)
    mssp.initialize(model, plan, seed=seed)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="cosine",
        warmup_steps=STEPS // 10,
        logging_steps=1,
        save_steps=STEPS,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=windows(seed),
        optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan),
        callbacks=[mssp.hf.PlanCallback(plan)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    base, target = mssp.Shape.from_config(SMALL), mssp.Shape.from_config(LARGE)
    carried = mssp.plan(target, base, **TUNED)
    print(carried, end="\n\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes, plan in (("small", SMALL, carried.extend(base)), ("large", LARGE, carried)):
            losses = train(sizes, plan, Path(folder, name))
            last = sum(losses[-10:]) / 10
            print(f"{name} (width {plan.target.width:>3}): loss {losses[0]:.3f} -> {last:.3f}, same tuned values")
            kept = Path(folder, name, f"checkpoint-{STEPS}", "plan.json").read_text(encoding="utf-8")
            assert mssp.Plan.from_json(kept) == plan


if __name__ == "__main__":
    main()
