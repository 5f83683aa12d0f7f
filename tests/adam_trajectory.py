"""One parameter under Adam, from gradients that are shrunk, and eps or the gradients made to follow."""

from __future__ import annotations

from typing import Any

import torch

STEPS, SIZE, EPS = 50, 4096, 1e-8


def trajectory(
    factor: float, gradient: float, scaled: bool, dtype: torch.dtype, device: str, **options: Any
) -> torch.Tensor:
    """The parameter after all steps, from gradients that are ``factor`` times those at the base."""
    weight = torch.zeros(SIZE, dtype=dtype, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1e-3, eps=EPS if scaled else EPS * factor, **options)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        drawn = torch.randn(SIZE, generator=generator, dtype=torch.float64) * gradient * factor
        weight.grad = drawn.to(dtype).to(device)  # what the backward pass hands over
        if scaled:
            weight.grad.mul_(1 / factor)
        optimizer.step()
    return weight.detach().double().cpu()
