"""What every parameter of a Hugging Face model is: by its name, by the flags of its class, and beside the base's.

The vocabulary and the classes of experts (``experts``) say what a parameter is. The model itself shows where its gains
are neutral. The model that was tuned, built on the meta device, shows which sides have grown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from mssp._constraints import mapping, takes
from mssp.apply.description import name_cleaner
from mssp.hf.experts import FusedExperts, has_attribute, is_fused
from mssp.hf.meta import config_of, on_meta
from mssp.hf.probing import NeutralGains
from mssp.hf.vocabulary import Place, for_all_blocks, info_of, names
from mssp.planning.configs import family_of
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import GAINS


def infos_of(model: nn.Module, base: Any = None) -> dict[str, ParamInfo]:
    """What every parameter of a model is, by its clean name; with a base, its sides at the base too."""
    clean = name_cleaner(model)
    parameters = {clean(name): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    stacks = dict(_stacks(model, clean))
    infos = {name: stacks.get(name) or info_of(name, shape) for name, shape in shapes.items()}
    unknown = [name for name, info in infos.items() if info is None and parameters[name].requires_grad]
    _refuse(unknown, shapes, f"{called(model)} has parameters")
    at_base = None if base is None else _Base(on_meta(base, like=model))
    head = _head_size(model)
    neutral = NeutralGains()
    return {
        name: _fitted(model, name, shapes, info, at_base, head, neutral)
        for name, info in infos.items()
        if info is not None
    }


def _refuse(unknown: Sequence[str], shapes: Mapping[str, tuple[int, ...]], held: str) -> None:
    if unknown:
        listed = dict.fromkeys(f"{for_all_blocks(name)} {shapes[name]}" for name in unknown)
        raise ValueError(f"{held} that are not understood: {', '.join(listed)}")


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
    neutral: NeutralGains,
) -> ParamInfo:
    """The vocabulary's description with what this model and its base add: where gains start, and which sides grow."""
    before = None if base is None else base.shape_of(name)
    if info.role == "qk_norm":
        grows = before is not None and before != shapes[name]
        over_heads = _of_queries(name, shapes) not in (None, (head,))
        if over_heads and head is None:
            raise ValueError(f"{name} {shapes[name]}: heads have several sizes, and whether it is of one is not known")
        info = replace(info, role="norm") if grows or over_heads else info
    if info.role in GAINS and name.endswith(".weight"):
        gain = neutral(model.get_submodule(name.rpartition(".")[0]), name)
        start = None if gain == 1.0 else gain
        info = info if info.start == start else replace(info, start=start)
    if info.role == "hidden" and base is not None and before is not None and info.base_fan_in is None:
        info = base.with_sides(info, name, before)
    elif info.role == "hidden" and before is not None:  # a kernel of fixed size on channels that grow
        info = replace(info, base_fan_out=before[0])
    return info


def _of_queries(name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the queries' norm, for a norm of queries or of keys; None for other norms.

    The two norms are of one kind, and with a single key head only the shape of the queries' norm shows which.
    """
    for queries, keys in names().norms_of_queries_and_keys:
        if name.endswith((f"{queries}.weight", f"{keys}.weight")):
            return shapes.get(name.replace(keys, queries), shapes[name])
    return None


def _head_size(model: nn.Module) -> int | None:
    """The size of an attention head, as the attention modules have it."""
    words = names().head_sizes
    values = {getattr(module, name) for module in model.modules() for name in words if has_attribute(module, name)}
    sizes = [size for size in values if isinstance(size, int)]
    return sizes[0] if len(sizes) == 1 else None  # some models have several


class _Base:
    """The shapes of the model that was tuned."""

    def __init__(self, model: nn.Module) -> None:
        self._by_block: dict[str, dict[int | None, tuple[int, ...]]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            place = Place.of(name)
            self._by_block.setdefault(for_all_blocks(place.local), {})[place.block] = tuple(parameter.shape)
        self._shapes = {local: set(blocks.values()) for local, blocks in self._by_block.items()}
        self._with_sides: dict[tuple[ParamInfo, tuple[int, ...]], ParamInfo] = {}

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter at the base: that of the same block, or of any block if all agree."""
        place = Place.of(name)
        local = for_all_blocks(place.local)  # experts are alike
        blocks = self._by_block.get(local)
        if blocks is None:
            raise ValueError(f"the base has no {for_all_blocks(name)}: base and target must be of one architecture")
        if place.block in blocks:
            return blocks[place.block]
        shape, *others = self._shapes[local]
        if others:
            raise ValueError(
                f"{name} has no partner at the base: there {place.local} has sizes of its own in each block"
            )
        return shape

    def with_sides(self, info: ParamInfo, name: str, shape: tuple[int, ...]) -> ParamInfo:
        """A description with the sides that a shape at the base has. It is computed once for blocks that are alike."""
        key = info, shape
        if key not in self._with_sides:
            sides = info.fitted(name, shape, info.tied_as)
            self._with_sides[key] = replace(info, base_fan_in=sides.fan_in, base_fan_out=sides.fan_out)
        return self._with_sides[key]


@takes(shapes=mapping)
def checkpoint_infos(shapes: Mapping[str, tuple[int, ...]], config: Any, base: Any = None) -> dict[str, ParamInfo]:
    """What the tensors of a checkpoint are, by their names on disk, where every matrix of every expert has one.

    ``config`` is that of the model that was saved, ``base`` that of the model that was tuned. A tensor that has the
    same name in memory is described as it is there.
    """
    config = config_of(config)
    in_memory = infos_of(on_meta(config), None if base is None else config_of(base))
    infos = {name: in_memory.get(name) or info_of(name, shape) for name, shape in shapes.items()}
    _refuse([name for name, info in infos.items() if info is None], shapes, "the checkpoint has tensors")
    return {name: info.fitted(name, shapes[name], info.tied_as) for name, info in infos.items() if info is not None}


def called(model: nn.Module) -> str:
    """A model in words."""
    kind = family_of(getattr(model, "config", None))
    return type(model).__name__ + (f" (model_type '{kind}')" if kind else "")
