"""What to expect of a quantity, and on whose word: the paper's tables, the rules, or a simulation."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from mssp._estimates import Estimate
from mssp.planning.plans import Plan
from mssp.planning.rules import REGIME_FREE
from mssp.theory.propagation import Exponent, slack, tabulated
from mssp.theory.scaling import Implied, case_of
from mssp.theory.shares import rise

Simulated = Mapping[str, Sequence[Estimate | None]]

_ROUTERS_WAY_BACK = ("backward/propagating/router", "backward/effective/router", "gradient/router")

# What the simulation is asked for: the terms that the paper's tables hold.
_SIMULATED = (
    "effective/", "propagating/", "aggregate/", "activation/", "backward/", "gradient/", "features/", "router/delta",
)  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """An exponent, where it comes from (``paper``, ``rules`` or ``simulated``), and how uncertain it is.

    One that is not ``binding`` is there to compare with, and not to be judged by.
    """

    exponent: Exponent
    source: str
    ci: float = 0.0
    binding: bool = True


class Theory:
    """Predictions for one scheme over shapes of one family.

    Args:
        plans: by the size that grows, as the rules give them.
        simulated: exponents of the minimal linear MoE after 0, 1, ... updates, for what the paper leaves open.
        bypassed: some of the loss does not go through the readout (load balancing).
        equal_shares: gates sum to one over the experts.
        own_sides: roles whose matrices have sides that do not grow as the role's do: their rules give no one exponent.
    """

    def __init__(
        self,
        plans: Mapping[int, Plan],
        simulated: Simulated | None = None,
        *,
        own_sides: Collection[str] = (),
        bypassed: bool = False,
        equal_shares: bool = False,
    ) -> None:
        self.plan = plans[min(plans)]
        self.depth = _only_depth_grows(plans)
        self._implied, self._simulated = Implied(plans, equal_shares=equal_shares), simulated or {}
        self._own_sides = frozenset(own_sides)
        self._rise = rise(plans) if equal_shares and not self.depth else Fraction(0)
        # Decay moves weights that no gradient reaches, and a loss of the router's reaches them past a zero readout:
        # what would be exactly zero is not.
        self._never_zero = self.plan.weight_decay != 0 or bypassed

    def prediction(self, name: str, step: int) -> Prediction | None:
        """After so many updates; None where nobody says anything."""
        found = tabulated(name, step, case_of(self.plan), depth=self.depth)
        if found is not None:
            return self._unless_zero(name, found, "paper")
        if name.partition("/")[2] in self._own_sides:
            return None
        implied = self._implied.exponent(name, step)
        if implied is not None:
            return self._unless_zero(name, implied, "rules")
        if name.startswith(_SIMULATED) and step < len(self._simulated.get(name, ())):
            return self._from_simulation(name, self._simulated[name][step], step)
        return None

    def _unless_zero(self, name: str, exponent: Exponent, source: str) -> Prediction | None:
        vanishes = exponent.power is None
        return None if vanishes and self._never_zero else Prediction(self.raised(name, exponent), source)

    def raised(self, name: str, exponent: Exponent) -> Exponent:
        """With the room that a finite number of experts needs under gates that sum to one."""
        if exponent.power is None or not self._rise:
            return exponent
        if name == "faithfulness/router":  # eps over a gradient that falls less
            return Exponent(exponent.power, exponent.slack + self._rise)
        if name.startswith("backward/router-") or name in _ROUTERS_WAY_BACK:
            return Exponent(exponent.power + self._rise, exponent.slack + self._rise)
        return exponent

    def _from_simulation(self, name: str, estimate: Estimate | None, step: int) -> Prediction | None:
        # From the second update on, how far a model has come matters, and a scalar linear one comes no further than its
        # learning rate; what the first update shows does not depend on it, unless outputs are already blowing up.
        binding = step <= 1 and self.plan.scheme not in REGIME_FREE
        if estimate is None:
            return Prediction(Exponent(None), "simulated", binding=binding)
        if not math.isfinite(estimate.value):
            return None  # the simulation was lost
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
