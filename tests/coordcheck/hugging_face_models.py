"""Small models of Hugging Face in two regimes: their sizes, what they train on, how they train as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import mssp
from mssp.data import TokenOrder, python_tokens

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
VOCABULARY = 256
LENGTH = 128 if CUDA else 32


def config(family: str, regime: str, width: int, depth: int = 2) -> Any:
    """A config with heads of 16, experts as the regime says, and half of them active."""
    experts, expert_width = {"II": (width // 8, 16), "III": (max(width // 16, 4), width // 2)}[regime]
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": width // 16,
        "num_key_value_heads": max(width // 32, 1),
        "vocab_size": VOCABULARY,
        "num_experts_per_tok": experts // 2,
        "max_position_embeddings": LENGTH,
    }
    if family == "mixtral":
        return transformers.MixtralConfig(**sizes, num_local_experts=experts, intermediate_size=expert_width)
    if family == "olmoe":
        return transformers.OlmoeConfig(**sizes, num_experts=experts, intermediate_size=expert_width)
    sizes |= {"num_experts": experts, "moe_intermediate_size": expert_width, "head_dim": 16, "norm_topk_prob": True}
    return transformers.Qwen3MoeConfig(**sizes)


@cache
def order(seed: int) -> TokenOrder:
    return TokenOrder(python_tokens(), "train", sequence=LENGTH - 1, seed=seed)


def windows(steps: int, seed: int, batch: int) -> Iterator[Tensor]:
    for step in range(steps):
        yield torch.from_numpy(order(seed).rows(batch * step, batch)).to(DEVICE)


def as_it_comes(model: nn.Module, plan: mssp.Plan, seed: int) -> None:
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=0.02)


def one_rate(lr: float) -> Callable[[nn.Module, mssp.Plan], torch.optim.Optimizer]:
    return lambda model, plan: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
