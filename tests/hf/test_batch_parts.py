"""A load-balancing loss in the Trainer: in however many parts a batch is sent, it pushes a router as much as in one."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

import mssp.hf
from mssp.hf.balancing import COEFFICIENTS
from mssp.planning.recipe import PlanWarning
from tests.hf.test_trainer import BASE, TARGET, arguments, plan, rows, trainer_for
from tests.hf.tiny_models import config_of, initialized, model_of

STRONG = 0.5  # a coefficient by which balance outweighs predictions


def model_for(chosen: mssp.Plan) -> nn.Module:
    changes = {"router_aux_loss_coef": STRONG, "output_router_logits": True}
    model = model_of(config_of("olmoe", TARGET, **changes))
    mssp.hf.adapt(model, base=config_of("olmoe", BASE, **changes))
    return initialized(model, chosen)


def of_router(model: nn.Module) -> Tensor:
    gradient = model.get_parameter("model.layers.0.mlp.gate.weight").grad
    assert gradient is not None
    return gradient.detach().clone()


class Witness(TrainerCallback):  # type: ignore[misc]
    """Keeps the router's gradient of every step, and that of one row with the weights of that step."""

    def __init__(self, row: dict[str, Tensor]) -> None:
        self.row = {key: value.unsqueeze(0) for key, value in row.items()}
        self.gradients: list[Tensor] = []
        self.of_one_row: list[Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: nn.Module, **kwargs: Any) -> None:
        self.gradients.append(of_router(model))
        alone = copy.deepcopy(model)
        alone.zero_grad()
        alone(**self.row).loss.backward()
        self.of_one_row.append(of_router(alone))


def trained(folder: Path, data: list[dict[str, Tensor]], with_plan: bool = True, **changes: Any) -> tuple[Any, Witness]:
    chosen, witness = plan(readout="mup"), Witness(data[0])
    trainer = Trainer(
        model=model_for(chosen),
        args=arguments(folder, **changes),
        train_dataset=data,
        optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(chosen),
        callbacks=[*([mssp.hf.PlanCallback(chosen)] if with_plan else []), witness],
    )
    trainer.train()
    return trainer, witness


@pytest.mark.parametrize(("parts", "steps"), [(1, 1), (4, 1), (8, 1), (3, 2)])
def test_parts_of_a_batch_push_as_the_whole(tmp_path: Path, parts: int, steps: int) -> None:
    """Sixteen equal rows have the gradient of one. Of six parts in threes and a rest of one, both steps are right."""
    size = {1: 16, 4: 4, 8: 2, 3: 4}[parts]
    trainer, witness = trained(
        tmp_path, rows(1) * 16, per_device_train_batch_size=size, gradient_accumulation_steps=parts, max_steps=steps
    )
    assert len(witness.gradients) == steps
    for gradient, alone in zip(witness.gradients, witness.of_one_row, strict=True):
        torch.testing.assert_close(gradient, alone, rtol=1e-3, atol=1e-3 * alone.abs().max().item())
    assert trainer.model.router_aux_loss_coef == STRONG / 2
    assert not trainer.model._forward_pre_hooks


def test_without_the_callback_each_part_pushes_in_full(tmp_path: Path) -> None:
    """What the callback is there for: if the Trainer comes to divide by itself, this test says so."""
    parts: dict[str, Any] = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}
    _, witness = trained(tmp_path, rows(1) * 16, with_plan=False, max_steps=1, **parts)
    ratio = witness.gradients[0].norm() / witness.of_one_row[0].norm()
    assert 6 < ratio < 8.5


def test_parts_of_unequal_length_push_by_their_length(tmp_path: Path) -> None:
    data = rows(2)
    data[1]["labels"] = data[1]["labels"].clone()
    data[1]["labels"][3:] = -100  # two predictions where the other row has seven
    chosen = plan(readout="mup")
    alone: Any = model_for(chosen).train()
    _, witness = trained(tmp_path, data, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=1)
    for row, share in zip(data, (7 / 9, 2 / 9), strict=True):
        (share * alone(**{key: value.unsqueeze(0) for key, value in row.items()}).loss).backward()
    torch.testing.assert_close(witness.gradients[0], of_router(alone), rtol=1e-4, atol=1e-6)


def test_evaluation_and_failures_leave_the_coefficient(tmp_path: Path) -> None:
    trainer, _ = trained(
        tmp_path, rows(1) * 4, per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=1
    )
    row = {key: value.unsqueeze(0) for key, value in rows(1)[0].items()}
    model = trainer.model.eval()
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    with torch.no_grad():
        whole = model(**row).loss
        assert model(**row, num_items_in_batch=7).loss == pytest.approx(float(whole))
        half = model(**row, num_items_in_batch=torch.tensor(14)).loss
    assert half == pytest.approx(float(whole) / 2)
    with pytest.raises(AttributeError):
        model(**row, num_items_in_batch=14, output_hidden_states="", past_key_values=3)
    assert model.router_aux_loss_coef == STRONG / 2


def test_a_loss_that_is_not_known_is_warned_of(tmp_path: Path) -> None:
    chosen = plan()
    model = model_for(chosen)
    vars(model)[COEFFICIENTS] = None  # as adapt says of a loss that it could not measure
    trainer = trainer_for(tmp_path, chosen, model=model, gradient_accumulation_steps=3, max_steps=1)
    with pytest.warns(PlanWarning, match=r"each of 3 parts of a batch adds .* its coefficient is not known: divide it"):
        trainer.train()


def check_parts_on_ranks() -> None:
    """Each of two processes has two parts of a batch of four rows, of which two have 2 predictions and the others 7.

    It is run in ``test_fsdp``, where two processes are started.
    """
    data, chosen = rows(4), plan(readout="mup")
    for row in data[:2]:
        row["labels"] = row["labels"].clone()
        row["labels"][3:] = -100
    alone: Any = model_for(chosen).train()
    for row in data:
        share = int((row["labels"][1:] != -100).sum()) / 18
        (share * alone(**{key: value.unsqueeze(0) for key, value in row.items()}).loss).backward()
    with tempfile.TemporaryDirectory() as folder:
        trainer, witness = trained(
            Path(folder), data, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=1
        )
    assert trainer.args.world_size == 2
    torch.testing.assert_close(witness.gradients[0], of_router(alone), rtol=1e-4, atol=1e-6)
