"""MoE layers of Hugging Face models: a router, and experts that are stacked tensors [experts, ., .] or modules.

In ``transformers`` nearly every class of stacked experts says by flags whether experts are gated, have biases, keep
inputs first (transposed) and interleave gate and up. Nothing is concluded from a shape there: that of a square matrix
does not tell which axis is its input. A class without flags is known by the names of its tensors, and of the layouts
that go with these names its sizes must allow exactly one.

Shapes: E experts, N width, F expert width, G rows of the first layer (2F where gated, else F), T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import torch
from torch import Tensor, nn

from mssp.apply.description import name_cleaner
from mssp.hf import vocabulary
from mssp.hf.probing import Gates, LogitsAloneError, gates_of
from mssp.hf.vocabulary import StackLayout
from mssp.nn.experts.paths import ExpertWeights
from mssp.planning.parameter import ParamInfo


def is_fused(module: nn.Module) -> bool:
    """Whether a module is of a class of stacked experts, which its flags show, or else the names of its tensors."""
    return _has_flags(module) or len(_layouts(module)) == 1


def _has_flags(module: nn.Module) -> bool:
    return all(has_attribute(module, flag) for flag in vocabulary.STACK_FLAGS)


def has_attribute(module: nn.Module, name: str) -> bool:
    """Whether a module has an attribute other than its parameters, buffers and modules.

    Torch makes ``hasattr`` slow where there is no such attribute, and few modules have those that are looked for here.
    """
    return name in vars(module) or hasattr(type(module), name)


def _layouts(module: nn.Module) -> list[tuple[StackLayout, int]]:
    """The layouts without flags that names and sizes of a module's tensors allow, each with the number of experts."""
    held = {name: tuple(tensor.shape) for name, tensor in module._parameters.items() if tensor is not None}
    if len(held) < 2:
        return []
    counts = [getattr(module, name) for name in vocabulary.EXPERT_COUNTS if has_attribute(module, name)]
    fitting = ((layout, _experts_in(layout, held, counts)) for layout in vocabulary.STACK_LAYOUTS)
    return [(layout, experts) for layout, experts in fitting if experts]


def _experts_in(layout: StackLayout, held: Mapping[str, tuple[int, ...]], counts: list[int]) -> int:
    """How many experts these tensors hold in this layout, if they have its names, and sizes that agree; else 0."""
    if held.keys() != {*layout.first, layout.second}:
        return 0
    axes = len(held[layout.second])
    experts = (counts or [0])[0] if layout.flat else held[layout.second][0]
    if axes != (2 if layout.flat else 3) or not experts:
        return 0
    sides = set()
    for name, role, axes_named in layout.tensors:
        try:
            fitted = ParamInfo(role, layout=axes_named, expert_axis=0, experts=experts).fitted(name, held[name], "")
        except ValueError:  # sizes that do not go with the layout
            return 0
        sides.add((fitted.fan_in, fitted.fan_out) if role == "expert_in" else (fitted.fan_out, fitted.fan_in))
    return experts if len(sides) == 1 else 0


@dataclass(frozen=True, eq=False)
class FusedExperts:
    """A module of stacked experts.

    Args:
        tensors: the descriptions of its tensors, by their local names.
        first: the stacks of the layer before the activation: one that holds gate and up, or gate and up in this order.
        flat: whether experts lie one after another along the first axis, which is no axis of their own.
        has_flags: whether its class says by flags what it is, and so has an activation of a known name.
    """

    module: nn.Module
    tensors: Mapping[str, ParamInfo]
    first: tuple[str, ...]
    second: str
    gated: bool
    flat: bool = False
    has_flags: bool = True

    @classmethod
    def of(cls, module: nn.Module, name: str) -> FusedExperts:
        """Read the flags of a module, or its sizes; ``name`` is the module's, for error messages."""
        if not _has_flags(module):
            [(layout, experts)] = _layouts(module)
            return cls._in_layout(module, layout, experts)
        if getattr(module, vocabulary.NORM_AFTER_EXPERT, False):
            raise ValueError(f"{name} has a norm after each expert, for which there is no rule")
        gated, biased, inputs_first, in_halves = (bool(getattr(module, flag)) for flag in vocabulary.STACK_FLAGS[1:])
        rows = ("(2 out)" if in_halves else "(out 2)") if gated else "out"
        in_layer, out_layer = (f"in {rows}", "in out") if inputs_first else (f"{rows} in", "out in")
        first = vocabulary.GATED_FIRST if gated else vocabulary.PLAIN_FIRST
        tensors = {first: _stack("expert_in", in_layer), vocabulary.SECOND: _stack("expert_out", out_layer)}
        if biased:
            tensors[_bias_of(first)] = _stack("expert_in_bias", rows)
            tensors[_bias_of(vocabulary.SECOND)] = _stack("expert_out_bias", "out")
        mismatched = set(dict(module.named_parameters())) ^ set(tensors)
        if mismatched:
            raise ValueError(
                f"{name} does not hold the tensors that its flags announce: {', '.join(sorted(mismatched))}"
            )
        return cls(module, MappingProxyType(tensors), (first,), vocabulary.SECOND, gated)

    @classmethod
    def _in_layout(cls, module: nn.Module, layout: StackLayout, experts: int) -> FusedExperts:
        tensors = {}
        for name, role, axes in layout.tensors:
            info, size = _stack(role, axes), module.get_parameter(name).shape[0]
            # Some classes keep slices for experts that compute nothing (LongCat).
            tensors[name] = info if size == experts else replace(info, experts=experts)
        gated = len(layout.first) > 1 or "2" in next(iter(layout.first.values()))
        return cls(module, MappingProxyType(tensors), tuple(layout.first), layout.second, gated, layout.flat, False)

    @property
    def count(self) -> int:
        """How many experts compute something."""
        info = self.tensors[self.second]
        return info.experts or self.module.get_parameter(self.second).shape[0]

    @property
    def has_spare_slices(self) -> bool:
        """Whether stacks have slices for experts that compute nothing: these hand on their input."""
        return not self.flat and any(info.experts is not None for info in self.tensors.values())

    def parts(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Views of a stack, or of its bias, with an axis of experts: gate and up if it holds both, else the whole."""
        info = self.tensors[name]
        if self.flat:
            tensor = tensor.unflatten(0, (self.count, -1))
        axes = (info.layout or "").replace("(", "").replace(")", "").split()
        if "2" not in axes:
            return {"": tensor}
        axis, interleaved = 1 + min(axes.index("out"), axes.index("2")), axes.index("2") > axes.index("out")
        split = tensor.unflatten(axis, (-1, 2) if interleaved else (2, -1))
        gate, up = split.unbind(axis + 1 if interleaved else axis)
        return {"gate": gate, "up": up}

    def weights(self, values: Callable[[Tensor], Tensor]) -> ExpertWeights:
        """The weights in the layout of ``mssp.nn``: hidden units on axis 1, the gate's rows before up's.

        ``values`` gives the numbers to take for a parameter.
        """
        parts = {name: self.parts(name, values(self.module.get_parameter(name))) for name in self.tensors}
        first = [self._turned(name, part) for name in self.first for part in parts[name].values()]
        w_in = torch.cat([part[: self.count] for part in first], 1)
        w_out = self._turned(self.second, parts[self.second][""])
        if _bias_of(self.second) not in self.tensors:
            return ExpertWeights(w_in.contiguous(), w_out.contiguous())
        b_in = torch.cat(list(parts[_bias_of(self.first[0])].values()), 1)
        return ExpertWeights(w_in.contiguous(), w_out.contiguous(), b_in, parts[_bias_of(self.second)][""])

    @property
    def _has_own_gate(self) -> bool:
        """Whether a class without flags computes the activation in a method of its own, from gate and up in halves."""
        return self.gated and len(self.first) == 1 and hasattr(self.module, vocabulary.GATED_ACTIVATION)

    def _turned(self, name: str, stack: Tensor) -> Tensor:
        """A stack with its hidden units on axis 1."""
        inputs_first = (self.tensors[name].layout or "").startswith("in")
        return stack.mT if inputs_first == (name in self.first) else stack

    def hidden(self, pre: Tensor) -> Tensor:
        """The module's own activation of outputs of its first layer [..., G], where the gate's stand before up's."""
        if not self.has_flags and not self._has_own_gate:
            activation = next(
                getattr(self.module, name) for name in vocabulary.ACTIVATIONS if hasattr(self.module, name)
            )
            gate, up = pre.chunk(2, -1) if self.gated else (pre, None)
            hidden: Tensor = activation(gate)
            return hidden if up is None else hidden * up
        if "(out 2)" in (self.tensors[self.first[0]].layout or ""):
            pre = torch.stack(pre.chunk(2, -1), -1).flatten(-2)
        own: Callable[[Tensor], Tensor] = getattr(
            self.module, vocabulary.GATED_ACTIVATION if self.gated else vocabulary.PLAIN_ACTIVATION
        )
        return own(pre)


def _bias_of(stack: str) -> str:
    return stack + vocabulary.BIAS_SUFFIX


@cache  # the descriptions are the same in every layer
def _stack(role: str, layout: str) -> ParamInfo:
    return ParamInfo(role, layout=layout, expert_axis=0)


@dataclass(frozen=True, eq=False)
class FusedMoE:
    """An MoE layer with stacked experts.

    Args:
        name: the path of the module that holds router and experts.
        layer: that module.
        experts: the stacks.
        summing: the module inside the layer that puts out the sum over experts: the one with the stacks, or around it.
    """

    name: str
    layer: nn.Module
    router: nn.Module
    experts: FusedExperts
    summing: nn.Module

    @property
    def summed_modules(self) -> list[nn.Module]:
        """The modules whose outputs add up to the sum over experts: a stack has computed the sum itself."""
        return [self.summing]

    @property
    def matrix_module(self) -> nn.Module:
        """The module that holds the router's matrix: the router itself, or a Linear inside it."""
        holders = [module for module in self.router.modules() if "weight" in module._parameters]
        if len(holders) != 1:
            raise ValueError(f"{self.name}'s router has {len(holders)} matrices, where one was expected")
        return holders[0]

    def gates(self, probe: Callable[..., Gates] | None = None) -> Gates:
        """How the router, or the layer around it, makes gates.

        ``probe`` is :func:`gates_of`, or remembers what it found of other routers.
        """
        outputs, width = self.matrix_module.get_parameter("weight").shape
        title = f"{self.name}'s router"
        try:
            return (probe or gates_of)(self.router, width, outputs, title)
        except LogitsAloneError:
            return gates_of(self.router, width, outputs, title, self.layer, self.summing)


@dataclass(frozen=True)
class NumberedMoE:
    """An MoE layer whose experts are modules of their own. The layer's code, not the router's, makes the gates."""

    name: str
    router: nn.Module
    summed_modules: tuple[nn.Module, ...]


MoE = FusedMoE | NumberedMoE


def numbered_layers(model: nn.Module) -> Iterator[NumberedMoE]:
    """The MoE layers of a model whose experts are modules of their own."""
    clean = name_cleaner(model)
    for path, module in model.named_modules():
        parent, _, name = path.rpartition(".")
        if name in vocabulary.names().expert_lists and isinstance(module, nn.ModuleList):
            yield NumberedMoE(clean(parent), _router_in(model.get_submodule(parent), clean(parent)), tuple(module))


def moe_layers(model: nn.Module) -> Iterator[FusedMoE]:
    """The MoE layers of a model whose experts are stacked."""
    clean = name_cleaner(model)  # once for all layers: it reads the names of all parameters
    for path, module in model.named_modules():
        if is_fused(module):
            yield moe_layer(model, path, clean)


def moe_layer(model: nn.Module, path: str, clean: Callable[[str], str] | None = None) -> FusedMoE:
    """The MoE layer whose experts are the stack at this path; ``clean`` is ``name_cleaner(model)``, if it is there."""
    clean = clean or name_cleaner(model)
    nearest, _, local = path.rpartition(".")
    parent = nearest
    while not _routers_in(model.get_submodule(parent)) and parent:  # the stacks may be a part of what sums
        parent, _, local = parent.rpartition(".")
    if not _routers_in(model.get_submodule(parent)):
        parent = nearest
    layer = model.get_submodule(parent)
    router = _router_in(layer, clean(parent))
    experts = FusedExperts.of(model.get_submodule(path), clean(path))
    return FusedMoE(clean(parent), layer, router, experts, layer.get_submodule(local))


def router_infos(model: nn.Module) -> Iterator[tuple[nn.Parameter, ParamInfo]]:
    """The descriptions of routers with more outputs than there are experts that compute something."""
    for moe in moe_layers(model):
        matrix = moe.matrix_module.get_parameter("weight")
        outputs, width = matrix.shape
        if outputs > moe.experts.count:
            yield matrix, ParamInfo("router", fan_in=width, fan_out=moe.experts.count)


def _routers_in(layer: nn.Module) -> list[nn.Module]:
    return [child for local, child in layer.named_children() if local in vocabulary.names().routers]


def _router_in(layer: nn.Module, name: str) -> nn.Module:
    routers = _routers_in(layer)
    if len(routers) != 1:
        names = " or ".join(vocabulary.names().routers)
        raise ValueError(f"{name} has {len(routers)} routers called {names} beside its experts, not one")
    return routers[0]
