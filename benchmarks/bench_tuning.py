"""What cheap tuning costs: the grid, random search with pairs, and Optuna, at the same number of runs.

    ./dev bench tuning DATA SCHEME OPTIMIZER [RUNS [SEARCHES]]

All three search the same ranges around the same learning rate, choose by validation top-5 with one seed, and are judged
by what their choice gives with four new seeds. Minutes on a GPU.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from statistics import fmean

from mssp._environment import pick_device
from mssp._estimates import mean_of
from mssp._tables import markdown_table
from mssp.cli.progress import Progress
from mssp.data import load
from mssp.ladders.mlp import TUNED_WIDTH, MLPLadder
from mssp.planning.setting import Setting
from mssp.replicas import Schedule
from mssp.store.runs import Store
from mssp.sweep.evaluation import Evaluator
from mssp.sweep.execution import Job, Local
from mssp.sweep.search import METHODS, Procedure, tune
from mssp.sweep.trial import Trial

NEW_SEEDS = range(1, 5)
STEPS, BATCH = 1000, 50
POINTS, BROAD_POINTS = 3, 2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("scheme")
    parser.add_argument("optimizer")
    parser.add_argument("runs", type=int, nargs="?", default=793)
    parser.add_argument("searches", type=int, nargs="?", default=3)
    options = parser.parse_args(arguments)
    job = Job(load(options.data), Schedule(STEPS, BATCH), MLPLadder, "tf32", keep_curves=False)
    start = Trial(Setting.of(options.scheme, "II", options.optimizer), TUNED_WIDTH, 0, 0.01, aggregation_mult=8.0)
    backend, rows = Local(pick_device()), []
    for method in METHODS:
        # 2^6 broad and 3^6 fine points make 793 runs, and a grid is the same for every seed.
        repeats = 1 if method == "grid" else options.searches
        for seed in range(repeats):
            # A store of its own: nothing is inherited from another search.
            with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/runs.sqlite") as store:
                evaluate = Evaluator(store, backend, job, Progress("training"))
                began = time.perf_counter()
                procedure = Procedure(
                    method, points=POINTS, broad_points=BROAD_POINTS, broad_ratio=256.0,
                    budget=None if method == "grid" else options.runs, seed=seed,
                )  # fmt: skip
                search = tune(start, procedure, evaluate)
                spent = time.perf_counter() - began
                scores = evaluate.per_seed("new seeds", search.best, NEW_SEEDS)
            lost = sum(score < 0 for score in scores)  # minus infinity where a seed diverged
            confirmed = mean_of(scores)
            rows.append([
                method, str(seed), str(len(search.tried)), f"{spent:.0f}", f"{search.score:.4f}",
                confirmed.text(4) + (f" ({lost} diverged)" if lost else ""),
            ])  # fmt: skip
    setting = f"Regime II, {options.scheme}, {options.optimizer}"
    print(f"{job.data.name}, {setting}, N = {TUNED_WIDTH}, {STEPS} steps of {BATCH}: validation top-5\n")
    head = ["method", "search seed", "runs", "seconds", "best in the search", "with four new seeds"]
    print("\n".join(markdown_table(head, rows)))
    for method in METHODS:
        means = [float(row[5].split()[0]) for row in rows if row[0] == method]
        print(f"\n{method}: {fmean(means):.4f} on average")


if __name__ == "__main__":
    main()
