"""Which of the paper's three regimes a step from a base to a target belongs to.

>>> base = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
>>> print(infer(base, Shape(width=512, expert_width=256, experts=8, active=4, depth=8)))
I
"""

from __future__ import annotations

from mssp.planning.setting import REGIMES, Regime
from mssp.planning.shape import SYMBOLS, Shape

# Depth composes with all regimes and decides nothing.
_AXES = ("N", "N_e", "M", "K")
# Beyond this spread "they grow in proportion" is no longer what the numbers say.
_LARGEST_SPREAD = 2.0


def infer(base: Shape | None, target: Shape) -> Regime:
    """The regime, or a ValueError that says why the shapes leave it open."""
    if base is None:
        raise ValueError(_ask("there is no base to infer it from"))
    ratios = {axis: target.dims[axis] / base.dims[axis] for axis in _AXES}
    shrinking = [axis for axis, ratio in ratios.items() if ratio < 1]
    if shrinking:
        raise ValueError(_ask(f"{_names(shrinking)} shrinks from base to target"))
    growing = {axis for axis, ratio in ratios.items() if ratio > 1}
    if not growing:
        what = "only depth grows" if target.depth != base.depth else "base and target have the same sizes"
        raise ValueError(_ask(what))
    matches = [regime for regime in REGIMES if regime.grows == growing]
    if not matches:
        listed = "; ".join(f"{regime} grows {', '.join(a for a in _AXES if a in regime.grows)}" for regime in REGIMES)
        raise ValueError(
            _ask(f"{_names(growing)} grow{'s' if len(growing) == 1 else ''}, which is none of them ({listed})")
        )
    spread = max(ratios[a] for a in growing) / min(ratios[a] for a in growing)
    if spread > _LARGEST_SPREAD:
        factors = ", ".join(f"{axis} x{ratios[axis]:g}" for axis in _AXES if axis in growing)
        raise ValueError(_ask(f"the dimensions do not grow in proportion ({factors})"))
    return matches[0]


def outside_theory(base: Shape | None, target: Shape, regime: Regime | None) -> list[str]:
    """What the theory does not cover in this step, in words."""
    if base is None:
        return []
    found = []
    if base.active * target.experts != target.active * base.experts:
        found.append(
            f"the active share K/M changes from {base.active}/{base.experts} to {target.active}/{target.experts}: "
            "the theory holds for a fixed share"
        )
    growing = {axis for axis in _AXES if target.dims[axis] > base.dims[axis]}
    fitting = [each for each in REGIMES if each.grows == growing]
    if regime is not None and fitting and regime not in fitting:
        found.append(
            f"regime {regime} is used, but base to target grows {_names(growing)}, which is regime {fitting[0]}"
        )
    return found


def _ask(reason: str) -> str:
    return f"regime cannot be inferred: {reason}; say which one applies (--regime {'|'.join(map(str, REGIMES))})"


def _names(axes: set[str] | list[str]) -> str:
    return ", ".join(f"{SYMBOLS[axis]} ({axis})" for axis in _AXES if axis in axes)
