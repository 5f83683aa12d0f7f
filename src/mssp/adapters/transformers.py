"""Mixture-of-Experts models of Hugging Face ``transformers``: what their parameters are, and where factors go.

    mssp.hf.adapt(model, base=small_config)      # from here on the model describes itself
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))

Roles come from names (``names``) and from the flags that expert classes carry (``fused_experts``); the sides of the
small model that was tuned from that model itself, built on the meta device; where gains are neutral and how routers
make gates from running them once (``probing``). What is not understood is refused by name before anything is changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mssp.adapters.configs import STORED, config_of, on_meta
from mssp.adapters.forward_factors import BY_PLAN, FACTOR, attach, detach
from mssp.adapters.fused_experts import FusedExperts, MoE, is_fused, moe_layers, numbered_layers
from mssp.adapters.model_factors import factors_for
from mssp.adapters.names import Place, for_all_blocks, info_of
from mssp.adapters.probing import GATE_KINDS, neutral_gain
from mssp.description import name_cleaner
from mssp.model_config import entries_of, read_config
from mssp.param_info import ParamInfo
from mssp.planning import Plan
from mssp.rules import GAINS
from mssp.shape import Shape

_DESCRIPTION = "param_infos"
_ROUTING = ("gate_kind", "random_routing")


def adapt(model: nn.Module, base: Any = None, plan: Plan | None = None, *, gate: str | None = None) -> None:
    """Make a Hugging Face MoE known to every function of ``mssp``: its roles, its sides at the base, its factors.

    Args:
        model: a model of ``transformers`` with a language model's head, on any device (meta too), compiled or not.
        base: the config of the model that was tuned (a config, a mapping, a folder or a ``config.json``). Without it,
            sides that are no multiple of the width cannot be carried, and are asked for.
        plan: sets the factors of the forward pass at once, as for a model read from a checkpoint;
            :func:`mssp.initialize` sets them otherwise. The plan is then kept in the model's config, which
            ``save_pretrained`` writes: after ``from_pretrained``, ``adapt(model)`` needs neither base nor plan.
        gate: ``sigmoid``, ``softmax`` or ``renormalised``, for models whose experts are modules of their own: how such
            a model makes gates cannot be found out.

    Nothing of the model's code changes and nothing is attached to a parameter: forward hooks multiply the outputs of
    experts (by the aggregation factor, where gates are sigmoids), of what writes to the residual stream, and of a
    readout that is tied to the embedding. :func:`release` takes it all off again.
    """
    model = unwrapped(model)
    _refuse_what_is_not_trained_from_scratch(model)
    base, plan = _stored(model, base, plan)
    base = None if base is None else _config_of_base(model, base)
    if plan is not None and base is not None and plan.base is not None:
        _check_same(Shape.from_config(base), plan.base)
    infos = infos_of(model, base)
    gates = _gates(model, gate)
    factors = list(factors_for(model, gates))
    sizes = _Sizes(Shape.from_config(model.config))
    if plan is not None:  # whatever does not fit is told before anything is changed
        sizes(plan)
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
    setattr(model, BY_PLAN, sizes)
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
    found: dict[MoE, str] = {moe: said or moe.gates().kind for moe in moe_layers(model)}
    for numbered in numbered_layers(model):
        if said is None:
            raise ValueError(
                f"{numbered.name} has experts that are modules of their own, and how it makes gates cannot be found "
                f"out: say gate, one of {', '.join(GATE_KINDS)}"
            )
        found[numbered] = said
    if not found:
        raise ValueError(f"{_called(model)} has no experts: this is for Mixture-of-Experts models")
    return found


def release(model: nn.Module) -> None:
    """Undo :func:`adapt`: no hooks, no factors, no description. Weights stay as they are."""
    model = unwrapped(model)
    for module in model.modules():
        detach(module)
        for name in (_DESCRIPTION, *_ROUTING):
            module.__dict__.pop(name, None)


@dataclass(frozen=True)
class _Description:
    """What makes a model describe itself (see :func:`mssp.describe`)."""

    infos: Mapping[str, ParamInfo]

    def __call__(self) -> Mapping[str, ParamInfo]:
        return self.infos


@dataclass(frozen=True)
class _Sizes:
    """What a model says when a plan is put on it: depth and active experts are in its config and in no parameter."""

    shape: Shape

    def __call__(self, plan: Plan) -> Mapping[str, float]:
        if self.shape.with_inputs(plan.target.inputs) != plan.target:
            raise ValueError(f"the plan is for another model: its target is {plan.target}, the model is {self.shape}")
        return {}


# -- what the parameters are ------------------------------------------------------------------------------------------


def infos_of(model: nn.Module, base: Any = None) -> dict[str, ParamInfo]:
    """What every parameter of a model is, by its clean name, with its sides at the base where a base is given."""
    clean = name_cleaner(model)
    shapes = {clean(name): tuple(each.shape) for name, each in model.named_parameters(remove_duplicate=False)}
    trainable = {clean(name) for name, each in model.named_parameters(remove_duplicate=False) if each.requires_grad}
    stacks = dict(_stacks(model, clean))
    infos, unknown = {}, []
    for name, shape in shapes.items():
        found = stacks.get(name) or info_of(name, shape)
        if found is not None:
            infos[name] = found
        elif name in trainable:
            unknown.append(f"{for_all_blocks(name)} {shape}")
    if unknown:
        raise ValueError(
            f"{_called(model)} has parameters that are not understood: {', '.join(dict.fromkeys(unknown))}"
        )
    at_base = None if base is None else _Base.of(model, base)
    head = _head_size(model)
    return {name: _fitted(model, name, shapes, info, at_base, head) for name, info in infos.items()}


def checkpoint_infos(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ParamInfo]:
    """What the tensors of a checkpoint are, by the names they have on disk: one for each matrix of each expert.

    >>> infos = checkpoint_infos({"model.layers.0.mlp.experts.3.up_proj.weight": (32, 64)})
    >>> infos["model.layers.0.mlp.experts.3.up_proj.weight"].role
    'expert_in'
    """
    infos = {name: info_of(name, shape) for name, shape in shapes.items()}
    unknown = [f"{for_all_blocks(name)} {shapes[name]}" for name, info in infos.items() if info is None]
    if unknown:
        raise ValueError(f"the checkpoint has tensors that are not understood: {', '.join(dict.fromkeys(unknown))}")
    return {
        name: replace(info.fitted(name, shapes[name], info.tied_as), base_fan_in=None, base_fan_out=None)
        for name, info in infos.items()
        if info is not None
    }


def _stacks(model: nn.Module, clean: Callable[[str], str]) -> Iterator[tuple[str, ParamInfo]]:
    for path, module in model.named_modules():
        if is_fused(module):
            for local, info in FusedExperts.of(module, clean(path)).infos().items():
                yield f"{clean(path)}.{local}", info


def _fitted(
    model: nn.Module,
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    info: ParamInfo,
    base: _Base | None,
    head: int | None,
) -> ParamInfo:
    """A description with what this model adds to the vocabulary's: where gains start, which sides the base has."""
    before = None if base is None else base.shape_of(name)
    if info.role == "qk_norm":
        grows = before is not None and before != shapes[name]
        # Queries and keys have norms of one kind, and with a single key head only the queries' tells which.
        of_queries = shapes.get(name.replace("k_norm", "q_norm"), shapes[name])
        over_heads = name.endswith(("q_norm.weight", "k_norm.weight")) and of_queries != (head,)
        info = replace(info, role="norm") if grows or over_heads else info
    if info.role in GAINS and name.endswith(".weight"):
        owner = model.get_submodule(name.rpartition(".")[0])
        info = replace(info, start=_neutral(owner, name))
    if info.role == "hidden" and before is not None and info.base_fan_in is None:
        sides = info.fitted(name, before, info.tied_as)
        info = replace(info, base_fan_in=sides.fan_in, base_fan_out=sides.fan_out)
    elif info.role == "hidden" and before is not None:  # a kernel of fixed size on channels that grow
        info = replace(info, base_fan_out=before[0])
    return info


def _neutral(norm: nn.Module, name: str) -> float | None:
    start = neutral_gain(norm, name)
    return None if start == 1.0 else start


def _head_size(model: nn.Module) -> int | None:
    """The size of an attention head, as the attention modules have it."""
    found = {getattr(module, "head_dim", None) for module in model.modules()}
    sizes = [size for size in found if isinstance(size, int)]
    return sizes[0] if len(sizes) == 1 else None


class _Base:
    """The shapes of the model that was tuned, which is built on the meta device: no memory, no weights."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._by_block: dict[str, dict[int | None, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            place = Place.of(name)
            self._by_block.setdefault(place.local, {})[place.block] = shape

    @classmethod
    def of(cls, model: nn.Module, base: Any) -> _Base:
        small = on_meta(_config_of_base(model, base), like=model)
        return cls({name: tuple(each.shape) for name, each in small.named_parameters(remove_duplicate=False)})

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter at the base: of the same block, or of any where all blocks agree."""
        place = Place.of(name)
        blocks = self._by_block.get(place.local)
        if blocks is None:
            raise ValueError(f"the base has no {for_all_blocks(name)}: base and target must be of one architecture")
        shapes = set(blocks.values())
        if len(shapes) > 1 and place.block not in blocks:
            raise ValueError(
                f"{name} has no partner at the base: there {place.local} has sizes of its own in each block"
            )
        return blocks[place.block] if place.block in blocks else shapes.pop()


def _config_of_base(model: nn.Module, base: Any) -> Any:
    """The base's config, once it is sure that it is one of this architecture and does not contradict itself."""
    read = read_config(base) if isinstance(base, str | Path) else base
    kind = read.get("model_type") if isinstance(read, Mapping) else getattr(read, "model_type", None)
    own = getattr(model.config, "model_type", None)
    if kind not in (None, own):
        raise ValueError(f"the base is a {kind}, the model a {own}: base and target must be of one architecture")
    if isinstance(read, Mapping):  # in our words, before a config's own class has its say
        Shape.from_config(read)
    config = config_of(read, like=model)
    Shape.from_config(config)
    return config


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what DDP and ``torch.compile`` put around it."""
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and not hasattr(model, "config"):
            return unwrapped(inner)
    return getattr(model, "_orig_mod", model)


def _called(model: nn.Module) -> str:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return type(model).__name__ + (f" (model_type '{kind}')" if kind else "")


def _refuse_what_is_not_trained_from_scratch(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ValueError(f"{type(model).__name__} is no model of transformers: describe it by claims (mssp.describe)")
    if hasattr(model, "peft_config") or any("lora_" in name for name, _ in model.named_modules()):
        raise ValueError(
            f"{_called(model)} carries adapters (LoRA): plans are for models trained from scratch, not for fine-tuning"
        )
    if getattr(model, "is_quantized", False) or getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{_called(model)} is quantised: plans are for models trained from scratch, in floating point")
    whole = next((name for name, each in model.named_parameters() if not each.is_floating_point()), None)
    if whole is not None:
        raise ValueError(f"{_called(model)} is quantised: {whole} does not hold floating-point numbers")


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


def _check_same(given: Shape, planned: Shape) -> None:
    if given.with_inputs(planned.inputs) != planned:
        raise ValueError(f"the base config is {given}, the plan's base is {planned}: they must be the same model")
