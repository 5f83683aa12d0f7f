"""The numbers of one role, or of one parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Values:
    """What an initializer and an optimizer need. ``eps`` is None for SGD."""

    role: str
    init_std: float
    lr: float
    lr_scale: float  # the scale ratio alone, without the user's multiplier
    eps: float | None
    grad_scale: float
    weight_decay: float
    tied: bool
    zero: bool
    source: str

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            lost = isinstance(number, float) and not math.isfinite(number)
            if lost or (number == 0 and name in ("lr", "eps")):
                raise ValueError(f"{name} of {self.role} comes to {number}: outside the range of floating point")

    def json(self) -> dict[str, float | bool | str | None]:
        return {name: number for name, number in vars(self).items() if name != "role"}
