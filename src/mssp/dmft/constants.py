"""The constants of the equations of a limit, computed from the plan whose limit it is.

If a plan has a limit, each of its initial variances and learning rates is a constant of order one times a power of the
sizes. ``SCALES`` holds these powers (the paper's App. on DMFT, with ``docs/dmft.md``). A number of the plan, divided by
its power, is computed at one size and at a larger size. If both are equal, this is the constant. If it falls with the
size, the constant is zero.

muP and MSSP in Regime II differ in one constant: under muP the outputs of the initial experts average out, and the
constant of their variance is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mssp.dmft.experiment import Experiment
from mssp.nn.multipliers import planned_aggregation
from mssp.planning.plans import Plan
from mssp.planning.power import Power

N, N_e, M, D = Power(N=1), Power(N_e=1), Power(M=1), Power(D=1)


@dataclass(frozen=True)
class Scale:
    """The powers of a role's initial variance and learning rate that have a limit in Regimes I, II and III."""

    variance: tuple[Power, Power, Power]
    lr: tuple[Power, Power, Power]


SCALES = {
    "embedding": Scale(variance=(1 / D, 1 / D, 1 / D), lr=(N / D, N / D, N / D)),
    "router": Scale(variance=(N**-2, 1 / N, 1 / N), lr=(M / N, M / N, M / N)),
    "expert_in": Scale(variance=(1 / N, 1 / N, 1 / N), lr=(M, M / N, M)),
    "expert_out": Scale(variance=(1 / N_e, M / N_e, 1 / N_e), lr=(M, M * N, M)),
    "readout": Scale(variance=(N**-2, N**-2, N**-2), lr=(1 / N, 1 / N, 1 / N)),
}
_LARGER = 4  # the factor by which the larger member is wider, to see which constants vanish and which stay


@dataclass(frozen=True)
class Constants:
    """The constants of the single-site equations.

    Args:
        variance: σ² by role, the variances of initial weights divided by their scale; zero if they vanish in the limit.
        rate: η c by role, the learning rates divided by their scale. The constants of expert_out include the plan's
            factor on the sum over experts.
        tied: whether all experts start equal.
        experts_per_width: κ = M/N, which is fixed in Regimes II and III.
        expert_width_ratio: ι = N_e/N, which is fixed in Regimes I and III.
        experts: M, which is fixed in Regime I.
        expert_width: N_e, which is fixed in Regime II.
    """

    variance: dict[str, float]
    rate: dict[str, float]
    tied: bool
    experts_per_width: float
    expert_width_ratio: float
    experts: int
    expert_width: int


def constants(experiment: Experiment) -> Constants:
    """The constants of an experiment's limit.

    >>> import mssp, numpy as np
    >>> small = mssp.Shape(width=64, expert_width=4, experts=32, active=32, depth=1, inputs=1)
    >>> for scheme in ("mssp", "mup"):
    ...     planned = mssp.plan(small, scheme=scheme, regime="II", optimizer="sgd", lr=0.5)
    ...     limit = constants(Experiment(planned, inputs=np.ones((1, 1)), targets=np.ones(1), steps=2))
    ...     print(scheme, round(limit.variance["expert_out"], 6), limit.rate["expert_out"])
    mssp 1.0 0.5
    mup 0.0 0.5
    """
    shape = experiment.plan.target
    plan, gate_kind = experiment.plan, experiment.config(shape.width).gate_kind
    members = plan, experiment.member(_LARGER * shape.width)
    small, large = (_divided_by_scales(member, gate_kind) for member in members)
    limits = {key: _limit(key, value, large[key], plan) for key, value in small.items()}
    tied = {plan.roles[role].starts_equal for role in ("expert_in", "expert_out")}
    if len(tied) > 1:
        raise ValueError(f"scheme {plan.scheme!r} ties one side of the experts only: that has no solver")
    return Constants(
        variance={role: limits[role, "initial variance"] for role in SCALES},
        rate={role: limits[role, "learning rate"] for role in SCALES},
        tied=tied.pop(),
        experts_per_width=shape.experts / shape.width,
        expert_width_ratio=shape.expert_width / shape.width,
        experts=shape.experts,
        expert_width=shape.expert_width,
    )


def _divided_by_scales(plan: Plan, gate_kind: str) -> dict[tuple[str, str], float]:
    """The numbers of a plan by role and kind, each divided by its scale."""
    assert plan.setting.regime is not None
    column, dims = plan.setting.regime.column, plan.target.dims
    # The equations average over experts. A plan with another factor on their sum multiplies expert_out by the ratio.
    average = planned_aggregation(gate_kind, plan) * (plan.target.experts if gate_kind == "sigmoid" else 1)
    numbers = {}
    for role, scale in SCALES.items():
        values, factor = plan.roles[role], average * average if role == "expert_out" else 1.0
        variance = values.init_std * values.init_std
        numbers[role, "initial variance"] = factor * variance / scale.variance[column].value(dims)
        numbers[role, "learning rate"] = factor * values.lr / scale.lr[column].value(dims)
    return numbers


def _limit(key: tuple[str, str], small: float, large: float, plan: Plan) -> float:
    """The constant of a number whose ratio to its scale is ``small`` for the plan and ``large`` for a larger member."""
    role, kind = key
    if not (math.isfinite(small) and math.isfinite(large)):
        raise ValueError(f"the {kind} of {role} is not finite: use a smaller multiplier")
    if not small or math.isclose(small, large, rel_tol=1e-9):
        return small
    if large < small:
        return 0.0
    exponent = math.log(large / small) / math.log(_LARGER)
    raise ValueError(
        f"scheme {plan.scheme!r} has no limit in regime {plan.regime}: "
        f"the {kind} of {role} grows as N^{exponent:.2g} over the scale that has one"
    )
