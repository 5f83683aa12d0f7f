"""Infers which of the paper's three regimes a step from a base to a target belongs to.

>>> base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
>>> print(infer(base, Shape(width=512, expert_width=256, experts=8, active=4, depth=8)))
I
"""

from __future__ import annotations

from mssp.planning.setting import REGIMES, Regime
from mssp.planning.shape import SYMBOLS, Shape

# The dimensions that tell regimes apart. Depth may grow in each of them.
_AXES = ("N", "N_e", "M", "K")
# Sizes whose ratios differ by more than this factor do not grow in proportion.
_LARGEST_SPREAD = 2.0


def infer(base: Shape | None, target: Shape) -> Regime:
    """The regime, or a ValueError that says why the shapes leave it open."""
    if base is None:
        raise _cannot_infer("there is no base to infer it from")
    ratios = {axis: target.dims[axis] / base.dims[axis] for axis in _AXES}
    shrinking = [axis for axis, ratio in ratios.items() if ratio < 1]
    if shrinking:
        raise _cannot_infer(f"{_names(shrinking)} shrinks from base to target")
    growing = {axis for axis, ratio in ratios.items() if ratio > 1}
    if not growing:
        reason = "only depth grows" if target.depth != base.depth else "base and target have the same sizes"
        raise _cannot_infer(reason)
    regime = _regime_of(growing)
    if regime is None:
        listed = "; ".join(f"{regime} grows {', '.join(a for a in _AXES if a in regime.grows)}" for regime in REGIMES)
        verb = "grows" if len(growing) == 1 else "grow"
        raise _cannot_infer(f"{_names(growing)} {verb}, which is none of them ({listed})")
    spread = max(ratios[a] for a in growing) / min(ratios[a] for a in growing)
    if spread > _LARGEST_SPREAD:
        factors = ", ".join(f"{axis} x{ratios[axis]:g}" for axis in _AXES if axis in growing)
        raise _cannot_infer(f"the dimensions do not grow in proportion ({factors})")
    return regime


def outside_theory(base: Shape | None, target: Shape, regime: Regime | None) -> list[str]:
    """What the theory does not cover in this step, in words."""
    if base is None:
        return []
    messages = []
    if base.active * target.experts != target.active * base.experts:
        messages.append(
            f"the active share K/M changes from {base.active}/{base.experts} to {target.active}/{target.experts}: "
            "the theory holds for a fixed share"
        )
    growing = {axis for axis in _AXES if target.dims[axis] > base.dims[axis]}
    fitting = _regime_of(growing)
    if regime is not None and fitting is not None and regime is not fitting:
        messages.append(
            f"regime {regime} is used, but base to target grows {_names(growing)}, which is regime {fitting}"
        )
    return messages


def _regime_of(growing: set[str]) -> Regime | None:
    return next((regime for regime in REGIMES if regime.grows == growing), None)


def _cannot_infer(reason: str) -> ValueError:
    words = "|".join(map(str, REGIMES))
    return ValueError(f"regime cannot be inferred: {reason}; say which one applies (--regime {words})")


def _names(axes: set[str] | list[str]) -> str:
    return ", ".join(f"{SYMBOLS[axis]} ({axis})" for axis in _AXES if axis in axes)
