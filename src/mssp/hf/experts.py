"""MoE layers of Hugging Face models: a router, and experts that are stacked tensors [experts, ., .] or modules.

In ``transformers`` every class of stacked experts says by flags whether experts are gated, have biases, keep inputs
first (transposed) and interleave gate and up. Nothing is concluded from a shape: that of a square matrix does not tell
which axis is its input.

Shapes: E experts, N width, F expert width, G rows of the first layer (2F where gated, else F), T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from mssp.apply.description import name_cleaner
from mssp.hf import vocabulary
from mssp.hf.probing import Gates, gates_of
from mssp.nn.experts.paths import ExpertWeights
from mssp.planning.parameter import ParamInfo


def is_fused(module: nn.Module) -> bool:
    """Whether a module is of a class of stacked experts, which its flags show."""
    return all(has_attribute(module, flag) for flag in vocabulary.STACK_FLAGS)


def has_attribute(module: nn.Module, name: str) -> bool:
    """Whether a module has an attribute other than its parameters, buffers and modules.

    Torch makes ``hasattr`` slow where there is no such attribute, and few modules have those that are looked for here.
    """
    return name in vars(module) or hasattr(type(module), name)


@dataclass(frozen=True)
class FusedExperts:
    """A module of stacked experts, with what its flags say."""

    module: nn.Module
    gated: bool
    biased: bool
    inputs_first: bool
    interleaved: bool

    @classmethod
    def of(cls, module: nn.Module, name: str) -> FusedExperts:
        """Read the flags of a module; ``name`` is the module's, for error messages."""
        if getattr(module, vocabulary.NORM_AFTER_EXPERT, False):
            raise ValueError(f"{name} has a norm after each expert, for which there is no rule")
        gated, biased, inputs_first, in_halves = (bool(getattr(module, flag)) for flag in vocabulary.STACK_FLAGS[1:])
        experts = cls(module, gated, biased, inputs_first, interleaved=gated and not in_halves)
        mismatched = set(dict(module.named_parameters())) ^ set(experts.infos())
        if mismatched:
            raise ValueError(
                f"{name} does not hold the tensors that its flags announce: {', '.join(sorted(mismatched))}"
            )
        return experts

    @property
    def first(self) -> str:
        """The local name of the first of the two stacks."""
        return vocabulary.GATED_FIRST if self.gated else vocabulary.PLAIN_FIRST

    def infos(self) -> dict[str, ParamInfo]:
        """The descriptions of the tensors, by their local names."""
        rows = ("(out 2)" if self.interleaved else "(2 out)") if self.gated else "out"
        first, second = (f"in {rows}", "in out") if self.inputs_first else (f"{rows} in", "out in")
        infos = {self.first: _stack("expert_in", first), vocabulary.SECOND: _stack("expert_out", second)}
        if self.biased:
            infos[_bias_of(self.first)] = _stack("expert_in_bias", rows)
            infos[_bias_of(vocabulary.SECOND)] = _stack("expert_out_bias", "out")
        return infos

    def parts(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Views of a stack, or of its bias: gate and up if it holds both, otherwise the whole tensor."""
        if name not in (self.first, _bias_of(self.first)) or not self.gated:
            return {"": tensor}
        axis = 2 if name == self.first and self.inputs_first else 1
        split = tensor.unflatten(axis, (-1, 2) if self.interleaved else (2, -1))
        gate, up = split.unbind(axis + 1 if self.interleaved else axis)
        return {"gate": gate, "up": up}

    def weights(self, values: Callable[[Tensor], Tensor]) -> ExpertWeights:
        """The weights in the layout of ``mssp.nn``: hidden units on axis 1, the gate's rows before up's.

        ``values`` gives the numbers to take for a parameter.
        """
        stacks = {name: values(parameter) for name, parameter in self.module.named_parameters()}
        first = torch.cat(list(self.parts(self.first, stacks[self.first]).values()), 2 if self.inputs_first else 1)
        w_in = first.mT if self.inputs_first else first
        w_out = stacks[vocabulary.SECOND] if self.inputs_first else stacks[vocabulary.SECOND].mT
        if not self.biased:
            return ExpertWeights(w_in.contiguous(), w_out.contiguous())
        b_in = torch.cat(list(self.parts(_bias_of(self.first), stacks[_bias_of(self.first)]).values()), 1)
        return ExpertWeights(w_in.contiguous(), w_out.contiguous(), b_in, stacks[_bias_of(vocabulary.SECOND)])

    def hidden(self, pre: Tensor) -> Tensor:
        """The module's own activation of outputs of its first layer [..., G], where the gate's stand before up's."""
        if self.interleaved:
            pre = torch.stack(pre.chunk(2, -1), -1).flatten(-2)
        name = vocabulary.GATED_ACTIVATION if self.gated else vocabulary.PLAIN_ACTIVATION
        activation: Callable[[Tensor], Tensor] = getattr(self.module, name)
        return activation(pre)


def _bias_of(stack: str) -> str:
    return stack + vocabulary.BIAS_SUFFIX


@cache  # the descriptions are the same in every layer
def _stack(role: str, layout: str) -> ParamInfo:
    return ParamInfo(role, layout=layout, expert_axis=0)


@dataclass(frozen=True)
class FusedMoE:
    """An MoE layer with stacked experts; ``name`` is the path of the module that holds router and experts."""

    name: str
    router: nn.Module
    experts: FusedExperts

    @property
    def summed_modules(self) -> list[nn.Module]:
        """The modules whose outputs add up to the sum over experts: a stack has computed the sum itself."""
        return [self.experts.module]

    @property
    def matrix_module(self) -> nn.Module:
        """The module that holds the router's matrix: the router itself, or a Linear inside it."""
        holders = [module for module in self.router.modules() if "weight" in module._parameters]
        if len(holders) != 1:
            raise ValueError(f"{self.name}'s router has {len(holders)} matrices, where one was expected")
        return holders[0]

    def gates(self, probe: Callable[..., Gates] | None = None) -> Gates:
        """How the router makes gates. ``probe`` is :func:`gates_of`, or remembers what it found of other routers."""
        experts, width = self.matrix_module.get_parameter("weight").shape
        return (probe or gates_of)(self.router, width, experts, f"{self.name}'s router")


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
    parent = path.rpartition(".")[0]
    router = _router_in(model.get_submodule(parent), clean(parent))
    return FusedMoE(clean(parent), router, FusedExperts.of(model.get_submodule(path), clean(path)))


def _router_in(block: nn.Module, name: str) -> nn.Module:
    names = vocabulary.names().routers
    routers = [child for local, child in block.named_children() if local in names]
    if len(routers) != 1:
        raise ValueError(f"{name} has {len(routers)} routers called {' or '.join(names)} beside its experts, not one")
    return routers[0]
