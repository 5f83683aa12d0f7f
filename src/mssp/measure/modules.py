"""Every size of any model in training, recorded by hooks: what MLPProbe measures, for a GPT or a model of one's own.

Linear layers and lookups are measured wherever they stand, MoE layers (our own, and those whose experts are stacked
tensors) with all the terms of their sums over experts. Other parameters have the sizes that need no input: of
themselves, their updates and their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.tensor import DTensor

from mssp._constraints import a_module, claims, function, optional, takes
from mssp.apply.description import Claims, described_parameters, unwrapped
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
from mssp.planning.parameter import ParamInfo
from mssp.planning.rules import BIASES, GAINS

Loss = Callable[[nn.Module, Any], Tensor | None]
Described = list[tuple[ParamInfo, nn.Parameter]]
# Sizes that every parameter has, whether or not it is known here what it computes with.
_OF_PARAMETERS = (WEIGHTS, UPDATE, GRADIENT)


@dataclass(frozen=True)
class Call:
    """The arguments of a forward pass."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@takes(model=a_module, loss=optional(function), claims=optional(claims))
class ModuleProbe:
    """Measures a model on a fixed batch against the weights it has now.

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
        batch: what ``loss`` takes; what enters every layer is kept, so let it be small.
        loss: the mean loss on the batch, as in training. Without it the model is called on the batch (a tuple is its
            arguments, a mapping its keyword arguments) and the ``loss`` of its output is taken; where there is none,
            only the forward pass is measured.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).

    What comes back to a MoE layer is split into what the readout's initial weights and what its update sent where the
    readout is one Linear of its own. Where there is none or several, or it is tied to the embedding, or starts at zero,
    all of it counts as sent by the update. In a split, a loss that bypasses the readout (load balancing) is in no part.

    Experts that are modules of their own are linear layers like any other. Under top-K an expert sees other tokens when
    the routing has changed, and how its input changed cannot be said: this is noticed by the number of tokens.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None = None, claims: Claims | None = None) -> None:
        self._model, self._batch, self._loss = unwrapped(model), batch, loss or own_loss
        self._described = described_parameters(model, claims)
        check_whole(self._described)
        trained = [parameter for _, parameter in self._described]
        if not trained:
            raise ValueError("the model has no trainable parameters to measure")
        self._device = trained[0].device
        self._moes = list(moe_layers(self._model))
        self._maps, self._lookups = _layers(self._model, self._described, {moe.router for moe in self._moes})
        parts = [part for moe in self._moes for part in (moe.router, moe.experts)]
        held = [*trained, *(parameter for part in parts for parameter in part.parameters())]
        self._start: dict[Tensor, Tensor] = {parameter: wide_copy(parameter) for parameter in held}
        self._readout = self._splitting_readout()
        routers = {module for module in self._model.modules() if isinstance(module, Router)}
        self._whole = frozenset({*parts, *routers})
        with undisturbed(self._model), torch.no_grad(), recorded(self._hooked(), self._whole) as passed:
            self._loss(self._model, batch)
        self._before = passed

    def _splitting_readout(self) -> nn.Module | None:
        """The one readout whose initial weights and update both send something back."""
        readouts = [linear for linear in self._maps if linear.role == "readout"]
        splits = len(readouts) == 1 and not readouts[0].tied and bool(self._start[readouts[0].weight].any())
        return readouts[0].module if splits else None

    def __call__(self) -> Sizes:
        """Every size by name, [1], float64."""
        return self.measure()[0]

    def measure(self) -> tuple[Sizes, Tensor | None]:
        """Every size by name, and the loss on the batch."""
        with undisturbed(self._model):
            with torch.enable_grad(), recorded(self._hooked(), self._whole) as passed:
                loss = self._loss(self._model, self._batch)
            gradients = None if loss is None else self._backward(loss, passed)
            with torch.no_grad():
                return self._sizes(passed, gradients), None if loss is None else loss.detach()

    def _hooked(self) -> set[nn.Module]:
        return {linear.module for linear in self._maps} | {module for _, module in self._lookups} | self._whole

    def _backward(self, loss: Tensor, passed: Mapping[nn.Module, Passage]) -> _Gradients:
        if loss.numel() != 1 or not loss.requires_grad:
            raise ValueError(f"a loss is one number that depends on the parameters, got {tuple(loss.shape)}")
        sources = {module: passage for module, passage in passed.items() if passage.out_of}
        parameters = [parameter for _, parameter in self._described if parameter.requires_grad]  # still
        edges = [edge for passage in sources.values() for edge in passage.out_of]
        edges += [get_gradient_edge(parameter) for parameter in parameters]
        rest = iter(torch.autograd.grad(loss, edges, torch.ones_like(loss), retain_graph=True, allow_unused=True))
        # Of a token's own loss, not of its share in the mean.
        tokens = self._tokens(passed)
        backs = {
            module: source.back([next(rest) for _ in source.out_of]) * tokens for module, source in sources.items()
        }
        return _Gradients(dict(zip(parameters, rest, strict=True)), backs, self._sent_by_readout(passed, backs))

    def _tokens(self, passed: Mapping[nn.Module, Passage]) -> int:
        """The number of tokens in the loss's mean: the readout's. An expert sees fewer, layers before pooling more."""
        readouts = [linear.module for linear in self._maps if linear.role == "readout" and linear.module in passed]
        return max((passed[module].tokens for module in readouts or passed), default=1)

    def _sent_by_readout(
        self, passed: Mapping[nn.Module, Passage], backs: Mapping[nn.Module, Tensor]
    ) -> dict[nn.Module, dict[str, Tensor]]:
        """What comes back to the sum over experts of every MoE layer, by the part of the readout that sent it."""
        layers = [moe.experts for moe in self._moes if moe.experts in backs]
        readout = self._readout
        if readout is None or readout not in passed or not passed[readout].into or not layers:
            return {layer: {"update": backs[layer]} for layer in layers}
        matrix = readout.get_parameter("weight")
        start = self._start[matrix]
        parts: dict[nn.Module, dict[str, Tensor]] = {layer: {} for layer in layers}
        for sent, weight in (("init", start), ("update", wide_copy(matrix) - start)):
            back = passed[readout].by_call(backs[readout] @ weight)
            edges = [edge for layer in layers for edge in passed[layer].out_of]
            rest = iter(torch.autograd.grad(passed[readout].into, edges, back, retain_graph=True, allow_unused=True))
            for layer in layers:
                parts[layer][sent] = passed[layer].back([next(rest) for _ in passed[layer].out_of])
        return parts

    def _sizes(self, passed: Mapping[nn.Module, Passage], gradients: _Gradients | None) -> Sizes:
        pool = Pool()
        backs, parts = ({}, {}) if gradients is None else (gradients.backs, gradients.parts)
        for linear in self._maps:
            if linear.module in passed:
                self._add(pool, self._map_sizes(linear, passed[linear.module], backs.get(linear.module)))
        for role, module in self._lookups:
            if module in passed:
                self._add(pool, self._lookup_sizes(role, module, passed[module]))
        for moe in self._moes:
            if moe.experts in passed:
                self._add(pool, self._moe_sizes(moe, passed, parts.get(moe.experts, {})))
        for routings in self._routings(passed):
            self._add(pool, routing_sizes([merged(routings)]))
        return {**pool.sizes(), **self._parameter_sizes(gradients)}

    def _add(self, pool: Pool, sizes: Sizes) -> None:
        # Layers of one model may be on several devices.
        for name, size in sizes.items():
            if Quantity.named(name).kind not in _OF_PARAMETERS:
                pool.add(name, size.to(self._device))

    def _map_sizes(self, linear: _LinearMap, now: Passage, back: Tensor | None) -> Sizes:
        role, weight, before = linear.role, linear.weight, self._before.get(linear.module)
        # Under top-K an expert may have seen other tokens: nothing to compare those of now with.
        start = before if before is not None and before.tokens == now.tokens else None
        x, x_0 = now.x, (start or now).x
        sizes = layer_sizes(role, Layer(self._start[weight], x_0), Layer(wide_copy(weight), x), back)
        sizes[ACTIVATION(role)] = rms(now.y)
        if start is None:
            del sizes[PROPAGATING(role)], sizes[INPUT_CHANGE(role)]
        else:
            sizes[LOGIT_CHANGE() if role == "router" else CHANGE(role)] = rms(now.y - start.y)
        if role == "readout" and start is not None:
            sizes[FEATURE_CHANGE()] = rms(x - x_0)
        return sizes

    def _lookup_sizes(self, role: str, module: nn.Embedding, now: Passage) -> Sizes:
        update = wide_copy(module.weight) - self._start[module.weight]
        looked_up = update[now.x.flatten()].unsqueeze(0)
        return {
            EFFECTIVE(role): rms(looked_up),
            PROPAGATING(role): rms(torch.zeros_like(looked_up)),  # the tokens stay what they are
            ACTIVATION(role): rms(now.y),
            CHANGE(role): rms(now.y - self._before[module].y),
        }

    def _moe_sizes(self, moe: MoELayer, passed: Mapping[nn.Module, Passage], backs: Mapping[str, Tensor]) -> Sizes:
        routings = moe.routings(passed)
        # Gates that depend on nothing trainable pass nothing back.
        backs = backs if routings[0].logits.requires_grad else {}
        first, last = moe.moment(self._before, self._start.__getitem__), moe.moment(passed, wide_copy)
        now, before = passed[moe.experts].y, self._before[moe.experts].y
        return {
            **moe_sizes(first, last, moe.hidden, backs, lambda back: moe.through_gates(routings, back)),
            ACTIVATION("aggregate"): rms(now),
            CHANGE("aggregate"): rms(now - before),
            **distance_between_experts(last.weights),
        }

    def _routings(self, passed: Mapping[nn.Module, Passage]) -> Iterator[list[Routing]]:
        """Where tokens went, for every router, whether it is in a MoE layer or on its own."""
        of_layers = {moe.router: moe for moe in self._moes}
        for module, passage in passed.items():
            if module in of_layers:
                yield of_layers[module].routings(passed)
            elif isinstance(module, Router):
                yield [output for _, output in passage.calls]

    def _parameter_sizes(self, gradients: _Gradients | None) -> Sizes:
        entries = Entries(self._device)
        for info, parameter in self._described:
            update = wide_copy(parameter) - self._start[parameter]
            entries.add(WEIGHTS(info.role), self._start[parameter])
            entries.add(UPDATE(info.role), update)
            if info.role in GAINS | BIASES:
                entries.add(EFFECTIVE(info.role), update)
        if gradients is not None:
            for info, parameter in self._described:
                gradient = gradients.parameters.get(parameter)
                entries.add(GRADIENT(info.role), torch.zeros_like(parameter) if gradient is None else gradient)
        return entries.sizes()


class Entries:
    """Root mean squares over all entries of several tensors, by name; large tensors weigh more than small ones.

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


def check_whole(described: Described) -> None:
    for info, parameter in described:
        if isinstance(parameter, DTensor):  # as FSDP makes them
            raise ValueError(f"{info.name} is sharded, and a probe reads whole parameters: probe a model without FSDP")


def own_loss(model: nn.Module, batch: Any) -> Tensor | None:
    """The loss that a model's output on a batch holds, as our GPT's and Hugging Face's do; None where it holds none."""
    if isinstance(batch, Call):
        output = model(*batch.args, **batch.kwargs)
    elif isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, tuple) else model(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) else None


@dataclass(frozen=True)
class _LinearMap:
    role: str
    module: nn.Module
    tied: bool

    @property
    def weight(self) -> nn.Parameter:
        return self.module.get_parameter("weight")


@dataclass(frozen=True)
class _Gradients:
    """Gradients of the mean loss by the parameters, and of a token's own loss at the outputs of modules (``backs``).

    ``parts`` has the latter for each MoE layer, by the part of the readout that sent it.
    """

    parameters: Mapping[Tensor, Tensor | None]
    backs: Mapping[nn.Module, Tensor]
    parts: Mapping[nn.Module, Mapping[str, Tensor]]


def _layers(
    model: nn.Module, described: Described, routers: Collection[nn.Module]
) -> tuple[list[_LinearMap], list[tuple[str, nn.Embedding]]]:
    """The modules that multiply by a described ``weight``, and those that look rows of one up; a tied one does both."""
    infos: dict[nn.Parameter | None, ParamInfo] = {parameter: info for info, parameter in described}
    maps, lookups = [], []
    for module in model.modules():
        info = infos.get(module._parameters.get("weight"))
        if info is not None and isinstance(module, nn.Embedding):
            lookups.append((info.role, module))
        elif info is not None and (isinstance(module, nn.Linear | Router) or module in routers):
            # A tied matrix is described as the embedding it also is.
            maps.append(_LinearMap("readout" if info.tied_readout else info.role, module, info.tied_readout))
    return maps, lookups
