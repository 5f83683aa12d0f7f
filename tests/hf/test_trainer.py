"""The Trainer of transformers under a plan: groups, schedules, logs, checkpoints."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

import mssp
import mssp.hf
from mssp.hf.trainer import PLAN_FILE
from mssp.planning.recipe import PlanWarning
from tests.hf.tiny_models import config_of, initialized, model_of, plan_of

pytestmark = pytest.mark.filterwarnings("ignore:without mssp this checkpoint:mssp.PlanWarning")

BASE = mssp.Shape(width=32, expert_width=16, experts=2, active=1, depth=1)
TARGET = mssp.Shape(width=64, expert_width=32, experts=4, active=2, depth=2)
GROUPS = {"embedding", "norm", "hidden", "router", "expert_in", "expert_out", "final_norm", "readout"}
BATCH, LENGTH = 2, 8


def plan(**changes: Any) -> mssp.Plan:
    return plan_of(TARGET, BASE, **{"lr": 4e-3, "scheme": "mup", **changes})


def rows(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    drawn = torch.randint(3, 128, (count, LENGTH), generator=generator)
    return [{"input_ids": row, "labels": row} for row in drawn]


@cache
def _adapted(family: str) -> nn.Module:
    model = model_of(config_of(family, TARGET))
    mssp.hf.adapt(model, base=config_of(family, BASE))
    return model


def model_for(chosen: mssp.Plan, family: str = "olmoe") -> nn.Module:
    """A model of the test's own; copying is faster than adapting."""
    return initialized(copy.deepcopy(_adapted(family)), chosen)


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    settings: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": BATCH, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_grad_norm": 0.0,
        "dataloader_pin_memory": False, "lr_scheduler_type": "constant",
    }  # fmt: skip
    return TrainingArguments(**{**settings, **changes})


def trainer_for(
    folder: Path, chosen: mssp.Plan, callbacks: list[Any] | None = None, model: nn.Module | None = None, **changes: Any
) -> Trainer:
    return Trainer(
        model=model_for(chosen) if model is None else model,
        args=arguments(folder, **changes),
        train_dataset=rows(16),
        eval_dataset=rows(2),
        optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(chosen),
        callbacks=[mssp.hf.PlanCallback(chosen)] if callbacks is None else callbacks,
    )


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def assert_same(tensors: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 0.0) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.allclose(tensor, expected[name], rtol=rtol, atol=rtol * 1e-2), name


# -- the optimizer ----------------------------------------------------------------------------------------------------


def test_training_equals_a_loop_of_ones_own(tmp_path: Path) -> None:
    chosen = plan()
    trainer = trainer_for(tmp_path, chosen, lr_scheduler_type="linear", warmup_steps=2)
    batches: list[dict[str, Tensor]] = []

    def collated(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batches.append({key: torch.stack([row[key] for row in rows]) for key in rows[0]})
        return batches[-1]

    trainer.data_collator = collated
    trainer.train()

    model = model_for(chosen).train()
    optimizer = torch.optim.AdamW(mssp.param_groups(model, chosen))
    schedule = LambdaLR(optimizer, lambda step: step / 2 if step < 2 else (4 - step) / 2)
    for batch in batches[:4]:
        model(**batch).loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert_same(weights(trainer), {name: parameter.detach() for name, parameter in model.named_parameters()}, rtol=1e-5)
    moved = [
        name
        for name, parameter in model_for(chosen).named_parameters()
        if not torch.equal(parameter, weights(trainer)[name])
    ]
    assert len(moved) == len(weights(trainer))


def test_the_groups_are_the_plans(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, plan())
    trainer.train()
    groups = {group["name"]: group for group in trainer.optimizer.param_groups}
    assert set(groups) == GROUPS
    assert groups["expert_out"]["initial_lr"] == pytest.approx(2e-3)  # 4e-3 over N_e x2
    assert groups["expert_out"]["weight_decay"] == pytest.approx(0.2)
    assert groups["expert_out"]["eps"] == pytest.approx(1.25e-9)  # 1e-8 over M x2, N x2, L x2
    assert trainer.optimizer.defaults["lr"] == 4e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_other_optimizers_of_a_plan(tmp_path: Path, optimizer: str) -> None:
    chosen = plan(optimizer=optimizer, weight_decay=0.0)
    trainer = trainer_for(tmp_path, chosen)
    trainer.train()
    assert type(trainer.optimizer.optimizer).__name__.lower() == optimizer


def test_scaled_gradients_are_the_same_to_adam(tmp_path: Path) -> None:
    trained = []
    for grad_scale in (False, True):
        chosen = plan(grad_scale=grad_scale, eps=1e-4)  # large, so that a wrong scale would show
        trainer = trainer_for(tmp_path, chosen, max_grad_norm=0.5, gradient_accumulation_steps=2)
        trainer.train()
        trained.append(weights(trainer))
    assert_same(trained[1], trained[0], rtol=1e-3)
    assert trainer.optimizer.param_groups[0]["grad_scale"] != 1


def test_scaled_gradients_must_be_scaled(tmp_path: Path) -> None:
    chosen = plan(grad_scale=True)
    model = model_for(chosen)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, chosen))
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path),
        train_dataset=rows(16),
        optimizers=(optimizer, None),
        callbacks=[mssp.hf.PlanCallback(chosen)],
    )
    with pytest.raises(ValueError, match=r"the plan scales gradients instead of eps: call mssp.scale_gradients"):
        trainer.train()


# -- what the callback refuses and warns of ---------------------------------------------------------------------------


def test_an_optimizer_that_is_not_the_plans(tmp_path: Path) -> None:
    chosen = plan()
    trainer = Trainer(
        model=model_for(chosen),
        args=arguments(tmp_path),
        train_dataset=rows(16),
        callbacks=[mssp.hf.PlanCallback(chosen)],
    )
    with pytest.raises(
        ValueError, match=r"not made by a plan: pass optimizer_cls_and_kwargs=mssp.hf.optimizer_factory"
    ):
        trainer.train()


def test_a_callback_with_another_plan(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, plan(), callbacks=[mssp.hf.PlanCallback(plan(lr=8e-3))])
    with pytest.raises(ValueError, match=r"\(embedding\) has initial_lr 0.004, the plan says 0.008"):
        trainer.train()


@pytest.mark.parametrize(
    ("family", "message"),
    [("kolibri1", "mssp_factor is 1.0, the plan says 0.5"), ("olmoe", "aux_loss_coef is 0.01, the plan says 0.005")],
)
def test_a_model_without_its_factors(tmp_path: Path, family: str, message: str) -> None:
    chosen = plan()
    trainer = trainer_for(tmp_path, chosen, model=model_for(chosen, family))
    mssp.hf.release(trainer.model)
    mssp.hf.adapt(trainer.model, base=config_of(family, BASE))  # factors are 1 until a plan sets them
    with pytest.raises(ValueError, match=message):
        trainer.train()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e-4}, "learning_rate 0.0001 of the Trainer's arguments has no effect: the plan's is 0.004"),
        ({"weight_decay": 0.05}, "weight_decay 0.05 of the Trainer's arguments has no effect: the plan's is 0.1"),
        ({"adam_epsilon": 1e-6}, "adam_epsilon 1e-06 of the Trainer's arguments has no effect: the plan's is 1e-08"),
        ({"adam_beta2": 0.95}, "adam_beta2 0.95 of the Trainer's arguments has no effect: the plan's is 0.999"),
        ({"optim": "adafactor"}, "optim adafactor of the Trainer's arguments has no effect: the plan's is adamw"),
    ],
)
def test_arguments_without_effect_are_warned_of(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.warns(PlanWarning, match=message) as caught:
        trainer_for(tmp_path, plan(), **changes).train()
    assert len(caught) == 1


def test_weights_that_are_not_the_plans_are_warned_of(tmp_path: Path) -> None:
    model = model_of(config_of("olmoe", TARGET))
    mssp.hf.adapt(model, config_of("olmoe", BASE), plan())  # and not initialized
    message = r"\S+ starts with an RMS of 0\.0\d+, the plan says .*: call mssp.initialize\(model, plan\) first, unless"
    with pytest.warns(PlanWarning, match=message) as caught:
        trainer_for(tmp_path, plan(), model=model, max_steps=1).train()
    assert len(caught) == 1


def test_half_precision_is_said_once(tmp_path: Path) -> None:
    """The warning is that of ``verify``, and what it says of norms is so: none of their entries moves."""
    chosen = plan(lr=1e-3)
    trainer = trainer_for(tmp_path, chosen, model=model_for(chosen).to(torch.bfloat16), max_steps=5)
    with pytest.warns(PlanWarning, match=r"is in bfloat16, where .* norm \(0\.13\)") as caught:
        trainer.train()
    assert len(caught) == 1
    norms = [tensor for name, tensor in weights(trainer).items() if "norm" in name]
    assert {float((norm == 1).float().mean()) for norm in norms} == {1.0}


def test_a_model_that_was_not_adapted_is_refused(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, plan(), model=model_of(config_of("olmoe", TARGET)))
    with pytest.raises(ValueError, match=r"does not say what its parameters are: call mssp\.hf\.adapt"):
        trainer.train()


def test_arguments_that_agree_are_not(tmp_path: Path) -> None:
    """Warnings are errors here."""
    chosen = plan(recipe=mssp.Recipe(betas=(0.8, 0.95)))
    agreeing: dict[str, Any] = {"learning_rate": 4e-3, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95}
    trainer = trainer_for(tmp_path, chosen, **agreeing, optim="adamw_torch")
    trainer.train()
    assert trainer.optimizer.param_groups[0]["betas"] == (0.8, 0.95)


def test_what_is_no_plan() -> None:
    for use in (mssp.hf.optimizer_factory, mssp.hf.PlanCallback):
        with pytest.raises(ValueError, match=r"plan must be what mssp.plan returns.*, got a dict"):
            use({"lr": 1e-3})  # type: ignore[arg-type]


# -- schedules and logs -----------------------------------------------------------------------------------------------


class Witness(TrainerCallback):  # type: ignore[misc]
    """Stands after the plan's callback, as a tracker would."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def test_logs_have_the_rate_of_every_group(tmp_path: Path) -> None:
    chosen, witness = plan(), Witness()
    trainer = trainer_for(
        tmp_path, chosen, [mssp.hf.PlanCallback(chosen), witness], lr_scheduler_type="linear", eval_strategy="steps",
        eval_steps=2,
    )  # fmt: skip
    trainer.evaluate()  # before there is an optimizer
    trainer.train()
    for kept in (trainer.state.log_history, witness.logs):
        training = [log for log in kept if "loss" in log]
        assert [set(log) >= {f"lr/{name}" for name in GROUPS} for log in training] == [True] * 4
        # Linear to zero in four steps.
        assert [log["lr/embedding"] for log in training] == pytest.approx([4e-3, 3e-3, 2e-3, 1e-3])
        assert [log["lr/router"] for log in training] == pytest.approx([2e-3, 1.5e-3, 1e-3, 0.5e-3])
        others = [log for log in kept if "eval_loss" in log or "train_runtime" in log]
        assert others
        assert not any(key.startswith("lr/") for log in others for key in log)
    json.dumps(trainer.state.log_history)


def test_a_floor_is_relative_to_the_tuned_rate(tmp_path: Path) -> None:
    """cosine_with_min_lr makes a factor of its floor by the optimizer's default rate: the plan's."""
    trainer = trainer_for(
        tmp_path, plan(), lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": 1e-3}
    )
    trainer.train()
    assert mssp.check_schedule(trainer.optimizer.optimizer, plan()) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("schedule", "kwargs"),
    [
        # A floor of all groups alike: 4e-3 may fall to it, 2e-3 is there already.
        ("reduce_lr_on_plateau", {"factor": 0.1, "min_lr": 1.5e-3, "patience": 0, "threshold": 1e9}),
        ("greedy", {"factor": 0.1, "min_lr": 1.5e-3, "patience": 0, "threshold": 1e9}),
    ],
)
def test_schedules_that_leave_the_ratios_are_stopped(tmp_path: Path, schedule: str, kwargs: dict[str, Any]) -> None:
    trainer = trainer_for(
        tmp_path, plan(), lr_scheduler_type=schedule, lr_scheduler_kwargs=kwargs, eval_strategy="steps", eval_steps=1,
        max_steps=8,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"learning rates left the plan's ratios: group '.*' has lr 0.0015"):
        trainer.train()
    assert 1 <= trainer.state.global_step <= 4


def test_relative_plateaus_are_fine(tmp_path: Path) -> None:
    kwargs = {"factor": 0.5, "patience": 0, "threshold": 1e9}
    trainer = trainer_for(
        tmp_path, plan(), lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs=kwargs, eval_strategy="steps",
        eval_steps=1,
    )  # fmt: skip
    trainer.train()
    assert mssp.check_schedule(trainer.optimizer.optimizer, plan()) == pytest.approx(0.0625)  # four evaluations


# -- checkpoints ------------------------------------------------------------------------------------------------------


def saved(folder: Path, chosen: mssp.Plan, **changes: Any) -> tuple[Trainer, Path]:
    """A Trainer that has gone all the way, and its checkpoint from half of it."""
    trainer = trainer_for(folder, chosen, save_strategy="steps", save_steps=2, lr_scheduler_type="linear", **changes)
    trainer.train()
    return trainer, folder / "checkpoint-2"


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("usual")
    trainer, _ = saved(folder, plan())
    return folder, weights(trainer)


@pytest.fixture
def checkpoint(usual: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> Path:
    """The checkpoint of a run by the usual plan, in this test's folder as if the run had been there."""
    shutil.copytree(usual[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "checkpoint-2"


def resuming(folder: Path, chosen: mssp.Plan, **changes: Any) -> Trainer:
    return trainer_for(folder, chosen, save_strategy="steps", save_steps=2, lr_scheduler_type="linear", **changes)


def test_checkpoints_hold_the_plan(checkpoint: Path) -> None:
    for folder in (checkpoint, checkpoint.parent / "checkpoint-4"):
        assert mssp.Plan.from_json((folder / PLAN_FILE).read_text(encoding="utf-8")) == plan()
        assert not list(folder.glob("*.part")) + list(folder.glob(".*"))


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "gpt_oss"])
def test_training_goes_on_where_it_stopped(tmp_path: Path, family: str) -> None:
    """On disk OLMoE has a matrix for each expert, Mixtral other names besides, GPT-OSS the stacks themselves."""
    chosen = plan(grad_scale=True)
    whole, checkpoint = saved(tmp_path, chosen, model=model_for(chosen, family))
    assert torch.load(checkpoint / "optimizer.pt", weights_only=True)["param_groups"][0]["name"] == "embedding"
    second = resuming(tmp_path, chosen, model=model_for(chosen, family))
    second.train(resume_from_checkpoint=str(checkpoint))
    assert second.state.global_step == 4
    assert_same(weights(second), weights(whole))
    assert [log["lr/router"] for log in second.state.log_history if "loss" in log] == pytest.approx(
        [2e-3, 1.5e-3, 1e-3, 0.5e-3]
    )
    mssp.verify(second.model, second.optimizer.optimizer, chosen)


def test_weights_that_did_not_come_back_are_told(
    tmp_path: Path, checkpoint: Path, usual: tuple[Path, dict[str, Tensor]]
) -> None:
    """The Trainer says neither to its callbacks where it resumes from nor that it left the experts as they were."""
    chosen = plan()
    elsewhere = resuming(tmp_path / "second", chosen)
    with pytest.raises(
        ValueError, match=r"^model.layers.0.mlp.experts.gate_up_proj is not what it was in the checkpoint"
    ):
        elsewhere.train(resume_from_checkpoint=str(checkpoint))
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    mssp.hf.adapt(model, base=config_of("olmoe", BASE), plan=chosen)
    elsewhere = resuming(tmp_path / "second", chosen, model=model)
    elsewhere.train(resume_from_checkpoint=str(checkpoint))
    assert_same(weights(elsewhere), usual[1])


def test_the_best_weights_are_those_of_one_checkpoint(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path, plan(readout="mup", lr=0.1), save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
        load_best_model_at_end=True, max_steps=3,
    )  # fmt: skip
    trainer.train()
    best = trainer.state.best_model_checkpoint
    assert best is not None
    assert not best.endswith("-3")  # the rate is far too high
    kept = AutoModelForCausalLM.from_pretrained(best)
    assert_same(weights(trainer), {name: parameter.detach() for name, parameter in kept.named_parameters()})


def test_more_steps_are_no_other_plan(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path, plan(recipe=mssp.Recipe(steps=4)))
    longer = resuming(tmp_path, plan(recipe=mssp.Recipe(steps=6)), max_steps=6)
    longer.train(resume_from_checkpoint=str(checkpoint))
    assert longer.state.global_step == 6


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 8e-3}, "group 'embedding' has initial_lr 0.004 there, 0.008 by this plan; resume with the plan.json"),
        ({"eps": 1e-6}, "group 'embedding' has eps 5e-09 there, 5e-07 by this plan; resume with the plan.json"),
    ],
)
def test_another_plan_is_refused_by_its_groups(
    tmp_path: Path, checkpoint: Path, changes: dict[str, Any], message: str, restore: bool
) -> None:
    other = resuming(tmp_path, plan(**changes), restore_callback_states_from_checkpoint=restore)
    with pytest.raises(ValueError, match=message):
        other.train(resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aggregation_mult": 2.0}, "the checkpoint was trained with another plan: aggregation"),
        ({"readout": "mup"}, "the checkpoint was trained with another plan: readout is zero there, mup here; resume"),
        ({"lr_mult": {"qk_norm": 2.0}}, "another plan: lr_mult.qk_norm is not given there, 2.0 here"),
    ],
)
def test_another_plan_is_refused_where_groups_do_not_show_it(
    tmp_path: Path, checkpoint: Path, changes: dict[str, Any], message: str
) -> None:
    other = resuming(tmp_path, plan(**changes))
    with pytest.raises(ValueError, match=message) as caught:
        other.train(resume_from_checkpoint=str(checkpoint))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.* its logits have a spread:mssp.PlanWarning")  # a std of 0.02 without a base
def test_another_plan_with_other_groups_is_refused(tmp_path: Path) -> None:
    """torch alone would count groups, and say no more than that their number differs."""
    by_sides = plan_of(TARGET, None, scheme="mup", optimizer="sgd", weight_decay=0.0, lr=1e-3)  # fan_out over fan_in
    _, checkpoint = saved(tmp_path, by_sides)
    other = resuming(tmp_path, plan(optimizer="sgd", weight_decay=0.0))
    with pytest.raises(ValueError, match=r"another plan: its groups differ in hidden, hidden 64->32, hidden 64->64; "):
        other.train(resume_from_checkpoint=str(checkpoint))


def test_restored_callbacks_hold_model_and_optimizer_to_the_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    other = resuming(tmp_path, plan(aggregation_mult=2.0), restore_callback_states_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"experts.mssp_factor is 2.0, the plan says 1.0"):
        other.train(resume_from_checkpoint=str(checkpoint))
    same = resuming(tmp_path, plan(), restore_callback_states_from_checkpoint=True)
    same.train(resume_from_checkpoint=str(checkpoint))
    assert same.state.global_step == 4


def test_a_checkpoint_from_before_the_callback(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path, plan(), callbacks=[])
    assert not (checkpoint / PLAN_FILE).exists()
    later = resuming(tmp_path, plan())
    later.train(resume_from_checkpoint=str(checkpoint))
    assert (tmp_path / "checkpoint-4" / PLAN_FILE).exists()


# -- imports ----------------------------------------------------------------------------------------------------------


def test_transformers_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import mssp.hf; assert callable(mssp.hf.adapt) and callable(mssp.hf.release)\n"
        "assert 'PlanCallback' in dir(mssp.hf)\n"
        "try: mssp.hf.PlanCallback\n"
        "except ImportError: pass\n"
        "else: raise AssertionError\n"
        "try: mssp.hf.nothing\n"
        "except AttributeError as error: assert str(error) == \"module 'mssp.hf' has no attribute 'nothing'\"\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
