"""A hand-written training loop in nanoGPT's style, with the file that ``mssp export nanogpt`` writes.

    python examples/nanogpt_moe.py

The model and the loop know nothing of mssp: they use ``planned``, the exported file, for the optimizer, the initial
values and the two factors of the forward pass. The same loop then trains models of twice and four times the width.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mssp
from exported_file import imported
from mssp.data import TokenOrder, python_tokens

HEAD, CONTEXT, VOCABULARY = 16, 32, 256


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class Experts(nn.Module):
    """All experts on all tokens, gates folded in before the second product."""

    def __init__(self, width: int, expert_width: int, experts: int) -> None:
        super().__init__()
        self.c_fc = nn.Parameter(torch.empty(experts, width, expert_width))
        self.c_proj = nn.Parameter(torch.empty(experts, expert_width, width))

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        hidden = F.gelu(torch.einsum("btn,enf->btef", x, self.c_fc)) * gates.unsqueeze(-1)
        return torch.einsum("btef,efn->btn", hidden, self.c_proj)


class MoE(nn.Module):
    def __init__(self, width: int, expert_width: int, experts: int, active: int, aggregation: float) -> None:
        super().__init__()
        self.active, self.aggregation = active, aggregation
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, expert_width, experts)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        chosen = scores.topk(self.active, dim=-1).indices
        gates = torch.zeros_like(scores).scatter(-1, chosen, scores.sigmoid().gather(-1, chosen))
        summed: Tensor = self.aggregation * self.experts(x, gates)
        return summed


class Block(nn.Module):
    def __init__(self, width: int, moe: MoE, residual: float) -> None:
        super().__init__()
        self.residual = residual
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width), moe

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.residual * self.attn(self.ln_1(x))
        summed: Tensor = x + self.residual * self.mlp(self.ln_2(x))
        return summed


class GPT(nn.Module):
    def __init__(
        self,
        width: int,
        expert_width: int,
        experts: int,
        active: int,
        depth: int,
        aggregation: float = 1.0,
        residual: float = 1.0,
    ) -> None:
        super().__init__()
        blocks = (Block(width, MoE(width, expert_width, experts, active, aggregation), residual) for _ in range(depth))
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, width),
                "wpe": nn.Embedding(CONTEXT, width),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(width, bias=False),
            }
        )
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.transformer
        x: Tensor = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1], device=tokens.device))
        for block in parts["h"].children():
            x = block(x)
        logits: Tensor = self.lm_head(parts["ln_f"](x))
        return logits


def train(planned: ModuleType, sizes: dict[str, int], text: TokenOrder, steps: int) -> list[float]:
    """nanoGPT's loop: warm up, decay by a cosine, and give every group its share of the learning rate."""
    model = GPT(**sizes, aggregation=planned.AGGREGATION, residual=planned.RESIDUAL)
    planned.initialize(model)
    optimizer = planned.configure_optimizers(model)
    losses = []
    for step in range(steps):
        warmup, decay = min(1.0, (step + 1) / 20), 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))
        planned.set_lr(optimizer, planned.LEARNING_RATE * warmup * decay)
        tokens = torch.from_numpy(text.rows(8 * step, 8))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(steps: int = 150) -> None:
    sizes = {"width": 32, "expert_width": 16, "experts": 4, "active": 2, "depth": 2}
    tuned = mssp.plan(mssp.Shape(**sizes), mssp.Shape(**sizes), regime="III", lr=1e-2, weight_decay=0.1)
    text = TokenOrder(python_tokens(), "train", sequence=CONTEXT, seed=0)
    for factor in (1, 2, 4):
        grown = {name: size if name == "depth" else size * factor for name, size in sizes.items()}
        losses = train(imported(tuned.extend(mssp.Shape(**grown)), "nanogpt"), grown, text, steps)
        print(f"width {grown['width']:>4}: loss {losses[0]:.3f} -> {sum(losses[-20:]) / 20:.3f}, same tuned values")


if __name__ == "__main__":
    main()
