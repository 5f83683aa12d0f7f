"""Small models and data that several tests train."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import mssp
from mssp.nn import MLPConfig, MLPMoE
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.program import Replica

INPUTS, CLASSES, BATCH, STEPS = 20, 7, 16, 100
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def config(active: int | None = None, blocks: int = 1) -> MLPConfig:
    return MLPConfig(INPUTS, CLASSES, width=32, expert_width=8, experts=4, active=active, blocks=blocks)


def replica(
    config: MLPConfig, optimizer: str, lr: float, seed: int = 0, scheme: str = "mssp", **other: object
) -> Replica:
    decay = {"weight_decay": 0.1} if optimizer == "adamw" else {}
    given = {"init_mult": 0.7, "aggregation_mult": 3.0, "lr_mult": {"router": 4.0, "readout": 2.0}, **decay, **other}
    plan = mssp.plan(config.shape, regime="II", scheme=scheme, optimizer=optimizer, lr=lr, **given)  # type: ignore[arg-type]
    return Replica(plan, seed)


def batches(seed: int, steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Points around one centre per class, with enough noise that the loss stays well above zero."""
    centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(steps):
        targets = torch.randint(CLASSES, (BATCH,), generator=generator)
        found.append((0.5 * centres[targets] + torch.randn(BATCH, INPUTS, generator=generator), targets))
    return found


def alone(config: MLPConfig, replica: Replica, data: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[float], MLPMoE]:
    """The losses of one model, trained as anyone would."""
    model = MLPMoE(config)
    mssp.initialize(model, replica.plan, seed=replica.seed)
    optimizer = OPTIMIZERS[replica.plan.optimizer](mssp.param_groups(model, replica.plan))
    losses = []
    for x, targets in data:
        loss = model.loss(x, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def together(config: MLPConfig, replicas: Sequence[Replica], steps: int = STEPS) -> tuple[Tensor, Lockstep]:
    """The losses of all replicas, [steps, R]."""
    lockstep = Lockstep(MLPProgram(config), replicas)
    data = [batches(seed, steps) for seed in lockstep.seeds]
    losses = []
    for step in range(steps):
        x = torch.stack([batch[step][0] for batch in data])
        targets = torch.stack([batch[step][1] for batch in data])
        losses.append(lockstep.step(x, targets)[:, 0])
    return torch.stack(losses), lockstep
