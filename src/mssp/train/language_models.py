"""Language models that the loop trains: ``mssp.nn.GPT`` and Hugging Face models, each with its plan and its loss.

A row of a batch is a sequence of tokens, of which all but the first are predicted.

Shapes: B sequences, S predicted tokens of each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mssp._constraints import shown
from mssp.apply.description import described_parameters
from mssp.measure.modules import Call
from mssp.planning.configs import STORED
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import PlanWarning, Recipe
from mssp.planning.shape import Shape
from mssp.train.settings import RunSettings, TrainingSettings

BALANCE = 0.01  # the weight of the load-balancing loss, as in the paper
_EXPERTS = frozenset({"expert_in", "expert_in_bias", "expert_out", "expert_out_bias"})
_PER_MATRIX, _PER_ATTENTION = 6, 6  # operations of a token, forward and backward; causal attention sees half of all
Parts = dict[str, Tensor]


class LanguageModel(Protocol):
    """A model, its plan, and its loss.

    Args:
        module: the model, which layouts may change in place.
        context: the longest sequence; None where the model has no limit.
    """

    module: nn.Module
    plan: Plan
    vocabulary: int
    context: int | None

    def identity(self) -> dict[str, Any]:
        """What tells this model from others of other sizes, as JSON."""

    def loss(self, run: Callable[..., Any], rows: Tensor, tokens: int) -> tuple[Tensor, Parts]:
        """A part's share of a step's loss, and what it is made of.

        Args:
            run: the module, as it is wrapped or compiled.
            rows: [B, S + 1] tokens of this part.
            tokens: the predicted tokens of the whole step, over all parts and processes.
        """

    def token_loss(self, run: Callable[..., Any], rows: Tensor) -> Tensor:
        """The sum of the losses of the predictions alone, for validation."""

    def probe(self, rows: Tensor) -> Call:
        """A call of the module with these rows, by which sizes are measured."""


def language_model(settings: RunSettings, planned: Plan | None = None) -> LanguageModel:
    """The model of a run on the CPU, with memory and without initial weights, and its plan.

    Args:
        planned: a plan that was made before; without it, that of the settings.
    """
    if "config" in settings.model:
        return HuggingFaceModel(settings, planned)
    return GPTModel(settings, planned)


class GPTModel:
    """A ``mssp.nn.GPT``: its loss is that of its predictions, of balanced loads, and of small router logits."""

    def __init__(self, settings: RunSettings, planned: Plan | None = None) -> None:
        from mssp.nn import GPT

        self._training = settings.training
        config = gpt_config(settings)
        self.plan = planned or plan_of(settings, config.shape)
        if self.plan.target.with_inputs(1) != config.shape.with_inputs(1):
            raise ValueError(f"the plan is for {self.plan.target}, the model is {config.shape}")
        self.module: nn.Module = GPT(config)
        self.config, self.vocabulary, self.context = config, config.vocabulary, config.context

    def identity(self) -> dict[str, Any]:
        own = {each.name: getattr(self.config, each.name) for each in fields(self.config)}
        return {name: value for name, value in own.items() if name not in ("checkpointing", "dispatch")}

    def loss(self, run: Callable[..., Any], rows: Tensor, tokens: int) -> tuple[Tensor, Parts]:
        inputs, targets = rows[:, :-1], rows[:, 1:]
        output = run(inputs, targets=targets.contiguous())
        share = targets.numel() / tokens
        settings = self._training
        weight = BALANCE if settings.balance is None else settings.balance
        balance = output.load_balancing_loss(settings.balance_form)
        total = output.loss + weight * balance
        parts = {"cross_entropy": output.loss, "balance": balance}
        if settings.z:
            z = output.z_loss()
            total, parts["z"] = total + settings.z * z, z
        return total * share, {name: part.detach() * share for name, part in parts.items()}

    def token_loss(self, run: Callable[..., Any], rows: Tensor) -> Tensor:
        loss: Tensor = run(rows[:, :-1], targets=rows[:, 1:].contiguous()).loss
        return loss * rows[:, 1:].numel()

    def probe(self, rows: Tensor) -> Call:
        return Call((rows[:, :-1],), {"targets": rows[:, 1:].contiguous()})


class HuggingFaceModel:
    """A Hugging Face model: its loss is its own, with the coefficients of the plan."""

    def __init__(self, settings: RunSettings, planned: Plan | None = None) -> None:
        from mssp import hf
        from mssp.hf.batch_parts import share_among_parts
        from mssp.hf.meta import built_without_draws, config_of
        from mssp.hf.text_parts import text_config_of

        entries = dict(settings.model)
        config = config_of(entries.pop("config"))
        for name, value in entries.items():
            if not hasattr(config, name):
                raise ValueError(f"[model] has no entry {name}: {type(config).__name__} does not know it")
            setattr(config, name, value)
        text = text_config_of(config)
        _refuse_losses_of_gpt(settings.training)
        base = dict(settings.plan).get("base")
        self.plan = planned or _plan_over_configs(settings, config)
        hf_module = built_without_draws(config, None, "cpu").float()
        hf.adapt(hf_module, base if isinstance(base, str) else None)
        share_among_parts(hf_module, 1)
        if getattr(text, "output_router_logits", None) is False:
            warnings.warn(
                "the model adds no load-balancing loss: output_router_logits is false in its config", PlanWarning,
                stacklevel=2,
            )  # fmt: skip
        if settings.training.checkpointing:
            hf_module.gradient_checkpointing_enable()  # type: ignore[operator]
        self.module, self.vocabulary = hf_module, text.vocab_size
        self.context = getattr(text, "max_position_embeddings", None)
        self._config = config

    def identity(self) -> dict[str, Any]:
        entries = self._config.to_dict()
        return {name: value for name, value in sorted(entries.items()) if name not in _NOT_THE_MODEL}

    def loss(self, run: Callable[..., Any], rows: Tensor, tokens: int) -> tuple[Tensor, Parts]:
        # As the Trainer does it: the model shifts the labels itself, and divides by the tokens of the whole step.
        output = run(input_ids=rows, labels=rows, num_items_in_batch=tokens, use_cache=False)
        return output.loss, {"loss": output.loss.detach()}

    def token_loss(self, run: Callable[..., Any], rows: Tensor) -> Tensor:
        logits = run(input_ids=rows[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="sum")

    def probe(self, rows: Tensor) -> Call:
        return Call((), {"input_ids": rows, "labels": rows, "use_cache": False})


_NOT_THE_MODEL = (STORED, "transformers_version", "dtype", "torch_dtype", "use_cache", "_name_or_path")


def gpt_config(settings: RunSettings) -> Any:
    """The sizes of a GPT in the section ``[model]``; its context is the sequence, unless it says another."""
    from mssp.nn import GPTConfig

    entries = dict(settings.model)
    known = [each.name for each in fields(GPTConfig)]
    for name in entries:
        if name not in known:
            raise ValueError(f"[model] has no entry {name}: it has {', '.join(known)}")
    for name in ("width", "expert_width", "experts"):
        if name not in entries:
            raise ValueError(f"[model] has no {name}: say it, or take a recipe that does")
    entries.setdefault("context", settings.data.sequence)
    return replace(GPTConfig(**entries), checkpointing=settings.training.checkpointing)


def plan_of(settings: RunSettings, target: Shape) -> Plan:
    """The plan in the section ``[plan]`` for a target."""
    entries = dict(settings.plan)
    base = entries.pop("base", None)
    if isinstance(base, str):
        raise ValueError(f"[plan] base must be a table of sizes for a GPT, got {shown(base)}")
    base, recipe = None if base is None else Shape(**base), _recipe(settings, entries)
    return _made(lambda: plan(target, base, recipe=recipe, **entries), entries)


def _plan_over_configs(settings: RunSettings, config: Any) -> Plan:
    from mssp import hf

    entries = dict(settings.plan)
    base = entries.pop("base", None)
    if isinstance(base, Mapping):
        raise ValueError("[plan] base must be the path of the base's config for a Hugging Face model, got sizes")
    if base is None:
        return _made(lambda: plan(Shape.from_config(config.to_dict()), **entries), entries)
    return _made(lambda: hf.plan(config, base, recipe=_recipe(settings, entries), **entries), entries)


def _recipe(settings: RunSettings, entries: dict[str, Any]) -> Recipe:
    """How the target is trained, for the plan to warn of what changes from the base."""
    training, said = settings.training, dict(entries.pop("recipe", {}))
    if "tuned_with" in entries:
        entries["tuned_with"] = Recipe(**entries["tuned_with"])
    own = {"batch": settings.sequences_per_step, "steps": training.steps, "warmup": training.warmup}
    return Recipe(**{**own, **said})


def _made(make: Callable[[], Plan], entries: Mapping[str, Any]) -> Plan:
    if "lr" not in entries:
        raise ValueError("[plan] has no lr: say the learning rate that was tuned at the base")
    try:
        return make()
    except TypeError as error:
        raise ValueError(f"[plan]: {str(error).replace('plan() got an unexpected', 'unknown')}") from None


def _refuse_losses_of_gpt(training: TrainingSettings) -> None:
    default = TrainingSettings()
    for name in ("balance", "balance_form", "z"):
        if getattr(training, name) != getattr(default, name):
            raise ValueError(f"{name} is for mssp.nn.GPT: a Hugging Face model has its losses and coefficients itself")


# -- what a step costs -------------------------------------------------------------------------------------------------


def operations_per_token(model: LanguageModel, sequence: int) -> float:
    """Floating-point operations of a training step for one token, by the parameters that are active for it.

    Every matrix counts 6 for each entry, an expert's by the share of tokens that it gets. Embeddings are looked up. In
    causal attention a token meets half of the sequence on average.
    """
    target, matrices = model.plan.target, 0.0
    described = described_parameters(model.module, None)
    is_tied = all(info.role != "readout" for info, _ in described)  # the embedding is then a matrix of the readout too
    for info, parameter in described:
        share = target.active / target.experts if info.role in _EXPERTS else 1.0
        if info.role != "embedding" or is_tied:
            matrices += share * parameter.numel()
    attention = _PER_ATTENTION * target.depth * target.width * sequence
    return _PER_MATRIX * matrices + attention


# Peak rates of matrix products in bfloat16 without sparsity, in operations per second, by the name of the device.
_PEAKS = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}


def peak_operations(device: torch.device, precision: str) -> float | None:
    """The device's peak rate by its maker's data sheet; None for a CPU, an unknown device, or float32."""
    if device.type != "cuda" or precision != "bfloat16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in _PEAKS.items() if known in name), None)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Computes matrix products in bfloat16 where the precision says so; weights and routing stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
