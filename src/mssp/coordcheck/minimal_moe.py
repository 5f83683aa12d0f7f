"""Simulates the paper's minimal linear MoE, for the exponents of first steps that the paper's tables leave open.

The model (App. "Preliminaries") has one input, one output, sigmoid gates, no activation, and all multipliers one. It is
cheap and shows every exponent of the first steps. It is the MLP MoE of ``nn/mlp.py`` with the identity as its
activation, trained by the same plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from mssp._estimates import Estimate, mean_of, slope_of
from mssp.apply.random_numbers import normals
from mssp.ladders.mlp import config_of, family
from mssp.measure.quantities import EFFECTIVE, LOSS
from mssp.planning.plans import Plan, plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import ANY, II, III, I, Setting
from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.program import Replica
from mssp.replicas.watching import watch
from mssp.theory.propagation import tabulated

STEPS = 2
_INPUTS = 8
_LR = 0.1
_SEEDS = 24
# These widths are cheap, and wide enough to tell half powers apart.
_WIDTHS = {I: (64, 128, 256), II: (64, 128, 256, 512), III: (64, 128, 192)}


def for_open_questions(plan_of_smallest: Plan) -> dict[str, list[Estimate | None]] | None:
    """The simulated exponents for the setting of a plan; None if the paper's tables have its first steps."""
    setting = replace(plan_of_smallest.setting, as_printed=False)
    if setting.regime in (None, ANY) or tabulated(EFFECTIVE("expert_in"), STEPS, setting) is not None:
        return None
    return simulated(setting, _WIDTHS[setting.regime])


def simulated(setting: Setting, widths: Sequence[int], *, seeds: int = _SEEDS) -> dict[str, list[Estimate | None]]:
    """The exponents of a setting by name after 0, 1 and 2 updates; None for a term that is exactly zero.

    >>> exponents = simulated(Setting.of("mup", "II", "sgd"), (64, 128, 256))
    >>> abs(exponents["aggregate/init"][0].value + 0.5) < 0.1, exponents["effective/router"][1]
    (True, None)
    """
    by_width = [_measured(setting, width, seeds) for width in widths]
    names = set.intersection(*map(set, by_width)) - {LOSS()}
    logs = [float(np.log(width)) for width in widths]
    exponents: dict[str, list[Estimate | None]] = {}
    for name in sorted(names):
        values = np.stack([measured[name] for measured in by_width])  # [widths, STEPS + 1, seeds]
        exponents[name] = [_exponent(logs, values[:, step]) for step in range(STEPS + 1)]
    return exponents


def _exponent(logs: Sequence[float], values: np.ndarray) -> Estimate | None:
    """The exponent of values [widths, seeds], where ``logs`` are the logarithms of the widths."""
    if not values.any():
        return None
    usable_seeds = [by_width for by_width in values.T if np.isfinite(by_width).all() and by_width.all()]
    return mean_of([slope_of(logs, np.log(by_width).tolist()) for by_width in usable_seeds])


def _measured(setting: Setting, width: int, seeds: int) -> dict[str, np.ndarray]:
    """The measured quantities at one width by name, [STEPS + 1, seeds]."""
    assert setting.regime is not None
    config = config_of(family(setting.regime, width, _INPUTS), 1, soft=True, activation="identity", loss="mse")
    with without_plan_warnings():
        planned = plan(config.shape, **setting.words(), lr=_LR)
    replicas = [Replica(planned, seed) for seed in range(seeds)]
    lockstep = Lockstep(MLPProgram(config), replicas, measure_gradients=True)
    inputs = np.stack([normals(seed, "input", 0, _INPUTS) for seed in range(seeds)])
    x = torch.from_numpy(inputs).float().unsqueeze(1)  # [seeds, one example, D]
    targets = torch.ones(seeds, 1, 1)
    return watch(lockstep, (x, targets), [(x, targets)] * STEPS)
