"""The MoE layers of a model as a probe sees them: our own, and those of models that keep their experts in stacks.

Shapes: T tokens, M experts, K active; one replica, so the leading axis R of this package is 1.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from mssp.hf import experts
from mssp.hf.factors import factor_of
from mssp.hf.probing import SIGMOID
from mssp.measure.moe_terms import ExpertLayer
from mssp.measure.recording import Passage, main_output
from mssp.nn.experts.paths import ExpertWeights, all_pre_activations, gates_of_all, hidden_units
from mssp.nn.moe import MoE
from mssp.nn.router import Routing

Passed = Mapping[nn.Module, Passage]
Values = Callable[[Tensor], Tensor]


class MoELayer(ABC):
    """A router and its experts.

    Args:
        router: the module that holds the router's matrix and returns its logits, alone or first.
        experts: the module that returns the sum over experts.
    """

    router: nn.Module
    experts: nn.Module

    @property
    @abstractmethod
    def aggregation(self) -> float:
        """The factor on the sum over experts that is not in the gates."""

    @property
    @abstractmethod
    def sums_to_one(self) -> bool:
        """Whether gates are shares of one, which take no aggregation factor."""

    @abstractmethod
    def weights(self, values: Values) -> ExpertWeights:
        """The experts' weights, ``values`` of its parameters."""

    @abstractmethod
    def hidden(self, pre: Tensor) -> Tensor:
        """What an expert makes of its first layer's outputs."""

    @abstractmethod
    def routings(self, passed: Passed) -> list[Routing]:
        """Where tokens went, call by call, with the graph of the forward pass."""

    def moment(self, passed: Passed, values: Values) -> ExpertLayer:
        """The layer as it was in a forward pass."""
        routing, x, weights = merged(self.routings(passed)), passed[self.experts].x, self.weights(values)
        share = self._share(routing)
        biases = (None if each is None else each.unsqueeze(0) for each in (weights.b_in, weights.b_out))
        leading = ExpertWeights(weights.w_in.unsqueeze(0), weights.w_out.unsqueeze(0), *biases)
        return ExpertLayer(
            x,
            values(self.router.get_parameter("weight")).unsqueeze(0),
            leading,
            all_pre_activations(x, leading),
            gates_of_all(routing.gates, routing.chosen, routing.experts).unsqueeze(0) * share,
            self.aggregation / share,
        )

    def through_gates(self, routings: list[Routing], back: Tensor) -> Tensor:
        """From a gradient at the gates of ``moment`` [1, T, M] to that at the logits, by the forward pass's graph."""
        return through_gates(routings, back * self._share(routings[0]))

    def _share(self, routing: Routing) -> int:
        """Gates that are shares of one are of order 1/K. The paper's are of order 1, under a factor 1/K."""
        return routing.gates.shape[-1] if self.sums_to_one else 1


class OwnLayer(MoELayer):
    """A MoE layer of ``mssp.nn``."""

    def __init__(self, moe: MoE) -> None:
        self._moe, self.router, self.experts = moe, moe.router, moe.experts

    @property
    def aggregation(self) -> float:
        return float(self._moe.aggregation)

    @property
    def sums_to_one(self) -> bool:
        return self._moe.router.gate_kind != SIGMOID

    def weights(self, values: Values) -> ExpertWeights:
        held = self._moe.experts
        b_in, b_out = (None if each is None else values(each) for each in (held.b_in, held.b_out))
        return ExpertWeights(values(held.w_in), values(held.w_out), b_in, b_out)

    def hidden(self, pre: Tensor) -> Tensor:
        held = self._moe.experts
        return hidden_units(pre, held.activation, gated=held.w_in.shape[-2] != held.w_out.shape[-2])

    def routings(self, passed: Passed) -> list[Routing]:
        return [output for _, output in passed[self.router].calls]


class StackedLayer(MoELayer):
    """A MoE layer of another library, whose experts are called with (tokens, chosen, gates)."""

    def __init__(self, moe: experts.FusedMoE) -> None:
        self._stack, self.router, self.experts = moe.experts, moe.matrix, moe.experts.module
        self._gates = moe.gates()

    @property
    def aggregation(self) -> float:
        return factor_of(self.experts)

    @property
    def sums_to_one(self) -> bool:
        return self._gates.kind != SIGMOID

    def weights(self, values: Values) -> ExpertWeights:
        return self._stack.weights(values)

    def hidden(self, pre: Tensor) -> Tensor:
        return self._stack.hidden(pre)

    def routings(self, passed: Passed) -> list[Routing]:
        found = []
        for (_, scored), (given, _) in zip(passed[self.router].calls, passed[self.experts].calls, strict=True):
            logits = main_output(scored).flatten(0, -2)
            chosen, gates = given[1].flatten(0, -2), given[2].flatten(0, -2)
            with torch.no_grad():
                probabilities = logits.softmax(-1)
                scores = logits.sigmoid() if self._gates.score == SIGMOID else probabilities
            found.append(Routing(logits, scores, gates, chosen, probabilities, self._gates.score))
        return found


def moe_layers(model: nn.Module) -> Iterator[MoELayer]:
    """Every MoE layer of a model that can be looked into; of others, the parameters are measured as they are."""
    for module in model.modules():
        if isinstance(module, MoE):
            yield OwnLayer(module)
    for path, module in model.named_modules():
        if experts.is_fused(module):
            with contextlib.suppress(ValueError):  # experts or routers of a kind that is not understood
                yield StackedLayer(experts.moe_layer(model, path))


def merged(routings: list[Routing]) -> Routing:
    """The routings of a router's calls as one, over all their tokens; without gradients."""

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(each, name).detach().flatten(0, -2) for each in routings])

    chosen = None if routings[0].chosen is None else rows("chosen")
    return Routing(rows("logits"), rows("scores"), rows("gates"), chosen, rows("probabilities"), routings[0].gate)


def through_gates(routings: list[Routing], back: Tensor) -> Tensor:
    """From a gradient at the gates of all experts [1, T, M] to that at the logits, by the graph of the forward pass."""
    with torch.enable_grad():
        gates = [gates_of_all(each.gates, each.chosen, each.experts) for each in routings]
    parts = back.squeeze(0).split([each[..., 0].numel() for each in gates])
    sent = [part.view(each.shape) for part, each in zip(parts, gates, strict=True)]
    found = torch.autograd.grad(gates, [each.logits for each in routings], sent, retain_graph=True)
    return torch.cat([each.flatten(0, -2) for each in found]).unsqueeze(0)
