"""How far the solver of limits can be trusted: twice any term of any single-site equation must be noticed.

    ./dev bench planted                        all terms, a quarter of an hour on two cores
    ./dev bench planted --regimes II --samples 320000 --networks 4000

The terms are those of tests/planted/equations.py: every covariance that is drawn from, every summand of a memory, every
covariance and memory that a site hands on. Each is doubled in turn, and the wrong solution is held against two things
it cannot know of: itself (what passes through a layer of weights is the same on both sides) and finite networks,
extrapolated to infinite size from two widths. Of several settings, one has to notice: not every term counts in each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch

from tests.dmft.agreement import NOTICED, Reference, contradicted, experiments
from tests.planted.equations import TERMS, planted, regimes_of


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--regimes", nargs="+", default=["I", "II", "III"])
    parser.add_argument("--samples", type=int, default=40_000)
    parser.add_argument("--solves", type=int, default=6)
    parser.add_argument("--networks", type=int, default=400, help="of the smaller of two widths; half of the larger")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    missed, tried, start = [], 0, time.perf_counter()
    for regime in options.regimes:
        tests = [(experiment, Reference.of(experiment, options.networks, device)) for experiment in experiments(regime)]
        right = [contradicted(*test, options.samples, device, options.solves) for test in tests]
        print(f"Regime {regime}, as it is: {_text(right)}", flush=True)
        for mistake in (term for term in TERMS if regime in regimes_of(term)):
            with planted(mistake):
                scores = [contradicted(*test, options.samples, device, options.solves) for test in tests]
            tried += 1
            noticed = max(score for score, _ in scores) > NOTICED
            missed += [] if noticed else [f"{regime} {mistake}"]
            print(f"{'found ' if noticed else 'MISSED'} {mistake}: {_text(scores)}", flush=True)
    print(f"{tried - len(missed)} of {tried} found in {time.perf_counter() - start:.0f} s; missed: {missed or 'none'}")


def _text(scores: Sequence[tuple[float, str]]) -> str:
    return "  ".join(f"{score:.1f} ({what})" for score, what in scores)


if __name__ == "__main__":
    main()
