"""Do the tuned multipliers give, in this library, the accuracy that their authors report?

    ./dev bench reference tinyimagenet [float32|tf32]

Trains every setting that is kept for a data set at N = 128, 1000 steps of 50, with four seeds, and compares validation
top-5 with the reported one. Minutes on a GPU, hours on a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from mssp._environment import pick_device
from mssp._estimates import mean_of
from mssp._tables import markdown_table
from mssp.data import load
from mssp.ladders.mlp import TUNED_WIDTH, MLPLadder
from mssp.ladders.tuned import entries, multipliers_for
from mssp.planning.setting import Setting
from mssp.replicas import Feed, Schedule
from mssp.store.runs import Result
from mssp.sweep.execution import Job, train_trials
from mssp.sweep.transfer import Contender
from mssp.sweep.trial import Trial

SEEDS, STEPS, BATCH = 4, 1000, 50
FACTORS = (0.25, 0.5, 1.0, 2.0)  # on the tuned learning rate: how close it is to where training breaks down
CLOSE = 0.03


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?", default="tinyimagenet")
    parser.add_argument("precision", nargs="?", choices=("float32", "tf32"), default="float32")
    options = parser.parse_args(arguments)
    data, precision = load(options.data), options.precision
    job = Job(data, Schedule(STEPS, BATCH), MLPLadder, precision, keep_curves=False)
    feed = Feed(data, pick_device())
    contenders = [
        Contender(Setting.of(scheme, entry["regime"], entry["optimizer"], entry["readout"]), entry["active"])
        for entry in entries(data.name)
        for scheme in entry["schemes"]
    ]
    programs: dict[tuple[object, ...], list[tuple[Contender, float, Trial]]] = {}
    for contender in contenders:
        best = multipliers_for(data.name, contender.setting, contender.active)
        for factor in FACTORS:
            for seed in range(SEEDS):
                trial = contender.trial(TUNED_WIDTH, seed, best.lr * factor).with_tuned(best)
                programs.setdefault(trial.group_key, []).append((contender, factor, trial))
    results: dict[tuple[Contender, float], list[Result]] = {}
    for members in programs.values():
        members.sort(key=lambda member: member[2].seed)
        for (contender, factor, _), result in zip(
            members, train_trials([t for *_, t in members], feed, job), strict=True
        ):
            results.setdefault((contender, factor), []).append(result)
    head = ["setting", "reported", "ours", "difference", "", *(f"lr × {factor:g}" for factor in FACTORS if factor != 1)]
    rows = [
        _row(contender, multipliers_for(data.name, contender.setting, contender.active).top5 or 0.0, results)
        for contender in contenders
    ]
    print(f"{data.source}, N = {TUNED_WIDTH}, {STEPS} steps of {BATCH}, {SEEDS} seeds, {precision}: validation top-5\n")
    print("\n".join(markdown_table(head, rows)))


def _row(contender: Contender, reported: float, results: dict[tuple[Contender, float], list[Result]]) -> list[str]:
    ours = mean_of(
        [result.metrics["validation_top5"] for result in results[contender, 1.0] if result.diverged_at is None]
    )
    verdict = "close" if ours.value >= reported - CLOSE else "below"
    others = [_mean(results[contender, factor]) for factor in FACTORS if factor != 1]
    lost = _lost(results[contender, 1.0])
    difference = f"{ours.value - reported:+.3f}".replace("-", "−")
    return [str(contender), f"{reported:.4f}", f"{ours.value:.4f} ± {ours.ci:.4f}{lost}", difference, verdict, *others]


def _mean(results: list[Result]) -> str:
    values = [result.metrics["validation_top5"] for result in results if result.diverged_at is None]
    return f"{mean_of(values).value:.4f}{_lost(results)}" if values else "all diverged"


def _lost(results: list[Result]) -> str:
    diverged = sum(result.diverged_at is not None for result in results)
    return f" ({diverged} diverged)" if diverged else ""


if __name__ == "__main__":
    main()
