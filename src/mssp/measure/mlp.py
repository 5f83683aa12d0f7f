"""Measures R MLP MoEs in training: every size, from the activations of one forward pass of all of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mssp.measure.magnitudes import Layer, Pool, Sizes, layer_sizes, rms, total
from mssp.measure.moe_terms import ExpertLayer, distance_between_experts, moe_sizes, routing_sizes
from mssp.measure.quantities import ACTIVATION, CHANGE, FEATURE_CHANGE, LOGIT_CHANGE
from mssp.nn import mlp
from mssp.nn.experts.paths import ExpertWeights, hidden_units


class MLPProbe:
    """Measures MLP MoEs on a fixed batch against the weights they have now.

    Args:
        multipliers: of the forward pass, [R, 1, 1] each.
        parameters: of R replicas, [R, ...]; copied, as the start that later weights are measured against.
        x, targets: the probe batch: [T, D] and [T, ...], which all replicas share, or [G, T, D] and [G, T, ...],
            shared by groups of R/G consecutive ones.
    """

    def __init__(
        self,
        config: mlp.MLPConfig,
        multipliers: mlp.Multipliers,
        parameters: mlp.Parameters,
        x: Tensor,
        targets: Tensor,
    ) -> None:
        self._config, self._multipliers, self._x = config, multipliers, x
        self._start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        # Gates that are shares of one are of order 1/K. The paper's are of order 1, under a factor 1/K.
        self._equal_shares = config.gate_kind != "sigmoid"
        self._share = config.shape.active if self._equal_shares else 1
        self._splits = bool(self._start["readout"].any())  # otherwise the readout's update sends everything
        replicas, grouped = len(self._start["readout"]), x.dim() > 2
        self._inputs, self._targets = (
            batch.repeat_interleave(replicas // len(batch), 0) if grouped else batch.expand(replicas, *batch.shape)
            for batch in (x, targets)
        )
        with torch.no_grad():
            self._acts = mlp.forward(self._start, x, config, multipliers)

    def __call__(self, parameters: mlp.Parameters) -> Sizes:
        """Every size by name, [R], float64."""
        now = {name: parameter.detach() for name, parameter in parameters.items()}
        with torch.enable_grad():
            acts = mlp.forward(now, self._x.detach().requires_grad_(), self._config, self._multipliers)
            backs = self._backward(acts, now)
        acts = {name: activation.detach() for name, activation in acts.items()}
        with torch.no_grad():
            return self._sizes(now, acts, backs)

    def _sizes(self, now: mlp.Parameters, acts: mlp.Activations, backs: Mapping[str, Mapping[str, Tensor]]) -> Sizes:
        pool = Pool()

        def add_layer(role: str, name: str, before: Tensor, after: Tensor, back: Tensor) -> None:
            pool.add_all(layer_sizes(role, Layer(self._start[name], before), Layer(now[name], after), back))

        add_layer("embedding", "embedding", self._inputs, self._inputs, total(backs["embedding"].values()))
        before, after = self._acts["features"], acts["features"]
        for block in range(self._config.blocks):
            name = f"blocks.{block}."
            pool.add_all(self._moe(name, now, acts, before, after, backs[f"{name}aggregate"]))
            add_layer("router", f"{name}router", before, after, total(backs[f"{name}router"].values()))
            before, after = self._acts[f"{name}output"], acts[f"{name}output"]
        add_layer("readout", "readout", before, after, backs["readout"]["output"])
        pool.add(FEATURE_CHANGE(), rms(after - before))
        for role, name in (("embedding", "features"), ("readout", "readout")):
            pool.add(ACTIVATION(role), rms(acts[name]))
            pool.add(CHANGE(role), rms(acts[name] - self._acts[name]))
        return pool.sizes()

    def _moe(
        self,
        name: str,
        now: mlp.Parameters,
        acts: mlp.Activations,
        before: Tensor,
        after: Tensor,
        backs: Mapping[str, Tensor],
    ) -> Sizes:
        first = self._moment(name, self._start, self._acts, before)
        last = self._moment(name, now, acts, after)
        logits, logits_0 = acts[f"{name}router"], self._acts[f"{name}router"]
        aggregate, aggregate_0 = acts[f"{name}aggregate"], self._acts[f"{name}aggregate"]
        return {
            **moe_sizes(
                first,
                last,
                self._hidden,
                backs,
                lambda back: self._through_gates(logits, back),
                equal_shares=self._equal_shares,
            ),
            ACTIVATION("router"): rms(logits),
            LOGIT_CHANGE(): rms(logits - logits_0),
            ACTIVATION("aggregate"): rms(aggregate),
            CHANGE("aggregate"): rms(aggregate - aggregate_0),
            **distance_between_experts(last.weights),
            **routing_sizes([mlp.routing(replica, self._config) for replica in logits]),
        }

    def _moment(self, name: str, parameters: mlp.Parameters, acts: mlp.Activations, x: Tensor) -> ExpertLayer:
        return ExpertLayer(
            x,
            parameters[f"{name}router"],
            ExpertWeights(parameters[f"{name}w_in"], parameters[f"{name}w_out"]),
            acts[f"{name}expert_in"],
            acts[f"{name}gates"] * self._share,
            self._multipliers.aggregation / self._share,
        )

    def _hidden(self, pre: Tensor) -> Tensor:
        return hidden_units(pre, self._config.activation, gated=False)

    def _through_gates(self, logits: Tensor, back: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            return torch.autograd.grad(mlp.gates(leaf, self._config) * self._share, leaf, back)[0]

    def _backward(self, acts: mlp.Activations, now: mlp.Parameters) -> dict[str, dict[str, Tensor]]:
        """The gradient at every layer's output, by the part of the readout that sent it.

        The gradient at the readout's own output is sent by the loss. Its part is called ``output``.
        """
        outputs = acts["readout"].detach().requires_grad_()
        losses = mlp.loss(outputs, self._targets, self._config.loss)
        tokens = outputs.shape[-2]
        at_output = torch.autograd.grad(losses.sum() * tokens, outputs)[0]  # a token's own loss, not its share
        start = self._start["readout"]
        parts = {"init": start, "update": now["readout"] - start} if self._splits else {"update": now["readout"]}
        blocks = range(self._config.blocks)
        names = ["embedding", *(f"blocks.{b}.{what}" for b in blocks for what in ("aggregate", "router"))]
        backs: dict[str, dict[str, Tensor]] = {name: {} for name in names} | {"readout": {"output": at_output}}
        last = acts[f"blocks.{self._config.blocks - 1}.output"]
        for sent, weight in parts.items():
            grads = torch.autograd.grad(last, [acts[name] for name in names], at_output @ weight, retain_graph=True)
            for name, grad in zip(names, grads, strict=True):
                backs[name][sent] = grad
        return backs
