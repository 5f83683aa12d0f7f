"""Growth from a base to a target: by how much every size grows, and which regime that is.

>>> base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
>>> growth = Growth(base, Shape(width=512, expert_width=256, experts=32, active=4, depth=8))
>>> print(growth, growth.kappa, growth.regime)
N × 2, N_e × 2, M × 4 1.0 any
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mssp.planning.setting import ANY, GROWTHS, REGIMES, Regime
from mssp.planning.shape import SYMBOLS, Shape

# The dimensions that tell regimes apart. Depth may grow in each of them.
_AXES = ("N", "N_e", "M", "K")
# Factors that differ by no more count as one: sizes of real models are rounded to heads and to powers of two.
_CLOSE = 1.05


@dataclass(frozen=True)
class Growth:
    """How much larger a target is than its base."""

    base: Shape
    target: Shape

    @cached_property
    def factors(self) -> dict[str, float]:
        """The growth factors n, n_e, m and k, by the symbols of the dimensions."""
        return {axis: self.target.dims[axis] / self.base.dims[axis] for axis in _AXES}

    @property
    def kappa(self) -> float:
        """κ = k n_e / n, the growth of the active expert width over that of the width.

        At 1 all terms of the sum over experts keep their balance. Above 1 the experts' random starts average out, by
        κ^1/2. Below 1 what comes back through their starts grows, by κ^-1/2.
        """
        return self.factors["K"] * self.factors["N_e"] / self.factors["N"]

    @property
    def share(self) -> float:
        """ρ, the part of an expert's initial output that all experts share, so that the sum over them stays as it was.

        K independent outputs have a mean of 1/K their variance, and ρ raises it to ρ + (1 - ρ)/K: the κ-fold. One
        active expert is no mean. From a base with one, or where κ is beyond the base's K, all of the start is shared.

        >>> base = Shape(width=64, expert_width=32, experts=8, active=2, depth=2)
        >>> [Growth(base, Shape(64, 32, 32, active, 2)).share for active in (1, 2, 8)]
        [0.0, 0.0, 0.42857142857142855]
        """
        if self.target.active == 1:
            return 0.0
        return min(1.0, (max(1.0, self.kappa) - 1) / (self.target.active - 1))

    @property
    def regime(self) -> Regime:
        """The regime whose sizes grow by one factor while the others stay, or ``ANY``. Dense models are of Regime I."""
        if self.base.is_dense and self.target.is_dense:
            return REGIMES[0]
        return next((regime for regime in REGIMES if self._is_of(regime)), ANY)

    def _is_of(self, regime: Regime) -> bool:
        growing = [factor for axis, factor in self.factors.items() if axis in regime.grows]
        still = [factor for axis, factor in self.factors.items() if axis not in regime.grows]
        return min(growing) > _CLOSE and max(growing) <= _CLOSE * min(growing) and all(map(_is_one, still))

    @property
    def shrinking(self) -> list[str]:
        """The names of the sizes that are smaller in the target, depth included."""
        return [
            f"{name} ({symbol})"
            for symbol, name in SYMBOLS.items()
            if symbol in (*_AXES, "L") and self.target.dims[symbol] < self.base.dims[symbol]
        ]

    def __str__(self) -> str:
        factors = self.factors | {"L": self.target.depth / self.base.depth}
        if self.base.is_without_experts and self.target.is_without_experts:
            del factors["N_e"]
        grown = [f"{axis} × {factor:.3g}" for axis, factor in factors.items() if factor != 1]
        return ", ".join(grown) or "nothing grows"


def infer(base: Shape | None, target: Shape) -> Regime:
    """The regime of a growth, or a ValueError that says why there is none."""
    if base is None:
        words = "|".join(map(str, REGIMES))
        raise ValueError(
            f"regime cannot be inferred: there is no base to infer it from; say which one applies (--regime {words})"
        )
    return Growth(base, target).regime


def undecided(base: Shape | None, target: Shape) -> list[str]:
    """What the sizes leave open of a regime that nobody has said, in words."""
    if base is None or base.dims != target.dims or target.is_dense:
        return []
    return [
        "base and target have the same sizes: which regime they will grow in decides how experts and routers start; "
        f"say it (--regime {'|'.join(map(str, GROWTHS))})"
    ]


def outside_theory(base: Shape | None, target: Shape, regime: Regime | None) -> list[str]:
    """What neither the paper nor our own derivation covers in this step, in words."""
    if base is None or regime is None:
        return []
    growth = Growth(base, target)
    messages = []
    if growth.shrinking:
        smaller = ", ".join(growth.shrinking)
        messages.append(f"smaller in the target than in the base: {smaller}; nothing was measured of shrinking models")
    if regime is ANY:
        return messages
    if base.active * target.experts != target.active * base.experts:
        messages.append(
            f"the active share K/M changes from {base.active}/{base.experts} to {target.active}/{target.experts}: "
            f"Regime {regime} holds for a fixed share"
        )
    growing = {axis for axis, factor in growth.factors.items() if factor > 1}
    if growing and growing != regime.grows:
        fitting = next((str(other) for other in REGIMES if other.grows == growing), "any")
        why = "which no regime of the paper is: plan with" if fitting == ANY.name else "which is"
        messages.append(f"regime {regime} is used, but from base to target {growth} grows, {why} regime {fitting}")
    return messages


def refuse_unplannable(base: Shape | None, target: Shape, regime: Regime | None) -> None:
    """Refuse a step of which no rule says anything."""
    if regime is not ANY:
        return
    if base is None:
        raise ValueError("regime any needs a base: its factors are those of the growth from a base to the target")
    if base.is_dense and not target.is_dense:
        raise ValueError(
            f"the base is dense and the target has {target.experts} experts: what was tuned says nothing of routers "
            "and experts; tune a base with experts"
        )


def _is_one(factor: float) -> bool:
    return 1 / _CLOSE <= factor <= _CLOSE
