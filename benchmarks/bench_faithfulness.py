"""Where scaling Adam's eps stops working in float32, and scaling gradients goes on (docs/faithfulness.md).

    ./dev bench faithfulness

As a model grows, gradients of its experts shrink as (MN)^-1, and eps has to shrink with them. Here the gradients of one
parameter are shrunk by a factor step by step, eps or the gradient scale follows, and each float32 trajectory of
torch.optim.Adam is compared with the float64 one. Reported is the smallest factor at which they still agree.
"""

from __future__ import annotations

from typing import Any

import torch

from mssp.plan_text import markdown_table

STEPS, SIZE, EPS = 50, 4096, 1e-8
TOLERANCE = 0.01
SHRINK = [2.0**-power for power in range(0, 130, 2)]
GRADIENTS_AT_BASE = (1e-2, 1e-4, 1e-6)


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


def smallest_factor(gradient: float, scaled: bool, device: str, **options: Any) -> float | None:
    """The smallest factor down to which float32 follows float64 within TOLERANCE."""
    reference = trajectory(1.0, gradient, False, torch.float64, "cpu")
    last = None
    for factor in SHRINK:
        found = trajectory(factor, gradient, scaled, torch.float32, device, **options)
        if not (found - reference).norm() <= TOLERANCE * reference.norm():
            break
        last = factor
    return last


def main() -> None:
    paths: list[tuple[str, str, dict[str, Any]]] = [("CPU", "cpu", {"foreach": True})]
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        paths += [(name, "cuda", {"foreach": True}), (f"{name}, fused", "cuda", {"fused": True})]
    rows = []
    for path, device, options in paths:
        for gradient in GRADIENTS_AT_BASE:
            found = [smallest_factor(gradient, scaled, device, **options) for scaled in (False, True)]
            texts = ["–" if factor is None else f"{factor:.1e} (width x {factor**-0.5:.1e})" for factor in found]
            rows.append([path, f"{gradient:g}", *texts])
    header = ["Adam on", "gradient at the base", "scaled eps down to", "scaled gradients down to"]
    print(f"torch {torch.__version__}\n")
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
