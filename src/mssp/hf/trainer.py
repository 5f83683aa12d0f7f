"""A plan in the Trainer of ``transformers``: a factory for its optimizer, and a callback that checks the training.

    Trainer(model, args, ..., optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan),
            callbacks=[mssp.hf.PlanCallback(plan)])

The factory makes the plan's groups. The callback checks them when training begins, logs the learning rate of each
group, stops where a schedule leaves the plan's ratios, and keeps the plan with every checkpoint.

It also makes sure that all weights of a checkpoint are read back, and all buffers. On disk every matrix of every expert
has a name of its own, in memory experts are stacks; the corrections by which routers balance their loads are buffers
that some families rename. ``from_pretrained`` converts one to the other, but the Trainer does not when it resumes or
goes back to the best checkpoint: tensors with another name on disk keep what they held, and the Trainer only logs it
(seen in 5.22). So a checkpoint keeps a few numbers of every parameter and a digest of every buffer, which show whether
they came back.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from mssp._constraints import a_plan, kind_of, switch, takes
from mssp._files import replacing
from mssp.apply.description import name_cleaner, planned_parameters, unwrapped
from mssp.apply.groups import check_schedule, inner_optimizer, optimizer_for, same_values
from mssp.apply.protocols import DescribesItself
from mssp.apply.verification import verify
from mssp.hf.batch_parts import add_in_full, share_among_parts
from mssp.planning import plan_file
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.rules import BIASES, GAINS

Samples = dict[str, list[float] | str]
_COUNT = 4  # entries of each parameter: training moves nearly all of them at every step


def samples_of(model: nn.Module) -> Samples:
    """A few entries of every parameter, from its first to its last, and a digest of every buffer that is saved.

    Buffers are compared in full, since few of their entries may have moved. Sharded tensors are left out.

    >>> samples_of(nn.Embedding.from_pretrained(torch.arange(7.0).view(7, 1), freeze=False))
    {'weight': [0.0, 2.0, 4.0, 6.0]}
    """
    clean = name_cleaner(model)
    samples: Samples = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            last = parameter.numel() - 1
            places = torch.tensor([index * last // (_COUNT - 1) for index in range(_COUNT)], device=parameter.device)
            samples[clean(name)] = parameter.detach().flatten()[places].float().tolist()
    for name, buffer in _saved_buffers(model):
        if not isinstance(buffer, DTensor):
            # Every number of a buffer is exact in float64, whichever precision it is read back in.
            entries = buffer.detach().cpu().to(torch.float64).contiguous().numpy().tobytes()
            samples[clean(name)] = hashlib.sha256(entries).hexdigest()[:16]
    return samples


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that checkpoints have, by name."""
    for path, module in model.named_modules():
        for local, buffer in module._buffers.items():
            if buffer is not None and local not in module._non_persistent_buffers_set:
                yield f"{path}.{local}" if path else local, buffer


def unread_tensors(model: nn.Module, saved: Samples) -> list[str]:
    """The names of parameters and buffers that differ from the samples that were saved: they were not read."""
    return [name for name, entries in samples_of(model).items() if name in saved and saved[name] != entries]


def read_again(model: nn.Module, folder: Path) -> None:
    """Read every weight and buffer of a checkpoint into the model's own tensors, which the optimizer holds."""
    saved_model = type(model).from_pretrained(folder, dtype="auto")  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(saved_model.get_parameter(name))
        for name, buffer in _saved_buffers(model):
            buffer.copy_(saved_model.get_buffer(name))


PLAN_FILE = "plan.json"
_EIGHT_BIT = ("bitsandbytes.optim", "torchao.optim")  # modules that have Adam8bit and AdamW8bit
# The values of a group that its plan sets and nothing changes; a schedule moves ``lr`` alone.
_PLANNED_KEYS = ("initial_lr", "lr_scale", "lr_mult", "eps", "grad_scale", "weight_decay", "betas")
_DEFAULT_BETAS = (0.9, 0.999)  # those of torch and of the Trainer, for a plan whose recipe has none
# The RMS of 2000 random entries differs from their standard deviation by far less than a tenth.
_ENOUGH_ENTRIES, _TOLERANCE = 2000, 0.1
# The parts of a plan that may change when training is resumed: more steps, another batch. (Groups show other betas.)
_RECIPE_PATHS = ("recipe.", "tuned_with.")


@takes(plan=a_plan, fused=switch, eight_bit=switch)
def optimizer_factory(
    plan: Plan, *, fused: bool = False, eight_bit: bool = False
) -> tuple[Callable[[], Callable[..., Optimizer]], dict[str, Any]]:
    """What ``Trainer(optimizer_cls_and_kwargs=...)`` takes: the plan's optimizer, made when the Trainer needs it.

    ``args.optim``, ``learning_rate``, ``weight_decay`` and Adam's eps and betas in the Trainer's arguments then have no
    effect, since the plan has them. Schedules and warmup are still those of the arguments.

    Args:
        fused: use torch's fused step.
        eight_bit: keep Adam's averages in eight bits, by bitsandbytes or else torchao, whichever is installed.
    """
    if fused and eight_bit:
        raise ValueError("fused is a step of torch's own optimizers, and 8-bit ones have another: leave out fused")
    options: dict[str, Any] = {"fused": True} if fused else {}
    if eight_bit:
        options["made_by"] = _eight_bit_class(plan)
    return _factory, {"plan": plan, **options}


def _eight_bit_class(plan: Plan) -> Callable[..., Optimizer]:
    """The 8-bit optimizer of a plan, of the first library that is installed."""
    name = f"{plan.setting.optimizer.title}8bit"
    if not plan.setting.optimizer.moments:
        raise ValueError(f"eight_bit is for Adam and AdamW, whose averages it keeps: {plan.optimizer} has none")
    for library in _EIGHT_BIT:
        try:
            made_by: Callable[..., Optimizer] = getattr(import_module(library), name)
        except ImportError:
            continue
        return made_by
    raise ValueError("eight_bit needs bitsandbytes or torchao, and neither is installed: pip install bitsandbytes")


def _factory() -> Callable[..., Optimizer]:
    """The Trainer calls this without arguments, and the function it returns with the model and the plan."""
    return _optimizer_of_plan


def _optimizer_of_plan(
    model: nn.Module, plan: Plan, made_by: Callable[..., Optimizer] | None = None, **options: Any
) -> Optimizer:
    if not any(isinstance(module, DescribesItself) for module in model.modules()):
        raise ValueError("the model does not say what its parameters are: call mssp.hf.adapt(model, base) first")
    optimizer = optimizer_for(model, plan, made_by=made_by, **options)
    optimizer.register_load_state_dict_pre_hook(_refuse_state_of_another_plan)
    return optimizer


def _refuse_state_of_another_plan(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """A hook before loading a state, which overwrites the groups' values: torch only counts their parameters."""
    other_plan = "the checkpoint's optimizer was made by another plan:"
    remedy = f"resume with the {PLAN_FILE} in the checkpoint's folder"
    planned_groups, saved_groups = optimizer.param_groups, state["param_groups"]
    planned_sizes, saved_sizes = (
        [(group.get("name"), len(group["params"])) for group in groups] for groups in (planned_groups, saved_groups)
    )
    if planned_sizes != saved_sizes:
        differing_names = {name for name, _ in planned_sizes} ^ {name for name, _ in saved_sizes}
        differences = sorted(map(str, differing_names)) or ["their parameters"]
        raise ValueError(f"{other_plan} its groups differ in {', '.join(differences)}; {remedy}")
    for planned, saved in zip(planned_groups, saved_groups, strict=True):
        for key in _PLANNED_KEYS:
            if key in planned and not same_values(saved.get(key), planned[key]):
                raise ValueError(
                    f"{other_plan} group '{planned['name']}' has {key} {saved.get(key)} there, {planned[key]} by this "
                    f"plan; {remedy}"
                )


@takes(plan=kind_of(Plan, str, what="what mssp.plan returns, or its JSON"))
class PlanCallback(TrainerCallback, ExportableState):  # type: ignore[misc] # which mypy does not look into
    """Holds a Trainer to its plan.

    When training begins, it verifies model and optimizer, and warns of settings of the Trainer that have no effect.
    Every log of the training loss gets the learning rate of each group as ``lr/<group>``. A schedule that leaves the
    plan's ratios is an error. Every checkpoint gets a ``plan.json``. Training is resumed under the same plan only, and
    with all weights and buffers of the checkpoint: those that the Trainer does not read back, which are stacked experts
    and the corrections of some routers, are read again.

    What the model adds to its loss for balanced loads is added in shares by the parts of a batch whose gradients are
    accumulated, where the Trainer would add it in full for each.

    The Trainer calls the trackers of ``report_to`` before the callbacks it is given. For a tracker to see the groups'
    rates, give it as a callback too, after this one (``callbacks=[PlanCallback(plan), TensorBoardCallback()]``).

    Args:
        plan: the plan, or its JSON.
    """

    def __init__(self, plan: Plan | str) -> None:
        self.plan = Plan.from_json(plan) if isinstance(plan, str) else plan
        self._model: nn.Module | None = None
        self._rates: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """What the Trainer saves of this callback in a checkpoint's ``trainer_state.json``."""
        weights: Samples = {} if self._model is None else samples_of(self._model)
        return {"args": {"plan": self.plan.json()}, "attributes": {"weights": weights}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        optimizer = inner_optimizer(kwargs["optimizer"])
        self._refuse_another_plan(Plan.from_json(saved["args"]["plan"]))
        if any("lr_scale" not in group for group in optimizer.param_groups):
            raise ValueError(
                "the Trainer's optimizer was not made by a plan: pass "
                "optimizer_cls_and_kwargs=mssp.hf.optimizer_factory(plan) to the Trainer"
            )
        self._model = unwrapped(kwargs["model"])
        verify(self._model, optimizer, self.plan)
        share_among_parts(self._model, args.gradient_accumulation_steps)
        if state.global_step:
            _read_missing_weights(self._model, args, state, saved["attributes"].get("weights", {}))
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
        if not args.should_save:  # another process saves
            return
        if not folder.is_dir():  # a search over hyperparameters has folders of its own
            warnings.warn(f"{PLAN_FILE} is not written: there is no folder {folder}", PlanWarning, stacklevel=2)
            return
        with replacing(folder / PLAN_FILE) as unfinished:
            unfinished.write_text(self.plan.json() + "\n", encoding="utf-8")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._model is not None:
            add_in_full(self._model)
        # The Trainer has read the best weights by now, without those that have another name on disk.
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if best is not None and self._model is not None and samples_of(self._model):
            read_again(self._model, Path(best))

    def _refuse_another_plan(self, trained_with: Plan) -> None:
        for path, *values in trained_with.diff(self.plan).entries:
            if not path.startswith(_RECIPE_PATHS):
                there, here = ("not given" if value is plan_file.MISSING else value for value in values)
                raise ValueError(
                    f"the checkpoint was trained with another plan: {path} is {there} there, {here} here; "
                    f"resume with the {PLAN_FILE} in the checkpoint's folder"
                )

    def _warn_of_other_weights(self, model: nn.Module) -> None:
        """Warn of the first large matrix that has other weights than the plan's: not initialized, or trained before."""
        for info, parameter, values in planned_parameters(model, self.plan, None):
            std, entries = values.init_std, parameter.numel() // (info.experts or 1)  # experts may start equal
            if info.role in GAINS | BIASES or entries < _ENOUGH_ENTRIES or isinstance(parameter, DTensor):
                continue
            rms = float(parameter.detach().float().square().mean().sqrt())
            if abs(rms - std) > _TOLERANCE * std:
                message = (
                    f"{info.name} starts with an RMS of {rms:.4g}, the plan says {std:.4g}: call "
                    "mssp.initialize(model, plan) first, unless this model has been trained before"
                )
                warnings.warn(message, PlanWarning, stacklevel=2)
                return

    def _warn_of_ignored(self, args: TrainingArguments) -> None:
        """Warn of settings of the Trainer that somebody has changed and that the plan's optimizer replaces."""
        plan = self.plan
        beta1, beta2 = plan.recipe.betas or _DEFAULT_BETAS
        numbers = {"learning_rate": plan.lr, "weight_decay": plan.weight_decay, "adam_epsilon": plan.eps}
        numbers |= {"adam_beta1": beta1, "adam_beta2": beta2}
        defaults = {field.name: field.default for field in fields(TrainingArguments)}
        ignored: list[tuple[str, object, object]] = [
            (name, getattr(args, name), planned)
            for name, planned in numbers.items()
            if getattr(args, name) not in (planned, defaults[name])
        ]
        optimizer = str(getattr(args.optim, "value", args.optim))
        if not optimizer.startswith("adamw_torch"):  # the default, which has several spellings
            ignored.append(("optim", optimizer, plan.optimizer))
        for name, value, planned in ignored:
            message = f"{name} {value} of the Trainer's arguments has no effect: the plan's is {planned}"
            warnings.warn(message, PlanWarning, stacklevel=2)


def _read_missing_weights(model: nn.Module, args: TrainingArguments, state: TrainerState, saved: Samples) -> None:
    """Read the weights that the Trainer did not take from the checkpoint it resumes from.

    The Trainer does not say in which folder that is. Two folders are tried, and the samples show whether one was right.
    """
    for folder in (_checkpoint(args, state), Path(str(args.resume_from_checkpoint))):
        if unread_tensors(model, saved) and (folder / "config.json").is_file():
            read_again(model, folder)
    unread = unread_tensors(model, saved)
    if unread:
        raise ValueError(
            f"{unread[0]} is not what it was in the checkpoint, from which the Trainer did not read it: build the "
            "model by from_pretrained of the checkpoint's folder, adapt it, and resume then"
        )


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """The folder of the checkpoint of the current step."""
    return Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
