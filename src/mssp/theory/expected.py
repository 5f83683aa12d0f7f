"""What to expect of a quantity, and which source says so: the paper's tables, the rules, a derivation, a simulation.

Under gates that are shares of one among K of M experts, a finite number of experts changes what comes back through the
router, and predictions follow it. A gradient at the logits is what comes back to the gates times the
derivative of the gates, which for shares is

    dφ_i / dψ_j = φ_i (δ_ij - φ_j)

Times K it is of order 1, as the paper's gates are. With few experts, however, it is still growing to that order: with
one expert active there is no derivative at all. From 8 to 32 experts, half of them active, this alone raises exponents
over the width by 0.2 where what comes back is independent of the gates, and by 0.6 to 0.8 where it is in proportion to
them. It is partly so: an expert's output is a part of the features that errors align with, and the more of it the
larger its gate was. So the derivative is measured (``router/derivative``). It is a ratio, which no learning rate, no
initial weight behind the gates and no factor on the sum changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mssp._estimates import Estimate, slope_of
from mssp.measure.quantities import (
    ACTIVATION,
    AGGREGATE,
    BACKWARD_EFFECTIVE,
    BACKWARD_PROPAGATING,
    EFFECTIVE,
    FAITHFULNESS,
    FEATURE_CHANGE,
    GRADIENT,
    LOGIT_CHANGE,
    PROPAGATING,
    THROUGH_ROUTER,
    WAY_BACK,
    Quantity,
)
from mssp.planning.plans import Plan
from mssp.planning.setting import ANY, MSSP, I
from mssp.theory.finite_sums import alignment_of, excess
from mssp.theory.implied import Implied
from mssp.theory.orders import Orders
from mssp.theory.propagation import THROUGH_INITIAL_ROUTER, Exponent, slack, stable_exponent, tabulated


def rise(sizes: Collection[int], derivatives: npt.NDArray[np.float64]) -> Fraction:
    """By how much a finite number of experts raises the router's exponents over these sizes; never less than 0.

    >>> derivatives = np.array([0.0, 0.6, 0.0, 0.7, 0.0, 0.8]).reshape(3, 2, 1)  # nothing comes back before an update
    >>> round(float(rise([64, 128, 256], derivatives)), 2)
    0.21

    Args:
        derivatives: the gradient at the logits over that at the gates, [sizes, steps, seeds].
    """
    by_step = [at_step for at_step in derivatives.transpose(1, 0, 2) if np.isfinite(at_step).all() and at_step.all()]
    if not by_step:
        return Fraction(0)
    slopes = [slope_of(np.log(list(sizes)).tolist(), np.log(at_step).mean(1).tolist()) for at_step in by_step]
    return max(Fraction(float(np.mean(slopes))).limit_denominator(100), Fraction(0))


Simulated = Mapping[str, Sequence[Estimate | None]]

_ROUTERS_WAY_BACK = (BACKWARD_PROPAGATING("router"), BACKWARD_EFFECTIVE("router"), GRADIENT("router"))

# What the simulation predicts: the terms that the paper's tables hold.
_SIMULATED = (
    EFFECTIVE, PROPAGATING, AGGREGATE, ACTIVATION, *WAY_BACK, GRADIENT, FEATURE_CHANGE, LOGIT_CHANGE,
)  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """An exponent, where it comes from (``paper``, ``derived``, ``rules`` or ``simulated``), and how uncertain it is.

    A prediction that is not ``binding`` is shown beside the measured exponent, which is not judged by it. ``excess`` is
    the part of the exponent that finite sizes are expected to add to that of ever larger ones.
    """

    exponent: Exponent
    source: str
    ci: float = 0.0
    binding: bool = True
    excess: Fraction = Fraction(0)

    def at_finite_sizes(self, excess: Fraction) -> Prediction:
        """The prediction with what finite sizes add to a power."""
        if self.exponent.power is None or not excess:
            return self
        return replace(self, exponent=replace(self.exponent, power=self.exponent.power + excess), excess=excess)

    @property
    def of_large_sizes(self) -> Exponent:
        if self.exponent.power is None:
            return self.exponent
        return replace(self.exponent, power=self.exponent.power - self.excess)


class Theory:
    """Predictions for one scheme over shapes of one family.

    Args:
        plans: by the size that grows, as the rules give them.
        simulated: exponents of the minimal linear MoE after 0, 1, ... updates, for what the paper leaves open.
        bypassed: whether some of the loss does not go through the readout (load balancing).
        equal_shares: whether gates sum to one over the experts.
        derivatives: of gates that sum to one, as measured at each size, [sizes, steps, seeds].
        own_sides: roles whose matrices have sides that do not grow as the role's do, so that no one exponent follows.
    """

    def __init__(
        self,
        plans: Mapping[int, Plan],
        simulated: Simulated | None = None,
        *,
        own_sides: Collection[str] = (),
        own_starts: Collection[str] = (),
        bypassed: bool = False,
        equal_shares: bool = False,
        derivatives: npt.NDArray[np.float64] | None = None,
        tied_readout: bool = False,
    ) -> None:
        self.plan = plans[min(plans)]
        self._plans = {size: plans[size] for size in sorted(plans)}
        self.depth = _only_depth_grows(plans)
        self._implied, self._simulated = Implied(plans, equal_shares=equal_shares), simulated or {}
        self._orders = Orders(plans) if self.plan.setting.regime is ANY and not self.depth else None
        self._own_sides, self._own_starts = frozenset(own_sides), frozenset(own_starts)
        self._tied_readout = tied_readout
        self._rise = Fraction(0) if derivatives is None or self.depth else rise(self._plans, derivatives)
        # Nothing is exactly zero with weight decay, which moves weights that no gradient reaches, or with a loss that
        # reaches them past a zero readout.
        self._never_zero = self.plan.weight_decay != 0 or bypassed

    def prediction(self, name: str, step: int) -> Prediction | None:
        """The prediction after so many updates; None where no source has one."""
        quantity = Quantity.named(name)
        printed = tabulated(name, step, self.plan.setting, depth=self.depth)
        if printed is not None and not self._passes_a_small_router(quantity):
            return self._unless_zero(name, printed, "paper")
        of_own_sides = quantity.of in self._own_sides
        if not self.has_rule(quantity) or (
            of_own_sides and quantity.kind not in (BACKWARD_PROPAGATING, BACKWARD_EFFECTIVE)
        ):
            return None
        derived = None if self._orders is None else self._orders.exponent(quantity, step)
        if derived is not None:
            return self._unless_zero(name, derived, "derived")
        implied = self._implied.exponent(name, step)
        if implied is not None:
            return self._unless_zero(name, implied, "rules")
        if quantity.kind in _SIMULATED and step < len(self._simulated.get(name, ())):
            return self._from_simulation(name, self._simulated[name][step], step)
        return None

    def has_rule(self, name: Quantity) -> bool:
        """Whether a rule is known for a quantity of this role."""
        return name.of not in self._own_starts or name.kind not in (GRADIENT, FAITHFULNESS)

    def excess(self, name: Quantity, values: Mapping[str, npt.NDArray[np.float64]]) -> Fraction:
        """What the sizes of a check add to a quantity's exponent, by how aligned its terms were measured to be."""
        alignment = values.get(alignment_of(name) or "")
        return Fraction(0) if alignment is None else excess(name, self._plans, alignment)

    def stable(self, name: Quantity) -> Fraction | None:
        """The exponent that maximal scale stability demands of a quantity; None where it demands nothing."""
        if self._orders is not None:
            return self._orders.stable(name)
        return stable_exponent(name, self.plan.setting.regime, depth=self.depth)

    def _passes_a_small_router(self, quantity: Quantity) -> bool:
        """Whether a quantity goes through the start of a router that the paper starts at zero, and top-K does not."""
        setting = self.plan.setting
        starts_small = setting.scheme is MSSP and setting.regime is I and not self.plan.roles["router"].zero
        return starts_small and quantity in THROUGH_INITIAL_ROUTER

    def _unless_zero(self, name: str, exponent: Exponent, source: str) -> Prediction | None:
        if exponent.power is None and self._never_zero:
            return None
        return Prediction(self.raised(name, exponent), source)

    def raised(self, name: str, exponent: Exponent) -> Exponent:
        """The exponent where gates sum to one, and with the room that a readout needs which is the embedding.

        Gates that sum to one add what their derivative was measured to grow by. Logits of an embedding start as
        random sums over the width, N^-1/2, and are of order 1 once they are learned.
        """
        if exponent.power is None:
            return exponent
        quantity = Quantity.named(name)
        if self._tied_readout and quantity == ACTIVATION("readout"):
            return Exponent(exponent.power, exponent.slack + Fraction(1, 2))
        if not self._rise:
            return exponent
        if quantity == FAITHFULNESS("router"):  # eps over a gradient that falls less
            return Exponent(exponent.power - self._rise, exponent.slack)
        if quantity.kind is THROUGH_ROUTER or quantity in _ROUTERS_WAY_BACK:
            return Exponent(exponent.power + self._rise, exponent.slack)
        return exponent

    def _from_simulation(self, name: str, estimate: Estimate | None, step: int) -> Prediction | None:
        # From the second update on, exponents depend on how far a model has come, and a scalar linear one comes no
        # further than its learning rate. After the first they do not, unless outputs are already blowing up.
        binding = step <= 1 and not self.plan.setting.scheme.regime_free
        if estimate is None:
            return Prediction(Exponent(None), "simulated", binding=binding)
        if not math.isfinite(estimate.value):
            return None  # the simulation diverged
        power = Fraction(estimate.value).limit_denominator(1000)
        ci = estimate.ci if math.isfinite(estimate.ci) else 0.0
        return Prediction(Exponent(power, slack(name)), "simulated", ci, binding)

    @property
    def tied(self) -> bool:
        """Whether experts start equal."""
        return self._implied.tied()


def _only_depth_grows(plans: Mapping[int, Plan]) -> bool:
    shapes = [plans[size].target for size in sorted(plans)]
    return all(
        symbol == "L" or first.dims[symbol] == second.dims[symbol]
        for first, second in pairwise(shapes)
        for symbol in first.dims
    )
