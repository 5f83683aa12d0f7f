"""What the trainer costs per step beside a plain loop of the same model and optimizer, in one run.

    ./dev bench train [--steps 30]

Steps of the two take turns, so that disturbances of the machine affect both. On a GPU it also prints the share of the
device's peak rate that a step reaches, for experts computed where their tokens are, and for a layer that computes every
expert on every token.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import mssp
from mssp._environment import device_text, pick_device
from mssp._tables import markdown_table
from mssp.data import TokenOrder, python_tokens
from mssp.nn import GPT, GPTConfig
from mssp.train import RunSettings, Training
from mssp.train.language_models import autocast, operations_per_token, peak_operations
from mssp.train.processes import Processes
from mssp.train.schedule import lr_factor

SEQUENCE = 256
CUDA = torch.cuda.is_available()
# Name, sizes, sequences of a step. The last two are for a GPU.
SMALL = {"width": 128, "expert_width": 64, "experts": 16, "active": 2, "depth": 2, "head": 32, "vocabulary": 256}
LARGE = {"width": 1024, "expert_width": 512, "experts": 32, "active": 4, "depth": 8, "vocabulary": 50304}


def settings_of(model: dict[str, Any], sequences: int, steps: int, sequence: int, **training: Any) -> RunSettings:
    return RunSettings.of(
        {
            "model": model,
            "plan": {"lr": 4e-3, "regime": "III", "weight_decay": 0.1},
            "data": {"sequence": sequence, "passes": 1000},
            "training": {
                "steps": steps, "tokens_per_step": sequences * sequence, "validate_every": 10**6, "save_every": 10**6,
                **training,
            },
            "watch": {"routers_every": None},
        }
    )  # fmt: skip


def trainer(settings: RunSettings, folder: Path, device: torch.device) -> Callable[[], object]:
    training = Training(settings, folder, processes=Processes(), device=device)
    return training.one_step


def plain_loop(settings: RunSettings, device: torch.device) -> Callable[[], object]:
    """The loop that people write: batch, forward, backward, clip, step."""
    sequences, training = settings.sequences_per_step, settings.training
    config = GPTConfig(**settings.model, context=settings.data.sequence)
    model = GPT(config).to(device)
    plan = mssp.plan(config.shape, lr=4e-3, regime="III", weight_decay=0.1)
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan), fused=True)
    order = TokenOrder(python_tokens(), "train", sequence=settings.data.sequence, passes=settings.data.passes)
    run: Any = torch.compile(model) if training.compile else model
    state = {"step": 0}

    def step() -> float:
        rows = torch.from_numpy(order.rows(state["step"] * sequences, sequences)).to(device)
        with autocast(device, "bfloat16" if device.type == "cuda" else "float32"):
            output = run(rows[:, :-1], targets=rows[:, 1:].contiguous())
            loss = output.loss + 0.01 * output.load_balancing_loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = lr_factor(state["step"], training.steps)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state["step"] += 1
        return float(loss.detach())  # every loop prints it

    return step


def seconds_per_step(steps: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """The median time of a step of each, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(count + 3):  # the first ones compile and allocate
        for name in sorted(steps, reverse=bool(number % 2)):
            begun = time.perf_counter()
            steps[name]()
            if CUDA:
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times[3:]) for name, times in taken.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args(arguments)
    device = pick_device("auto")
    print(f"{device_text('auto')}, torch {torch.__version__}; medians of {options.steps} steps, in turns\n")
    rows = []
    cases = [("small", SMALL, 16, SEQUENCE, False)]
    if CUDA:
        cases += [("large", LARGE, 16, 1024, False), ("large", LARGE, 16, 1024, True)]
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, model, sequences, sequence, compiled) in enumerate(cases):
            settings = settings_of(model, sequences, options.steps + 3, sequence, compile=compiled)
            ours = trainer(settings, Path(folder, str(number)), device)
            times = seconds_per_step({"mssp train": ours, "plain loop": plain_loop(settings, device)}, options.steps)
            tokens = sequences * sequence
            ratio = times["mssp train"] / times["plain loop"]
            label = f"{name}{', compiled' if compiled else ''}"
            rate, plain_rate = (tokens / times[each] for each in ("mssp train", "plain loop"))
            rows.append([label, f"{rate:,.0f}", f"{plain_rate:,.0f}", f"{ratio:.3f}"])
        print(
            "\n".join(
                markdown_table(["model", "mssp train, tokens/s", "plain loop, tokens/s", "time over plain"], rows)
            )
        )
        if CUDA:
            print("\n" + "\n".join(utilisation(Path(folder), device, options.steps)))


def utilisation(folder: Path, device: torch.device, count: int) -> list[str]:
    """The share of the peak rate by the operations of active experts, and the tokens per second."""
    rows = []
    for dispatch in ("auto", "dense"):
        model = {**LARGE, "dispatch": dispatch}
        settings = settings_of(model, 16, count + 3, 1024, compile=True)
        training = Training(settings, folder / dispatch, processes=Processes(), device=device)
        seconds = seconds_per_step({dispatch: training.one_step}, count)[dispatch]
        rate = settings.training.tokens_per_step / seconds
        peak = peak_operations(device, "bfloat16")
        mfu = "" if peak is None else f"{rate * operations_per_token(training.model, 1024) / peak:.1%}"
        label = "experts on their tokens" if dispatch == "auto" else "every expert on every token"
        rows.append([label, f"{rate:,.0f}", mfu])
    return markdown_table(["large, compiled", "tokens/s", "share of peak, active operations"], rows)


if __name__ == "__main__":
    main()
