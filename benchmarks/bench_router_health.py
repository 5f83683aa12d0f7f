"""Alarms on the health of routers: planted failures that must raise theirs, and healthy runs that must raise none.

    ./dev bench router_health
    ./dev bench router_health --parts rates healthy --families qwen3_moe --seeds 1 2 3

Small models on the source of Python's standard library as bytes (tests/planted/routers.py says how they are trained).
The best rate of a family is that of the lowest final loss in a grid of factors of two; healthy runs have rates of a
quarter of it to twice it. All limits stand in src/mssp/measure/alarms.py.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import mssp
from mssp._tables import markdown_table
from mssp.data import TokenFile, TokenOrder, python_tokens
from mssp.planning.plans import Plan
from tests.hf.tiny_models import config_of
from tests.planted.routers import BATCH, CONTEXT, PLANTED, Run, built, watched

STEPS = 200
RATES = {"gpt": (0.004, 0.008, 0.016, 0.032), "qwen3_moe": (0.002, 0.004, 0.008, 0.016)}
SHARES = (0.25, 0.5, 1.0, 1.5, 2.0)  # of the best rate
SHAPE = mssp.Shape(width=64, expert_width=32, experts=8, active=4, depth=2)
LAST = 20  # the final loss is the mean over so many steps


def model_of(family: str, rate: float, seed: int) -> tuple[nn.Module, Plan]:
    """A healthy model: MSSP in Regime III, with a load-balancing loss."""
    if family == "gpt":
        return built(Run(), seed, rate)
    config = config_of(
        family,
        SHAPE,
        vocab_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        output_router_logits=True,
        router_aux_loss_coef=0.01,
    )
    plan = mssp.hf.plan(config, config, lr=rate, regime="III")
    return mssp.hf.from_config(config, plan, base=config, seed=seed), plan


def batches(text: TokenFile, seed: int) -> list[Tensor]:
    order = TokenOrder(text, "train", sequence=CONTEXT, seed=seed)
    return list(torch.from_numpy(order.rows(0, STEPS * BATCH)).split(BATCH))


def rates(text: TokenFile, family: str, seeds: Sequence[int]) -> Iterator[list[str]]:
    """The mean final loss at every rate of the grid."""
    for rate in RATES[family]:
        ends = []
        for seed in seeds:
            losses = watched(*model_of(family, rate, seed), Run(), batches(text, seed))[1]
            ends.append(sum(losses[-LAST:]) / LAST)
        yield [family, f"{rate:g}", f"{sum(ends) / len(ends):.3f}"]


def healthy(text: TokenFile, family: str, best: float, seeds: Sequence[int]) -> Iterator[list[str]]:
    for number, seed in enumerate(seeds):
        share = SHARES[number % len(SHARES)]
        start = time.perf_counter()
        alarms, losses = watched(*model_of(family, share * best, seed), Run(), batches(text, seed))
        seconds = time.perf_counter() - start
        end = f"{sum(losses[-LAST:]) / LAST:.3f}"
        yield [family, f"{share:g}", str(seed), end, f"{seconds:.0f}", "; ".join(map(str, alarms)) or "none"]


def planted(text: TokenFile, seed: int) -> Iterator[list[str]]:
    for name, run in PLANTED.items():
        alarms, _ = watched(*built(run, seed), run, batches(text, seed))
        first = next((alarm for alarm in alarms if alarm.kind in run.raises), None)
        also = ", ".join(f"{alarm.kind} ({alarm.step})" for alarm in alarms if alarm is not first) or "none"
        yield [name, "MISSED" if first is None else f"{first.kind} ({first.step})", also]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", default=["planted", "healthy"])
    parser.add_argument("--families", nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1000, 1000 + len(SHARES))))
    parser.add_argument(
        "--best", nargs="+", default=["gpt=0.008", "qwen3_moe=0.004"], help="the best rate of each family"
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    text = python_tokens()
    best = {name: float(rate) for name, _, rate in (each.partition("=") for each in options.best)}
    print(f"torch {torch.__version__}, one CPU thread, {STEPS} steps, seeds {' '.join(map(str, options.seeds))}\n")
    if "rates" in options.parts:
        rows = [row for family in options.families for row in rates(text, family, options.seeds)]
        print("\n".join([*markdown_table(["family", "rate", "final loss"], rows), ""]), flush=True)
    if "planted" in options.parts:
        rows = list(planted(text, options.seeds[0]))
        print("\n".join([*markdown_table(["planted", "its alarm (step)", "others"], rows), ""]), flush=True)
        print(f"{sum('MISSED' not in row[1] for row in rows)} of {len(rows)} planted failures found\n", flush=True)
    if "healthy" in options.parts:
        rows = [row for family in options.families for row in healthy(text, family, best[family], options.seeds)]
        header = ["family", "rate / best", "seed", "final loss", "s", "alarms"]
        print("\n".join([*markdown_table(header, rows), ""]), flush=True)
        print(f"{sum(row[-1] == 'none' for row in rows)} of {len(rows)} healthy runs raise no alarm", flush=True)


if __name__ == "__main__":
    main()
