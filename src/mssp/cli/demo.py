"""``mssp demo``: a plan, on a real model, end to end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import mean, stdev

from mssp import plan_text
from mssp.cli import flags, show
from mssp.planning import Plan, plan
from mssp.settings import positive
from mssp.shape import Shape, positive_int

_INPUTS, _CLASSES, _BATCH = 32, 64, 128
_BASE_WIDTH, _SEEDS = 64, 3


@dataclass
class DemoCommand:
    """Plan a Mixture-of-Experts model at three sizes, train it, and see the hyperparameters carry over."""

    steps: flags.Size = 100
    """training steps per run (default 100)"""
    lr: flags.Number = 0.01
    """learning rate at the smallest size (default 0.01)"""

    def run(self) -> int:
        steps, lr = positive_int("--steps", self.steps or 0), positive("--lr", self.lr or 0.0)
        largest = _plan("mssp", 4, lr)
        heading = f"The plan: {plan_text.title(largest)}"
        show.lines(plan_text.lines(largest, heading), emphasised=[heading])
        print(
            f"\nThe same hyperparameters at three sizes: final loss of {steps} steps, {_SEEDS} seeds, mean ± "
            "standard error\n"
        )
        body = []
        for factor in (1, 2, 4):
            row = [f"N = {_BASE_WIDTH * factor}, M = {_shape(factor).experts}"]
            for scheme in ("mssp", "sp"):
                _progress(f"training {row[0]} under {scheme}")
                row.append(_summary([_train(_plan(scheme, factor, lr), steps, seed) for seed in range(_SEEDS)]))
            body.append(row)
        _progress("")
        show.lines(plan_text.align([["size", "carried by mssp", "one lr for everything"], *body]))
        print("\nTry next:  mssp explain expert_out --regime II   |   mssp plan --help")
        return 0


def _plan(scheme: str, factor: int, lr: float) -> Plan:
    # SP has no aggregation factor of its own: it keeps that of the base.
    base = _shape(1)
    mult = 1.0 if scheme == "mssp" else 1 / base.active
    return plan(_shape(factor), base, scheme=scheme, optimizer="adam", regime="II", lr=lr, aggregation_mult=mult)


def _shape(factor: int) -> Shape:
    experts = 4 * factor
    return Shape(width=_BASE_WIDTH * factor, expert_width=16, experts=experts, active=experts, depth=1, inputs=_INPUTS)


def _train(planned: Plan, steps: int, seed: int) -> float:
    """Mean loss of the last tenth of training the paper's MLP MoE."""
    import torch

    import mssp
    from mssp.nn import MLPConfig, MLPMoE

    shape = planned.target
    model = MLPMoE(MLPConfig(_INPUTS, _CLASSES, shape.width, shape.expert_width, shape.experts, shape.active))
    mssp.initialize(model, planned, seed=seed)
    optimizer = torch.optim.Adam(mssp.param_groups(model, planned))
    mssp.verify(model, optimizer, planned)
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(_CLASSES, _INPUTS, generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(steps):
        labels = torch.randint(_CLASSES, (_BATCH,), generator=generator)
        inputs = centres[labels] + torch.randn(_BATCH, _INPUTS, generator=generator)
        loss = model.loss(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def _summary(losses: list[float]) -> str:
    return f"{mean(losses):.3f} ± {stdev(losses) / len(losses) ** 0.5:.3f}"


def _progress(doing: str) -> None:
    """One line that overwrites itself, on terminals only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing}", end="", file=sys.stderr, flush=True)
