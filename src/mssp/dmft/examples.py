"""An experiment to start from: random inputs, targets of both signs, constants of order one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mssp._constraints import positive_int
from mssp.apply.random_numbers import normals
from mssp.dmft.constants import SCALES, constants
from mssp.dmft.experiment import Array, Experiment
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import PlanWarning
from mssp.planning.setting import II, III, MSSP, MUPS_OWN, SGD, ZERO, I, Regime, Scheme, regime_named, scheme_named
from mssp.planning.shape import Shape

DIMENSION = 8  # of the inputs
LR = 0.4
# Sizes of the smallest member: what they leave fixed is M, or N_e, or the ratios M/N and N_e/N.
SMALLEST = {
    I: Shape(width=16, expert_width=8, experts=4, active=4, depth=1),
    II: Shape(width=16, expert_width=2, experts=8, active=8, depth=1),
    III: Shape(width=16, expert_width=8, experts=8, active=8, depth=1),
}
# Of order one in every layer: with smaller features, the first steps are spent on leaving a plateau.
RATES = {"embedding": 2.0, "router": 2.0, "expert_in": 1.0, "expert_out": 1.0, "readout": 1.0}
STDS = {"embedding": 1.5, "router": 1.0, "expert_in": 1.5, "expert_out": 1.0, "readout": 1.0}


def example(
    regime: str | Regime,
    scheme: str | Scheme,
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
    """An experiment with constants of order one.

    >>> round(constants(example("I", "mssp", lr=0.5, rates={"router": 3.0})).rate["router"], 6)
    1.5

    Args:
        rates: the constants c of the learning rates, by role, instead of ``RATES``.
        stds: the constants σ of the initial weights, by role, instead of ``STDS``.
        readout: ``zero`` or ``mup``; by default zero for mssp, and mup for mup, which from zero has a trivial limit.
        smallest: the smallest member of the family, by default the regime's of ``SMALLEST``.
    """
    regime, scheme = regime_named(regime), scheme_named(scheme)
    shape = (smallest or SMALLEST[regime]).with_inputs(DIMENSION)
    if readout is None:
        readout = ZERO if scheme is MSSP else MUPS_OWN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)  # zero routers that choose are refused, below
        asked = plan(shape, regime=regime, scheme=scheme, optimizer=SGD, lr=lr, readout=readout)
    found = on_random_inputs(
        asked, inputs, steps, test_inputs=test_inputs, activation=activation, gate=gate, seed=data_seed
    )
    # What the rules make of multipliers of 1; the rest is the multiplier.
    plain = constants(found)
    for role in _known("rates", rates):
        if not plain.rate[role]:
            raise ValueError(f"rates of {role}: what {scheme} learns there vanishes in the limit of regime {regime}")
    multipliers = {
        role: c * asked.lr / plain.rate[role]
        for role, c in {**RATES, **_known("rates", rates)}.items()
        if plain.rate[role]
    }
    # Where a variance vanishes in the limit, the std is that of finite members.
    scales = {
        role: std / (plain.variance[role] or 1.0) ** 0.5 for role, std in {**STDS, **_known("stds", stds)}.items()
    }
    return replace(found, plan=replace(asked, lr_mult=multipliers, init_mult=scales))


def on_random_inputs(
    plan: Plan,
    inputs: int,
    steps: int,
    *,
    test_inputs: int = 0,
    activation: str = "tanh",
    gate: str = "sigmoid",
    seed: int = 0,
) -> Experiment:
    """The family of a plan, trained on random inputs of length √D, with targets around ±1 in turn."""
    dimension = plan.target.inputs or 1
    if dimension == 1 and inputs > 1:
        raise ValueError("the plan has inputs of one number, which are all alike: plan it with more (--target.inputs)")
    x = _inputs(positive_int("inputs", inputs), dimension, seed, "inputs")
    size = 1 + 0.5 * normals(seed, "targets", 0, inputs).astype(np.float64).clip(-1, 1)
    y = size * np.where(np.arange(inputs) % 2, -1.0, 1.0)
    unseen = _inputs(positive_int("test_inputs", test_inputs), dimension, seed, "test_inputs") if test_inputs else None
    return Experiment(plan, x, y, steps, unseen, activation, gate)


def _inputs(count: int, dimension: int, seed: int, name: str) -> Array:
    drawn = normals(seed, name, 0, count * dimension).astype(np.float64).reshape(count, dimension)
    found: Array = drawn * (dimension**0.5 / np.linalg.norm(drawn, axis=1, keepdims=True))
    return found


def _known(what: str, given: Mapping[str, float] | None) -> Mapping[str, float]:
    for role, value in (given or {}).items():
        if role not in SCALES:
            raise ValueError(f"{what} of {role!r}: the layers are {', '.join(SCALES)}")
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ValueError(f"{what} of {role} must be a positive number, got {value!r}")
    return given or {}
