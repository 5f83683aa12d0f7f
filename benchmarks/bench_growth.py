"""Growths that are none of the paper's: how every term scales under the column for any growth, and what sweeps find.

    ./dev bench growth check [--growths all] [--steps 30] [--seeds 5] [--device auto] [--save FILE]
    ./dev bench growth sweep [--growths fixed-k] [--steps 300] [--seeds 8]
    ./dev bench growth router --growths fixed-k [--steps 300] [--seeds 6]

``check`` trains small MLP MoEs with Adam along each growth and fits exponents over its sizes. Every size sees as many
tokens per expert. Beside the column it measures a planted mistake (Regime II's start of expert_out), μP, and the column
under random routing, which tells what routing specialises to from what the rules do. ``sweep`` asks whether the best
learning rate stays. ``router`` compares two starts of a router at a fixed K, with and without balanced loads.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mssp
from mssp._environment import pick_device
from mssp._estimates import Estimate, mean_of
from mssp._tables import markdown_table
from mssp.coordcheck.ladder_runs import PlannedProgram, check_runs
from mssp.coordcheck.result import Check
from mssp.data.dataset import Dataset
from mssp.data.generated import clusters
from mssp.ladders.mlp import config_of
from mssp.measure.quantities import AGGREGATE, BACKWARD, PROPAGATING, Quantity
from mssp.nn import MoE
from mssp.nn.router import Routing
from mssp.planning.growth import Growth
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import Setting
from mssp.planning.shape import Shape
from mssp.replicas import Feed, Replica, Schedule
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.training import train
from mssp.report.figures.sweeps import transfer_figure
from mssp.report.saving import save
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Score, Transfer

INPUTS, CLASSES, LR = 64, 100, 0.01
TOKENS_PER_EXPERT = 64
EARLY, LATE = 3, 30  # updates
NOISE = 1e6  # of the logits by which experts are chosen: random routing
SHOWN = (AGGREGATE("init"), BACKWARD("A4"), BACKWARD("A5"), PROPAGATING("expert_in"))


@dataclass(frozen=True)
class Steps:
    """Sizes along a growth: what grows, in words, and the shape at each size."""

    words: str
    shapes: Mapping[int, Shape]

    @property
    def base(self) -> Shape:
        return self.shapes[min(self.shapes)]


def _steps(words: str, sizes: Sequence[int], shape: Callable[[int], tuple[int, int, int, int]]) -> Steps:
    return Steps(words, {size: Shape(*shape(size), 1, INPUTS) for size in sizes})


def _root(size: int) -> int:
    """K where it grows as N^1/2: 2 at N = 64."""
    return round(2 * math.sqrt(size / 64))


WIDTHS, SQUARES = (64, 128, 256, 512), (64, 144, 256, 576)
GROWTHS = {
    "fixed-k": _steps("K fixed, M ~ N", WIDTHS, lambda n: (n, 16, n // 16, 2)),
    "fixed-k-wide": _steps("K fixed, M, N_e ~ N (K/M 1/2 to 1/16)", WIDTHS, lambda n: (n, n // 4, n // 16, 2)),
    "m-alone": _steps("M alone", (8, 16, 32, 64), lambda m: (128, 16, m, 2)),
    "root-k": _steps("M ~ N, K ~ N^1/2", SQUARES, lambda n: (n, 16, n // 8, _root(n))),
    "root-k-wide": _steps("M ~ N, K, N_e ~ N^1/2", SQUARES, lambda n: (n, 8 * _root(n), n // 8, _root(n))),
    "n-alone": _steps("N alone", WIDTHS, lambda n: (n, 32, 8, 2)),
    "n_e-alone": _steps("N_e alone", (16, 24, 40, 64), lambda e: (128, e, 16, 8)),
    "one-top-k": _steps("I with top-K", WIDTHS, lambda n: (n, n // 2, 8, 2)),
    "two": _steps("II, half of the experts", WIDTHS, lambda n: (n, 16, n // 8, n // 16)),
    "three": _steps("III, half of the experts", WIDTHS, lambda n: (n, n // 4, n // 8, n // 16)),
}


def plans_of(steps: Steps, scheme: str = "mssp", regime: str | None = "any", **options: Any) -> dict[int, Plan]:
    with without_plan_warnings():
        return {
            size: plan(shape, steps.base, scheme=scheme, regime=regime, optimizer="adam", **{"lr": LR, **options})
            for size, shape in steps.shapes.items()
        }


def programs_of(plans: Mapping[int, Plan], noise: float = 0.0) -> dict[int, PlannedProgram]:
    return {
        size: PlannedProgram(MLPProgram(config_of(made.target, CLASSES, soft=False, noise=noise)), made)
        for size, made in plans.items()
    }


def batch_of(shape: Shape, least: int) -> int:
    """So many tokens that each expert sees as many at every size, in expectation."""
    return max(least, TOKENS_PER_EXPERT * shape.experts // shape.active)


VARIANTS: Mapping[str, Callable[[Steps], tuple[dict[int, Plan], float]]] = {
    "column": lambda steps: (plans_of(steps), 0.0),
    "expert_in x κ^1/4": lambda steps: (_with_compromise(steps), 0.0),
    "II's expert_out": lambda steps: (_with_start_of_two(steps), 0.0),
    "μP": lambda steps: (plans_of(steps, "mup"), 0.0),
    "column, random routing": lambda steps: (plans_of(steps), NOISE),
}


def _with_compromise(steps: Steps) -> dict[int, Plan]:
    return {
        size: plans_of(steps, init_mult={"expert_in": min(1.0, Growth(steps.base, shape).kappa) ** 0.25})[size]
        for size, shape in steps.shapes.items()
    }


def _with_start_of_two(steps: Steps) -> dict[int, Plan]:
    """The mistake of Regime II's √M where K does not grow with M."""
    made = plans_of(steps)
    wanted = {size: math.sqrt(Growth(steps.base, shape).factors["M"]) for size, shape in steps.shapes.items()}
    first = made[min(made)].roles["expert_out"].init_std * steps.base.expert_width**0.5
    boosts = {
        size: each.roles["expert_out"].init_std * each.target.expert_width**0.5 / first for size, each in made.items()
    }
    return {size: plans_of(steps, init_mult={"expert_out": wanted[size] / boosts[size]})[size] for size in steps.shapes}


def checked(steps: Steps, variant: str, updates: int, seeds: int, device: torch.device) -> Check:
    plans, noise = VARIANTS[variant](steps)
    batches = {size: batch_of(shape, TOKENS_PER_EXPERT) for size, shape in steps.shapes.items()}
    data = clusters(examples=updates * max(batches.values()), validation=10)
    return check_runs(
        programs_of(plans, noise),
        Feed(data, device),
        steps=updates,
        batch=batches,
        seeds=range(seeds),
        rules=plans_of(steps, "mup" if variant == "μP" else "mssp"),
    )


def told(check: Check, name: Quantity, update: int) -> str:
    """The exponent after so many updates with its interval; on the way back, without the 1/N that is there anyway."""
    exponents = check.quantities[name].exponents
    exponent: Estimate | None = exponents[min(update, len(exponents) - 1)]
    return "–" if exponent is None else f"{exponent.value:+.2f} ± {exponent.ci:.2f}"


def check_growths(asked: argparse.Namespace, device: torch.device) -> list[str]:
    rows, kept = [], {}
    for name in asked.growths:
        steps, variants = GROWTHS[name], asked.variants
        for variant in variants:
            started = time.perf_counter()
            check = checked(steps, variant, asked.steps, asked.seeds, device)
            kept[f"{name}: {variant}"] = check.json()
            predicted = [_predicted(check, quantity, asked.steps) for quantity in SHOWN]
            cells = [told(check, SHOWN[0], 0)]
            cells += [f"{told(check, one, EARLY)}; {told(check, one, LATE)}" for one in SHOWN[1:]]
            cells = [f"{cell} ({expected})" for cell, expected in zip(cells, predicted, strict=True)]
            causes = "; ".join(cause.text for cause in check.causes[:2]) or "–"
            stable = "yes" if check.stable else "no"
            rows.append([steps.words, variant, *cells, "pass" if check.passed else "fail", stable, causes])
            print(f"{name}, {variant}: {time.perf_counter() - started:.0f} s", flush=True)
            if asked.save:
                Path(asked.save).write_text(json.dumps(kept), encoding="utf-8")
    header = ["growth", "variant", *map(str, SHOWN), "as predicted", "stable", "causes"]
    return markdown_table(header, rows)


def _predicted(check: Check, name: Quantity, update: int) -> str:
    prediction = check.quantities[name].predicted[min(update, len(check.quantities[name].predicted) - 1)]
    if prediction is None or prediction.exponent.power is None:
        return "–"
    low, high = prediction.exponent.power - prediction.exponent.slack, prediction.exponent.power
    return f"{float(high):+.2g}" if low == high else f"{float(low):+.2g} to {float(high):+.2g}"


# -- does the best learning rate stay? ---------------------------------------------------------------------------------

RATES, RATIO, MIDDLE = 9, 2**0.75, 2**-6  # learning rates of a sweep, around the middle one
BATCH, VALIDATION = 256, 2000
METRIC = "validation_loss"


def _of_sp(steps: Steps) -> tuple[dict[int, Plan], float]:
    return plans_of(steps, "sp", None), 0.0


SWEPT = {name: VARIANTS[name] for name in ("column", "expert_in x κ^1/4", "II's expert_out", "μP")} | {"SP": _of_sp}


def swept(steps: Steps, variant: str, updates: int, seeds: int, feed: Feed) -> Transfer:
    """Scores over learning rates, at every size."""
    plans, _ = SWEPT[variant](steps)
    scores = []
    for size, planned_program in programs_of(plans).items():
        lrs = [MIDDLE * RATIO ** (number - RATES // 2) for number in range(RATES)]
        replicas = [Replica(replace(plans[size], lr=lr), seed) for seed in range(seeds) for lr in lrs]
        trained = train(planned_program.program, replicas, feed, Schedule(updates, BATCH, validation=VALIDATION))
        for replica, result in zip(replicas, trained, strict=True):
            value = math.nan if result.diverged_at is not None else result.validation["loss"]
            learned = bool(value < result.curves["loss"][0])
            scores.append(Score(size, replica.plan.lr, replica.seed, value, learned))
    return Transfer(METRICS[METRIC], scores)


def sweep_growths(asked: argparse.Namespace, device: torch.device) -> list[str]:
    rows, kept = [], {}
    feed = Feed(clusters(examples=asked.steps * BATCH, validation=VALIDATION), device)
    for name in asked.growths:
        for variant in SWEPT:
            started = time.perf_counter()
            transfer = swept(GROWTHS[name], variant, asked.steps, asked.seeds, feed)
            kept[f"{name}: {variant}"] = [list(vars_of(score)) for score in transfer.scores]
            best = [f"{each.best_lr.value:.2f} ± {each.best_lr.ci:.2f}" for each in transfer.summaries]
            losses = [f"{each.best.value:.3f}" for each in transfer.summaries]
            regret = transfer.summaries[-1].regret
            drift = f"{transfer.drift.value:+.2f} ± {transfer.drift.ci:.2f}, {transfer.drift_verdict}"
            rows.append([
                GROWTHS[name].words, variant, " / ".join(best), drift, " / ".join(losses),
                f"{regret.value:.3f} ± {regret.ci:.3f}",
            ])  # fmt: skip
            print(f"{name}, {variant}: {time.perf_counter() - started:.0f} s", flush=True)
            if asked.save:
                Path(asked.save).write_text(json.dumps(kept), encoding="utf-8")
        if asked.plot:
            draw(kept, name, asked.plot)
    header = ["growth", "variant", "log2 of the best rate by size", "drift per doubling", f"{METRIC} there", "regret"]
    return markdown_table(header, rows)


def draw(kept: Mapping[str, Sequence[Sequence[Any]]], growth: str, file: str) -> None:
    """The figure of one growth's sweep, from what ``sweep`` saved: the column beside SP."""
    outcomes = {
        Contender(Setting.of(scheme, None, "adam")): Transfer(
            METRICS[METRIC], [Score(int(width), lr, int(seed), *rest) for width, lr, seed, *rest in scores]
        )
        for variant, scheme in (("column", "mssp"), ("SP", "sp"))
        if (scores := kept.get(f"{growth}: {variant}"))
    }
    save(transfer_figure(outcomes, GROWTHS[growth].words), file)


def vars_of(score: Score) -> tuple[float, ...]:
    return score.width, score.lr, score.seed, score.value, score.learned


# -- how should the router of a fixed K start? -------------------------------------------------------------------------

STARTS = {"K^1/2/N": 1.0, "N^-1/2": None}  # the column's own start; None takes its falling part away again
BALANCING = (0.0, 0.01)  # coefficients of the load-balancing loss
DEAD = 0.1  # of an equal share of the tokens: an expert with less counts as dead


class OneLayer(nn.Module):
    """The MLP MoE with one layer, whose routing the loss can see."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Linear(INPUTS, shape.width, bias=False)
        self.moe = MoE(shape.width, shape.expert_width, shape.experts, shape.active)
        self.readout = nn.Linear(shape.width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        out, routing = self.moe(nn.functional.gelu(self.embedding(x)))
        return self.readout(out), routing


CLAIMS = {
    "embedding.weight": mssp.ParamInfo("embedding", layout="out in"),
    "readout.weight": mssp.ParamInfo("readout", layout="out in"),
}


def routed(
    steps: Steps, size: int, start: str, balancing: float, seed: int, updates: int, data: Dataset
) -> list[float]:
    """Of one model: the validation loss, the share of dead experts, the largest load, and how far logits spread."""
    shape = steps.shapes[size]
    falls = Growth(steps.base, shape).factors
    factor = STARTS[start] or min(1.0, falls["K"] / falls["N"]) ** -0.5
    made = plans_of(steps, init_mult={"router": factor})[size]
    model = OneLayer(shape)
    mssp.initialize(model, made, CLAIMS, seed=seed)
    optimizer = torch.optim.Adam(mssp.param_groups(model, made, CLAIMS))
    scale, shift = (torch.from_numpy(array) for array in data.scale_and_shift())
    order = torch.randperm(len(data.train.inputs), generator=torch.Generator().manual_seed(seed))
    inputs = torch.from_numpy(data.train.inputs)[order] * scale + shift
    targets = torch.from_numpy(data.train.targets.astype("int64"))[order]
    for step in range(updates):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        outputs, routing = model(inputs[rows])
        loss = nn.functional.cross_entropy(outputs, targets[rows])
        (loss + balancing * routing.load_balancing_loss()).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        held_out = torch.from_numpy(data.validation.inputs) * scale + shift
        outputs, routing = model(held_out)
        loss = nn.functional.cross_entropy(outputs, torch.from_numpy(data.validation.targets.astype("int64")))
        shares = routing.loads() * shape.experts
    return [float(loss), float((shares < DEAD).float().mean()), float(shares.max()), float(routing.logits.std())]


def start_routers(asked: argparse.Namespace, device: torch.device) -> list[str]:
    rows = []
    data = clusters(examples=asked.steps * BATCH, validation=VALIDATION)
    for name in asked.growths:
        steps = GROWTHS[name]
        for balancing in BALANCING:
            for start in STARTS:
                for size in steps.shapes:
                    found = [
                        routed(steps, size, start, balancing, seed, asked.steps, data) for seed in range(asked.seeds)
                    ]
                    loss, dead, load, spread = (mean_of(values) for values in zip(*found, strict=True))
                    rows.append([
                        steps.words, f"{balancing:g}", start, str(size), *(f"{one.value:.3f} ± {one.ci:.3f}" for one in
                        (loss, dead)), f"{load.value:.1f} ± {load.ci:.1f}", f"{spread.value:.2f}",
                    ])  # fmt: skip
                    print(" | ".join(rows[-1]), flush=True)
    header = [
        "growth",
        "balancing",
        "router's start",
        "size",
        "validation loss",
        "dead experts",
        "largest load",
        "spread",
    ]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "sweep", "router"])
    parser.add_argument("--growths", nargs="*", default=list(GROWTHS), choices=list(GROWTHS))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=LATE)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--save", help="a file for all measured exponents")
    parser.add_argument("--plot", help="a figure of the last growth that is swept: .svg, .html")
    asked = parser.parse_args()
    device = pick_device(asked.device)
    print(
        "\n".join({"check": check_growths, "sweep": sweep_growths, "router": start_routers}[asked.what](asked, device))
    )


if __name__ == "__main__":
    main()
