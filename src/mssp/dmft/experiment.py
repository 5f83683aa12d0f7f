"""An experiment whose limit is solved: MLP MoEs of all widths, trained on a few inputs by full-batch gradient descent.

The family is given by the plan of one member. The plan's shape sets what is fixed while the model grows (the ratios
M/N and N_e/N, or M, or N_e, depending on the regime). The plan's tuned values set the constants of the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mssp._constraints import Constraint, UnfitError, a_plan, one_of, optional, positive_int, takes
from mssp.dmft.observables import Array
from mssp.ladders.mlp import config_of
from mssp.nn.activations import ACTIVATIONS
from mssp.nn.mlp import MLPConfig
from mssp.nn.router import GATES
from mssp.planning.plans import Plan
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.setting import SGD, I
from mssp.planning.shape import Shape

_KINKED = ("relu",)  # their second derivative is a point mass, which averages over samples miss


def _array(came: Any) -> Array:
    try:
        array = np.asarray(came, dtype=np.float64)
    except (TypeError, ValueError):
        raise UnfitError from None
    if array.shape in ((), (0,)):
        raise UnfitError
    return array


_ARRAY = Constraint("an array of numbers", _array)


@takes(
    plan=a_plan,
    inputs=_ARRAY,
    targets=_ARRAY,
    steps=positive_int,
    test_inputs=optional(_ARRAY),
    activation=one_of(list(ACTIVATIONS)),
    gate=one_of(GATES),
)
@dataclass(frozen=True, eq=False)
class Experiment:
    """Full-batch gradient descent on half the mean squared error.

    >>> import mssp
    >>> small = mssp.plan(mssp.Shape(64, 4, 32, 32, 1, 8), regime="II", optimizer="sgd", lr=0.5)
    >>> experiment = Experiment(small, inputs=np.eye(8)[:2] * 8**0.5, targets=np.array([1.0, -1.0]), steps=3)
    >>> experiment.member(256).target
    Shape(N=256, N_e=4, M=128, K=128, L=1, D=8)

    Args:
        plan: the plan of one member of the family, for SGD and without a base.
        inputs: [P, D]; they enter the equations by their overlaps x·x'/D only.
        targets: [P], one number for each input.
        test_inputs: [P', D], inputs that are not trained on; in all results they come after the inputs.
    """

    plan: Plan
    inputs: Array
    targets: Array
    steps: int
    test_inputs: Array | None = None
    activation: str = "gelu"
    gate: str = "sigmoid"

    def __post_init__(self) -> None:
        if self.activation in _KINKED:
            raise ValueError(f"two derivatives are needed, and {self.activation} has a kink: use tanh, gelu or silu")
        self._check_plan()
        self._check_data()

    @property
    def all_inputs(self) -> Array:
        """The inputs that are trained on, followed by the test inputs, [P + P', D]."""
        return self.inputs if self.test_inputs is None else np.concatenate([self.inputs, self.test_inputs])

    @property
    def soft(self) -> bool:
        return self.plan.target.active == self.plan.target.experts

    def shape(self, width: int) -> Shape:
        """The shape of the member that has this width."""
        regime = self.plan.setting.regime
        assert regime is not None
        return regime.member(self.plan.target, width)

    def member(self, width: int) -> Plan:
        """The plan of the member that has this width."""
        with without_plan_warnings():  # whoever made the family's plan has been warned
            return self.plan.extend(self.shape(width))

    def config(self, width: int) -> MLPConfig:
        """The configuration of the model that has this width."""
        shape = self.shape(width)
        return config_of(shape, 1, soft=self.soft, activation=self.activation, gate=self.gate, loss="mse")

    def _check_plan(self) -> None:
        plan = self.plan
        if plan.setting.optimizer is not SGD:
            raise ValueError(f"the limits are those of sgd, the plan is for {plan.optimizer}")
        if plan.setting.regime is None:
            raise ValueError(f"scheme {plan.scheme!r} has no regime: say in the plan what is to grow")
        if plan.base is not None:
            raise ValueError("the family has no base: plan its first member without one")
        if plan.target.depth != 1:
            raise ValueError(f"the limits are those of one MoE layer, the plan has depth {plan.target.depth}")
        if not self.soft and (self.gate != "sigmoid" or plan.setting.regime is I):
            raise ValueError("top-K is solved for sigmoid gates in regimes II and III: use all experts otherwise")

    def _check_data(self) -> None:
        for name in ("inputs", "targets", "test_inputs"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        size = self.plan.target.inputs
        for name, inputs in (("inputs", self.inputs), ("test_inputs", self.test_inputs)):
            if inputs is None:
                continue
            if inputs.ndim != 2 or inputs.shape[1] != size or not len(inputs):
                raise ValueError(f"{name} are [number, {size}] as the plan says, got {list(inputs.shape)}")
            if not np.isfinite(inputs).all():
                raise ValueError(f"{name} hold numbers that are not finite")
        if self.targets.shape != (len(self.inputs),) or not np.isfinite(self.targets).all():
            raise ValueError(f"targets are {len(self.inputs)} finite numbers, one for each input")
        if not self.targets.any():
            raise ValueError("all targets are zero: there is nothing to learn")
