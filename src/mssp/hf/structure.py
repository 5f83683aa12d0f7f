"""The structure of any model, as far as names, types of modules and sizes show it: width, blocks, routers, experts.

Shapes: N width, M experts, F hidden units of one expert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from mssp.hf import vocabulary

# Words of names, as hand-written models have them beside those of the vocabulary.
_ROUTERS = frozenset({*vocabulary.names().routers, "gating", "wg", "switch", "routing"})
_BLOCK_LISTS = frozenset({"layer", "block", "h", "stages", "blocks", *vocabulary.names().blocks})
_BIASES = frozenset({"bias", "biases", "b", "b1", "b2", "b3", "beta"})
_GAINS = frozenset({"weight", "gamma", "gain", "scale", "g"})
_SIZES_OF_LINEAR = (("out_features", "in_features"), ("output_size", "input_size"))


@dataclass(frozen=True, eq=False)
class Seen:
    """A parameter where it stands: its clean name, its module, and the places of two numbers in its name."""

    name: str
    parameter: nn.Parameter
    owner: nn.Module
    block: int | None = None
    expert: int | None = None
    in_a_list: bool = False  # of modules that are alike, of which nothing says what they are

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.name.split("."))

    @property
    def local(self) -> str:
        return self.parts[-1]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parameter.shape)

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of the name of the module."""
        return self.parts[:-1]

    @property
    def inside(self) -> tuple[str, ...]:
        """The parts of the name inside the block, or of the whole name."""
        return self.parts if self.block is None else self.parts[self.block + 1 :]

    @property
    def title(self) -> str:
        """The class that holds the parameter, for reasons."""
        prefix = "nn." if type(self.owner).__module__.startswith("torch.nn.") else ""
        return f"{prefix}{type(self.owner).__name__}"

    @cached_property
    def module_words(self) -> frozenset[str]:
        """The words of the name of its module."""
        named = [part for part in self.path if not part.isdecimal()]
        return frozenset(words_of(named[-1])) if named else frozenset()

    @property
    def is_shared(self) -> bool:
        return any("shared" in part for part in self.inside)

    @property
    def in_experts(self) -> bool:
        """Whether its name says that it belongs to routed experts."""
        return any("expert" in part and "shared" not in part for part in self.inside[:-1])

    @property
    def in_attention(self) -> bool:
        return any("attn" in part or "attention" in part for part in self.path)

    @cached_property
    def layer(self) -> tuple[str, ...]:
        """The module that holds router and experts: what stands before a part called experts, or before their list."""
        first = 0 if self.block is None else self.block + 1
        named = [place for place, part in enumerate(self.path) if place >= first and "expert" in part]
        if named:
            return self.parts[: named[0]]
        return self.path if self.expert is None else self.parts[: self.expert - 1]

    @cached_property
    def linear_layout(self) -> str | None:
        """The axes of the weight of a Linear, or of a module that says its sizes as a Linear does."""
        if self.local != "weight" or len(self.shape) != 2 or not self.is_of_linear:
            return None
        if _is_transposed(self.owner):
            return "in out"
        sizes = [tuple(getattr(self.owner, name, None) for name in names) for names in _SIZES_OF_LINEAR]
        return "out in" if self.shape in sizes else None

    @property
    def sides(self) -> tuple[int, int] | None:
        """fan_in and fan_out of the weight of a Linear."""
        if self.linear_layout is None:
            return None
        rows, columns = self.shape
        return (columns, rows) if self.linear_layout == "out in" else (rows, columns)

    @property
    def is_of_linear(self) -> bool:
        kind = type(self.owner).__name__.lower()
        return isinstance(self.owner, nn.Linear) or "linear" in kind or _is_transposed(self.owner)

    @cached_property
    def is_of_norm(self) -> bool:
        """Whether it belongs to a norm, as the class of its module says."""
        return "norm" in type(self.owner).__name__.lower() and self.local in _GAINS | _BIASES

    @property
    def is_table(self) -> bool:
        """Whether it is looked up, as the weight of an Embedding is."""
        sizes = tuple(getattr(self.owner, name, None) for name in ("num_embeddings", "embedding_dim"))
        return self.local == "weight" and self.shape == sizes

    @property
    def is_of_convolution(self) -> bool:
        return isinstance(self.owner, nn.modules.conv._ConvNd)

    @cached_property
    def is_bias(self) -> bool:
        return bool(_BIASES & set(words_of(self.local)))


def words_of(part: str) -> list[str]:
    """The words of one part of a name, in lower case.

    >>> words_of("gate_up_proj"), words_of("shortConv1d")
    (['gate', 'up', 'proj'], ['short', 'conv1d'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", part)]


class Structure:
    """What stands where in a model. ``clean`` takes wrappers off names."""

    def __init__(self, model: nn.Module, clean: Callable[[str], str]) -> None:
        self._modules = {_clean_path(path, clean): each for path, each in model.named_modules(remove_duplicate=False)}
        seen = [
            Seen(clean(name), parameter, model.get_submodule(name.rpartition(".")[0]))
            for name, parameter in model.named_parameters(remove_duplicate=False)
        ]
        self.width = self._width(seen)
        self._routers = [each for each in seen if self._may_be_a_router(each)]
        self._kinds: dict[tuple[str, ...], str] = {}
        self._outputs: dict[tuple[str, ...], int | None] = {}
        self.parameters = {each.name: self._placed(each) for each in seen}
        self._routers = [self.parameters[router.name] for router in self._routers]
        self._by_module = _grouped((each.path, each) for each in self.parameters.values())
        self._by_parent = _grouped((each.path[:-1], each) for each in self.parameters.values())
        self._by_expert = _grouped(
            (_expert_key(each), each) for each in self.parameters.values() if each.expert is not None
        )
        self._by_block = _grouped(
            (each.parts[: each.block + 1], each) for each in self.parameters.values() if each.block is not None
        )
        self._counts: dict[tuple[str, ...], set[int]] = {}
        self._counts_around: dict[tuple[str, ...], set[int]] = {}
        for each in self.parameters.values():
            if (count := self.number_of_experts(each)) is not None:
                self._counts.setdefault(each.layer, set()).add(count)
                around = each.layer[:-1] if each.layer and not each.layer[-1].isdecimal() else each.layer
                self._counts_around.setdefault(around, set()).add(count)

    # -- what others ask -----------------------------------------------------------------------------------------------

    def module(self, path: Sequence[str]) -> nn.Module | None:
        return self._modules.get(".".join(path))

    def of_module(self, seen: Seen) -> list[Seen]:
        """The parameters of its module."""
        return self._by_module[seen.path]

    def near(self, seen: Seen) -> list[Seen]:
        """The parameters of the modules that stand beside its module."""
        return self._by_parent[seen.path[:-1]]

    def of_expert(self, seen: Seen) -> list[Seen]:
        """All parameters of one expert, or of one module of stacks."""
        return self._by_module[seen.path] if seen.expert is None else self._by_expert[_expert_key(seen)]

    def of_block(self, seen: Seen) -> list[Seen]:
        return [] if seen.block is None else self._by_block[seen.parts[: seen.block + 1]]

    @property
    def has_blocks(self) -> bool:
        """Whether blocks or experts were recognised."""
        return any(each.block is not None or each.expert is not None for each in self.parameters.values())

    def outside(self) -> list[Seen]:
        """The parameters outside of blocks and experts."""
        return [each for each in self.parameters.values() if each.block is None and each.expert is None]

    def may_be_a_router(self, seen: Seen) -> bool:
        """Whether it is called a router, has a side of the width, and no other in its module is called so."""
        return seen in self._routers and not any(
            other is not seen and other.path[:-1] == seen.path[:-1] for other in self._routers
        )

    def outputs_of_router(self, layer: tuple[str, ...]) -> int | None:
        """M: how many outputs the router of a layer has; of the layer around it, if it has none itself."""
        if layer not in self._outputs:
            around = layer[:-1] if layer and not layer[-1].isdecimal() else layer
            found = self._outputs_below(layer) or self._outputs_below(around)
            self._outputs[layer] = found.pop() if len(found) == 1 else None
        return self._outputs[layer]

    def experts_beside(self, seen: Seen) -> int | None:
        """How many experts there are in the layer that a matrix stands in, by their stacks or their list."""
        found: set[int] = set()
        found.update(*(self._counts.get(seen.parts[:end], ()) for end in range(len(seen.parts))))
        if not found and seen in self._routers:
            start = 0 if seen.block is None else seen.block + 1
            ends = range(start, len(seen.parts))
            found.update(*(self._counts_around.get(seen.parts[:end], ()) for end in ends))
        return found.pop() if len(found) == 1 else None

    def number_of_experts(self, seen: Seen) -> int | None:
        """The number of experts that a parameter shows: the length of their list, or the first axis of a stack."""
        if seen.expert is not None:
            container = self._modules[".".join(seen.parts[: seen.expert])]
            names: list[str] = [*container._modules, *container._parameters]
            return sum(map(str.isdecimal, names))
        stacked = len(seen.shape) == 3 and not seen.is_of_convolution
        if stacked and (seen.in_experts or self.outputs_of_router(seen.layer) == seen.shape[0]):
            return seen.shape[0]
        return None

    # -- found once ----------------------------------------------------------------------------------------------------

    def _width(self, seen: Sequence[Seen]) -> int | None:
        """N: the size of an embedding's vectors, or else the size that every matrix of the model has."""
        tables = {each.shape[1] for each in seen if each.is_table and not any(map(str.isdecimal, each.parts))}
        if len(tables) == 1:
            return tables.pop()
        shapes = [set(each.shape) for each in seen if len(each.shape) > 1 and not each.is_of_convolution]
        common = set.intersection(*shapes) if len(shapes) > 2 else set()
        return common.pop() if len(common) == 1 else None

    def _may_be_a_router(self, seen: Seen) -> bool:
        """Whether a name says that a matrix is a router's, and one of its sides is the width."""
        named = [part for part in seen.parts if not part.isdecimal() and part != "weight"][-2:]
        odd = any(word in part for part in named for word in ("shared", "noise")) or seen.is_bias
        if len(seen.shape) != 2 or self.width not in seen.shape or odd or not named:
            return False
        words = words_of(named[-1])
        # A "gate_proj" is half of a gated layer; a "gate" alone may be a router.
        called = bool(words) and (words[-1] in _ROUTERS or words[0] in ("router", "gating", "routing"))
        return called or (len(named) == 2 and bool(set(words_of(named[0])) & {"router", "gating"}))

    def _outputs_below(self, path: tuple[str, ...]) -> set[int]:
        """The numbers of outputs of the routers below a module, apart from those inside of experts."""
        found = set()
        for router in self._routers:
            below = router.parts[len(path) : -1]
            if router.parts[: len(path)] == path and not any("expert" in part for part in below):
                rows, columns = router.shape
                found.add(router.sides[1] if router.sides is not None else rows if columns == self.width else columns)
        return found

    def _placed(self, seen: Seen) -> Seen:
        """With the places of the block's and the expert's number in its name."""
        block = expert = None
        in_a_list = False
        for place, part in enumerate(seen.parts):
            if part.isdecimal() and expert is None:
                kind = self._kind_of_list(seen.parts[:place], block is not None)
                block = place if kind == "blocks" and self._is_a_block(seen.parts[: place + 1]) else block
                expert = place if kind == "experts" else None
                in_a_list |= kind == "alike"
        return replace(seen, block=block, expert=expert, in_a_list=in_a_list)

    def _kind_of_list(self, path: tuple[str, ...], nested: bool) -> str:
        """What a list is made of: blocks, experts, modules that are alike, or positions in a sequence."""
        if path not in self._kinds:
            self._kinds[path] = self._kind_of(path, nested)
        return self._kinds[path]

    def _kind_of(self, path: tuple[str, ...], nested: bool) -> str:
        container = self._modules.get(".".join(path))
        name = path[-1] if path else ""
        if container is None or "shared" in name:
            return "positions"
        members = [each for key, each in container.named_children() if key.isdecimal()]
        count = len(members) or sum(key.isdecimal() for key in container._parameters)
        are_alike = len({_structure(each) for each in members}) <= 1 and not isinstance(container, nn.Sequential)
        if are_alike and ("expert" in name or (count > 1 and self.outputs_of_router(path[:-1]) == count)):
            return "experts"
        of_one_class = (
            count > 1 and len({type(each) for each in members}) == 1 and type(members[0]) is not nn.Sequential
        )
        if name in _BLOCK_LISTS or (not nested and members and of_one_class):
            return "blocks"
        return "alike" if are_alike and count > 1 else "positions"

    def _is_a_block(self, path: tuple[str, ...]) -> bool:
        """Whether the member of a list is more than one layer of torch."""
        module = self._modules[".".join(path)]
        return any(True for _ in module.children()) or not set(module._parameters) <= {"weight", "bias"}


def _clean_path(path: str, clean: Callable[[str], str]) -> str:
    return clean(f"{path}.x").removesuffix("x").removesuffix(".") if path else ""


def _grouped(pairs: Iterable[tuple[Any, Seen]]) -> dict[Any, list[Seen]]:
    groups: dict[Any, list[Seen]] = {}
    for key, seen in pairs:
        groups.setdefault(key, []).append(seen)
    return groups


def _expert_key(seen: Seen) -> tuple[tuple[str, ...], str]:
    """Equal for all parameters of one expert; lists of parameters have one for each matrix, in the same module."""
    assert seen.expert is not None
    is_parameter = seen.expert == len(seen.parts) - 1
    return seen.parts[: seen.expert - 1 if is_parameter else seen.expert], seen.parts[seen.expert]


def _structure(module: nn.Module) -> Any:
    """What two modules that are alike have in common."""
    return type(module), tuple((name, tuple(each.shape)) for name, each in module.named_parameters())


def _is_transposed(module: nn.Module) -> bool:
    """Whether a module is a Conv1D of transformers: a Linear whose weight is [in, out]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
