"""Measures any model in training by hooks: sizes of its weights, updates, gradients and activations.

A size is a root mean square. Linear layers and lookups are measured wherever they stand, and MoE layers (our own, and
those whose experts are stacked tensors) with all the terms of their sums over experts. Of other parameters only the
sizes that need no input are measured: those of the weights, their updates and their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from mssp._constraints import a_module, claims, function, optional, takes
from mssp.apply.description import Claims, described_parameters, unwrapped
from mssp.apply.sharding import is_sharded
from mssp.hf.factors import factor_of
from mssp.measure.magnitudes import Layer, Pool, Sizes, layer_sizes, rms
from mssp.measure.moe_layers import MoELayer, merged, moe_layers
from mssp.measure.moe_terms import distance_between_experts, moe_sizes, routing_sizes
from mssp.measure.quantities import (
    ACTIVATION,
    CHANGE,
    EFFECTIVE,
    FEATURE_CHANGE,
    GRADIENT,
    INPUT_CHANGE,
    LOGIT_CHANGE,
    PROPAGATING,
    UPDATE,
    WEIGHTS,
    Quantity,
)
from mssp.measure.recording import Passage, recorded, undisturbed, wide_copy
from mssp.nn.router import Router, Routing
from mssp.planning.parameter import OWN, ParamInfo
from mssp.planning.rules import BIASES, GAINS

Loss = Callable[[nn.Module, Any], Tensor | None]
Described = list[tuple[ParamInfo, nn.Parameter]]
# Sizes that every parameter has, also where the module that computes with it is none of those measured here.
_OF_PARAMETERS = (WEIGHTS, UPDATE, GRADIENT)


@dataclass(frozen=True)
class Call:
    """The arguments of a forward pass."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@takes(model=a_module, loss=optional(function), claims=optional(claims))
class ModuleProbe:
    """Measures a model on a fixed batch, against the weights that it has when the probe is made.

    >>> model = nn.Sequential(nn.Linear(12, 8, bias=False), nn.Linear(8, 3, bias=False))
    >>> claims = {"0.weight": ParamInfo("embedding", layout="out in"),
    ...           "1.weight": ParamInfo("readout", layout="out in")}
    >>> x = torch.randn(5, 12)
    >>> probe = ModuleProbe(model, x, lambda model, x: model(x).square().mean(), claims)
    >>> with torch.no_grad():
    ...     _ = model[0].weight.mul_(2)
    >>> sizes = probe()
    >>> bool(sizes["propagating/readout"] > 0), sizes["effective/readout"]
    (True, tensor([0.], dtype=torch.float64))

    Args:
        batch: what ``loss`` takes. It should be small, since the input of every layer is kept in memory.
        loss: the mean loss on the batch, as in training. Without it the model is called on the batch (a tuple is its
            arguments, a mapping its keyword arguments) and the ``loss`` of its output is taken; where there is none,
            only the forward pass is measured.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).

    The gradient that reaches a MoE layer is split into a part sent by the readout's initial weights and a part sent by
    the readout's update. This needs a single Linear as readout, untied and not starting at zero; otherwise all of the
    gradient counts as sent by the update. Losses that bypass the readout (load balancing) are in neither part.

    Experts that are modules of their own are linear layers like any other. Under top-K the routing may have changed, so
    that an expert sees other tokens than at the start. If it sees another number of tokens, the changes of its input
    and output are left out. A change of tokens that keeps their number is not detected.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None = None, claims: Claims | None = None) -> None:
        self._model, self._batch, self._loss = unwrapped(model), batch, loss or own_loss
        self._described = described_parameters(model, claims)
        check_unsharded(self._described)
        trained = [parameter for _, parameter in self._described]
        if not trained:
            raise ValueError("the model has no trainable parameters to measure")
        self._device = trained[0].device
        self._moes = list(moe_layers(self._model))
        self._linears, self._lookups = _layers(self._model, self._described, {moe.router for moe in self._moes})
        moe_modules = [module for moe in self._moes for module in (moe.router, moe.experts)]
        measured = [*trained, *(parameter for module in moe_modules for parameter in module.parameters())]
        self._initial: dict[Tensor, Tensor] = {parameter: wide_copy(parameter) for parameter in measured}
        self._readout = self._splitting_readout()
        routers = {module for module in self._model.modules() if isinstance(module, Router)}
        self._with_calls = frozenset({*moe_modules, *routers})
        with undisturbed(self._model), torch.no_grad(), recorded(self._hooked(), self._with_calls) as passed:
            self._loss(self._model, batch)
        self._passed_at_start = passed

    def _splitting_readout(self) -> nn.Module | None:
        """The readout by which gradients are split: the only one, untied, with initial weights that are not zero."""
        readouts = [linear for linear in self._linears if linear.role == "readout"]
        splits = len(readouts) == 1 and not readouts[0].tied and bool(self._initial[readouts[0].weight].any())
        return readouts[0].module if splits else None

    def __call__(self) -> Sizes:
        """Every size by name, [1], float64."""
        return self.measure()[0]

    def measure(self) -> tuple[Sizes, Tensor | None]:
        """Every size by name, and the loss on the batch."""
        with undisturbed(self._model):
            with torch.enable_grad(), recorded(self._hooked(), self._with_calls) as passed:
                loss = self._loss(self._model, self._batch)
            gradients = None if loss is None else self._backward(loss, passed)
            with torch.no_grad():
                return self._sizes(passed, gradients), None if loss is None else loss.detach()

    def _hooked(self) -> set[nn.Module]:
        linears = {linear.module for linear in self._linears}
        return linears | {module for _, module in self._lookups} | self._with_calls

    def _backward(self, loss: Tensor, passed: Mapping[nn.Module, Passage]) -> _Gradients:
        if loss.numel() != 1 or not loss.requires_grad:
            got = tuple(loss.shape) if loss.numel() != 1 else "one without a gradient"
            raise ValueError(f"a loss is one number that depends on the parameters, got {got}")
        sources = {module: passage for module, passage in passed.items() if passage.output_edges}
        # Parameters may have been frozen since the probe was made.
        parameters = [parameter for _, parameter in self._described if parameter.requires_grad]
        edges = [edge for passage in sources.values() for edge in passage.output_edges]
        edges += [get_gradient_edge(parameter) for parameter in parameters]
        # The gradients of all outputs come first, then those of the parameters.
        gradients = iter(torch.autograd.grad(loss, edges, torch.ones_like(loss), retain_graph=True, allow_unused=True))
        # The loss is a mean over tokens. Times their number, a gradient is that of a token's own loss.
        tokens = self._tokens(passed)
        at_outputs = {
            module: passage.gradient_rows([next(gradients) for _ in passage.output_edges]) * tokens
            for module, passage in sources.items()
        }
        by_sender = self._sent_by_readout(passed, at_outputs)
        return _Gradients(dict(zip(parameters, gradients, strict=True)), at_outputs, by_sender)

    def _tokens(self, passed: Mapping[nn.Module, Passage]) -> int:
        """The number of tokens that the loss is a mean over: those of the readout, or of any module without one.

        An expert sees fewer tokens, and a layer before pooling sees more.
        """
        readouts = [linear.module for linear in self._linears if linear.role == "readout" and linear.module in passed]
        return max((passed[module].tokens for module in readouts or passed), default=1)

    def _sent_by_readout(
        self, passed: Mapping[nn.Module, Passage], at_outputs: Mapping[nn.Module, Tensor]
    ) -> dict[nn.Module, dict[str, Tensor]]:
        """The gradient at the sum over experts of every MoE layer, by the part of the readout that sent it."""
        layers = [moe.experts for moe in self._moes if moe.experts in at_outputs]
        readout = self._readout
        if readout is None or readout not in passed or not passed[readout].input_edges or not layers:
            return {layer: {"update": at_outputs[layer]} for layer in layers}
        matrix = readout.get_parameter("weight")
        initial = self._initial[matrix]
        by_sender: dict[nn.Module, dict[str, Tensor]] = {layer: {} for layer in layers}
        edges = [edge for layer in layers for edge in passed[layer].output_edges]
        for sender, weight in (("init", initial), ("update", wide_copy(matrix) - initial)):
            sent = passed[readout].by_call(at_outputs[readout] @ weight)
            gradients = iter(
                torch.autograd.grad(passed[readout].input_edges, edges, sent, retain_graph=True, allow_unused=True)
            )
            for layer in layers:
                of_calls = [next(gradients) for _ in passed[layer].output_edges]
                by_sender[layer][sender] = passed[layer].gradient_rows(of_calls)
        return by_sender

    def _sizes(self, passed: Mapping[nn.Module, Passage], gradients: _Gradients | None) -> Sizes:
        pool = Pool()
        at_outputs, by_sender = ({}, {}) if gradients is None else (gradients.at_outputs, gradients.by_sender)
        for linear in self._linears:
            if linear.module in passed:
                self._add(pool, self._linear_sizes(linear, passed[linear.module], at_outputs.get(linear.module)))
        for role, module in self._lookups:
            if module in passed:
                self._add(pool, self._lookup_sizes(role, module, passed[module]))
        for moe in self._moes:
            if moe.experts in passed:
                self._add(pool, self._moe_sizes(moe, passed, by_sender.get(moe.experts, {})))
        for routings in self._routings(passed):
            self._add(pool, routing_sizes([merged(routings)]))
        return {**pool.sizes(), **self._parameter_sizes(gradients)}

    def _add(self, pool: Pool, sizes: Sizes) -> None:
        # Layers of one model may be on several devices.
        for name, size in sizes.items():
            if Quantity.named(name).kind not in _OF_PARAMETERS:
                pool.add(name, size.to(self._device))

    def _linear_sizes(self, linear: _Linear, now: Passage, gradient: Tensor | None) -> Sizes:
        role, weight, start = linear.role, linear.weight, self._passed_at_start.get(linear.module)
        # An expert that saw another number of tokens at the start saw other tokens, which compare with none of now.
        if start is not None and start.tokens != now.tokens:
            start = None
        x, x_0 = now.x, (start or now).x
        # A plan's factor on the module's output is in what was recorded of it.
        factor = factor_of(linear.module)
        before, after = Layer(self._initial[weight] * factor, x_0), Layer(wide_copy(weight) * factor, x)
        sizes = layer_sizes(role, before, after, gradient)
        sizes[ACTIVATION(role)] = rms(now.y)
        if start is None:
            del sizes[PROPAGATING(role)], sizes[INPUT_CHANGE(role)]
        else:
            sizes[LOGIT_CHANGE() if role == "router" else CHANGE(role)] = rms(now.y - start.y)
        if role == "readout" and start is not None:
            sizes[FEATURE_CHANGE()] = rms(x - x_0)
        return sizes

    def _lookup_sizes(self, role: str, module: nn.Embedding, now: Passage) -> Sizes:
        update = wide_copy(module.weight) - self._initial[module.weight]
        looked_up = update[now.x.flatten()].unsqueeze(0)
        return {
            EFFECTIVE(role): rms(looked_up),
            PROPAGATING(role): rms(torch.zeros_like(looked_up)),  # the input is tokens, which do not change
            ACTIVATION(role): rms(now.y),
            CHANGE(role): rms(now.y - self._passed_at_start[module].y),
        }

    def _moe_sizes(self, moe: MoELayer, passed: Mapping[nn.Module, Passage], by_sender: Mapping[str, Tensor]) -> Sizes:
        routings = moe.routings(passed)
        # No gradient passes gates that depend on nothing trainable.
        by_sender = by_sender if routings[0].logits.requires_grad else {}
        start, now = moe.moment(self._passed_at_start, self._initial.__getitem__), moe.moment(passed, wide_copy)
        aggregate, aggregate_0 = passed[moe.experts].y, self._passed_at_start[moe.experts].y
        return {
            **moe_sizes(
                start,
                now,
                moe.hidden,
                by_sender,
                lambda gradient: moe.through_gates(routings, gradient),
                equal_shares=moe.sums_to_one,
            ),
            ACTIVATION("aggregate"): rms(aggregate),
            CHANGE("aggregate"): rms(aggregate - aggregate_0),
            **distance_between_experts(now.weights),
        }

    def _routings(self, passed: Mapping[nn.Module, Passage]) -> Iterator[list[Routing]]:
        """The routings of every router, whether it is in a MoE layer or on its own."""
        layer_of = {moe.router: moe for moe in self._moes}
        for module, passage in passed.items():
            if module in layer_of:
                yield layer_of[module].routings(passed)
            elif isinstance(module, Router):
                yield [output for _, output in passage.calls]

    def _parameter_sizes(self, gradients: _Gradients | None) -> Sizes:
        entries = Entries(self._device)
        for info, parameter in self._described:
            update = wide_copy(parameter) - self._initial[parameter]
            if info.start != OWN:  # what keeps the model's own values starts by no rule
                entries.add(WEIGHTS(info.role), _as_by_rule(info, self._initial[parameter]))
            entries.add(UPDATE(info.role), update)
            if info.role in GAINS | BIASES:
                entries.add(EFFECTIVE(info.role), update)
        if gradients is not None:
            for info, parameter in self._described:
                gradient = gradients.parameters.get(parameter)
                entries.add(GRADIENT(info.role), torch.zeros_like(parameter) if gradient is None else gradient)
        return entries.sizes()


def _as_by_rule(info: ParamInfo, value: Tensor) -> Tensor:
    """A parameter's value, of a gain or bias in units in which gains start at 1 and biases at 0.

    >>> _as_by_rule(ParamInfo("norm", start=0.0), torch.tensor([0.0, 0.5]))  # of a norm that multiplies by 1 + weight
    tensor([1.0000, 1.5000])
    """
    if info.start is None or info.start == OWN:
        return value
    return value - info.start + (1.0 if info.role in GAINS else 0.0)


class Entries:
    """Root mean squares, by name, over the entries of several tensors, as if the tensors were one.

    >>> entries = Entries()
    >>> entries.add("bias", torch.zeros(3))
    >>> entries.add("bias", torch.ones(1))
    >>> entries.sizes()
    {'bias': tensor([0.5000], dtype=torch.float64)}
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device
        self._sums: dict[str, tuple[Tensor, int]] = {}

    def add(self, name: str, x: Tensor) -> None:
        self.add_size(name, rms(x.detach().unsqueeze(0)).to(self._device), x.numel())

    def add_size(self, name: str, size: Tensor | float, entries: int) -> None:
        """Add entries of which only the number and the root mean square are known."""
        squares = torch.as_tensor(size, dtype=torch.float64, device=self._device).reshape(1).square() * entries
        total, count = self._sums.get(name, (torch.zeros_like(squares), 0))
        self._sums[name] = (total + squares, count + entries)

    def sizes(self) -> Sizes:
        return {name: (total / count).sqrt() for name, (total, count) in self._sums.items()}


def check_unsharded(described: Described) -> None:
    for info, parameter in described:
        if is_sharded(parameter):  # as FSDP makes them
            raise ValueError(f"{info.name} is sharded, and a probe reads whole parameters: probe a model without FSDP")


def output_of(model: nn.Module, batch: Any) -> Any:
    """What a model returns for a batch: a tuple is its arguments, a mapping its keyword arguments."""
    if isinstance(batch, Call):
        return model(*batch.args, **batch.kwargs)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def own_loss(model: nn.Module, batch: Any) -> Tensor | None:
    """The ``loss`` of a model's output on a batch, as our GPT and Hugging Face's models have it; None without one."""
    output = output_of(model, batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else None


@dataclass(frozen=True)
class _Linear:
    """A module that multiplies by its ``weight``; ``tied`` where the weight is the embedding's too."""

    role: str
    module: nn.Module
    tied: bool

    @property
    def weight(self) -> nn.Parameter:
        return self.module.get_parameter("weight")


@dataclass(frozen=True)
class _Gradients:
    """The gradients of one backward pass.

    Args:
        parameters: of the mean loss, by parameter.
        at_outputs: of a token's own loss at the outputs of modules.
        by_sender: the same at the sum over experts of every MoE layer, by the part of the readout that sent it.
    """

    parameters: Mapping[Tensor, Tensor | None]
    at_outputs: Mapping[nn.Module, Tensor]
    by_sender: Mapping[nn.Module, Mapping[str, Tensor]]


def _layers(
    model: nn.Module, described: Described, routers: Collection[nn.Module]
) -> tuple[list[_Linear], list[tuple[str, nn.Embedding]]]:
    """The modules that multiply by a described ``weight``, and the embeddings, which look up its rows, by role.

    A tied weight belongs to one module of each kind.
    """
    infos: dict[nn.Parameter | None, ParamInfo] = {parameter: info for info, parameter in described}
    linears, lookups = [], []
    for module in model.modules():
        info = infos.get(module._parameters.get("weight"))
        if info is not None and isinstance(module, nn.Embedding):
            lookups.append((info.role, module))
        elif info is not None and (isinstance(module, nn.Linear | Router) or module in routers):
            # A tied matrix is described as an embedding.
            linears.append(_Linear("readout" if info.tied_readout else info.role, module, info.tied_readout))
    return linears, lookups
