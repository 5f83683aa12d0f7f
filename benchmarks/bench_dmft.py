"""The limits against finite networks: time and errors of the solver, six cases over widths, softmax gates.

python benchmarks/bench_dmft.py                    all of it, sizes for two CPU cores
python benchmarks/bench_dmft.py convergence --cases III-mup --widths III=64,128,256,512 --seeds 64
python benchmarks/bench_dmft.py softmax
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from mssp.dmft import Solution, compare, example, solve
from mssp.dmft.document import SHOWN, SYMBOLS, verdict
from mssp.dmft.solution import SAMPLES, SOLVES

CASES = [(regime, scheme) for regime in ("I", "II", "III") for scheme in ("mssp", "mup")]
SOFTMAX_RATES, SOFTMAX_SAMPLES = (0.01, 0.03, 0.1), (2_000, 8_000, 32_000, 128_000)
WIDTHS = {"I": [8, 16, 32, 64, 128, 256, 512], "II": [16, 32, 64, 128, 256, 512], "III": [16, 32, 64, 128, 256]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["solver", "convergence", "softmax"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cases", nargs="+", default=[f"{regime}-{scheme}" for regime, scheme in CASES])
    parser.add_argument("--widths", nargs="+", default=[], help="REGIME=N,N,… (default: for two CPU cores)")
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--solves", type=int, default=SOLVES)
    options = parser.parse_args(arguments)
    print(f"{_device(options.device)}, torch {torch.__version__}")
    widths = WIDTHS | {pair.split("=")[0]: [int(n) for n in pair.split("=")[1].split(",")] for pair in options.widths}
    cases = [(case.partition("-")[0], case.partition("-")[2]) for case in options.cases]
    if "solver" in options.what:
        solver(cases, options)
    if "convergence" in options.what:
        convergence(cases, widths, options)
    if "softmax" in options.what:
        softmax(options.device)


def solver(cases: list[tuple[str, str]], options: argparse.Namespace) -> None:
    """Time and errors of a solution with four inputs and twenty steps."""
    print("\nsolutions, P = 4, T = 20: standard errors relative to the whole")
    for regime, scheme in cases:
        solution, seconds = _solved(regime, scheme, options)
        errors = "  ".join(f"{SYMBOLS[name]} {solution.relative_error(name):.2%}" for name in SHOWN)
        print(f"{regime:>3} {scheme:<4} {seconds:5.1f} s  {_samples(solution)}  {errors}  {_contradiction(solution)}")


def convergence(cases: list[tuple[str, str]], widths: dict[str, list[int]], options: argparse.Namespace) -> None:
    """Deviation of means over networks from the limit, by width, and its exponent."""
    for regime, scheme in cases:
        solution, solved = _solved(regime, scheme, options)
        start = time.perf_counter()
        comparison = compare(solution, widths[regime], seeds=options.seeds, device=options.device)
        seconds = time.perf_counter() - start
        print(
            f"\nRegime {regime}, {scheme}: {solved:.0f} s to solve, {seconds:.0f} s of networks; {_samples(solution)}"
        )
        print(f"{'N':>6}{'seeds':>7}" + "".join(f"{SYMBOLS[name]:>16}" for name in SHOWN))
        for at in comparison.widths:
            cells = [f"{at.deviation[name]:.2%} ± {at.error[name]:.2%}" for name in SHOWN]
            print(f"{at.width:>6}{at.networks.count:>7}" + "".join(f"{cell:>16}" for cell in cells))
        exponents = [comparison.exponents[name] for name in SHOWN]
        print(f"{'exponent':>13}" + "".join(f"{'—' if np.isnan(e.value) else e.text(2):>16}" for e in exponents))
        errors = [solution.relative_error(name) for name in SHOWN]
        print(f"{'of the limit':>13}" + "".join(f"{f'± {error:.2%}':>16}" for error in errors))
        print(verdict(comparison), flush=True)


def _solved(regime: str, scheme: str, options: argparse.Namespace) -> tuple[Solution, float]:
    start = time.perf_counter()
    solution = solve(example(regime, scheme), samples=options.samples, solves=options.solves, device=options.device)
    return solution, time.perf_counter() - start


def softmax(device: str) -> None:
    """Where softmax gates have no limit: more samples make it worse."""
    print("\nRegime II, mssp, softmax gates")
    for lr in SOFTMAX_RATES:
        for samples in SOFTMAX_SAMPLES:
            try:
                experiment = example("II", "mssp", gate="softmax", lr=lr, stds={"router": 0.5})
                solution = solve(experiment, samples=samples, solves=2, device=device)
            except ValueError as error:
                print(f"lr {lr}  samples {samples:>7}  {error}")
                continue
            tails = [warning for warning in solution.warnings if warning.startswith("heavy")] or ["no tail seen"]
            print(f"lr {lr}  samples {samples:>7}  loss {solution.mean['loss'][-1]:.4f}  {tails[0]}")


def _device(name: str) -> str:
    return torch.cuda.get_device_name() if name == "cuda" else f"{torch.get_num_threads()} CPU threads"


def _samples(solution: Solution) -> str:
    sizes = solution.samples
    return f"{solution.found.count} × ({sizes.features} features, {sizes.experts} experts, {sizes.units} units)"


def _contradiction(solution: Solution) -> str:
    sides = solution.contradictions
    return ", ".join(
        f"{np.linalg.norm(sides.mean[name]):.2%} ± {np.linalg.norm(sides.error[name]):.2%}" for name in sides.mean
    )


if __name__ == "__main__":
    main()
