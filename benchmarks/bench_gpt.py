"""Training speed of the GPT: tokens per second and peak memory, compiled and not, and the router's share of a layer.

    ./dev bench gpt

On a CUDA device at sizes of the paper, in bfloat16 autocast over float32 parameters; smaller and in float32 without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import mssp
from mssp.nn import GPT, GPTConfig, MoE
from mssp.nn.experts.timing import milliseconds

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# Name, regime, model, sequences in a batch.
MODELS = [
    ("II, every other block dense", "II",
     GPTConfig(width=1024, expert_width=32, experts=128, active=64, depth=4, moe_every=2, context=512), 64),
    ("III", "III", GPTConfig(width=1024, expert_width=512, experts=32, active=16, depth=8, context=1024), 16),
    ("fine-grained", "II", GPTConfig(width=1024, expert_width=64, experts=256, active=8, depth=8, context=1024), 16),
]  # fmt: skip
LAYERS = [(2048, 256, 128, 32), (2048, 256, 8, 64), (2048, 64, 8, 1024)]  # N, M, K, N_e
TOKENS = 8192 if CUDA else 256
STEPS = 12 if CUDA else 3
COMPILER = "inductor"
SMALL = {"width": 128, "expert_width": 16, "experts": 16, "active": 4, "vocabulary": 512, "context": 64}


def small(config: GPTConfig) -> GPTConfig:
    """A model of the same kind for two CPU cores."""
    return replace(config, **SMALL)  # type: ignore[arg-type]


def training(config: GPTConfig, regime: str, batch: int, compiled: bool) -> Callable[[], object]:
    """One training step of a fresh model."""
    torch._dynamo.reset()
    model = GPT(config).to(DEVICE)
    plan = mssp.plan(config.shape, regime=regime, lr=1e-3, weight_decay=0.1)
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan), fused=True)
    run: Any = torch.compile(model, fullgraph=True, backend=COMPILER) if compiled else model
    tokens = torch.randint(config.vocabulary, (batch, config.context + 1), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            output = run(tokens[:, :-1], targets=tokens[:, 1:])
            loss = output.loss + 0.01 * output.load_balancing_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def speed(step: Callable[[], object], steps: int) -> tuple[float, float]:
    """Seconds per step, and peak GiB of the device (0 without one)."""
    for _ in range(4):
        step()
    if CUDA:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    if CUDA:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / steps
    return seconds, torch.cuda.max_memory_allocated() / 2**30 if CUDA else 0.0


def layer(N: int, M: int, K: int, E: int) -> dict[str, float]:
    """Milliseconds of a MoE layer with its auxiliary loss, and of its router alone; forward and backward."""
    moe = MoE(N, E, M, K).to(DEVICE, torch.bfloat16 if CUDA else torch.float32)
    x = torch.randn(TOKENS, N, device=DEVICE, dtype=moe.experts.w_in.dtype, requires_grad=True)
    grad, one = torch.randn_like(x), torch.ones((), device=DEVICE)

    def whole() -> tuple[torch.Tensor, ...]:
        y, routing = moe(x)
        return torch.autograd.grad([y, routing.load_balancing_loss()], [x, *moe.parameters()], [grad, one])

    def router() -> tuple[torch.Tensor, ...]:
        routing = moe.router(x)
        return torch.autograd.grad([routing.gates.sum(), routing.load_balancing_loss()], [x, moe.router.weight])

    return milliseconds({"layer": whole, "its router": router}, DEVICE)


def main() -> None:
    print("| model | parameters | compiled | ms per step | tokens per second | peak GiB |\n|---|---|---|---|---|---|")
    for name, regime, large, sequences in MODELS:
        config, batch = (large, sequences) if CUDA else (small(large), 2)
        count = sum(parameter.numel() for parameter in GPT(config).parameters())
        for compiled in (True, False):
            seconds, peak = speed(training(config, regime, batch, compiled), steps=STEPS)
            rate = batch * config.context / seconds
            choice = "yes" if compiled else "no"
            print(f"| {name} | {count / 1e6:.3g} M | {choice} | {seconds * 1e3:.1f} | {rate:,.0f} | {peak:.1f} |")
    print("\n| N, M, K, N_e | layer ms | its router ms |\n|---|---|---|")
    for large_sizes in LAYERS:
        sizes = large_sizes if CUDA else tuple(size // 8 for size in large_sizes)
        times = layer(*sizes)
        print(f"| {', '.join(map(str, sizes))} | {times['layer']:.3g} | {times['its router']:.3g} |")


if __name__ == "__main__":
    main()
