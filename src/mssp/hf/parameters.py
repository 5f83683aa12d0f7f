"""Finds out what every parameter of a Hugging Face model is: its role, its axes, and its sides at the base.

The module ``vocabulary``, or ``experts`` for stacked experts, has the role and the axes. Running a norm shows at which
gain it is neutral. The base is the small model that was tuned: on the meta device, it shows which sides have grown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from mssp._constraints import a_config, mapping, optional, takes
from mssp.apply.description import name_cleaner
from mssp.hf.experts import FusedExperts, has_attribute, is_fused, router_infos
from mssp.hf.meta import config_of, on_meta
from mssp.hf.probing import Probed, neutral_gain
from mssp.hf.stream import refuse_what_is_on_the_stream
from mssp.hf.text_parts import is_described, path_of_text_model
from mssp.hf.vocabulary import Place, for_all_blocks, info_of, names, place_of, why_unconfirmed
from mssp.planning.configs import family_of, kinds_of_blocks
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS
from mssp.planning.shape import FANS


def infos_of(model: nn.Module, base: BaseShapes | None = None) -> dict[str, ParamInfo]:
    """The description of every parameter of a model, by its clean name; with a base, its sides at the base too."""
    clean = name_cleaner(model)
    text = path_of_text_model(model)
    parameters = {
        clean(name): parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if is_described(model, name, text)
    }
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    stacks = dict(_stacks(model, clean))
    _refuse_several_sizes(model, stacks, shapes)
    infos = {name: stacks.get(name) or info_of(name, shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        reason = why_unconfirmed(name)
        if reason is not None and infos[name] is None:
            raise ValueError(f"{for_all_blocks(name)}: {reason}")
        if reason is not None and (base is None or base.shapes_of(name) != {shape}):
            raise ValueError(f"{for_all_blocks(name)}: {reason}; give a base in which it has the same shape")
    unknown = [name for name, info in infos.items() if info is None and parameters[name].requires_grad]
    if unknown:  # what is in the model is said before names that are missing here
        refuse_what_is_on_the_stream(model)
    _refuse(unknown, shapes, f"{title_of(model)} has parameters")
    with_more_outputs = dict(router_infos(model))
    infos |= {name: info for name, each in parameters.items() if (info := with_more_outputs.get(each)) is not None}
    head_size = _head_size(model.get_submodule(text))
    neutral_gains = Probed(neutral_gain)
    return {
        name: _completed(model, name, shapes, info, base, head_size, neutral_gains)
        for name, info in infos.items()
        if info is not None
    }


def _refuse(unknown: Sequence[str], shapes: Mapping[str, tuple[int, ...]], subject: str) -> None:
    if unknown:
        patterns = dict.fromkeys(f"{for_all_blocks(name)} {shapes[name]}" for name in unknown)
        raise ValueError(f"{subject} that are not understood: {', '.join(patterns)}")


def _refuse_several_sizes(
    model: nn.Module, stacks: Mapping[str, ParamInfo], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse stacks of experts that differ in size: a plan has one width and one number of experts."""
    sizes: dict[str, dict[tuple[int, ...], str]] = {}
    for name, info in stacks.items():
        sizes.setdefault(info.role, {}).setdefault(shapes[name], name)
    for of_role in sizes.values():
        if len(of_role) > 1:
            listed = ", ".join(f"{for_all_blocks(name)} {shape}" for shape, name in of_role.items())
            raise ValueError(f"{title_of(model)} has experts of several sizes, where a plan has one: {listed}")


def _stacks(model: nn.Module, clean: Callable[[str], str]) -> Iterator[tuple[str, ParamInfo]]:
    for path, module in model.named_modules():
        if is_fused(module):
            for local, info in FusedExperts.of(module, clean(path)).tensors.items():
                yield f"{clean(path)}.{local}", info


def _completed(
    model: nn.Module,
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    info: ParamInfo,
    base_shapes: BaseShapes | None,
    head_size: int | None,
    neutral_gains: Probed[float],
) -> ParamInfo:
    """The vocabulary's description with what this model and its base add: where gains start, and which sides grow."""
    at_base: frozenset[tuple[int, ...]] = frozenset() if base_shapes is None else base_shapes.shapes_of(name)
    base_shape = next(iter(at_base)) if len(at_base) == 1 else None
    place = place_of(name) if info.role in ("hidden", "qk_norm") else ""
    if info.role == "qk_norm":
        if len(at_base) > 1:
            raise ValueError(f"{name} has no partner at the base: there it has sizes of its own in each block")
        grows = base_shape is not None and base_shape != shapes[name]
        head_size = _head_size_around(model, name) or head_size
        over_all_heads = _shape_of_query_norm(name, shapes) not in (None, (head_size,))
        if over_all_heads and head_size is None:
            raise ValueError(f"{name} {shapes[name]}: heads have several sizes, and whether it is of one is not known")
        info = replace(info, role="norm") if grows or over_all_heads else info
        info = info if base_shape is None else replace(info, base_fan_out=math.prod(base_shape))
    if info.role in GAINS and name.endswith(".weight"):
        gain = neutral_gains(model.get_submodule(name.rpartition(".")[0]), name)
        start = None if gain == 1.0 else gain
        info = info if info.start == start else replace(info, start=start)
    if info.role == "hidden" and base_shapes is not None and info.base_fan_in is None:
        info = base_shapes.with_sides(info, name, at_base)
    elif info.role == "hidden" and base_shape is not None:  # a kernel of fixed size on channels that grow
        info = replace(info, base_fan_out=base_shape[0])
    return replace(info, place=place) if place else info


def _shape_of_query_norm(name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the queries' norm, for a norm of queries or of keys; None for other norms.

    Both norms are over all heads or both over one head. With a single key head only the queries' norm shows which.
    """
    for queries, keys in names().norms_of_queries_and_keys:
        if name.endswith((f"{queries}.weight", f"{keys}.weight")):
            return shapes.get(name.replace(keys, queries), shapes[name])
    return None


def _head_size_around(model: nn.Module, name: str) -> int | None:
    """The size of a head that the module around a norm states."""
    around = model.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
    sizes = [getattr(around, attribute) for attribute in names().head_sizes if has_attribute(around, attribute)]
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], int) else None


def _head_size(model: nn.Module) -> int | None:
    """The size of an attention head, as attention modules state it; None if they state several sizes, or none."""
    attributes = names().head_sizes
    values = {getattr(module, name) for module in model.modules() for name in attributes if has_attribute(module, name)}
    sizes = [size for size in values if isinstance(size, int)]
    return sizes[0] if len(sizes) == 1 else None


class BaseShapes:
    """The shapes of the base's parameters."""

    @classmethod
    def of(cls, config: Any, model: nn.Module) -> BaseShapes | None:
        """Those of a config of a model's class; None without a config."""
        return None if config is None else cls(on_meta(config, like=model), model)

    def __init__(self, base: nn.Module, model: nn.Module) -> None:
        self._by_block: dict[str, dict[int | None, tuple[int, ...]]] = {}
        for name, parameter in base.named_parameters(remove_duplicate=False):
            place = Place.of(name)
            self._by_block.setdefault(for_all_blocks(place.local), {})[place.block] = tuple(parameter.shape)
        self._modules = _modules_of(name for name, _ in base.named_parameters(remove_duplicate=False))
        names_of_target = (name for name, _ in model.named_parameters(remove_duplicate=False))
        self._modules_of_target = _modules_of(map(name_cleaner(model), names_of_target))
        self._kinds, self._kinds_of_target = kinds_of_blocks(base.config), kinds_of_blocks(model.config)
        self._infos_with_sides: dict[tuple[ParamInfo, frozenset[tuple[int, ...]]], ParamInfo] = {}

    def shapes_of(self, name: str) -> frozenset[tuple[int, ...]]:
        """The shapes that a parameter may have at the base, one if it is known.

        It is that in the block of the same number, if this is a block of the same kind, else in any block of that kind,
        and if the base has none, in any block. Modules of one name may have different parameters, as attention and
        linear attention have: blocks in which the module has the same ones go before all others.
        """
        place = Place.of(name)
        local = for_all_blocks(place.local)  # all experts of a layer have one shape
        blocks = self._by_block.get(local)
        if blocks is None:
            raise ValueError(f"the base has no {for_all_blocks(name)}: base and target must be of one architecture")
        module = self._modules_of_target.get((place.block, _child_of(place.local)))
        blocks = {
            block: shape for block, shape in blocks.items() if self._modules[block, _child_of(place.local)] == module
        } or blocks
        kind = self._kinds_of_target.get(place.block)
        alike = {block: shape for block, shape in blocks.items() if self._kinds.get(block) == kind}
        if place.block in alike:
            return frozenset({alike[place.block]})
        return frozenset((alike or blocks).values())

    def with_sides(self, info: ParamInfo, name: str, shapes: frozenset[tuple[int, ...]]) -> ParamInfo:
        """The description with the sides that all of these shapes at the base have, computed once for all blocks."""
        key = info, shapes
        if key not in self._infos_with_sides:
            fitted = [info.fitted(name, shape, info.tied_as) for shape in shapes]
            [fan_in, *other_ins], [fan_out, *other_outs] = ({getattr(each, side) for each in fitted} for side in FANS)
            self._infos_with_sides[key] = replace(
                info,
                base_fan_in=None if other_ins else fan_in,
                base_fan_out=None if other_outs else fan_out,
            )
        return self._infos_with_sides[key]


def _child_of(local: str) -> str:
    """The module of a block that a parameter belongs to."""
    return local.partition(".")[0]


def _modules_of(names: Iterable[str]) -> dict[tuple[int | None, str], frozenset[str]]:
    """The names of the parameters of every module of every block, by the block's number and the module's name."""
    modules: dict[tuple[int | None, str], set[str]] = {}
    for place in map(Place.of, names):
        modules.setdefault((place.block, _child_of(place.local)), set()).add(for_all_blocks(place.local))
    return {module: frozenset(parameters) for module, parameters in modules.items()}


@takes(shapes=mapping, config=a_config, base=optional(a_config))
def checkpoint_infos(shapes: Mapping[str, tuple[int, ...]], config: Any, base: Any = None) -> dict[str, ParamInfo]:
    """The descriptions of a checkpoint's tensors, by their names on disk, where every matrix of every expert has one.

    ``config`` is that of the model that was saved, ``base`` that of the model that was tuned. A tensor that has the
    same name in memory has the same description as there.
    """
    model = on_meta(config_of(config))
    in_memory = infos_of(model, BaseShapes.of(None if base is None else config_of(base), model))
    infos = {name: in_memory.get(name) or info_of(name, shape) for name, shape in shapes.items()}
    _refuse([name for name, info in infos.items() if info is None], shapes, "the checkpoint has tensors")
    return {name: info.fitted(name, shapes[name], info.tied_as) for name, info in infos.items() if info is not None}


def title_of(model: nn.Module) -> str:
    """The class and the family of a model, for error messages."""
    family = family_of(getattr(model, "config", None))
    return type(model).__name__ + (f" (model_type '{family}')" if family else "")
