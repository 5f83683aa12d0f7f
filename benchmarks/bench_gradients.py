"""Measure how gradients scale, role by role, and compare with the rules: the evidence behind docs/errata.md.

    ./dev bench gradients [--seeds 5] [--steps 10]

Adam's eps is meant to follow the RMS of a role's gradient ("faithfulness"), so each measured exponent has a predicted
one: that of the eps rule. A small Transformer with every role is trained a few steps from a zero readout under MSSP;
exponents are slopes in log-log over widths (or depths) after the last step, with 95 % half-widths from the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fractions import Fraction

import mssp
from mssp._tables import markdown_table
from mssp.planning.rules import ROLES
from tests.gradient_scales import DEPTHS, MARGIN, STUDENT, WIDTHS, exponents, family

# Which dimension the exponents are counted in: everything that grows grows as N.
GROWING = {"I": ("N", "N_e"), "II": ("N", "M"), "III": ("N", "N_e", "M")}


def report(seeds: int, steps: int) -> list[str]:
    settings = [(f"width {regime}, adam", regime, "adam") for regime in GROWING]
    settings += [(f"depth, {optimizer}", "III", optimizer) for optimizer in ("adam", "sgd")]
    columns: dict[str, dict[str, str]] = {}
    missed: list[str] = []
    for name, regime, optimizer in settings:
        depth = name.startswith("depth")
        shapes = [family(regime, width) for width in WIDTHS]
        sizes, symbols = (DEPTHS, ("L",)) if depth else (WIDTHS, GROWING[regime])
        if depth:
            shapes = [mssp.Shape(width=64, expert_width=16, experts=4, active=4, depth=d) for d in DEPTHS]
        columns[name] = {}
        for role, (exponent, error) in exponents(shapes, sizes, regime, optimizer, steps, seeds).items():
            eps = mssp.rule(role, "mssp", regime, "adam").eps
            assert eps is not None
            predicted = float(sum(Fraction(eps.json().get(symbol, 0)) for symbol in symbols))
            off = abs(exponent - predicted) > MARGIN + error
            missed += [f"{role} in {name}"] if off else []
            columns[name][role] = f"{exponent:+.2f} ± {error:.2f} ({predicted:+g}{', off' if off else ''})"
    names = [name for name, _, _ in settings]
    table = [[role, *(columns[name][role] for name in names)] for role in ROLES]
    verdict = f"off: {', '.join(missed)}" if missed else "all exponents agree with the eps rules"
    return [*markdown_table(["gradient of", *names], table), "", verdict]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, choices=[n + 1 for n in STUDENT])
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args(arguments)
    print("\n".join(report(options.seeds, options.steps)))


if __name__ == "__main__":
    main()
