"""How gradients of a small Transformer scale with its size, role by role, a few steps after a zero readout."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import torch
import torch.nn.functional as F

import mssp
from own_transformer import CLAIMS, Transformer, batch

WIDTHS = (64, 128, 256, 512)
DEPTHS = (2, 4, 8, 16)
# Student's t for a 95 % interval, by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26}
# A slope farther than this from its prediction contradicts it; wrong rules miss by 0.5 or 1.
MARGIN = 0.25


def family(regime: str, width: int) -> mssp.Shape:
    experts = 4 if regime == "I" else width // 16
    expert_width = 8 if regime == "II" else width // 4
    return mssp.Shape(width=width, expert_width=expert_width, experts=experts, active=experts, depth=2)


def gradient_rms(shape: mssp.Shape, regime: str, optimizer: str, steps: int, seed: int) -> dict[str, float]:
    """RMS of the gradient of every role after ``steps`` updates."""
    plan = mssp.plan(shape, regime=regime, optimizer=optimizer, lr=0.05)
    model = Transformer(plan)
    mssp.initialize(model, plan, CLAIMS, seed=seed)
    groups = mssp.param_groups(model, plan, CLAIMS)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    stepper: torch.optim.Optimizer = kinds[optimizer](groups)
    for _ in range(steps + 1):
        tokens, following = batch(seed, size=8)
        stepper.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), following.flatten()).backward()
        squares: dict[str, list[torch.Tensor]] = defaultdict(list)
        for group in groups:
            squares[group["name"].split()[0]] += [parameter.grad.square().flatten() for parameter in group["params"]]
        stepper.step()
    return {role: torch.cat(parts).mean().sqrt().item() for role, parts in squares.items()}


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Least-squares slope in log-log."""
    return statistics.linear_regression([math.log(s) for s in sizes], [math.log(v) for v in values]).slope


def exponents(
    shapes: list[mssp.Shape], sizes: tuple[int, ...], regime: str, optimizer: str, steps: int, seeds: int
) -> dict[str, tuple[float, float]]:
    """Role to (exponent, 95 % half-width)."""
    slopes: dict[str, list[float]] = defaultdict(list)
    for seed in range(seeds):
        measured = [gradient_rms(shape, regime, optimizer, steps, seed) for shape in shapes]
        for role in measured[0]:
            slopes[role].append(slope(sizes, [values[role] for values in measured]))
    student = STUDENT[seeds - 1] / math.sqrt(seeds)
    return {role: (statistics.mean(values), student * statistics.stdev(values)) for role, values in slopes.items()}
