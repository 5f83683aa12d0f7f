"""The paper's MLP MoE: input layer, router, experts, aggregation, readout.

    h = a(W1 x),   ψ = Q h,   φ = σ(β ψ),   h ← aggregation · Σ_m φ_m W3_m a(W2_m h),   f = W4 h

The model is a set of pure functions over a dict of tensors. Every tensor may have a leading axis of replicas: R models
are then computed together, as one. The module below wraps the functions, `mssp.replicas` calls them with stacked
parameters, and `mssp.measure` reads the activations that they return. The model has no norm and no residual by default,
so that the paper's instabilities appear at moderate width; its options are the remedies that the paper reports to fail.

Shapes: R replicas, B batch, D inputs, N width, M experts, K active, E expert width, C classes (outputs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mssp._constraints import kind_of, one_of, optional, positive, positive_int, positive_or_zero, switch, takes
from mssp.nn.activations import ACTIVATIONS, activation
from mssp.nn.experts.paths import ExpertWeights, all_pre_activations, gates_of_all, mix_all
from mssp.nn.multipliers import WithMultipliers, default_aggregation, planned_aggregation
from mssp.nn.router import GATES, Routing, check_active, gate_kind, route, router_logits
from mssp.planning.parameter import ParamInfo
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.planning.plans import Plan

Parameters = Mapping[str, Tensor]
Activations = dict[str, Tensor]
AFTER_AGGREGATION = ("nothing", "rmsnorm", "sigmoid")
LOSSES = ("cross_entropy", "mse")


@takes(
    inputs=positive_int,
    outputs=positive_int,
    width=positive_int,
    expert_width=positive_int,
    experts=positive_int,
    active=optional(positive_int),
    blocks=positive_int,
    activation=one_of(list(ACTIVATIONS)),
    gate=one_of(GATES),
    inverse_temperature=positive,
    normalise=switch,
    noise=positive_or_zero,
    after_aggregation=one_of(list(AFTER_AGGREGATION)),
    residual=switch,
    loss=one_of(list(LOSSES)),
)
@dataclass(frozen=True)
class MLPConfig:
    """The sizes and choices of an MLP MoE.

    >>> MLPConfig(inputs=12288, outputs=100, width=128, expert_width=16, experts=8).shape
    Shape(N=128, N_e=16, M=8, K=8, L=1, D=12288)

    Args:
        active: experts per input; None for all of them (soft routing).
        blocks: MoE layers, one after the other.
        after_aggregation: ``rmsnorm`` or ``sigmoid``: remedies for vanishing aggregates; neither restores stability.
        residual: add each block to its input, times the plan's residual multiplier; otherwise depth does not count.
        noise: the standard deviation of noise in the choice of experts.
    """

    inputs: int
    outputs: int
    width: int
    expert_width: int
    experts: int
    active: int | None = None
    blocks: int = 1
    activation: str = "gelu"
    gate: str = "sigmoid"
    inverse_temperature: float = 1.0
    normalise: bool = False
    noise: float = 0.0
    after_aggregation: str = "nothing"
    residual: bool = False
    loss: str = "cross_entropy"

    def __post_init__(self) -> None:
        if self.active is not None:
            object.__setattr__(self, "active", check_active(self.active, self.experts))

    @property
    def shape(self) -> Shape:
        depth, active = self.blocks if self.residual else 1, self.active or self.experts
        return Shape(self.width, self.expert_width, self.experts, active, depth, self.inputs)

    @property
    def soft(self) -> bool:
        return self.active in (None, self.experts)

    @property
    def gate_kind(self) -> str:
        return gate_kind(self.gate, self.normalise)


@dataclass(frozen=True)
class Multipliers:
    """The factors of the forward pass that a plan sets: numbers, or [R, 1, 1] with a number for each replica."""

    aggregation: float | Tensor
    residual: float | Tensor

    @classmethod
    def default(cls, config: MLPConfig) -> Multipliers:
        return cls(default_aggregation(config.gate_kind, config.shape.active), 1 / config.shape.depth)


def parameter_shapes(config: MLPConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, without replicas."""
    return {name: shape for name, (shape, _) in _parameters(config).items()}


def _parameters(config: MLPConfig) -> dict[str, tuple[tuple[int, ...], ParamInfo]]:
    """The shape of each parameter and what it is, by name."""
    N, E, M = config.width, config.expert_width, config.experts
    of_block = {
        "router": ((M, N), ParamInfo("router", layout="out in")),
        "w_in": ((M, E, N), ParamInfo("expert_in", layout="out in", expert_axis=0)),
        "w_out": ((M, E, N), ParamInfo("expert_out", layout="in out", expert_axis=0)),
    }
    blocks = {f"blocks.{block}.{name}": entry for block in range(config.blocks) for name, entry in of_block.items()}
    embedding = ((N, config.inputs), ParamInfo("embedding", layout="out in"))
    readout = ((config.outputs, N), ParamInfo("readout", layout="out in"))
    return {"embedding": embedding, **blocks, "readout": readout}


def forward(
    parameters: Parameters,
    x: Tensor,
    config: MLPConfig,
    multipliers: Multipliers,
    noise: Sequence[Tensor] | None = None,
) -> Activations:
    """Every activation by name: [B, ...], or [R, B, ...] where the parameters have replicas.

    The activations are ``embedding`` (before the activation function) and ``features`` (after it); for every block
    ``blocks.0.router`` (ψ), ``blocks.0.gates`` (φ, zero where not chosen), ``blocks.0.expert_in`` (before the
    activation function, [B, M, E]), ``blocks.0.aggregate`` and ``blocks.0.output``; and ``readout`` (f).

    Args:
        x: [B, D], shared by all replicas, or [G, B, D], shared by groups of R/G consecutive ones.
        noise: added where experts are chosen: a tensor for each block, [B, M] or [R, B, M].
    """
    if x.dim() not in (2, 3) or x.shape[-1] != config.inputs:
        raise ValueError(
            f"inputs are [batch, {config.inputs}] or [groups, batch, {config.inputs}], got {tuple(x.shape)}"
        )
    act = activation(config.activation)
    acts = {"embedding": _embedded(parameters["embedding"], x)}
    h = acts["features"] = act(acts["embedding"])
    for block in range(config.blocks):
        name = f"blocks.{block}."
        logits = router_logits(h, parameters[f"{name}router"])
        chosen = gates(logits, config, None if noise is None else noise[block])
        weights = ExpertWeights(parameters[f"{name}w_in"], parameters[f"{name}w_out"])
        pre = all_pre_activations(h, weights)
        aggregate = mix_all(pre, chosen * multipliers.aggregation, weights, config.activation)
        treated = _treated(aggregate, config.after_aggregation)
        h = h + multipliers.residual * treated if config.residual else treated
        acts |= {
            f"{name}router": logits,
            f"{name}gates": chosen,
            f"{name}expert_in": pre,
            f"{name}aggregate": aggregate,
            f"{name}output": h,
        }
    acts["readout"] = h @ parameters["readout"].mT
    return acts


def loss(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """The mean loss of each replica: a scalar, or [R].

    ``mse`` is half the squared error, summed over outputs. Targets are classes, [B] or [R, B], which ``mse`` takes as
    one-hot vectors; for ``mse`` they may also be numbers of the outputs' shape, with or without replicas.
    """
    check_loss(kind)
    replicas, expected = outputs.shape[:-2], outputs.shape
    if not targets.is_floating_point():
        expected = outputs.shape[:-1]
    elif kind == "cross_entropy":
        raise ValueError(f"cross_entropy takes classes, which are whole numbers, got {targets.dtype}")
    if targets.shape not in (expected, expected[len(replicas) :]):
        raise ValueError(f"targets {tuple(targets.shape)} do not go with outputs {tuple(outputs.shape)}")
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if kind == "cross_entropy":
        targets = targets.expand(outputs.shape[:-1])
        of_examples = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return of_examples.view(*replicas, -1).mean(-1)
    if not targets.is_floating_point():
        targets = F.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
    return 0.5 * (outputs - targets).square().sum(-1).mean(-1)


def check_loss(kind: str) -> None:
    one_of(LOSSES)("loss", kind)


def _embedded(weight: Tensor, x: Tensor) -> Tensor:
    if weight.dim() == 2:
        return x @ weight.mT
    R, N, D = weight.shape
    if x.dim() == 2:
        # All replicas have the same inputs, so one product, R times as wide, computes all of them.
        return (x @ weight.reshape(R * N, D).T).view(len(x), R, N).transpose(0, 1)
    G, B, _ = x.shape
    if R % G:
        raise ValueError(f"{R} replicas cannot share {G} groups of inputs equally")
    wide = x @ weight.reshape(G, R // G * N, D).mT
    return wide.view(G, B, R // G, N).transpose(1, 2).reshape(R, B, N)


def routing(logits: Tensor, config: MLPConfig, noise: Tensor | None = None) -> Routing:
    """The experts and gates of each input, from the router's logits [..., M]."""
    return route(
        logits,
        config.active,
        gate=config.gate,
        inverse_temperature=config.inverse_temperature,
        normalise=config.normalise,
        noise=noise,
    )


def gates(logits: Tensor, config: MLPConfig, noise: Tensor | None = None) -> Tensor:
    """The gate of every expert, [..., M], zero where it is not chosen."""
    routed = routing(logits, config, noise)
    return gates_of_all(routed.gates, routed.chosen, config.experts)


def _treated(aggregate: Tensor, how: str) -> Tensor:
    if how == "rmsnorm":
        # A small eps, because the aggregates vanish with width and a usual eps would be larger than they are.
        return F.rms_norm(aggregate, aggregate.shape[-1:], eps=1e-12)
    return torch.sigmoid(aggregate) if how == "sigmoid" else aggregate


@takes(config=kind_of(MLPConfig))
class MLPMoE(WithMultipliers):
    """The MLP MoE as a module: the functions above with parameters of its own.

    >>> import mssp
    >>> config = MLPConfig(inputs=12, outputs=3, width=32, expert_width=16, experts=2)
    >>> model = MLPMoE(config)
    >>> plan = mssp.plan(config.shape, regime="II", optimizer="sgd", lr=0.1)
    >>> mssp.initialize(model, plan)
    >>> model(torch.randn(5, 12)).shape
    torch.Size([5, 3])
    """

    MULTIPLIERS = ("aggregation", "residual")

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        defaults = Multipliers.default(config)
        self.aggregation, self.residual = defaults.aggregation, defaults.residual
        for name, (shape, info) in _parameters(config).items():
            owner: nn.Module = self
            *path, leaf = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            fan_in = info.fitted(name, shape, tied_as="").fan_in or 1
            owner.register_parameter(leaf, nn.Parameter(torch.randn(shape) * fan_in**-0.5))

    def activations(self, x: Tensor) -> Activations:
        """Every activation by name (see :func:`forward`)."""
        if x.shape[1:] != (self.config.inputs,):
            raise ValueError(f"the model takes inputs [batch, {self.config.inputs}], got {tuple(x.shape)}")
        noise = None
        if self.config.noise and self.training and not self.config.soft:
            shape = (self.config.blocks, len(x), self.config.experts)
            noise = list(self.config.noise * torch.randn(shape, device=x.device))
        factors = Multipliers(self.aggregation, self.residual)
        return forward(dict(self.named_parameters()), x, self.config, factors, noise)

    def forward(self, x: Tensor) -> Tensor:
        return self.activations(x)["readout"]

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return loss(self(x), targets, self.config.loss)

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """What :func:`mssp.initialize` sets."""
        if plan.target.with_inputs(self.config.inputs) != self.config.shape:
            raise ValueError(f"the plan is for {plan.target}, the model is {self.config.shape}")
        residual = {"residual": plan.multiplier("residual")} if self.config.residual else {}
        return {"aggregation": planned_aggregation(self.config.gate_kind, plan), **residual}

    @property
    def gate_kind(self) -> str:
        return self.config.gate_kind

    def param_infos(self) -> Mapping[str, ParamInfo]:
        return {name: info for name, (_, info) in _parameters(self.config).items()}
