"""Mixture-of-Experts models of Hugging Face ``transformers``, made known to every function of ``mssp``.

    mssp.hf.adapt(model, base=small_config)      # from here on the model describes itself
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))

What the parameters are is found in ``parameters``, how routers make gates by running them once (``probing``), and where
factors go in ``factors``. What is not understood is refused by name before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mssp.apply.description import unwrapped
from mssp.hf.experts import MoE, moe_layers, numbered_layers
from mssp.hf.factors import BY_PLAN, FACTOR, attach, detach, factors_for, is_tied
from mssp.hf.meta import STORED, config_of
from mssp.hf.parameters import called, infos_of
from mssp.hf.probing import GATE_KINDS
from mssp.hf.vocabulary import ADAPTER_MODULE, ADAPTERS, QUANTISED
from mssp.planning.configs import QUANTIZATION, entries_of, family_of, read_config
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan
from mssp.planning.shape import Shape

_DESCRIPTION = "param_infos"
_KEEPING = "keep_plan"
_ROUTING = ("gate_kind", "random_routing")


def adapt(model: nn.Module, base: Any = None, plan: Plan | None = None, *, gate: str | None = None) -> None:
    """Make a Hugging Face MoE known to every function of ``mssp``: its roles, its sides at the base, its factors.

    Args:
        model: a model of ``transformers`` with a language model's head, on any device (meta too), compiled or not.
        base: the config of the model that was tuned (a config, a mapping, a folder or a ``config.json``). Without it,
            sides that are no multiple of the width cannot be carried, and are asked for.
        plan: sets the factors of the forward pass at once, as for a model read from a checkpoint;
            :func:`mssp.initialize` sets them otherwise. Either keeps plan and base in the model's config, which
            ``save_pretrained`` writes: after ``from_pretrained``, ``adapt(model)`` needs neither.
        gate: ``sigmoid``, ``softmax`` or ``renormalised``, for models whose experts are modules of their own: how such
            a model makes gates cannot be found out.

    Nothing of the model's code changes and nothing is attached to a parameter: forward hooks multiply the outputs of
    experts (by the aggregation factor, where gates are sigmoids), of what writes to the residual stream, and of a
    readout that is tied to the embedding. :func:`release` takes it all off again.
    """
    if not isinstance(plan, Plan | None):
        raise ValueError(f"plan must be what mssp.plan returns, got a {type(plan).__name__}")
    model = unwrapped(model)
    _refuse_what_is_not_trained_from_scratch(model)
    base, plan = _stored(model, base, plan)
    base, base_shape = (None, None) if base is None else _config_of_base(model, base)
    infos = infos_of(model, base)
    gates = _gates(model, gate)
    factors = list(factors_for(model, gates))
    fit = _Fit(model, Shape.from_config(model.config), base_shape, is_tied(model))
    if plan is not None:  # whatever does not fit is told before anything is changed
        fit(plan)
        for _, by_plan in factors:
            by_plan(plan)
        trained = ((name, model.get_parameter(name)) for name in infos)
        plan.resolve(
            infos[name].fitted(name, tuple(each.shape), infos[name].tied_as)
            for name, each in trained
            if each.requires_grad
        )
    release(model)
    setattr(model, _DESCRIPTION, _Description(infos))
    setattr(model, BY_PLAN, fit)
    setattr(model, _KEEPING, _Keeper(model, base))
    for module, by_plan in factors:
        attach(module, by_plan)
    for moe, kind in gates.items():
        for name, said in zip(_ROUTING, (kind, False), strict=True):
            setattr(moe.router, name, said)
    if plan is not None:
        for module, by_plan in factors:
            setattr(module, FACTOR, by_plan.value(plan))
        _store(model, base, plan)


def _gates(model: nn.Module, said: str | None) -> dict[MoE, str]:
    """How every MoE layer makes gates: found out by running its router, or as said."""
    if said not in (*GATE_KINDS, None):
        raise ValueError(f"unknown gate {said!r}: use one of {', '.join(GATE_KINDS)}")
    found: dict[MoE, str] = {moe: moe.gates().kind for moe in moe_layers(model)}
    for moe, kind in found.items():
        if said not in (None, kind):
            raise ValueError(f"{moe.name} makes {kind} gates, which running it shows: leave out gate {said!r}")
    for numbered in numbered_layers(model):
        if said is None:
            raise ValueError(
                f"{numbered.name} has experts that are modules of their own, and how it makes gates cannot be found "
                f"out: say gate, one of {', '.join(GATE_KINDS)}"
            )
        found[numbered] = said
    if not found:
        raise ValueError(f"{called(model)} has no experts: this is for Mixture-of-Experts models")
    return found


def release(model: nn.Module) -> None:
    """Undo :func:`adapt`: no hooks, no factors, no description. Weights stay as they are."""
    model = unwrapped(model)
    for module in model.modules():
        detach(module)
        for name in (_DESCRIPTION, _KEEPING, *_ROUTING):
            module.__dict__.pop(name, None)
    model.config.__dict__.pop(STORED, None)


@dataclass(frozen=True)
class _Description:
    """What makes a model describe itself (see :func:`mssp.describe`)."""

    infos: Mapping[str, ParamInfo]

    def __call__(self) -> Mapping[str, ParamInfo]:
        return self.infos


@dataclass(frozen=True, eq=False)
class _Fit:
    """What a model says when a plan is put on it: depth and active experts are in its config and in no parameter."""

    model: nn.Module
    shape: Shape
    base: Shape | None
    tied: bool

    def __call__(self, plan: Plan) -> Mapping[str, float]:
        if self.shape.with_inputs(plan.target.inputs) != plan.target:
            raise ValueError(f"the plan is for another model: its target is {plan.target}, the model is {self.shape}")
        if self.base is not None and plan.base is not None and self.base.with_inputs(plan.base.inputs) != plan.base:
            raise ValueError(
                f"the base config is {self.base}, the plan's base is {plan.base}: they must be the same model"
            )
        if is_tied(self.model) != self.tied:
            then, now = ("was", "is not") if self.tied else ("was not", "is")
            raise ValueError(
                f"the readout {then} tied to the embedding when the model was adapted, and {now} now: call "
                "model.tie_weights(), or adapt the model again"
            )
        return {}


@dataclass(frozen=True, eq=False)
class _Keeper:
    """Keeps the plan that a model was initialized by in its config, which ``save_pretrained`` writes."""

    model: nn.Module
    base: Any

    def __call__(self, plan: Plan) -> None:
        _store(self.model, self.base, plan)


def _refuse_what_is_not_trained_from_scratch(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ValueError(f"{type(model).__name__} is no model of transformers: describe it by claims (mssp.describe)")
    if hasattr(model, ADAPTERS) or any(ADAPTER_MODULE in name for name, _ in model.named_modules()):
        raise ValueError(
            f"{called(model)} carries adapters (LoRA): plans are for models trained from scratch, not for fine-tuning"
        )
    if getattr(model, QUANTISED, False) or getattr(config, QUANTIZATION, None) is not None:
        raise ValueError(
            f"{called(model)} is quantised: plans are for models trained from scratch, in floating point (if its "
            f"weights are not, delete {QUANTIZATION} from its config)"
        )
    whole = next((name for name, each in model.named_parameters() if not each.is_floating_point()), None)
    if whole is not None:
        raise ValueError(f"{called(model)} is quantised: {whole} does not hold floating-point numbers")


def _config_of_base(model: nn.Module, base: Any) -> tuple[Any, Shape]:
    """The base's config and sizes, once it is sure that it is of this architecture and does not contradict itself."""
    read = read_config(base) if isinstance(base, str | Path) else base
    kind, own = family_of(read), family_of(model.config)
    if kind not in (None, own):
        raise ValueError(f"the base is a {kind}, the model a {own}: base and target must be of one architecture")
    if isinstance(read, Mapping):  # in our words, before a config's own class has its say
        Shape.from_config(read)
    config = config_of(read, like=model)
    return config, Shape.from_config(config)


# -- what travels with a checkpoint -----------------------------------------------------------------------------------


def _stored(model: nn.Module, base: Any, plan: Plan | None) -> tuple[Any, Plan | None]:
    """What the caller gave, or else what the model's config has kept."""
    kept = getattr(model.config, STORED, None)
    if base is not None or plan is not None or not isinstance(kept, Mapping):
        return base, plan
    return kept.get("base"), Plan.from_json(json.dumps(kept["plan"])) if "plan" in kept else None


def _store(model: nn.Module, base: Any, plan: Plan) -> None:
    kept: dict[str, Any] = {"plan": json.loads(plan.json())}
    if base is not None:
        kept["base"] = json.loads(json.dumps(dict(entries_of(config_of(base, like=model))), default=str))
        kept["base"].pop(STORED, None)
    setattr(model.config, STORED, kept)
