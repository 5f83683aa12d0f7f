"""The paper's families of MLP MoEs: one width names a whole shape, and what grows with it is the regime.

    I    M = 8,     N_e = N        width and expert width grow
    II   M = N/16,  N_e = 16       width and the number of experts grow
    III  M = N/16,  N_e = N        all of them grow

At N = 128 the three have eight experts each, and there their hyperparameters are tuned.
"""

from __future__ import annotations

from mssp._numbers import positive_int
from mssp.planning.setting import II, I, Regime, regime_named
from mssp.planning.shape import Shape

TUNED_WIDTH = 128
_EXPERTS = 8  # at the tuned width
_NARROW = 16  # the width of an expert that does not grow, and the widths for which one expert is added


def family(regime: str | Regime, width: int, inputs: int | None = None, active: int | None = None) -> Shape:
    """The member of a family that has this width.

    >>> family("II", 512, inputs=12288)
    Shape(N=512, N_e=16, M=32, K=32, L=1, D=12288)
    >>> family("III", 512, inputs=12288, active=2)
    Shape(N=512, N_e=512, M=32, K=8, L=1, D=12288)

    Args:
        active: experts per input where there are eight; more of them are active as there are more. None for all.
    """
    regime = regime_named(regime)
    width = positive_int("width", width)
    experts = _EXPERTS if regime is I else width // _NARROW
    if regime is not I and width % _NARROW:
        raise ValueError(f"Regime {regime} has an expert for every {_NARROW} of width: {width} is no multiple of it")
    chosen = experts if active is None else positive_int("active", active) * experts // _EXPERTS
    if active is not None and (active > _EXPERTS or chosen * _EXPERTS != active * experts):
        raise ValueError(f"{active} of {_EXPERTS} experts active is no whole number of the {experts} at width {width}")
    return Shape(width, _NARROW if regime is II else width, experts, chosen, 1, inputs)
