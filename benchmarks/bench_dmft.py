"""The limits against finite networks: time and errors of the solver, six cases over widths, softmax gates.

python benchmarks/bench_dmft.py                    all of it, sizes for two CPU cores
python benchmarks/bench_dmft.py convergence --cases III-mup --widths III=64,128,256,512 --seeds 64
python benchmarks/bench_dmft.py softmax
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from mssp.dmft import Solution, compare, example, solve
from mssp.dmft.document import SHOWN, SYMBOLS, verdict
from mssp.dmft.solution import SAMPLES, SOLVES

CASES = [(regime, scheme) for regime in ("I", "II", "III") for scheme in ("mssp", "mup")]
WIDTHS = {"I": [8, 16, 32, 64, 128, 256, 512], "II": [16, 32, 64, 128, 256, 512], "III": [16, 32, 64, 128, 256]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["solver", "convergence", "softmax"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", nargs="+", default=[f"{regime}-{scheme}" for regime, scheme in CASES])
    parser.add_argument("--widths", nargs="+", default=[], help="REGIME=N,N,… (default: for two CPU cores)")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--solves", type=int, default=SOLVES)
    asked = parser.parse_args()
    print(f"{_device(asked.device)}, torch {torch.__version__}")
    widths = WIDTHS | {pair.split("=")[0]: [int(n) for n in pair.split("=")[1].split(",")] for pair in asked.widths}
    cases = [(case.partition("-")[0], case.partition("-")[2]) for case in asked.cases]
    if "solver" in asked.what:
        solver(cases, asked)
    if "convergence" in asked.what:
        convergence(cases, widths, asked)
    if "softmax" in asked.what:
        softmax(asked.device)


def solver(cases: list[tuple[str, str]], asked: argparse.Namespace) -> None:
    """Time and errors of a solution with four inputs and twenty steps."""
    print("\nsolutions, P = 4, T = 20: standard errors relative to the whole")
    for regime, scheme in cases:
        solution, seconds = _solved(regime, scheme, asked)
        errors = "  ".join(f"{SYMBOLS[name]} {solution.relative_error(name):.2%}" for name in SHOWN)
        print(f"{regime:>3} {scheme:<4} {seconds:5.1f} s  {_samples(solution)}  {errors}  {_contradiction(solution)}")


def convergence(cases: list[tuple[str, str]], widths: dict[str, list[int]], asked: argparse.Namespace) -> None:
    """Deviation of means over networks from the limit, by width, and its exponent."""
    for regime, scheme in cases:
        solution, solved = _solved(regime, scheme, asked)
        start = time.perf_counter()
        found = compare(solution, widths[regime], seeds=asked.seeds, device=asked.device)
        seconds = time.perf_counter() - start
        print(
            f"\nRegime {regime}, {scheme}: {solved:.0f} s to solve, {seconds:.0f} s of networks; {_samples(solution)}"
        )
        print(f"{'N':>6}{'seeds':>7}" + "".join(f"{SYMBOLS[name]:>16}" for name in SHOWN))
        for at in found.widths:
            cells = [f"{at.deviation[name]:.2%} ± {at.error[name]:.2%}" for name in SHOWN]
            print(f"{at.width:>6}{at.networks.count:>7}" + "".join(f"{cell:>16}" for cell in cells))
        known = [found.exponents[name] for name in SHOWN]
        print(f"{'exponent':>13}" + "".join(f"{'—' if np.isnan(e.value) else e.text(2):>16}" for e in known))
        errors = [solution.relative_error(name) for name in SHOWN]
        print(f"{'of the limit':>13}" + "".join(f"{f'± {error:.2%}':>16}" for error in errors))
        print(verdict(found), flush=True)


def _solved(regime: str, scheme: str, asked: argparse.Namespace) -> tuple[Solution, float]:
    start = time.perf_counter()
    solution = solve(example(regime, scheme), samples=asked.samples, solves=asked.solves, device=asked.device)
    return solution, time.perf_counter() - start


def softmax(device: str) -> None:
    """Where softmax gates have no limit: more samples make it worse."""
    print("\nRegime II, mssp, softmax gates")
    for lr in (0.01, 0.03, 0.1):
        for samples in (2_000, 8_000, 32_000, 128_000):
            try:
                of = example("II", "mssp", gate="softmax", lr=lr, stds={"router": 0.5})
                found = solve(of, samples=samples, solves=2, device=device)
            except ValueError as error:
                print(f"lr {lr}  samples {samples:>7}  {error}")
                continue
            told = [warning for warning in found.warnings if warning.startswith("heavy")] or ["no tail seen"]
            print(f"lr {lr}  samples {samples:>7}  loss {found.mean['loss'][-1]:.4f}  {told[0]}")


def _device(name: str) -> str:
    return torch.cuda.get_device_name() if name == "cuda" else f"{torch.get_num_threads()} CPU threads"


def _samples(solution: Solution) -> str:
    of = solution.samples
    return f"{solution.found.count} × ({of.features} features, {of.experts} experts, {of.units} units)"


def _contradiction(solution: Solution) -> str:
    found = solution.contradictions
    each = [f"{np.linalg.norm(found.mean[name]):.2%} ± {np.linalg.norm(found.error[name]):.2%}" for name in found.mean]
    return ", ".join(each)


if __name__ == "__main__":
    main()
