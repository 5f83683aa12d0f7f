"""How far the coordinate check can be trusted: mistakes it must find, right settings it must pass, and its cost.

    ./dev bench check [--widths 64 128 256 512] [--device auto] [--regimes I II III] [--repeats 20]

Every mistake is a single wrong power of the width (tests/planted/powers.py): in an initial scale, a learning rate, an
eps, the aggregation factor, or experts tied where they should not be, or not tied where they should. A check that fails
has caught it; its first named cause should be the planted one. The right settings are checked ``repeats`` times, each
with three seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from mssp._environment import pick_device
from mssp._tables import markdown_table
from mssp.coordcheck.ladder_runs import PlannedProgram, check_runs, measured, theory_of
from mssp.coordcheck.result import Check
from mssp.data import load
from mssp.measure.quantities import ACCUSING
from mssp.planning.setting import Setting
from mssp.replicas import Feed, Replica, Schedule
from mssp.replicas.lockstep import Lockstep
from tests.coordcheck.tuned_runs import runs_of
from tests.planted.powers import Mistake

SEEDS, STEPS, BATCH = 3, 20, 100


def mistakes(regimes: list[str]) -> list[Mistake]:
    planted = []
    for regime in regimes:
        for optimizer in ("sgd", "adam"):
            powers = [("router", -0.5), ("router", 1.0), ("expert_in", 0.5), ("expert_in", -1.0), ("expert_out", -0.5),
                      ("readout", 0.5), ("readout", -0.5), ("embedding", -1.0)]  # fmt: skip
            planted += [Mistake("rate", role, power, regime, optimizer) for role, power in powers]
            planted += [Mistake("weights", "expert_out", power, regime, optimizer) for power in (-0.5, 0.5)]
            planted += [Mistake("weights", "expert_in", 0.5, regime, optimizer)]
            planted += [Mistake("aggregation", "", power, regime, optimizer) for power in (-0.5, 0.5)]
            planted += [Mistake("experts", "", 0.0, regime, optimizer)]
        # A global eps: the rule's own power, taken back.
        global_eps = {"I": ("expert_in", 1.0), "II": ("expert_out", 2.0), "III": ("expert_in", 2.0)}[regime]
        planted += [Mistake("eps", *global_eps, regime, "adam"), Mistake("eps", "router", 0.5, regime, "adam")]
    return planted


def checked(mistake: Mistake, widths: tuple[int, ...], feed: Feed) -> Check:
    right = runs_of(Setting.of("mssp", mistake.regime, mistake.optimizer), widths, feed.data)
    rules = {size: run.plan for size, run in right.items()}
    return check_runs(
        mistake.planted(right), feed, steps=STEPS, batch=BATCH, seeds=range(SEEDS), rules=rules, prepare=mistake.prepare
    )


def plant_all(regimes: list[str], widths: tuple[int, ...], feed: Feed) -> list[str]:
    rows, caught, named = [], 0, 0
    for mistake in mistakes(regimes):
        check = checked(mistake, widths, feed)
        first = check.causes[0] if check.causes else None
        is_named = first is not None and (first.setting, first.role) == (mistake.what, mistake.role)
        caught, named = caught + (not check.passed), named + is_named
        accusing = [quantity for quantity in check.off if quantity.name.kind in ACCUSING]
        others = len(check.off) - len(accusing)
        verdict = "missed" if check.passed else f"{len(accusing)} + {others} off"
        text = "" if first is None else first.text
        rows.append([mistake.regime, mistake.optimizer, str(mistake), verdict, "yes" if is_named else "no", text])
    header = ["regime", "optimizer", "planted", "settings + dynamics", "named first", "first named cause"]
    summary = f"caught {caught} of {len(rows)}; the planted one is the first named cause in {named}"
    return [*markdown_table(header, rows), "", summary]


def check_right_settings(regimes: list[str], widths: tuple[int, ...], feed: Feed, repeats: int) -> list[str]:
    rows = []
    for regime in regimes:
        for scheme in ("mssp", "mup"):
            for optimizer in ("sgd", "adam"):
                setting = Setting.of(scheme, regime, optimizer)
                runs = runs_of(setting, widths, feed.data)
                series = measured(runs, feed, Schedule(STEPS, BATCH), range(SEEDS * repeats))
                theory = theory_of({size: run.plan for size, run in runs.items()})
                checks = [
                    Check.of(series.of_seeds(slice(first, first + SEEDS)), theory)
                    for first in range(0, SEEDS * repeats, SEEDS)
                ]
                off = sorted({quantity.name for check in checks for quantity in check.off})
                stable = sum(check.stable for check in checks)
                together = Check.of(series, theory)
                rows.append(
                    [
                        str(setting),
                        f"{sum(check.passed for check in checks)} of {repeats}",
                        f"{stable} of {repeats}",
                        ", ".join(off) or "nothing",
                        "pass" if together.passed else "off: " + ", ".join(quantity.name for quantity in together.off),
                    ]
                )
                print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    header = ["setting", "passes", "stable", "ever off", f"all {SEEDS * repeats} seeds as one"]
    return markdown_table(header, rows)


def cost(regimes: list[str], widths: tuple[int, ...], feed: Feed) -> list[str]:
    """Seconds of the steps alone and with everything measured, on the same device, side by side."""
    rows = []
    for regime in regimes:
        runs = runs_of(Setting.of("mssp", regime, "sgd"), widths, feed.data)
        alone = _seconds(partial(_train_alone, runs, feed), feed.device)
        watched = _seconds(partial(measured, runs, feed, Schedule(STEPS, BATCH), range(SEEDS)), feed.device)
        rows.append([regime, f"{alone:.2f}", f"{watched:.2f}", f"{watched / alone:.2f}"])
    return markdown_table(["regime", "steps alone / s", "checked / s", "ratio"], rows)


def _train_alone(runs: Mapping[int, PlannedProgram], feed: Feed) -> None:
    for run in runs.values():
        lockstep = Lockstep(run.program, [Replica(run.plan, seed) for seed in range(SEEDS)], device=feed.device)
        for x, targets in feed.batches(lockstep.seeds, Schedule(STEPS, BATCH)):
            lockstep.step(x, targets)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    work()  # once, for everything that happens once
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--regimes", nargs="+", default=["I", "II", "III"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", nargs="+", default=["cost", "right", "planted"])
    options = parser.parse_args(arguments)
    device = pick_device(options.device)
    feed, widths = Feed(load("clusters"), device), tuple(options.widths)
    name = torch.cuda.get_device_name() if feed.device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}, torch {torch.__version__}, clusters, tuned multipliers, widths {' '.join(map(str, widths))}, ")
    print(f"{STEPS} updates of {BATCH} examples, {SEEDS} seeds a check\n")
    if "cost" in options.parts:
        print("\n".join(["## Cost", "", *cost(options.regimes, widths, feed), ""]), flush=True)
    if "right" in options.parts:
        rows = check_right_settings(options.regimes, widths, feed, options.repeats)
        print("\n".join(["## Right settings", "", *rows, ""]), flush=True)
    if "planted" in options.parts:
        print("\n".join(["## Planted mistakes", "", *plant_all(options.regimes, widths, feed)]), flush=True)


if __name__ == "__main__":
    main()
