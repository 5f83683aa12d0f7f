"""Example experiments: random inputs, targets of both signs, and constants of order one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from mssp._constraints import at_least, kind_of, mapping, one_of, optional, positive, positive_int, takes, whole
from mssp.apply.random_numbers import normals
from mssp.dmft.constants import SCALES, constants
from mssp.dmft.experiment import Experiment
from mssp.dmft.kernels import bytes_of_kernels
from mssp.dmft.observables import Array
from mssp.nn.activations import ACTIVATIONS
from mssp.nn.router import GATES
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import (
    II,
    III,
    MSSP,
    MUPS_OWN,
    READOUTS,
    REGIMES,
    SCHEMES,
    SGD,
    ZERO,
    I,
    Regime,
    Scheme,
    regime_named,
    scheme_named,
)
from mssp.planning.shape import Shape
from mssp.replicas.training import check_memory

DIMENSION = 8  # of the inputs
LR = 0.4
# The smallest member of each family. It sets what is fixed: M and N_e/N in Regime I, N_e and M/N in II, both ratios in
# III.
SMALLEST = {
    I: Shape(width=16, expert_width=8, experts=4, active=4, depth=1),
    II: Shape(width=16, expert_width=2, experts=8, active=8, depth=1),
    III: Shape(width=16, expert_width=8, experts=8, active=8, depth=1),
}
# Constants of order one in every layer. With smaller features, training would begin with a long plateau.
RATES = {"embedding": 2.0, "router": 2.0, "expert_in": 1.0, "expert_out": 1.0, "readout": 1.0}
STDS = {"embedding": 1.5, "router": 1.0, "expert_in": 1.5, "expert_out": 1.0, "readout": 1.0}


@takes(
    regime=one_of(REGIMES),
    scheme=one_of(SCHEMES),
    inputs=positive_int,
    steps=positive_int,
    test_inputs=at_least(0),
    lr=positive,
    rates=optional(mapping),
    stds=optional(mapping),
    readout=optional(one_of(READOUTS)),
    smallest=optional(kind_of(Shape)),
    activation=one_of(list(ACTIVATIONS)),
    gate=one_of(GATES),
    data_seed=whole,
)
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
        readout: ``zero`` or ``mup``; by default zero for mssp, and mup for mup, whose limit is trivial with zero.
        smallest: the smallest member of the family, by default that of ``SMALLEST``.
    """
    regime, scheme = regime_named(regime), scheme_named(scheme)
    shape = (smallest or SMALLEST[regime]).with_inputs(DIMENSION)
    if readout is None:
        readout = ZERO if scheme is MSSP else MUPS_OWN
    with without_plan_warnings():  # top-K is refused by `Experiment`
        untuned = plan(shape, regime=regime, scheme=scheme, optimizer=SGD, lr=lr, readout=readout)
    experiment = on_random_inputs(
        untuned, inputs, steps, test_inputs=test_inputs, activation=activation, gate=gate, seed=data_seed
    )
    # Multipliers turn the constants that the rules alone give into the wanted ones.
    untuned_constants, rates = constants(experiment), _checked("rates", rates)
    for role in rates:
        if not untuned_constants.rate[role]:
            raise ValueError(f"rates of {role}: what {scheme} learns there vanishes in the limit of regime {regime}")
    rates, stds = {**RATES, **rates}, {**STDS, **_checked("stds", stds)}
    untuned_rate, untuned_variance = untuned_constants.rate, untuned_constants.variance
    lr_mult = {role: c * untuned.lr / untuned_rate[role] for role, c in rates.items() if untuned_rate[role]}
    # Where a variance vanishes in the limit, the std multiplies the weights of finite members.
    init_mult = {role: std / (untuned_variance[role] or 1.0) ** 0.5 for role, std in stds.items()}
    return replace(experiment, plan=replace(untuned, lr_mult=lr_mult, init_mult=init_mult))


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
    """The family of a plan, trained on random inputs of length √D with targets around +1 and −1 in turn."""
    dimension, rows = plan.target.inputs or 1, (inputs + test_inputs) * (steps + 1)
    # Asked for here, because drawing the inputs of a hopeless experiment takes minutes.
    needed = 8 * (inputs + test_inputs) * dimension + bytes_of_kernels(rows)
    check_memory(f"a limit for {rows:,} pairs of an input and a time (--inputs, --steps)", needed, torch.device("cpu"))
    if dimension == 1 and inputs > 1:
        raise ValueError("the plan has inputs of one number, which are all alike: plan it with more (--target.inputs)")
    x = _inputs(positive_int("inputs", inputs), dimension, seed, "inputs")
    size = 1 + 0.5 * normals(seed, "targets", 0, inputs).astype(np.float64).clip(-1, 1)
    y = size * np.where(np.arange(inputs) % 2, -1.0, 1.0)
    test_x = _inputs(positive_int("test_inputs", test_inputs), dimension, seed, "test_inputs") if test_inputs else None
    return Experiment(plan, x, y, steps, test_x, activation, gate)


def _inputs(count: int, dimension: int, seed: int, name: str) -> Array:
    drawn = normals(seed, name, 0, count * dimension).astype(np.float64).reshape(count, dimension)
    inputs: Array = drawn * (dimension**0.5 / np.linalg.norm(drawn, axis=1, keepdims=True))
    return inputs


def _checked(what: str, by_role: Mapping[str, float] | None) -> Mapping[str, float]:
    """Refuses numbers of roles that the limit does not have, and numbers that are not positive."""
    for role, value in (by_role or {}).items():
        if role not in SCALES:
            raise ValueError(f"{what} of {role!r}: the layers are {', '.join(SCALES)}")
        if not (isinstance(value, int | float) and 0 < value < float("inf")):
            raise ValueError(f"{what} of {role} must be a positive number, got {value!r}")
    return by_role or {}
