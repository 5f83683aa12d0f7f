"""Finds the MoE layers of a model for a probe: our own, and those of models that keep their experts in stacks.

Shapes: T tokens, M experts, K active; one replica, so the leading axis R of this package is 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature

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
Values = Callable[[Tensor], Tensor]  # from a parameter to the numbers that are taken for it


@dataclass(frozen=True, kw_only=True, eq=False)
class MoELayer:
    """A router and its experts.

    Args:
        router: the module that holds the router's matrix and returns its logits, alone or first.
        experts: the module that returns the sum over experts.
        sums_to_one: whether gates are shares of one, which take no aggregation factor.
        factor: the factor on the sum over experts, as it is now.
        weights: the experts' weights, with ``Values`` of each parameter.
        hidden: what an expert makes of its first layer's outputs.
        routings: where tokens went, call by call, with the graph of the forward pass.
    """

    router: nn.Module
    experts: nn.Module
    sums_to_one: bool
    factor: Callable[[], float]
    weights: Callable[[Values], ExpertWeights]
    hidden: Callable[[Tensor], Tensor]
    routings: Callable[[Passed], list[Routing]]

    @property
    def aggregation(self) -> float:
        """The factor on the sum over experts that is not in the gates."""
        return self.factor()

    def moment(self, passed: Passed, values: Values) -> ExpertLayer:
        """The layer as it was in a forward pass."""
        routing, x = merged(self.routings(passed)), passed[self.experts].x
        weights, share = _changed(self.weights(values), lambda tensor: tensor.unsqueeze(0)), self._share(routing)
        return ExpertLayer(
            x,
            values(self.router.get_parameter("weight")).unsqueeze(0),
            weights,
            all_pre_activations(x, weights),
            gates_of_all(routing.gates, routing.chosen, routing.experts).unsqueeze(0) * share,
            self.aggregation / share,
        )

    def through_gates(self, routings: list[Routing], back: Tensor) -> Tensor:
        """From a gradient at the gates of ``moment`` [1, T, M] to that at the logits, by the forward pass's graph."""
        with torch.enable_grad():
            gates = [gates_of_all(routing.gates, routing.chosen, routing.experts) for routing in routings]
        parts = (back * self._share(routings[0])).squeeze(0).split([gate[..., 0].numel() for gate in gates])
        sent = [part.view(gate.shape) for part, gate in zip(parts, gates, strict=True)]
        at_logits = torch.autograd.grad(gates, [routing.logits for routing in routings], sent, retain_graph=True)
        return torch.cat([gradient.flatten(0, -2) for gradient in at_logits]).unsqueeze(0)

    def _share(self, routing: Routing) -> int:
        """Gates that are shares of one are of order 1/K. The paper's are of order 1, under a factor 1/K."""
        return routing.gates.shape[-1] if self.sums_to_one else 1


def own_layer(moe: MoE) -> MoELayer:
    """A MoE layer of ``mssp.nn``."""
    module = moe.experts

    def held() -> ExpertWeights:
        return ExpertWeights(module.w_in, module.w_out, module.b_in, module.b_out)

    return MoELayer(
        router=moe.router,
        experts=module,
        sums_to_one=moe.router.gate_kind != SIGMOID,
        factor=lambda: float(moe.aggregation),
        weights=lambda values: _changed(held(), values),
        hidden=lambda pre: hidden_units(pre, module.activation, held().gated),
        routings=lambda passed: [routing for _, routing in passed[moe.router].calls],
    )


def stacked_layer(moe: experts.FusedMoE) -> MoELayer:
    """A MoE layer of another library, whose experts are called with (tokens, chosen, gates)."""
    router, stack, kind = moe.matrix_module, moe.experts, moe.gates()
    if len(signature(moe.summing.forward).parameters) < 3:
        raise ValueError(f"{moe.name} multiplies the inputs of experts by gates, not their outputs")
    if len(router.get_parameter("weight")) != stack.count:
        raise ValueError(f"{moe.name}'s router has more outputs than there are experts")

    def routings(passed: Passed) -> list[Routing]:
        calls = []
        for (_, scored), (arguments, _) in zip(passed[router].calls, passed[moe.summing].calls, strict=True):
            logits = main_output(scored).flatten(0, -2)
            chosen, gates = arguments[1].flatten(0, -2), arguments[2].flatten(0, -2)
            with torch.no_grad():
                probabilities = logits.softmax(-1)
                scores = logits.sigmoid() if kind.score == SIGMOID else probabilities
            calls.append(Routing(logits, scores, gates, chosen, probabilities, kind.score))
        return calls

    return MoELayer(
        router=router,
        experts=moe.summing,
        sums_to_one=kind.kind != SIGMOID,
        factor=lambda: factor_of(moe.summing),
        weights=stack.weights,
        hidden=stack.hidden,
        routings=routings,
    )


def _changed(weights: ExpertWeights, change: Values) -> ExpertWeights:
    """The weights with another tensor for each."""
    held = {name: change(tensor) for name, tensor in vars(weights).items() if tensor is not None}
    return replace(weights, **held)


def moe_layers(model: nn.Module) -> Iterator[MoELayer]:
    """Every MoE layer of a model whose router and experts are of a known kind. Other layers are left out."""
    for module in model.modules():
        if isinstance(module, MoE):
            yield own_layer(module)
    for path, module in model.named_modules():
        if experts.is_fused(module):
            with contextlib.suppress(ValueError):  # experts or routers of a kind that is not understood
                yield stacked_layer(experts.moe_layer(model, path))


def merged(routings: list[Routing]) -> Routing:
    """The routings of a router's calls as one, over all their tokens; without gradients."""

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(routing, name).detach().flatten(0, -2) for routing in routings])

    chosen = None if routings[0].chosen is None else rows("chosen")
    return Routing(rows("logits"), rows("scores"), rows("gates"), chosen, rows("probabilities"), routings[0].gate)
