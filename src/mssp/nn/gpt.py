"""The paper's Transformer: RMS pre-norm, normalised queries and keys, rotary positions, MoE in the blocks, no biases.

Residual branches are multiplied by the plan's residual multiplier, and sums over experts by its aggregation multiplier.
The size of a head is fixed, so the number of heads grows with the width and attention keeps its factor 1/sqrt(head).

Shapes: B batch, S sequence, N width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mssp._constraints import kind_of, one_of, optional, positive, positive_int, positive_or_zero, switch, takes
from mssp.nn.activations import ACTIVATIONS, activation
from mssp.nn.experts import backend
from mssp.nn.generation import KeysAndValues, continued, sampled
from mssp.nn.moe import DISPATCHES, MoE
from mssp.nn.multipliers import WithMultipliers
from mssp.nn.router import AUTHORS, GATES, LOSS_FORMS, MEAN, Routing, check_active
from mssp.planning.parameter import ParamInfo
from mssp.planning.shape import Shape

if TYPE_CHECKING:
    from mssp.planning.plans import Plan


@takes(
    width=positive_int,
    expert_width=positive_int,
    experts=positive_int,
    active=optional(positive_int),
    depth=positive_int,
    vocabulary=positive_int,
    context=positive_int,
    moe_every=positive_int,
    head=positive_int,
    feedforward=positive_int,
    activation=one_of(list(ACTIVATIONS)),
    gated=switch,
    gate=one_of(GATES),
    inverse_temperature=positive,
    normalise=switch,
    noise=positive_or_zero,
    random_bias=positive_or_zero,
    tied=switch,
    rope_base=positive,
    qk_gains=switch,
    dispatch=one_of(DISPATCHES),
    checkpointing=switch,
)
@dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices of a GPT with MoE layers.

    >>> GPTConfig(width=256, expert_width=128, experts=8, active=4, depth=8).shape
    Shape(N=256, N_e=128, M=8, K=4, L=8, D=1)

    Args:
        active: experts per token; None for all of them (soft routing).
        moe_every: every n-th block has experts, the others a plain dense layer of ``feedforward`` times the width.
        gated: gated experts; with ``activation="silu"``, SwiGLU.
        head: the size of one attention head.
        tied: the readout is the embedding's transpose.
        qk_gains: the norms of queries and of keys have gains, one for all heads; the paper's authors have none.
        noise, random_bias: randomness in the choice of experts (see :class:`mssp.nn.Router`).
        checkpointing: recompute blocks in the backward pass instead of keeping their activations.
    """

    width: int
    expert_width: int
    experts: int
    active: int | None = None
    depth: int = 8
    vocabulary: int = 50304
    context: int = 1024
    moe_every: int = 1
    head: int = 64
    feedforward: int = 4
    activation: str = "gelu"
    gated: bool = False
    gate: str = "sigmoid"
    inverse_temperature: float = 1.0
    normalise: bool = False
    noise: float = 0.0
    random_bias: float = 0.0
    tied: bool = False
    rope_base: float = 10000.0
    dispatch: str = "auto"
    checkpointing: bool = False
    qk_gains: bool = True

    def __post_init__(self) -> None:
        if self.active is not None:
            object.__setattr__(self, "active", check_active(self.active, self.experts))
        if self.width % self.head:
            raise ValueError(f"width {self.width} is not a whole number of heads of size {self.head}")
        if self.head % 2:
            raise ValueError(f"head {self.head} is odd: rotary positions turn pairs of coordinates")
        if self.moe_every > self.depth:
            raise ValueError(f"no block would have experts: moe_every is {self.moe_every}, depth {self.depth}")

    @property
    def shape(self) -> Shape:
        return Shape(self.width, self.expert_width, self.experts, self.active or self.experts, self.depth)


@dataclass(frozen=True)
class GPTOutput:
    """What a forward pass returns: logits [B, S, V], the mean loss if there were targets, a routing per MoE layer."""

    logits: Tensor
    loss: Tensor | None
    routings: tuple[Routing, ...]

    def load_balancing_loss(self, form: str = MEAN) -> Tensor:
        """Ours: the mean over MoE layers, 1 where routing is uniform, at every size.

        The authors' form: the sum over MoE layers, K times the mean gate of a layer where routing is uniform. It is of
        theirs that the paper adds 0.01.
        """
        if _loss_form(form) == AUTHORS:
            return torch.stack([routing.authors_load_balancing_loss() for routing in self.routings]).sum()
        return torch.stack([routing.load_balancing_loss() for routing in self.routings]).mean()

    def z_loss(self, form: str = MEAN) -> Tensor:
        """The mean over MoE layers, or in the authors' form the sum."""
        of_layers = torch.stack([routing.z_loss() for routing in self.routings])
        return of_layers.sum() if _loss_form(form) == AUTHORS else of_layers.mean()


class Attention(nn.Module):
    """Causal attention with normalised queries and keys, and rotary positions."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        N, self.head = config.width, config.head
        self.qkv = nn.Linear(N, 3 * N, bias=False)
        self.out = nn.Linear(N, N, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head, elementwise_affine=config.qk_gains) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, kept: KeysAndValues | None = None) -> Tensor:
        B, S, N = x.shape
        heads = (B, S, N // self.head, self.head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        # In the parameters' precision: under autocast, queries and keys are normalised and turned in float32.
        wide = (self.qkv if self.q_norm.weight is None else self.q_norm).weight.dtype
        q, k = rotated(self.q_norm(q.to(wide)), cos, sin), rotated(self.k_norm(k.to(wide)), cos, sin)
        k = k.to(v.dtype)
        if kept is not None:
            k, v = kept.extended(k, v)
        # A single position sees all that was kept; several are the first, and see those before them.
        mixed = F.scaled_dot_product_attention(q.to(v.dtype), k, v, is_causal=k.shape[2] == S)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out

    def param_infos(self) -> Mapping[str, ParamInfo]:
        matrices = {
            "qkv.weight": ParamInfo("hidden", layout="(3 out) in", part="attention_in"),
            "out.weight": ParamInfo("hidden", layout="out in", part="attention_out"),
        }
        if self.q_norm.weight is None:
            return matrices
        # The gains are shared by all heads, and of a size that does not grow.
        gain = ParamInfo("qk_norm")
        return {**matrices, "q_norm.weight": gain, "k_norm.weight": gain}


class FeedForward(nn.Module):
    """The dense layer of blocks without experts."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.w_in = nn.Linear(config.width, config.feedforward * config.width, bias=False)
        self.w_out = nn.Linear(config.feedforward * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w_out(activation(self.activation)(self.w_in(x)))
        return out

    def param_infos(self) -> Mapping[str, ParamInfo]:
        return {
            "w_in.weight": ParamInfo("hidden", layout="out in", part="ffn_in"),
            "w_out.weight": ParamInfo("hidden", layout="out in", part="ffn_out"),
        }


class Block(WithMultipliers):
    """Attention, then experts or a dense layer. Both branches are multiplied by ``residual``: 1/L, or as planned."""

    MULTIPLIERS = ("residual",)

    def __init__(self, config: GPTConfig, experts: bool) -> None:
        super().__init__()
        self.residual = 1 / config.depth
        self.attention_norm, self.ffn_norm = nn.RMSNorm(config.width), nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.ffn: MoE | FeedForward = _moe(config) if experts else FeedForward(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, kept: KeysAndValues | None = None
    ) -> tuple[Tensor, Routing | None]:
        x = x + self.residual * self.attention(self.attention_norm(x), cos, sin, kept)
        y = self.ffn_norm(x)
        mixed, routing = self.ffn(y) if isinstance(self.ffn, MoE) else (self.ffn(y), None)
        return x + self.residual * mixed, routing

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        return {"residual": plan.multiplier("residual")}

    def param_infos(self) -> Mapping[str, ParamInfo]:
        return {"attention_norm.weight": ParamInfo("norm"), "ffn_norm.weight": ParamInfo("norm")}


@takes(config=kind_of(GPTConfig))
class GPT(WithMultipliers):
    """A GPT with MoE layers.

    >>> import mssp
    >>> config = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=16, head=16)
    >>> model = GPT(config)
    >>> plan = mssp.plan(config.shape, regime="III", lr=4e-3)
    >>> mssp.initialize(model, plan)
    >>> tokens = torch.arange(16).view(1, 16)
    >>> output = model(tokens, targets=tokens)
    >>> round(output.loss.item(), 3)  # log 64: the readout starts at zero
    4.159
    """

    MULTIPLIERS = ("tied_readout",)

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        numbers = range(1, config.depth + 1)
        self.blocks = nn.ModuleList(Block(config, experts=number % config.moe_every == 0) for number in numbers)
        self.final_norm = nn.RMSNorm(config.width)
        self.readout = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.tied_readout = 1 / config.width  # a factor on the logits, until a plan sets it

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> GPTOutput:
        if targets is not None and targets.shape != tokens.shape:
            raise ValueError(f"targets {tuple(targets.shape)} do not go with tokens {tuple(tokens.shape)}")
        if targets is not None and targets.dtype != torch.int64:
            raise ValueError(f"targets are int64, got {targets.dtype}")
        x, routings = self._features(tokens)
        logits = self._logits(x)
        loss = None
        if targets is not None:
            wide = torch.promote_types(logits.dtype, torch.float32)
            loss = F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())
        return GPTOutput(logits, loss, routings)

    def _features(
        self, tokens: Tensor, kept: Sequence[KeysAndValues] | None = None
    ) -> tuple[Tensor, tuple[Routing, ...]]:
        integers = tokens.dtype in (torch.int32, torch.int64)
        if tokens.dim() != 2 or not integers or not 0 < tokens.shape[1] <= self.config.context:
            got = f"{str(tokens.dtype).removeprefix('torch.')} {tuple(tokens.shape)}"
            raise ValueError(f"tokens are whole numbers [batch, 1 to {self.config.context}], got {got}")
        if backend.readable(tokens):
            lowest, highest = int(tokens.min()), int(tokens.max())
            if lowest < 0 or highest >= self.config.vocabulary:
                raise ValueError(
                    f"tokens {lowest} to {highest} are not all in the vocabulary of {self.config.vocabulary}"
                )
        x = self.embedding(tokens)
        # Computed in every pass, which is cheap. A buffer could be cast, missing in a checkpoint, or on another device.
        first = kept[0].seen if kept else 0
        cos, sin = rotations(first + tokens.shape[1], self.config.head, self.config.rope_base, x)
        turns = cos[first:], sin[first:]
        kept_by_block: Sequence[KeysAndValues | None] = kept or [None] * len(self.blocks)
        routings = []
        for block, kept_here in zip(self.blocks, kept_by_block, strict=True):
            if self.config.checkpointing and torch.is_grad_enabled():
                x, routing = checkpoint(block, x, *turns, use_reentrant=False)
            else:
                x, routing = block(x, *turns, kept_here)
            if routing is not None:
                routings.append(routing)
        return self.final_norm(x), tuple(routings)

    def _logits(self, x: Tensor) -> Tensor:
        if self.readout is None:
            return F.linear(x, self.embedding.weight) * self.tied_readout
        logits: Tensor = self.readout(x)
        return logits

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        length: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The sequences with ``length`` further tokens each, and what attention needs of earlier ones is kept.

        So a token costs one position, until the text is longer than the context. From there on the model sees the last
        tokens that fit, and each token costs a pass over them.

        Args:
            temperature: what logits are divided by before a token is drawn; 0 takes the likeliest.
            top_k: draw one of so many likeliest tokens; None for all.
            generator: random numbers of your own, for the same text again.
        """
        positive_or_zero("temperature", temperature)
        if top_k is not None and positive_int("top_k", top_k) > self.config.vocabulary:
            raise ValueError(f"top_k is {top_k}, the vocabulary has {self.config.vocabulary} tokens")
        training = [module for module in self.modules() if module.training]
        self.eval()  # no noise in the routing
        try:
            return continued(
                self._logits_after,
                tokens,
                positive_int("length", length),
                layers=len(self.blocks),
                context=self.config.context,
                choose=lambda logits: sampled(logits.float(), temperature, top_k, generator),
            )
        finally:
            for module in training:
                module.training = True

    def _logits_after(self, tokens: Tensor, kept: Sequence[KeysAndValues] | None) -> Tensor:
        x, _ = self._features(tokens, kept)
        return self._logits(x[:, -1])

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]:
        """What :func:`mssp.initialize` sets here; blocks and MoE layers have their own."""
        if plan.target.with_inputs(1) != self.config.shape.with_inputs(1):
            raise ValueError(f"the plan is for {plan.target}, the model is {self.config.shape}")
        return {"tied_readout": plan.multiplier("tied_readout")} if self.readout is None else {}

    def param_infos(self) -> Mapping[str, ParamInfo]:
        infos = {
            "embedding.weight": ParamInfo("embedding", layout="vocab out"),
            "final_norm.weight": ParamInfo("final_norm"),
        }
        return infos if self.readout is None else {**infos, "readout.weight": ParamInfo("readout", layout="out in")}


def _loss_form(form: str) -> str:
    checked: str = one_of(LOSS_FORMS)("form", form)
    return checked


def rotations(length: int, head: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [S, head / 2], of the angles by which each position turns its pairs of coordinates."""
    wide: dict[str, Any] = {"dtype": torch.promote_types(like.dtype, torch.float32), "device": like.device}
    frequencies = base ** (-torch.arange(0, head, 2, **wide) / head)
    angles = torch.outer(torch.arange(length, **wide), frequencies)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads: coordinate i of the first half of a head is paired with coordinate i of the second half."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _moe(config: GPTConfig) -> MoE:
    return MoE(
        config.width,
        config.expert_width,
        config.experts,
        config.active,
        gate=config.gate,
        inverse_temperature=config.inverse_temperature,
        normalise=config.normalise,
        noise=config.noise,
        random_bias=config.random_bias,
        activation=config.activation,
        gated=config.gated,
        dispatch=config.dispatch,
    )
