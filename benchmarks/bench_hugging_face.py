"""Hugging Face models under a plan: the coordinate check, learning-rate transfer, and what hooks cost.

    ./dev bench hugging_face [--parts check transfer cost]

``transfer`` trains OLMoE as it comes (N(0, 0.02), one learning rate) and with MSSP on the source of Python's standard
library, over learning rates and widths. On a CUDA device at widths to 1024; much smaller without.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import mssp
from mssp.nn.experts.timing import milliseconds
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Score, Transfer
from mssp.sweep.transfer_text import cells, verdicts
from tests.coordcheck.hugging_face_models import (
    CUDA,
    DEVICE,
    LENGTH,
    VOCABULARY,
    as_it_comes,
    config,
    one_rate,
    windows,
)

FAMILIES = ("olmoe", "mixtral", "qwen3_moe")
CHECK_WIDTHS = (64, 128, 256, 512, 1024) if CUDA else (32, 64, 128)
CHECK_STEPS, CHECK_SEEDS = (10, 4) if CUDA else (3, 2)
TRANSFER_WIDTHS = (128, 256, 512) if CUDA else (32, 64)
TRANSFER_STEPS, SEEDS = (150, 2) if CUDA else (6, 2)
BATCH = 32 if CUDA else 4
RATES = [2.0**k for k in range(-11, -4)] if CUDA else [2.0**-9, 2.0**-8, 2.0**-7]
COST_WIDTH = 1024 if CUDA else 64
SETUPS = ("MSSP", "as it comes")
LAST = 30  # steps whose mean loss counts


def built(family: str, regime: str, width: int, base: int) -> nn.Module:
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config(family, regime, width)).to(DEVICE)
    mssp.hf.adapt(model, base=config(family, regime, base))
    return model


def check(regimes: list[str]) -> None:
    """Every family in both regimes: the verdict with a plan, and as it comes."""
    print(
        f"## Coordinate check, widths {', '.join(map(str, CHECK_WIDTHS))}, {CHECK_SEEDS} seeds, {CHECK_STEPS} steps\n"
    )
    batches = [(window[:, :-1], window[:, 1:]) for window in windows(CHECK_STEPS, seed=0, batch=4)]
    for family in FAMILIES:
        for regime in regimes:
            shapes = [mssp.Shape.from_config(config(family, regime, width)) for width in CHECK_WIDTHS]
            planned = mssp.plan(shapes[0], shapes[0], regime=regime, lr=1e-3)

            def build(shape: mssp.Shape, family: str = family, regime: str = regime) -> nn.Module:
                return built(family, regime, shape.width, CHECK_WIDTHS[0])

            for name, how in (("MSSP", {}), ("as it comes", {"initialize": as_it_comes, "optimizer": one_rate(1e-3)})):
                start = time.perf_counter()
                result = mssp.check(build, shapes, batches, planned, seeds=CHECK_SEEDS, device=DEVICE, **how)  # type: ignore[arg-type]
                off = ", ".join(quantity.name for quantity in result.off[:4])
                verdict = "pass" if result.passed else f"FAIL, {len(result.off)} off ({off} …)"
                stable = "stable" if result.stable else "not stable"
                print(f"{family} {regime} {name}: {verdict}; {stable}; {time.perf_counter() - start:.0f} s", flush=True)


def transfer(regimes: list[str]) -> None:
    """Loss over learning rate and width, as it comes and with a plan whose base is the smallest width."""
    for regime in regimes:
        for name in SETUPS:
            scores = []
            for width in TRANSFER_WIDTHS:
                for seed in range(SEEDS):
                    scores += [Score(width, lr, seed, *trained(regime, name, width, lr, seed)) for lr in RATES]
            result = Transfer(
                Metric("loss", higher_is_better=False, label=f"training loss, mean of the last {LAST} steps"), scores
            )
            print(f"\n## OLMoE, Regime {regime}, {name}: {TRANSFER_STEPS} steps of {BATCH} x {LENGTH - 1} bytes\n")
            print("| width | " + " | ".join(f"{lr:.3g}" for lr in RATES) + " |")
            print("|---|" + "---|" * len(RATES))
            for width in TRANSFER_WIDTHS:
                print(f"| {width} | " + " | ".join(f"{result.shown(width, lr).value:.3f}" for lr in RATES) + " |")
            print()
            for row in cells(result):
                print("| " + " | ".join(row) + " |")
            print("\n".join(verdicts(result)), flush=True)


def trained(regime: str, name: str, width: int, lr: float, seed: int) -> tuple[float, bool]:
    """The mean loss of the last steps, NaN where the run diverged, and whether it learned."""
    model = built("olmoe", regime, width, TRANSFER_WIDTHS[0])
    shapes = [mssp.Shape.from_config(config("olmoe", regime, size)) for size in (width, TRANSFER_WIDTHS[0])]
    if name == "MSSP":
        plan = mssp.plan(*shapes, regime=regime, lr=lr)
        mssp.initialize(model, plan, seed=seed)
        optimizer = torch.optim.AdamW(mssp.param_groups(model, plan), fused=CUDA)
    else:
        as_it_comes(model, mssp.plan(*shapes, regime=regime, lr=lr), seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=CUDA)
    losses = []
    for step, window in enumerate(windows(TRANSFER_STEPS, seed, BATCH)):
        warm = min(1.0, (step + 1) / (0.1 * TRANSFER_STEPS))
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * warm
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = model(window, labels=window, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    values = torch.stack(losses).float().tolist()
    last = sum(values[-LAST:]) / len(values[-LAST:])
    learned = math.isfinite(last) and last < values[0]
    return (last if math.isfinite(last) else math.nan), learned


def cost(regimes: list[str]) -> None:
    """A training step with hooks against one without, eager and compiled; side by side in one run."""
    print(f"\n## The cost of hooks, OLMoE of width {COST_WIDTH}, four blocks: ratio of a step with to one without\n")
    deep, shallow = (config("olmoe", regimes[-1], COST_WIDTH, depth) for depth in (4, 2))
    plan = mssp.hf.plan(deep, shallow, regime=regimes[-1], lr=1e-3)
    tokens = torch.randint(VOCABULARY, (16, LENGTH), device=DEVICE)
    for compiled in (False, True) if CUDA else (False,):
        runs = {}
        for name in ("with", "without"):
            model = transformers.AutoModelForCausalLM.from_config(deep).to(DEVICE)
            if name == "with":
                mssp.hf.adapt(model, shallow, plan)
            runs[name] = _step(torch.compile(model) if compiled else model, tokens)
        times = milliseconds(runs, DEVICE)
        kind = "compiled" if compiled else "eager"
        print(f"{kind}: {times['with'] / times['without']:.3f} ({times['with']:.2f} ms with)", flush=True)


def _step(run: Any, tokens: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    def step() -> tuple[Tensor, ...]:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = run(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return (loss.detach(),)

    return step


PARTS = {"check": check, "transfer": transfer, "cost": cost}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--regimes", nargs="+", choices=("II", "III"), default=["II", "III"])
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", mssp.PlanWarning)
    warnings.simplefilter("ignore", UserWarning)
    device = torch.cuda.get_device_name() if CUDA else f"{torch.get_num_threads()} CPU threads"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}\n")
    for part in options.parts:
        PARTS[part](options.regimes)


if __name__ == "__main__":
    main()
