"""What a replica costs: R models in lockstep against one after the other, and against the bytes that must move.

    ./dev bench replicas

On a CPU: 32 small models together and apart, in turns. On a GPU: the paper's tuning grid (inputs 12288, 100 classes,
N = 128, batch 50, Regime II), microseconds per step and replica, and the share of the time in which the weights alone
could be moved: read once forward; read and written once by SGD, with two moments by Adam.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

import mssp
from mssp._tables import markdown_table
from mssp.data.dataset import Dataset, Split
from mssp.nn import MLPConfig, MLPMoE
from mssp.replicas import Feed, Lockstep, MLPProgram, Replica, Schedule, train

SMALL = MLPConfig(inputs=64, outputs=100, width=64, expert_width=16, experts=4)
PAPER = MLPConfig(inputs=12288, outputs=100, width=128, expert_width=16, experts=8)
GRID, STEPS = 5**6, 1000
TOGETHER, TOGETHER_STEPS = 32, 20
PASSES = {"sgd": 3, "adam": 7}  # over the weights: forward, and what the optimizer reads and writes
BATCH, TURNS = 50, 5


def plans(config: MLPConfig, optimizer: str, count: int) -> list[Replica]:
    return [
        Replica(mssp.plan(config.shape, regime="II", optimizer=optimizer, lr=1e-3 * (1 + k / count), init_mult=0.25))
        for k in range(count)
    ]


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def together(config: MLPConfig, replicas: list[Replica], x: torch.Tensor, targets: torch.Tensor, steps: int) -> float:
    lockstep = Lockstep(MLPProgram(config), replicas)

    def run() -> None:
        for _ in range(steps):
            lockstep.step(x.unsqueeze(0), targets.unsqueeze(0))

    return seconds(run)


def apart(config: MLPConfig, replicas: list[Replica], x: torch.Tensor, targets: torch.Tensor, steps: int) -> float:
    total = 0.0
    for replica in replicas:
        model = MLPMoE(config)
        mssp.initialize(model, replica.plan)
        kind = torch.optim.SGD if replica.plan.optimizer == "sgd" else torch.optim.Adam
        optimizer = kind(mssp.param_groups(model, replica.plan))

        def run(model: MLPMoE = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            for _ in range(steps):
                loss = model.loss(x, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss.item()

        total += seconds(run)
    return total


def on_cpu() -> None:
    print(f"{TOGETHER} models (inputs 64, N = 64, M = 4), batch {BATCH}, on {torch.get_num_threads()} CPU threads:\n")
    x, targets = torch.randn(BATCH, SMALL.inputs), torch.randint(SMALL.outputs, (BATCH,))
    rows = []
    for optimizer in ("sgd", "adam"):
        replicas = plans(SMALL, optimizer, TOGETHER)
        turns = [[way(SMALL, replicas, x, targets, TOGETHER_STEPS) for way in (together, apart)] for _ in range(TURNS)]
        lockstep, single = (median(column) for column in zip(*turns, strict=True))
        cost = [f"{1e6 * spent / TOGETHER_STEPS / TOGETHER:.0f}" for spent in (lockstep, single)]
        rows.append([optimizer, *cost, f"1/{single / lockstep:.1f}"])
    print("\n".join(markdown_table(["optimizer", "in lockstep, µs per step and model", "apart", "ratio"], rows)))


def bytes_per_second() -> float:
    """What copying reaches: read and write together."""
    source = torch.empty(2**30, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return 2 * source.nbytes / float(median(times))


def random_data() -> Dataset:
    """Inputs of the shape of TinyImageNet's, drawn at random: as good for timing."""
    generator = np.random.default_rng(0)
    splits = [
        Split(generator.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8), generator.integers(0, 100, count))
        for count in (BATCH * STEPS, 5000)
    ]
    return Dataset("random", 100, splits[0], splits[1], mean=(0.5,) * 3, std=(0.25,) * 3)


def on_gpu() -> None:
    name, rate = torch.cuda.get_device_name(), bytes_per_second()
    print(f"\nThe paper's grid on an {name} (copies reach {rate / 1e12:.2f} TB/s), training only:\n")
    weights = 4 * sum(int(np.prod(shape)) for shape in MLPProgram(PAPER).shapes.values())
    rows = []
    for optimizer in ("sgd", "adam"):
        floor = 1e6 * PASSES[optimizer] * weights / rate
        for precision in ("tf32", "float32"):
            for count in (16, 128, 512, 1024, 4096):
                if count in (16, 4096) and precision == "float32":
                    continue
                cost = step_cost(plans(PAPER, optimizer, 1) * count, precision)
                rows.append([optimizer, precision, str(count), f"{cost:.2f}", f"{floor:.2f}", f"{floor / cost:.0%}"])
    print("\n".join(markdown_table(["optimizer", "precision", "R", "µs per step and replica", "floor", "share"], rows)))
    print(f"\nWhole runs of {STEPS} steps with 5000 validation images, planning and initial weights included:\n")
    feed, rows = Feed(random_data(), "cuda"), []
    for optimizer, precision, count in (("sgd", "tf32", 4096), ("adam", "tf32", 2048)):
        spent = seconds(
            lambda optimizer=optimizer, precision=precision, count=count: train(  # type: ignore[misc]
                MLPProgram(PAPER), plans(PAPER, optimizer, count), feed, Schedule(STEPS, BATCH), precision=precision
            )
        )
        rows.append([optimizer, precision, str(count), f"{spent:.1f}", f"{spent * GRID / count:.0f}"])
    head = ["optimizer", "precision", "runs", "seconds", f"extrapolated to {GRID} runs"]
    print("\n".join(markdown_table(head, rows)))


def step_cost(replicas: list[Replica], precision: str) -> float:
    """Microseconds per step and replica, the median of twenty steps behind one another."""
    lockstep = Lockstep(MLPProgram(PAPER), replicas, device="cuda", precision=precision)
    x = torch.randn(1, BATCH, PAPER.inputs, device="cuda")
    targets = torch.randint(PAPER.outputs, (1, BATCH), device="cuda")
    for _ in range(6):
        lockstep.step(x, targets)
    marks = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        lockstep.step(x, targets)
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return 1e3 * float(median(start.elapsed_time(end) for start, end in marks)) / len(replicas)


def main() -> None:
    on_cpu()
    if torch.cuda.is_available():
        on_gpu()
    else:
        print("\nthe paper's grid needs a CUDA device")


if __name__ == "__main__":
    main()
