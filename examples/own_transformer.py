"""MSSP on a model of your own: a small Mixture-of-Experts Transformer in plain torch, with every role there is.

    python examples/own_transformer.py

Three things make it scale: ``CLAIMS`` says what each parameter is, the plan's two multipliers enter the forward pass,
and ``mssp.initialize`` and ``mssp.param_groups`` do the rest.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mssp

HEAD = 16  # head size: fixed, so that the number of heads grows with the width
CONTEXT, VOCABULARY = 16, 32

CLAIMS: dict[str, mssp.ParamInfo | str] = {
    "embed.weight": mssp.ParamInfo("embedding", layout="vocab out"),
    "blocks.*.norm_*.weight": "norm",
    "blocks.*.?_norm.weight": "qk_norm",
    "blocks.*.qkv.weight": mssp.ParamInfo("hidden", layout="(3 out) in"),
    "blocks.*.attention_out.weight": mssp.ParamInfo("hidden", layout="out in"),
    "blocks.*.moe.router.weight": mssp.ParamInfo("router", layout="out in"),
    "blocks.*.moe.router.bias": "router_bias",
    "blocks.*.moe.w_in": mssp.ParamInfo("expert_in", layout="out in", expert_axis=0),
    "blocks.*.moe.b_in": mssp.ParamInfo("expert_in_bias", expert_axis=0),
    "blocks.*.moe.w_out": mssp.ParamInfo("expert_out", layout="out in", expert_axis=0),
    "blocks.*.moe.b_out": mssp.ParamInfo("expert_out_bias", expert_axis=0),
    "blocks.*.moe.shared_*.weight": mssp.ParamInfo("hidden", layout="out in"),
    "blocks.*.moe.shared_*.bias": "bias",
    "blocks.*.moe.gate_of_shared.weight": mssp.ParamInfo("shared_gate", layout="out in"),
    "final_norm.weight": "final_norm",
    "readout.weight": mssp.ParamInfo("readout", layout="out in"),
}


class MoE(nn.Module):
    """Sigmoid gates, top-K, and a gated shared expert beside the routed ones."""

    def __init__(self, shape: mssp.Shape, aggregation: float, noise: float) -> None:
        super().__init__()
        self.active, self.aggregation, self.noise = shape.active, aggregation, noise
        self.router = nn.Linear(shape.width, shape.experts)
        self.w_in = nn.Parameter(torch.empty(shape.experts, shape.expert_width, shape.width))
        self.b_in = nn.Parameter(torch.empty(shape.experts, shape.expert_width))
        self.w_out = nn.Parameter(torch.empty(shape.experts, shape.width, shape.expert_width))
        self.b_out = nn.Parameter(torch.empty(shape.experts, shape.width))
        self.shared_in = nn.Linear(shape.width, 2 * shape.width)
        self.shared_out = nn.Linear(2 * shape.width, shape.width)
        self.gate_of_shared = nn.Linear(shape.width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        chosen = (logits + self.noise * torch.randn_like(logits)).topk(self.active, dim=-1).indices
        gates = torch.zeros_like(logits).scatter(-1, chosen, logits.sigmoid().gather(-1, chosen))
        hidden = F.gelu(torch.einsum("btn,efn->btef", x, self.w_in) + self.b_in)
        # The gate goes in before the second product: one expert's output is of order sqrt(M) in Regime II.
        routed = torch.einsum("btef,enf->btn", hidden * gates.unsqueeze(-1), self.w_out) + gates @ self.b_out
        shared = self.gate_of_shared(x).sigmoid() * self.shared_out(F.gelu(self.shared_in(x)))
        mixed: Tensor = self.aggregation * routed + shared
        return mixed


class Block(nn.Module):
    def __init__(self, shape: mssp.Shape, aggregation: float, residual: float, noise: float) -> None:
        super().__init__()
        self.residual = residual
        self.norm_attention, self.norm_moe = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD), nn.RMSNorm(HEAD)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.attention_out = nn.Linear(shape.width, shape.width, bias=False)
        self.moe = MoE(shape, aggregation, noise)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).flatten(-2))
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.residual * self.attention(self.norm_attention(x))
        mixed: Tensor = self.moe(self.norm_moe(x))
        return x + self.residual * mixed


class Transformer(nn.Module):
    def __init__(self, plan: mssp.Plan, noise: float = 0.0) -> None:
        super().__init__()
        shape = plan.target
        factors = plan.multiplier("aggregation"), plan.multiplier("residual"), noise
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape, *factors) for _ in range(shape.depth))
        self.final_norm = nn.RMSNorm(shape.width)
        self.readout = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.readout(self.final_norm(x))
        return logits


def batch(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Sequences that count up by a stride of their own: the next token follows from the two before it."""
    generator = torch.Generator().manual_seed(step)
    start, stride = torch.randint(VOCABULARY, (2, size, 1), generator=generator)
    tokens = (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def train(plan: mssp.Plan, steps: int, seed: int = 0) -> list[float]:
    model = Transformer(plan)
    mssp.initialize(model, plan, CLAIMS, seed=seed, gate="sigmoid")
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=steps // 5)
    losses = []
    for step in range(steps):
        tokens, following = batch(step)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    mssp.verify(model, optimizer, plan, CLAIMS)
    return losses


def main() -> None:
    base = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=2)
    tuned = mssp.plan(base, base, regime="III", lr=1e-2, weight_decay=0.1)
    for factor in (1, 2, 4):
        target = mssp.Shape(width=32 * factor, expert_width=16 * factor, experts=4 * factor, active=2 * factor, depth=2)
        losses = train(tuned.extend(target), steps=100)
        print(f"width {target.width:>4}: loss {losses[0]:.3f} -> {sum(losses[-10:]) / 10:.3f}, same hyperparameters")


if __name__ == "__main__":
    main()
