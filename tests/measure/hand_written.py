"""Models as people write them, with the two factors of a plan where they belong, and with what can go wrong there.

Every style takes ``Factors``: what it multiplies by, and how often. ``RIGHT`` multiplies once; the others are mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mssp
from mssp import ParamInfo, Shape
from mssp.apply.description import Claims

VOCABULARY, HEAD = 16, 8
BASE = Shape(width=32, expert_width=8, experts=4, active=2, depth=2)
TARGET = Shape(width=64, expert_width=16, experts=12, active=6, depth=4)  # K x3, L x2
TOKENS = torch.arange(10).view(2, 5) % VOCABULARY

LINEAR = ParamInfo("hidden", layout="out in")
OUTSIDE: Claims = {
    "embed.weight": ParamInfo("embedding", layout="vocab out"),
    "final_norm.weight": "final_norm",
    "readout.weight": ParamInfo("readout", layout="out in"),
}


@dataclass(frozen=True)
class Factors:
    """How often each factor is there, and sizes that are not the plan's."""

    aggregation: int = 1
    residual: int = 1
    depth: int = 0  # how many blocks more than planned
    active: int = 0  # how many experts more than planned
    relative: bool = True

    def of(self, plan: mssp.Plan) -> tuple[float, float]:
        aggregation, residual = (plan.multiplier(which, self.relative) for which in ("aggregation", "residual"))
        return aggregation**self.aggregation, residual**self.residual

    def shape(self, plan: mssp.Plan) -> Shape:
        return replace(plan.target, depth=plan.target.depth + self.depth, active=plan.target.active + self.active)


RIGHT = Factors()


class Transformer(nn.Module):
    """Blocks of any kind between an embedding and a readout."""

    def __init__(self, plan: mssp.Plan, factors: Factors, block: Callable[[Shape, float, float], nn.Module]) -> None:
        super().__init__()
        shape = factors.shape(plan)
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(block(shape, *factors.of(plan)) for _ in range(shape.depth))
        self.final_norm = nn.RMSNorm(shape.width)
        self.readout = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.readout(self.final_norm(x))
        return logits


def routed(logits: Tensor, active: int, softmax: bool) -> tuple[Tensor, Tensor]:
    """Gates and numbers of the chosen experts."""
    best, chosen = logits.topk(active, dim=-1)
    return best.softmax(-1) if softmax else best.sigmoid(), chosen


# -- stacks of experts and einsum, attention of one's own, two branches ------------------------------------------------


class StackedMoE(nn.Module):
    """Gated experts with biases, in stacks; gates multiply the hidden units."""

    def __init__(self, shape: Shape, aggregation: float, softmax: bool = False) -> None:
        super().__init__()
        N, E, M = shape.width, shape.expert_width, shape.experts
        self.active, self.aggregation, self.softmax = shape.active, aggregation, softmax
        self.router = nn.Linear(N, M)
        self.w_in, self.b_in = nn.Parameter(torch.randn(M, N, 2 * E)), nn.Parameter(torch.randn(M, 2 * E))
        self.w_out, self.b_out = nn.Parameter(torch.randn(M, E, N)), nn.Parameter(torch.randn(M, N))

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        gates, chosen = routed(logits, self.active, self.softmax)
        gates = torch.zeros_like(logits).scatter(-1, chosen, gates)
        gate, up = (torch.einsum("btn,enf->btef", x, self.w_in) + self.b_in).chunk(2, dim=-1)
        hidden = F.silu(gate) * up * gates.unsqueeze(-1)
        mixed: Tensor = torch.einsum("btef,efn->btn", hidden, self.w_out) + gates @ self.b_out
        return self.aggregation * mixed


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return out


class StackedBlock(nn.Module):
    def __init__(self, shape: Shape, aggregation: float, residual: float, softmax: bool = False) -> None:
        super().__init__()
        self.residual = residual
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attention, self.moe = Attention(shape.width), StackedMoE(shape, aggregation, softmax)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.residual * self.attention(self.norm_1(x))
        mixed: Tensor = self.moe(self.norm_2(x))
        return x + self.residual * mixed


STACKED_CLAIMS: Claims = {
    **OUTSIDE,
    "blocks.*.norm_?.weight": "norm",
    "blocks.*.norm_?.bias": "bias",
    "blocks.*.attention.qkv.weight": ParamInfo("hidden", layout="(3 out) in"),
    "blocks.*.attention.out.weight": LINEAR,
    "blocks.*.attention.out.bias": "bias",
    "blocks.*.router.weight": ParamInfo("router", layout="out in"),
    "blocks.*.router.bias": "router_bias",
    "blocks.*.w_in": ParamInfo("expert_in", layout="in (2 out)", expert_axis=0),
    "blocks.*.b_in": ParamInfo("expert_in_bias", layout="(2 out)", expert_axis=0),
    "blocks.*.w_out": ParamInfo("expert_out", layout="in out", expert_axis=0),
    "blocks.*.b_out": ParamInfo("expert_out_bias", layout="out", expert_axis=0),
}


# -- a list of experts and index_add, one branch -----------------------------------------------------------------------


class Expert(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.w2 = nn.Linear(shape.expert_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w2(F.gelu(self.w1(x)))
        return y


class ListedMoE(nn.Module):
    """Experts that are modules, each called on its own tokens."""

    def __init__(self, shape: Shape, aggregation: float, softmax: bool = False) -> None:
        super().__init__()
        self.active, self.aggregation, self.softmax = shape.active, aggregation, softmax
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(shape.experts))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        gates, chosen = routed(self.router(rows), self.active, self.softmax)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                mixed.index_add_(0, token, gates[token, place, None] * expert(rows[token]))
        return self.aggregation * mixed.view(x.shape)


class ListedBlock(nn.Module):
    def __init__(self, shape: Shape, aggregation: float, residual: float, softmax: bool = False) -> None:
        super().__init__()
        self.residual, self.norm, self.moe = residual, nn.RMSNorm(shape.width), ListedMoE(shape, aggregation, softmax)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.moe(self.norm(x))
        return x + self.residual * mixed


LISTED_CLAIMS: Claims = {
    **OUTSIDE,
    "blocks.*.norm.weight": "norm",
    "blocks.*.router.weight": ParamInfo("router", layout="out in"),
    "blocks.*.experts.{expert}.w1.weight": ParamInfo("expert_in", layout="out in"),
    "blocks.*.experts.{expert}.w2.weight": ParamInfo("expert_out", layout="out in"),
}


# -- no modules inside of a block: matrices of the block itself --------------------------------------------------------


class BareBlock(nn.Module):
    """A dense branch and experts, all by matrices of the block; gates multiply what experts put out."""

    def __init__(self, shape: Shape, aggregation: float, residual: float) -> None:
        super().__init__()
        N, E, M = shape.width, shape.expert_width, shape.experts
        self.active, self.aggregation, self.residual = shape.active, aggregation, residual
        self.norm = nn.RMSNorm(N)
        self.up, self.down = nn.Parameter(torch.randn(N, 4 * N)), nn.Parameter(torch.randn(4 * N, N))
        self.router = nn.Parameter(torch.randn(N, M))
        self.w_in, self.w_out = nn.Parameter(torch.randn(M, E, N)), nn.Parameter(torch.randn(M, N, E))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.residual * ((self.norm(x) @ self.up).relu() @ self.down)
        y = self.norm(x)
        logits = y @ self.router
        gates, chosen = routed(logits, self.active, softmax=False)
        hidden = torch.einsum("btn,efn->btef", y, self.w_in).tanh()
        experts = torch.einsum("btef,enf->bten", hidden, self.w_out)
        numbers = chosen.unsqueeze(-1).expand(*chosen.shape, y.shape[-1])
        mixed = (experts.gather(2, numbers) * gates.unsqueeze(-1)).sum(2)
        return x + self.residual * self.aggregation * mixed


BARE_CLAIMS: Claims = {
    **OUTSIDE,
    "blocks.*.norm.weight": "norm",
    "blocks.*.up": ParamInfo("hidden", layout="in out"),
    "blocks.*.down": ParamInfo("hidden", layout="in out"),
    "blocks.*.router": ParamInfo("router", layout="in out"),
    "blocks.*.w_in": ParamInfo("expert_in", layout="out in", expert_axis=0),
    "blocks.*.w_out": ParamInfo("expert_out", layout="out in", expert_axis=0),
}


# -- torch's attention, and a norm at the end of each branch -----------------------------------------------------------


class SandwichBlock(nn.Module):
    def __init__(self, shape: Shape, aggregation: float, residual: float) -> None:
        super().__init__()
        self.residual = residual
        self.attention = nn.MultiheadAttention(shape.width, shape.width // HEAD, bias=False, batch_first=True)
        self.moe = ListedMoE(shape, aggregation)
        self.before = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(2))
        self.after = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.before[0](x)
        x = x + self.residual * self.after[0](self.attention(y, y, y, need_weights=False)[0])
        mixed: Tensor = self.after[1](self.moe(self.before[1](x)))
        return x + self.residual * mixed


SANDWICH_CLAIMS: Claims = {
    **{name: info for name, info in LISTED_CLAIMS.items() if "norm.weight" not in name or name in OUTSIDE},
    "blocks.*.before.*.weight": "norm",
    "blocks.*.after.*.weight": "norm",
    "blocks.*.attention.in_proj_weight": ParamInfo("hidden", layout="(3 out) in"),
    "blocks.*.attention.out_proj.weight": LINEAR,
}

Style = tuple[Callable[[Shape, float, float], nn.Module], Claims]
STYLES: dict[str, Style] = {
    "stacked": (StackedBlock, STACKED_CLAIMS),
    "listed": (ListedBlock, LISTED_CLAIMS),
    "bare": (BareBlock, BARE_CLAIMS),
    "sandwich": (SandwichBlock, SANDWICH_CLAIMS),
}


def plan_of(target: Shape = TARGET, base: Shape = BASE, **changes: float) -> mssp.Plan:
    return mssp.plan(target, base, regime="III", lr=1e-3, **changes)  # type: ignore[arg-type]


def built(style: str, plan: mssp.Plan, factors: Factors = RIGHT) -> Transformer:
    return Transformer(plan, factors, STYLES[style][0])
