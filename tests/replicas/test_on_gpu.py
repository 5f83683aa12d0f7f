"""The fused, recorded program of a GPU against the plain one of a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mssp.replicas import Lockstep, MLPProgram
from mssp.replicas.graphs import Recorder
from mssp.replicas.watching import watch
from tests.replicas.models import OPTIMIZERS, batches, config, replica

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 40


@pytest.mark.parametrize("active", [None, 2], ids=["soft", "top-2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_gpu_trains_as_a_cpu_does(optimizer: str, active: int | None) -> None:
    lr = 0.15 if optimizer == "sgd" else 0.02
    replicas = [replica(config(active), optimizer, lr * 1.1**r, seed=r // 3) for r in range(6)]
    losses = {}
    for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "tf32")):
        lockstep = Lockstep(MLPProgram(config(active)), replicas, device=device, precision=precision)
        data = [batches(seed, STEPS) for seed in lockstep.seeds]
        curve = []
        for step in range(STEPS):
            x, targets = (torch.stack([batch[step][part] for batch in data]).to(device) for part in (0, 1))
            curve.append(lockstep.step(x, targets)[:, 0].cpu())
        losses[device, precision] = torch.stack(curve)
    expected = losses["cpu", "float32"]
    assert (expected[-10:].mean(0) < 0.99 * expected[:10].mean(0)).all()
    torch.testing.assert_close(losses["cuda", "float32"], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(losses["cuda", "tf32"], expected, rtol=3e-2, atol=1e-2)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_neighbour_that_diverges_disturbs_nobody(optimizer: str) -> None:
    curves = []
    for lr in (0.03, 1e20):
        replicas = [replica(config(), optimizer, each) for each in (0.02, lr, 0.04)]
        lockstep = Lockstep(MLPProgram(config()), replicas, device="cuda")
        found = [
            lockstep.step(x.unsqueeze(0).cuda(), targets.unsqueeze(0).cuda())[:, 0] for x, targets in batches(0, STEPS)
        ]
        curves.append(torch.stack(found)[:, [0, 2]])
    assert torch.equal(curves[0], curves[1])
    assert lockstep.diverged_at[1] is not None
    assert lockstep.diverged_at[0] is lockstep.diverged_at[2] is None


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_is_measured_on_a_gpu_is_what_a_cpu_measures(optimizer: str) -> None:
    replicas = [replica(config(), optimizer, 0.02, seed=seed) for seed in (0, 1)]
    found = {}
    for device in ("cpu", "cuda"):
        lockstep = Lockstep(MLPProgram(config()), replicas, device=device, measure_gradients=True)
        data = [batches(seed, 8) for seed in lockstep.seeds]
        steps = [
            (torch.stack([b[step][0] for b in data]).to(device), torch.stack([b[step][1] for b in data]).to(device))
            for step in range(8)
        ]
        found[device] = watch(lockstep, steps[0], steps)
    for name, expected in found["cpu"].items():
        torch.testing.assert_close(
            torch.from_numpy(found["cuda"][name]), torch.from_numpy(expected), rtol=2e-3, atol=1e-6, equal_nan=True
        )


def test_a_recording_computes_nothing_and_a_replay_computes_all() -> None:
    asked, total = [], torch.zeros((), device="cuda")

    def added(x: Tensor) -> Tensor:
        asked.append(len(x))
        total.add_(x.sum())
        return x + total

    recorder = Recorder(eager=2)
    found = [recorder(added, torch.ones(size, device="cuda")).tolist() for size in (2, 2, 2, 3, 2)]
    assert found == [[3.0] * 2, [5.0] * 2, [7.0] * 2, [10.0] * 3, [12.0] * 2]
    assert asked == [2, 2, 2, 3]  # the third is the recording, and the fifth call asks for nothing


def test_gradients_are_measured_in_replayed_steps_too() -> None:
    replicas = [replica(config(), "sgd", 0.05, seed=seed) for seed in (0, 1)]
    found = {}
    for device in ("cpu", "cuda"):
        lockstep = Lockstep(MLPProgram(config()), replicas, device=device, measure_gradients=True)
        data, sizes = [batches(seed, 8) for seed in lockstep.seeds], []
        for step in range(8):
            lockstep.step(*(torch.stack([batch[step][part] for batch in data]).to(device) for part in (0, 1)))
            sizes.append(torch.stack(list(lockstep.gradient_sizes.values())).cpu())
        found[device] = torch.stack(sizes)
    assert len({tuple(each.flatten().tolist()) for each in found["cuda"]}) == 8
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=2e-3, atol=1e-6)
