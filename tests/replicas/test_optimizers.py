"""Updates of R replicas: the kernel's are the formula's, which the contract of optimizers holds against torch.optim."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mssp.nn import MLPConfig
from mssp.nn.experts import backend
from mssp.planning.setting import SGD, optimizer_named
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.optimizers import ReplicaOptimizer
from mssp.replicas.program import Batch, Factored, Rates
from tests.replicas.models import replica

R, ROWS, COLUMNS, BATCH = 4, 37, 70, 21


def some_rates(generator: torch.Generator, weight_decay: float = 0.0) -> Rates:
    lr = torch.rand(R, generator=generator, dtype=torch.float64) * 0.1
    eps = torch.tensor([1e-8, 1e-3, 1.0, 1e-12], dtype=torch.float64)
    return Rates(lr, eps, torch.full((R,), weight_decay).double(), torch.tensor([1.0, 2.0, 1.0, 0.5]).double())


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("batch", [BATCH, 70])
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_the_kernel_is_the_formula(kind: str, groups: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(R, ROWS, COLUMNS, generator=generator)
    rates = {"w": some_rates(generator, 0.3 if kind == "adamw" else 0.0)}
    both = []
    for fused in (True, False):
        again = torch.Generator().manual_seed(2)
        optimizer = ReplicaOptimizer(optimizer_named(kind), {"w": start.clone()}, rates, (0.9, 0.99))
        if fused:
            monkeypatch.setattr(ReplicaOptimizer, "_fuses", lambda self, parameter: True)
        else:
            monkeypatch.undo()
        for step in range(3):
            # Transposed in memory, as what comes back to a shared product is.
            rows = torch.randn(batch, R, ROWS, generator=again).transpose(0, 1)
            columns = torch.randn(groups, batch, COLUMNS, generator=again)
            alive = torch.tensor([True, True, step < 1, True])
            optimizer.step({"w": Factored(rows, columns)}, alive)
        both.append((optimizer.parameters["w"], *optimizer.moments["w"]))
    kernel, formula = both
    torch.testing.assert_close(kernel[0], formula[0], rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(kernel[1:], formula[1:], strict=True):
        if mine is not None and theirs is not None:  # moments of a frozen replica are nobody's concern
            torch.testing.assert_close(mine[[0, 1, 3]], theirs[[0, 1, 3]], rtol=1e-4, atol=1e-5)


def test_the_kernel_skips_frozen_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaOptimizer, "_fuses", lambda self, parameter: True)
    start = torch.randn(R, ROWS, COLUMNS)
    optimizer = ReplicaOptimizer(
        SGD, {"w": start.clone()}, {"w": some_rates(torch.Generator().manual_seed(0))}, (0.9, 0.99)
    )
    rows = torch.full((R, BATCH, ROWS), torch.nan)
    optimizer.step({"w": Factored(rows, torch.randn(1, BATCH, COLUMNS))}, torch.zeros(R, dtype=torch.bool))
    assert torch.equal(optimizer.parameters["w"], start)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("active", [None, 2], ids=["soft", "top-2"])
def test_factored_gradients_are_autograds(active: int | None, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MLPConfig(20, 7, width=32, expert_width=8, experts=4, active=active, blocks=blocks)
    replicas = [replica(config, "sgd", 0.1, seed=r // 2) for r in range(R)]
    lockstep = Lockstep(MLPProgram(config), replicas)
    for parameter in lockstep.parameters.values():  # zero readouts send nothing back
        parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(len(parameter)))
    x, targets = torch.randn(2, BATCH, 20), torch.randint(7, (2, BATCH)).repeat_interleave(2, 0)

    batch = Batch(x, targets, lockstep.seeds, step=0)

    def gradients() -> dict[str, Tensor]:
        done = lockstep.program.gradients(lockstep.parameters, lockstep.constants, batch)
        return {
            name: each.product().view(lockstep.parameters[name].shape) if isinstance(each, Factored) else each
            for name, each in done.gradients.items()
        }

    expected = gradients()
    monkeypatch.setattr(backend, "fused", lambda x: True)
    found = gradients()
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)
