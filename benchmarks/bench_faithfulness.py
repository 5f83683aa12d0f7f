"""Where scaling Adam's eps stops working in float32, and scaling gradients goes on (docs/faithfulness.md).

    ./dev bench faithfulness

As a model grows, gradients of its experts shrink as (MN)^-1, and eps has to shrink with them. Here the gradients of one
parameter are shrunk by a factor step by step, eps or the gradient scale follows, and each float32 trajectory of
torch.optim.Adam is compared with the float64 one. Reported is the smallest factor at which they still agree.
"""

from __future__ import annotations

from typing import Any

import torch

from mssp._tables import markdown_table
from tests.adam_trajectory import trajectory

TOLERANCE = 0.01
SHRINK = [2.0**-power for power in range(0, 130, 2)]
GRADIENTS_AT_BASE = (1e-2, 1e-4, 1e-6)


def smallest_factor(gradient: float, scaled: bool, device: str, **options: Any) -> float | None:
    """The smallest factor down to which float32 follows float64 within TOLERANCE."""
    reference = trajectory(1.0, gradient, False, torch.float64, "cpu")
    last = None
    for factor in SHRINK:
        followed = trajectory(factor, gradient, scaled, torch.float32, device, **options)
        if not (followed - reference).norm() <= TOLERANCE * reference.norm():
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
            factors = [smallest_factor(gradient, scaled, device, **options) for scaled in (False, True)]
            texts = ["–" if factor is None else f"{factor:.1e} (width x {factor**-0.5:.1e})" for factor in factors]
            rows.append([path, f"{gradient:g}", *texts])
    header = ["Adam on", "gradient at the base", "scaled eps down to", "scaled gradients down to"]
    print(f"torch {torch.__version__}\n")
    print("\n".join(markdown_table(header, rows)))


if __name__ == "__main__":
    main()
