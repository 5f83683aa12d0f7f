"""Measure two entries of the paper's muP summary tables that its text and ours read differently (docs/errata.md).

    ./dev bench minimal_moe

The paper's minimal linear MoE after one SGD step under muP, from the plan's own numbers: exponents in N of the
per-expert cross term and of the backward term E_2, against what is printed.
"""

from __future__ import annotations

import math
import statistics

import torch

import mssp
from mssp._tables import markdown_table

WIDTHS = {"II": (128, 256, 512, 1024), "III": (64, 128, 256, 512)}
SEEDS = 100
INPUTS = 4
# regime, quantity -> printed exponent, exponent that follows from the definitions
CLAIMS = {
    ("II", "cross"): (-0.5, -0.5),
    ("III", "cross"): (-1.5, -0.5),
    ("II", "E_2"): (-2.5, -3.0),
    ("III", "E_2"): (-2.0, -3.0),
}


def one_step(regime: str, width: int, seed: int) -> dict[str, float]:
    """RMS of both terms at t = 1."""
    experts, expert_width = width // 16, 16 if regime == "II" else width // 4
    shape = mssp.Shape(width=width, expert_width=expert_width, experts=experts, active=experts, depth=1, inputs=INPUTS)
    roles = mssp.plan(shape, regime=regime, scheme="mup", optimizer="sgd", readout="mup", lr=1.0).roles
    generator = torch.Generator().manual_seed(1000 * seed + width)
    sizes = {
        "embedding": (width, INPUTS),
        "router": (experts, width),
        "expert_in": (experts, expert_width, width),
        "expert_out": (experts, width, expert_width),
        "readout": (width,),
    }
    start = {
        role: (torch.randn(size, generator=generator, dtype=torch.float64) * roles[role].init_std).requires_grad_()
        for role, size in sizes.items()
    }
    x = torch.ones(INPUTS, dtype=torch.float64)

    def forward(w: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h1 = w["embedding"] @ x
        gates = (w["router"] @ h1).sigmoid()
        h2 = w["expert_in"] @ h1
        h3 = torch.einsum("e,enf,ef->n", gates, w["expert_out"], h2) / experts
        return w["readout"] @ h3, gates, h2

    output, _, h2_before = forward(start)
    gradients = torch.autograd.grad(output, list(start.values()))
    change = {role: -roles[role].lr * g for role, g in zip(start, gradients, strict=True)}
    after = {role: (start[role] + change[role]).detach() for role in start}
    _, gates, h2_after = forward(after)
    cross = torch.einsum("enf,ef->en", change["expert_out"], h2_after - h2_before)
    e_2 = torch.einsum("e,efa,enf,n->a", gates, change["expert_in"], change["expert_out"], change["readout"]) / experts
    return {"cross": cross.square().mean().sqrt().item(), "E_2": e_2.square().mean().sqrt().item()}


def main() -> None:
    measured = {
        regime: [[one_step(regime, width, seed) for width in widths] for seed in range(SEEDS)]
        for regime, widths in WIDTHS.items()
    }
    rows = []
    for (regime, quantity), (printed, consistent) in CLAIMS.items():
        sizes = [math.log(width) for width in WIDTHS[regime]]
        slopes = [
            statistics.linear_regression(sizes, [math.log(terms[quantity]) for terms in by_width]).slope
            for by_width in measured[regime]
        ]
        mean, error = statistics.mean(slopes), 1.96 * statistics.stdev(slopes) / math.sqrt(SEEDS)
        rows.append([regime, quantity, f"{printed:+.1f}", f"{consistent:+.1f}", f"{mean:+.2f} ± {error:.2f}"])
    print("\n".join(markdown_table(["regime", "term at t = 1", "printed", "consistent", "measured"], rows)))


if __name__ == "__main__":
    main()
