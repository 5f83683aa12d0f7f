"""The Trainer of ``transformers`` with a plan: its optimizer, and a callback that watches over it.

    Trainer(model, args, ..., optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan),
            callbacks=[mssp.hf.PlanCallback(plan)])

The factory makes the plan's groups; the callback says so when training begins, logs what each group learns with,
stops where a schedule leaves the plan's ratios, and keeps the plan with every checkpoint.

Weights are read back from a checkpoint of the Trainer: all of them, or none. On disk every matrix of every expert has
a name of its own, in memory experts are stacks. ``from_pretrained`` knows the way from one to the other; the Trainer
does not take it when it resumes or goes back to the best checkpoint: whatever has another name there keeps the
weights it had, which is logged and no more (seen in 5.22). So a checkpoint notes a few numbers of every parameter, by
which it is seen whether they came back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mssp._files import replacing
from mssp.apply.description import described_parameters, name_cleaner, unwrapped
from mssp.apply.groups import check_schedule, inner_optimizer, optimizer_for, same_values
from mssp.apply.protocols import DescribesItself
from mssp.apply.verification import verify
from mssp.planning import plan_file
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.rules import BIASES, GAINS

Samples = dict[str, list[float]]
_COUNT = 4  # entries of each parameter: training moves nearly all of them at every step


def samples_of(model: nn.Module) -> Samples:
    """A few entries of every parameter, from its first to its last; of sharded ones none, which are read by shards.

    >>> samples_of(nn.Embedding.from_pretrained(torch.arange(7.0).view(7, 1), freeze=False))
    {'weight': [0.0, 2.0, 4.0, 6.0]}
    """
    clean = name_cleaner(model)
    found = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            last = parameter.numel() - 1
            places = torch.tensor([index * last // (_COUNT - 1) for index in range(_COUNT)], device=parameter.device)
            found[clean(name)] = parameter.detach().flatten()[places].float().tolist()
    return found


def differing(model: nn.Module, noted: Samples) -> list[str]:
    """The parameters that are not as they were noted."""
    return [name for name, found in samples_of(model).items() if name in noted and noted[name] != found]


def read_again(model: nn.Module, folder: Path) -> None:
    """Every weight of a checkpoint, in place: the parameters stay those that an optimizer holds."""
    kept = type(model).from_pretrained(folder, dtype="auto")  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept.get_parameter(name))


PLAN_FILE = "plan.json"
# What a group has from its plan and keeps for good; a schedule moves ``lr`` alone.
_OF_THE_PLAN = ("initial_lr", "lr_scale", "lr_mult", "eps", "grad_scale", "weight_decay", "betas")
_ADAMS_BETAS = (0.9, 0.999)  # torch's and the Trainer's, where a plan's recipe says nothing
# Of that many random entries the RMS is well within a tenth of their standard deviation.
_ENOUGH_ENTRIES, _TOLERANCE = 2000, 0.1
# May change when training goes on: more steps, another batch. (Betas are looked at in the groups.)
_RECIPES = ("recipe.", "tuned_with.")


# -- the optimizer ----------------------------------------------------------------------------------------------------


def optimizer_factory(plan: Plan) -> tuple[Callable[[], Callable[..., Optimizer]], dict[str, Any]]:
    """What ``Trainer(optimizer_cls_and_kwargs=...)`` takes: the plan's optimizer, made when the Trainer needs it.

    ``args.optim``, ``learning_rate``, ``weight_decay`` and Adam's eps and betas in the Trainer's arguments have no
    effect then: the plan has them. Schedules and warmup stay the arguments'.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"optimizer_factory takes a plan (mssp.plan), got a {type(plan).__name__}")
    return _factory, {"plan": plan}


def _factory() -> Callable[..., Optimizer]:
    return _optimizer_of_plan  # the Trainer calls a factory without arguments, and what it returns with the model


def _optimizer_of_plan(model: nn.Module, plan: Plan) -> Optimizer:
    if not any(isinstance(module, DescribesItself) for module in model.modules()):
        raise ValueError("the model does not say what its parameters are: call mssp.hf.adapt(model, base) first")
    optimizer = optimizer_for(model, plan)
    optimizer.register_load_state_dict_pre_hook(_refuse_state_of_another_plan)
    return optimizer


def _refuse_state_of_another_plan(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loading an optimizer's state overwrites the groups' values; torch itself only counts groups and parameters."""
    here, there = optimizer.param_groups, state["param_groups"]
    named_here, named_there = ([group.get("name") for group in groups] for groups in (here, there))
    if named_here != named_there or any(len(a["params"]) != len(b["params"]) for a, b in zip(here, there, strict=True)):
        differing = sorted({str(name) for name in set(named_here) ^ set(named_there)}) or ["their parameters"]
        raise ValueError(
            f"the checkpoint's optimizer was made by another plan: its groups differ in {', '.join(differing)}; "
            f"resume with the {PLAN_FILE} in the checkpoint's folder"
        )
    for mine, saved in zip(here, there, strict=True):
        for key in _OF_THE_PLAN:
            if key in mine and not same_values(saved.get(key), mine[key]):
                raise ValueError(
                    f"the checkpoint's optimizer was made by another plan: group '{mine['name']}' has {key} "
                    f"{saved.get(key)} there, {mine[key]} by this plan; "
                    f"resume with the {PLAN_FILE} in the checkpoint's folder"
                )


# -- the callback -----------------------------------------------------------------------------------------------------


class PlanCallback(TrainerCallback, ExportableState):  # type: ignore[misc] # which mypy does not look into
    """Holds a Trainer to its plan.

    When training begins, model and optimizer are verified, and settings of the Trainer that have no effect are warned
    of. With every log of the training loss, ``lr/<group>`` is what each group learns with; a schedule that leaves the
    plan's ratios raises. Every checkpoint gets a ``plan.json``; training is resumed under the same plan only, and with
    all weights of the checkpoint (of stacked experts the Trainer reads none back: they are read again).

    The Trainer calls the trackers of ``report_to`` before the callbacks it is given: for a tracker to see the groups'
    rates, give it as a callback too, after this one (``callbacks=[PlanCallback(plan), TensorBoardCallback()]``).

    Args:
        plan: the plan, or its JSON.
    """

    def __init__(self, plan: Plan | str) -> None:
        if not isinstance(plan, Plan | str):
            raise ValueError(f"PlanCallback takes a plan (mssp.plan), got a {type(plan).__name__}")
        self.plan = Plan.from_json(plan) if isinstance(plan, str) else plan
        self._model: nn.Module | None = None
        self._rates: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """What the Trainer keeps of a callback in a checkpoint's ``trainer_state.json``."""
        weights: Samples = {} if self._model is None else samples_of(self._model)
        return {"args": {"plan": self.plan.json()}, "attributes": {"weights": weights}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kept = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        optimizer = inner_optimizer(kwargs["optimizer"])
        self._refuse_another_plan(kept)
        if any("lr_scale" not in group for group in optimizer.param_groups):
            raise ValueError(
                "the Trainer's optimizer was not made by a plan: pass "
                "optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan) to the Trainer"
            )
        self._model = unwrapped(kwargs["model"])
        verify(self._model, optimizer, self.plan)
        if state.global_step:
            self._hold_to_checkpoint(self._model, args, state, kept)
        else:
            self._warn_of_other_weights(self._model)
        self._warn_of_ignored(args)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        groups = kwargs["optimizer"].param_groups
        self._rates = {f"lr/{group['name']}": float(group["lr"]) for group in groups}  # before the schedule moves them

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("optimizer") is None:  # an evaluation before any training
            return
        check_schedule(inner_optimizer(kwargs["optimizer"]), self.plan)
        if logs is not None and "learning_rate" in logs:  # the Trainer's own, which is the first group's
            logs.update(self._rates)
            state.log_history[-1].update(self._rates)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = _checkpoint(args, state)
        if not args.should_save:  # another process does
            return
        if not folder.is_dir():  # a search over hyperparameters has folders of its own
            warnings.warn(f"{PLAN_FILE} is not written: there is no folder {folder}", PlanWarning, stacklevel=2)
            return
        with replacing(folder / PLAN_FILE) as unfinished:
            unfinished.write_text(self.plan.json() + "\n", encoding="utf-8")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The best weights have been read by now, those of stacked experts excepted.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and self._model is not None and samples_of(self._model):
            read_again(self._model, Path(best))

    def _refuse_another_plan(self, kept: dict[str, Any]) -> None:
        """A resumed Trainer has the callbacks' states of the checkpoint."""
        entries = Plan.from_json(kept["args"]["plan"]).diff(self.plan).entries
        found = [entry for entry in entries if not entry[0].startswith(_RECIPES)]
        if found:
            path = found[0][0]
            there, here = ("not given" if value is plan_file.MISSING else value for value in found[0][1:])
            raise ValueError(
                f"the checkpoint was trained with another plan: {path} is {there} there, {here} here; "
                f"resume with the {PLAN_FILE} in the checkpoint's folder"
            )

    @staticmethod
    def _hold_to_checkpoint(
        model: nn.Module, args: TrainingArguments, state: TrainerState, kept: dict[str, Any]
    ) -> None:
        noted: Samples = kept["attributes"].get("weights", {})
        # The Trainer does not say where it resumes from; these are the places that are known, and numbers tell.
        for folder in (_checkpoint(args, state), Path(str(args.resume_from_checkpoint))):
            if differing(model, noted) and (folder / "config.json").is_file():
                read_again(model, folder)
        lost = differing(model, noted)
        if lost:
            raise ValueError(
                f"{lost[0]} is not what it was in the checkpoint, from which the Trainer did not read it: build the "
                "model by from_pretrained of the checkpoint's folder, adapt it, and resume then"
            )

    def _warn_of_other_weights(self, model: nn.Module) -> None:
        """Of a large matrix that does not start as planned: the model's own start, or a trained model."""
        described = described_parameters(model)
        planned = self.plan.resolve(info for info, _ in described)
        for info, parameter in described:
            std, drawn = planned[info.name].init_std, parameter.numel() // (info.experts or 1)
            if info.role in GAINS | BIASES or drawn < _ENOUGH_ENTRIES or isinstance(parameter, DTensor):
                continue
            found = float(parameter.detach().float().square().mean().sqrt())
            if abs(found - std) > _TOLERANCE * std:
                message = (
                    f"{info.name} starts with an RMS of {found:.4g}, the plan says {std:.4g}: call "
                    "mssp.initialize(model, plan) first, unless this model has been trained before"
                )
                warnings.warn(message, PlanWarning, stacklevel=2)
                return

    def _warn_of_ignored(self, args: TrainingArguments) -> None:
        """Settings of the Trainer that the plan's optimizer replaces, where somebody meant something by them."""
        plan = self.plan
        betas = plan.recipe.betas or _ADAMS_BETAS
        planned = {
            "learning_rate": plan.lr,
            "weight_decay": plan.weight_decay,
            "adam_epsilon": plan.eps,
            "adam_beta1": betas[0],
            "adam_beta2": betas[1],
        }
        defaults = {each.name: each.default for each in fields(TrainingArguments)}
        for name, by_plan in planned.items():
            if getattr(args, name) not in (by_plan, defaults[name]):
                _warn_of_argument(name, getattr(args, name), by_plan)
        chosen = str(getattr(args.optim, "value", args.optim))
        if not chosen.startswith("adamw_torch"):  # which is the default, in one spelling or another
            _warn_of_argument("optim", chosen, plan.optimizer)


def _warn_of_argument(name: str, given: object, by_plan: object) -> None:
    message = f"{name} {given} of the Trainer's arguments has no effect: the plan's is {by_plan}"
    warnings.warn(message, PlanWarning, stacklevel=2)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
