"""An experiment to start from: random inputs, targets of both signs, constants of order one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np

from mssp.dmft.constants import SCALES, constants
from mssp.dmft.experiment import Array, Experiment
from mssp.draws import normals
from mssp.planning import plan
from mssp.rules import REGIMES
from mssp.settings import PlanWarning
from mssp.shape import Shape, positive_int

DIMENSION = 8  # of the inputs
LR = 0.8
# Sizes of the smallest member: what they leave fixed is M, or N_e, or the ratios M/N and N_e/N.
SMALLEST = {
    "I": Shape(width=16, expert_width=8, experts=4, active=4, depth=1),
    "II": Shape(width=16, expert_width=2, experts=8, active=8, depth=1),
    "III": Shape(width=16, expert_width=8, experts=8, active=8, depth=1),
}
# Of order one in every layer: with smaller features, the first steps are spent on leaving a plateau.
RATES = {"embedding": 2.0, "router": 2.0, "expert_in": 1.0, "expert_out": 1.0, "readout": 1.0}
STDS = {"embedding": 1.5, "router": 1.0, "expert_in": 1.5, "expert_out": 1.0, "readout": 1.0}


def example(
    regime: str,
    scheme: str,
    *,
    inputs: int = 4,
    steps: int = 20,
    test_inputs: int = 0,
    lr: float = LR,
    rates: Mapping[str, float] | None = None,
    stds: Mapping[str, float] | None = None,
    readout: str | None = None,
    smallest: Shape | None = None,
    activation: str = "tanh",
    gate: str = "sigmoid",
    data_seed: int = 0,
) -> Experiment:
    """An experiment on random inputs of length √D.

    >>> round(constants(example("I", "mssp", lr=0.5, rates={"router": 3.0})).rate["router"], 6)
    1.5

    Args:
        rates: the constants c of the learning rates, by role, instead of ``RATES``.
        stds: the constants σ of the initial weights, by role, instead of ``STDS``.
        readout: ``zero`` or ``mup``; by default zero for mssp, and mup for mup, which from zero has a trivial limit.
        smallest: the smallest member of the family, by default the regime's of ``SMALLEST``.
    """
    if regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}: use one of {', '.join(REGIMES)}")
    x, y = data(positive_int("inputs", inputs), data_seed)
    unseen = data(test_inputs, data_seed, "test")[0] if test_inputs else None
    shape = (smallest or SMALLEST[regime]).with_inputs(DIMENSION)
    if readout is None:
        readout = "zero" if scheme == "mssp" else "mup"
    wanted = {**RATES, **_known("rates", rates)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)  # of multipliers on what starts at zero
        asked = plan(
            shape,
            regime=regime,
            scheme=scheme,
            optimizer="sgd",
            lr=lr,
            readout=readout,
            init_mult={**STDS, **_known("stds", stds)},
        )
    made = Experiment(asked, x, y, steps, unseen, activation, gate)
    # What the rules make of a multiplier of 1; the rest is the multiplier.
    plain = constants(made).rate
    multipliers = {role: wanted[role] * asked.lr / plain[role] for role in SCALES}
    planned = asked.retuned(
        lr=asked.lr,
        lr_mult=multipliers,
        init_mult=asked.init_mult,
        aggregation_mult=asked.aggregation_mult,
    )
    return Experiment(planned, x, y, steps, unseen, activation, gate)


def data(count: int, seed: int, name: str = "train") -> tuple[Array, Array]:
    """Inputs [count, D] of length √D, and targets around ±1 in turn."""
    drawn = normals(seed, f"{name}.inputs", 0, count * DIMENSION).astype(np.float64).reshape(count, DIMENSION)
    x = drawn * DIMENSION**0.5 / np.linalg.norm(drawn, axis=1, keepdims=True)
    size = 1 + 0.5 * normals(seed, f"{name}.targets", 0, count).astype(np.float64).clip(-1, 1)
    return x, size * np.where(np.arange(count) % 2, -1.0, 1.0)


def _known(what: str, given: Mapping[str, float] | None) -> Mapping[str, float]:
    for role, value in (given or {}).items():
        if role not in SCALES:
            raise ValueError(f"{what} of {role!r}: the layers are {', '.join(SCALES)}")
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ValueError(f"{what} of {role} must be a positive number, got {value!r}")
    return given or {}
