"""``adapt`` makes a model of Hugging Face ``transformers`` describe itself to ``mssp``.

    mssp.hf.adapt(model, base=small_config)      # base: the small model that was tuned
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))

The module ``parameters`` knows what the parameters are, ``probing`` finds out how routers make gates by running them
once, and ``factors`` knows which outputs a plan multiplies. A model that is not understood is refused before anything
in it is changed, by an error that names the part.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mssp._constraints import a_config, a_module, a_plan, one_of, optional, takes
from mssp.apply.description import name_cleaner, unwrapped
from mssp.apply.verification import FULL_PRECISION
from mssp.hf.balancing import (
    COEFFICIENTS,
    Coefficient,
    as_tuned,
    coefficients_of,
    keep_coefficients,
    restore_coefficients,
)
from mssp.hf.config_factors import FoundBefore, all_in_config, own_numbers, restore_numbers
from mssp.hf.experts import MoE, moe_layers, numbered_layers
from mssp.hf.factors import (
    FACTOR_ATTRIBUTE,
    PlannedFactor,
    attach,
    detach,
    factors_for,
    is_tied,
    together,
    warn_of_factors,
)
from mssp.hf.kept_plan import forget, given_or_kept, keep, own_config
from mssp.hf.meta import config_of, on_meta
from mssp.hf.own_factors import own_factors
from mssp.hf.own_values import changed_buffers, values_of_own
from mssp.hf.parameters import BaseShapes, infos_of, title_of
from mssp.hf.probing import GATE_KINDS, Probed, gates_of
from mssp.hf.starts import counted_starts, spread_starts
from mssp.hf.text_parts import refuse_other_parts
from mssp.hf.vocabulary import ADAPTER_MODULE, ADAPTERS, PEFT, QUANTISED
from mssp.planning.configs import DENSE_FAMILIES, QUANTIZATION, STORED, entries_of, family_of, is_dense, loaded
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.shape import Shape

# Attributes that ``adapt`` sets: methods of the model, and what its routers say (see ``mssp.apply.protocols``).
_METHODS = (
    "param_infos", "plan_multipliers", "planned_factors", "keep_plan", "missing_own_values", "check_own_values",
    "save_pretrained",
)  # fmt: skip
_GATES = "gate_kind"


@takes(model=a_module, base=optional(a_config), plan=optional(a_plan), gate=optional(one_of(GATE_KINDS)))
def adapt(model: nn.Module, base: Any = None, plan: Plan | None = None, *, gate: str | None = None) -> None:
    """Make a Hugging Face model describe its parameters, their sides at the base and its factors to ``mssp``.

    Args:
        model: a model of ``transformers`` with a language model's head, on any device (meta too), compiled or not.
        base: the config of the model that was tuned (a config, a mapping, a folder or a ``config.json``). Without it,
            the sides at the base are those of the plan, if it is one over configs; with others the model is refused.
        plan: sets the factors of the forward pass at once, for a model that has its weights from a checkpoint. For
            other models :func:`mssp.initialize` sets them. Both keep plan and base in the model's config, which
            ``save_pretrained`` writes: after ``from_pretrained``, ``adapt(model)`` and ``adapt(model, base)`` find
            them there. A base other than the kept one is refused. Numbers of the config that hold factors in a
            checkpoint are put back.
        gate: ``sigmoid``, ``softmax`` or ``renormalised``, for models whose experts are modules of their own: how such
            a model makes gates cannot be found out.

    The model's code does not change, and nothing is attached to a parameter. Forward hooks multiply the outputs of
    experts (by the aggregation factor, where gates are sigmoids), of modules that write to the residual stream, of a
    readout that is tied to the embedding, and of modules whose outputs the model multiplies by more than the base does.
    Coefficients of load-balancing losses that grow with the model are set in the model and in its config.
    :func:`release` removes everything that ``adapt`` added.
    """
    model = unwrapped(model)
    _refuse_what_is_not_trained_from_scratch(model)
    refuse_other_parts(model)
    with own_numbers(model):  # it may be from a checkpoint that holds factors of its plan in others
        given, _ = (None, None) if base is None else config_of_base(model, base)
        base, plan = given_or_kept(model, given, plan)
        base, base_shape = (None, None) if base is None else config_of_base(model, base)
        small = None if base is None else on_meta(base, like=model)
        infos = infos_of(model, None if small is None else BaseShapes(small, model))
        gates, beside = _gates(model, gate)
        if small is not None and base_shape is not None and beside:
            at_base = max(moe.gates().beside for moe in moe_layers(small))
            _refuse_other_shares((Shape.from_config(model.config).active, beside), (base_shape.active, at_base))
        factors = list(together(factors_for(model, gates), own_factors(model, small)).items())
        paths = {module: path for path, module in model.named_modules()}
        named = {paths[module]: factor for module, factor in factors}
        was_empty = any(parameter.is_meta for parameter in model.parameters())
        shape = Shape.from_config(model.config)
        coefficients = coefficients_of(model, len(gates), shape.experts) if gates else []
        if small is not None and base_shape is not None and coefficients:
            layers = len([*moe_layers(small), *numbered_layers(small)])
            coefficients = as_tuned(coefficients, small, layers, base_shape.experts)
        adapted = _Adapted(
            model, infos, named, shape, is_tied(model), base, base_shape, was_empty, coefficients or [], beside
        )
        if plan is not None:  # refuse it before anything is changed
            adapted.plan_multipliers(plan)
            for _, planned_factor in factors:
                planned_factor(plan)
            parameters = ((name, model.get_parameter(name)) for name in infos)
            plan.resolve(
                infos[name].fitted(name, tuple(parameter.shape), infos[name].tied_as)
                for name, parameter in parameters
                if parameter.requires_grad
            )
    release(model)
    for name in _METHODS:
        setattr(model, name, getattr(adapted, name))
    vars(model)[COEFFICIENTS] = coefficients
    for module, planned_factor in factors:
        attach(module, planned_factor)
    for moe, kind in gates.items():
        vars(moe.router)[_GATES] = kind
    if plan is not None:
        for module, planned_factor in factors:
            setattr(module, FACTOR_ATTRIBUTE, planned_factor.value(plan))
        adapted.keep_plan(plan)
    _warn_of_half_precision(model)


def _warn_of_half_precision(model: nn.Module) -> None:
    """Warn of parameters that are too coarse to be trained; ``verify`` says at which rates they are."""
    trained = [(name, parameter.dtype) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, dtype in trained:
        if torch.finfo(dtype).bits < torch.finfo(torch.float32).bits:
            message = (
                f"{title_of(model)} has parameters in {str(dtype).removeprefix('torch.')}, as {name}: an update of "
                f"less than {torch.finfo(dtype).eps / 2:.2g} of a weight is rounded away; to train it {FULL_PRECISION}"
            )
            warnings.warn(message, PlanWarning, stacklevel=4)
            return


def _gates(model: nn.Module, gate: str | None) -> tuple[dict[MoE, str], int]:
    """The kind of gates of every MoE layer: found out by running its router, or taken from the caller.

    And how many gates of other parts, as shared experts, add up to one together with those of the chosen experts.
    """
    probe = Probed(gates_of)
    gates: dict[MoE, str] = {}
    beside = 0
    for moe in moe_layers(model):
        made = moe.gates(probe)
        active = Shape.from_config(model.config).active
        if made.chosen != active:
            raise ValueError(
                f"{moe.name}'s router sends a token to {made.chosen} experts, and the config says {active}: the "
                "model does not follow its config there, which must say how many it uses"
            )
        gates[moe], beside = made.kind, max(beside, made.beside)
        if gate not in (None, made.kind):
            raise ValueError(f"{moe.name} makes {made.kind} gates, which running it shows: leave out gate {gate!r}")
    for layer in numbered_layers(model):
        if gate is None:
            raise ValueError(
                f"{layer.name} has experts that are modules of their own, and how it makes gates cannot be found "
                f"out: say gate, one of {', '.join(GATE_KINDS)}"
            )
        gates[layer] = gate
    if not gates and not is_dense(model.config):
        raise ValueError(
            f"{title_of(model)} has no experts, and its family is none that is known to be dense: "
            f"{', '.join(DENSE_FAMILIES)}"
        )
    return gates, beside


def _refuse_other_shares(now: tuple[int, int], before: tuple[int, int]) -> None:
    """Refuse numbers of chosen and of shared experts that differ from the base's, where all share one.

    The more experts are chosen, the less is left to the shared ones.
    """
    if now != before:
        part, part_before = (each[1] / sum(each) for each in (now, before))
        raise ValueError(
            f"the gates of {now[0]} chosen and {now[1]} shared experts add up to one together, so that shared experts "
            f"have {part:.3g} of it, and {part_before:.3g} at the base, where {before[0]} and {before[1]} share it: "
            "there is no rule for that; keep both numbers"
        )


@takes(model=a_module)
def release(model: nn.Module) -> None:
    """Undo :func:`adapt`: no hooks, no factors, no description, no plan in the config. Weights stay as they are.

    A model from a checkpoint has its own numbers back, where some of its config hold factors of the plan.
    """
    model = unwrapped(model)
    for module in model.modules():
        detach(module)
        for name in (*_METHODS, _GATES, COEFFICIENTS):
            module.__dict__.pop(name, None)
    if STORED in vars(model.config):
        own_config(model)  # before anything is set in it
        restore_coefficients(model)
        restore_numbers(model)
    forget(model)


@dataclass(frozen=True, eq=False)
class _Adapted:
    """The description of an adapted model. Its public methods become methods of the model."""

    model: nn.Module
    infos: Mapping[str, ParamInfo]
    factors: Mapping[str, PlannedFactor]
    shape: Shape
    tied: bool
    base: Any
    base_shape: Shape | None
    was_empty: bool
    coefficients: Sequence[Coefficient]
    gates_beside: int = 0
    in_config: FoundBefore = field(default_factory=dict)

    def param_infos(self) -> Mapping[str, ParamInfo]:
        _refuse_adapters(self.model)  # which may have come since
        return self.infos

    def planned_factors(self) -> Mapping[str, PlannedFactor]:
        """The factors on outputs of modules, by their paths."""
        return self.factors

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """Refuses a plan for another model, which could differ in its depth alone, and no parameter would show that.

        The model itself has no factors, which its modules have, but the coefficients of its load-balancing losses.
        """
        base = self.base_shape
        if self.shape.with_inputs(plan.target.inputs) != plan.target:
            raise ValueError(f"the plan is for another model: its target is {plan.target}, the model is {self.shape}")
        if base is not None and plan.base is not None and base.with_inputs(plan.base.inputs) != plan.base:
            raise ValueError(f"the base config is {base}, the plan's base is {plan.base}: they must be the same model")
        if self.gates_beside and plan.base is not None:
            beside = self.gates_beside
            _refuse_other_shares((plan.target.active, beside), (plan.base.active, beside))
        if is_tied(self.model) != self.tied:
            then, now = ("was", "is not") if self.tied else ("was not", "is")
            raise ValueError(
                f"the readout {then} tied to the embedding when the model was adapted, and {now} now: call "
                "model.tie_weights(), or adapt the model again"
            )
        planned = {each: each.planned(plan) for each in self.coefficients}
        return {each.name: value for each, value in planned.items() if each.is_attribute}

    def keep_plan(self, plan: Plan) -> None:
        """Keep the plan and the base in the model's config, which ``save_pretrained`` writes, and set coefficients."""
        keep(self.model, plan, self.base)
        keep_coefficients(self.model, self.coefficients, plan)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own, with the factors in numbers of the config.

        Where these cannot hold all of them, a warning says that the checkpoint computes something else without
        ``mssp``.
        """
        in_config = all_in_config(self.model, self.in_config)
        if in_config is None:
            warn_of_factors(self.model)
        with nullcontext() if in_config is None else in_config.set_on(self.model):
            return type(self.model).save_pretrained(self.model, *args, **kwargs)  # type: ignore[attr-defined]

    def missing_own_values(self, plan: Plan, seed: int) -> Sequence[tuple[Tensor, Tensor]]:
        """What takes its start from the base, with its values. Without the base's config that is refused.

        Of a model that was given memory by ``to_empty``, buffers and kept parameters go before.
        """
        spread = []
        if self.base is None and plan.base is not None and plan.base.width != self.shape.width:
            counted = counted_starts(self.model, self.infos)
            if counted:
                raise ValueError(
                    f"{counted[0]} starts as the base's, spread over its own entries, of which the base may have "
                    "fewer, and a plan does not say how many: give the base's config, mssp.hf.adapt(model, base)"
                )
        if self.base is not None and any(info.start == OWN for info in self.infos.values()):
            spread = spread_starts(self.model, self.infos, on_meta(self.base, like=self.model))
        changed = changed_buffers(self.model)
        if not changed and not (changed is None and self.was_empty):
            return spread
        clean = name_cleaner(self.model)
        frozen = {clean(name) for name, parameter in self.model.named_parameters() if not parameter.requires_grad}
        kept = frozen | {name for name, info in self.infos.items() if info.start == OWN}
        return [*values_of_own(self.model, kept, seed), *spread]

    def check_own_values(self) -> None:
        """Refuse a model that was given memory by ``to_empty``, and whose buffers nobody has filled since."""
        changed = changed_buffers(self.model)
        if changed:
            raise ValueError(
                f"{changed[0]} does not hold what the model itself computes, as to_empty leaves a model from the meta "
                "device: mssp.initialize(model, plan) fills buffers, and so does from_pretrained"
            )


def _refuse_adapters(model: nn.Module) -> None:
    of_peft = (type(module).__module__.partition(".")[0] == PEFT for module in model.modules())
    if hasattr(model, ADAPTERS) or any(of_peft) or any(ADAPTER_MODULE in name for name, _ in model.named_modules()):
        raise ValueError(
            f"{title_of(model)} carries adapters (LoRA): plans are for models trained from scratch, not for fine-tuning"
        )


def _refuse_what_is_not_trained_from_scratch(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ValueError(f"{type(model).__name__} is no model of transformers: describe it by claims (mssp.describe)")
    _refuse_adapters(model)
    if getattr(model, QUANTISED, False) or getattr(config, QUANTIZATION, None) is not None:
        raise ValueError(
            f"{title_of(model)} is quantised: plans are for models trained from scratch, in floating point (if its "
            f"weights are not, delete {QUANTIZATION} from its config)"
        )
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ValueError(f"{title_of(model)} is quantised: {name} does not hold floating-point numbers")


def config_of_base(model: nn.Module, base: Any) -> tuple[Any, Shape]:
    """The base's config and sizes. Refuses a base of another architecture, and sizes that contradict each other."""
    entries = loaded(base)
    base_family, family = family_of(entries_of(entries)), family_of(entries_of(model.config))
    if base_family not in (None, family):
        raise ValueError(
            f"the base is a {base_family}, the model a {family}: base and target must be of one architecture"
        )
    if isinstance(entries, Mapping):
        Shape.from_config(entries)  # its errors are plainer than those of the config's own class
    config = config_of(entries, like=model)
    return config, Shape.from_config(config)
