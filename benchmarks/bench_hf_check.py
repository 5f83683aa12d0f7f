"""The coordinate check over families of Hugging Face, along four growths: with a plan, and as they come.

    ./dev bench hf_check [--families olmoe mixtral] [--growths II III] [--seeds 3] [--save FILE]

Each cell is a line of JSON in ``--save``. Cells that are in the file already are not run again, so that a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

import mssp
from mssp._estimates import Estimate
from mssp._tables import markdown_table
from mssp.coordcheck.judgement import Judged
from mssp.coordcheck.result import Check
from mssp.coordcheck.text import judged_of, vague_of
from tests.coordcheck.family_checks import BATCH, GROWTHS, LR, STEPS, TEN, WIDTHS, WORDS, checked

SIZES = WIDTHS
SETUPS = ("plan", "as it comes")
SHOWN = ("effective/expert_out", "aggregate/effective", "aggregate/init")
Cell = dict[str, Any]


def measured(family: str, growth: str, setup: str, seeds: int) -> Cell:
    started = time.perf_counter()
    check = checked(family, growth, plain=setup != "plan", seeds=seeds, widths=SIZES)
    return {
        "family": family, "growth": growth, "setup": setup, "seeds": seeds,
        "passed": check.passed, "stable": check.stable,
        "judged": len(judged_of(check)), "vague": len(vague_of(check)),
        "off": {str(quantity.name): exponent_of(quantity) for quantity in check.off},
        "causes": [cause.text for cause in check.causes],
        "shown": {name: exponent_of(check.quantities[name]) if name in check.quantities else [] for name in SHOWN},
        "loss": first_and_last(check),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def exponent_of(quantity: Judged) -> list[float | None]:
    """The judged exponent with its interval, and the largest and the least that is expected."""
    expected, judged = quantity.expected_power, quantity.judged
    if judged is None or expected is None or quantity.expected is None:
        return []
    return [judged.value, judged.ci, expected, expected - float(quantity.expected.slack)]


def first_and_last(check: Check) -> list[float]:
    losses = check.loss[min(check.sizes)]
    return [losses[0], losses[-1]]


def told(exponent: Sequence[float]) -> str:
    if not exponent:
        return "–"
    value, ci, high, low = exponent
    expected = f"{high:+.2f}" if high == low else f"{low:+.2f} to {high:+.2f}"
    return f"{Estimate(value, ci).text(2)} ({expected})"


def table(cells: Sequence[Cell]) -> list[str]:
    """What a plan makes of every family along every growth, and how many quantities are off without one."""
    plain = {(cell["family"], cell["growth"]): cell for cell in cells if cell["setup"] != "plan"}
    rows = []
    for cell in cells:
        if cell["setup"] == "plan":
            beside = plain.get((cell["family"], cell["growth"]))
            off = "; ".join(f"{name} {told(exponent)}" for name, exponent in cell["off"].items())
            verdict = "pass" if cell["passed"] else f"FAIL: {off}"
            comes = "–" if beside is None else f"{'pass' if beside['passed'] else 'FAIL'}, {len(beside['off'])}"
            rows.append([
                cell["growth"], cell["family"], verdict, "yes" if cell["stable"] else "no",
                f"{cell['judged']} ({cell['vague']})", *(told(cell["shown"][name]) for name in SHOWN), comes,
            ])  # fmt: skip
    header = ["growth", "family", "with a plan", "stable", "judged (unclear)", *SHOWN, "as it comes, off"]
    return markdown_table(header, rows)


def kept(file: Path | None) -> list[Cell]:
    return [] if file is None or not file.exists() else [json.loads(line) for line in file.read_text().splitlines()]


def missing(asked: argparse.Namespace, cells: Sequence[Cell]) -> Iterator[tuple[str, str, str]]:
    there = {(cell["family"], cell["growth"], cell["setup"], cell["seeds"]) for cell in cells}
    for cell in product(asked.families, asked.growths, SETUPS):
        if (*cell, asked.seeds) not in there:
            yield cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", nargs="+", default=list(TEN))
    parser.add_argument("--growths", nargs="+", choices=GROWTHS, default=list(GROWTHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", mssp.PlanWarning)
    transformers.logging.set_verbosity_error()
    cells = kept(asked.save)
    for family, growth, setup in missing(asked, cells):
        cells.append(measured(family, growth, setup, asked.seeds))
        print(f"{growth}, {family}, {setup}: {cells[-1]['seconds']} s", flush=True)
        if asked.save:
            with asked.save.open("a", encoding="utf-8") as file:
                file.write(json.dumps(cells[-1]) + "\n")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}"
    print(f"\nwidths {' '.join(map(str, SIZES))}, {asked.seeds} seeds, {STEPS} updates at lr {LR:g} of {BATCH} texts")
    print(f"{versions}\n" + "\n".join(f"{name} is {words}" for name, words in WORDS.items() if name in asked.growths))
    chosen = [cell for cell in cells if cell["growth"] in asked.growths and cell["family"] in asked.families]
    print("\n".join(["", *table(sorted(chosen, key=lambda cell: list(GROWTHS).index(cell["growth"])))]))


if __name__ == "__main__":
    main()
