"""Schedules: the factor on all learning rates at each step, which starts small, reaches 1, and may come down again."""

from __future__ import annotations

import math

from mssp._constraints import at_least, between, one_of, positive_int, takes

SCHEDULES = ("constant", "cosine", "wsd")


@takes(
    step=at_least(0),
    steps=positive_int,
    warmup=at_least(0),
    schedule=one_of(SCHEDULES),
    final=between(0, 1),
    decay=between(0, 1),
)
def lr_factor(
    step: int, steps: int, *, warmup: int = 0, schedule: str = "cosine", final: float = 0.1, decay: float = 0.2
) -> float:
    """The factor at a step, counted from 0. It is 1 at the end of the warmup, and ``final`` at the last step.

    >>> [round(lr_factor(step, 6, warmup=2, final=0.1), 3) for step in range(6)]
    [0.5, 1.0, 0.868, 0.55, 0.232, 0.1]
    >>> [round(lr_factor(step, 10, schedule="wsd", final=0.0, decay=0.4), 3) for step in range(10)]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Args:
        warmup: steps in which it rises in a line, the last of which has 1.
        schedule: ``constant``, ``cosine``, or ``wsd``, which is constant until a share ``decay`` of the steps is left.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        whole = max(steps - warmup, 1)
        done = min((step + 1 - warmup) / whole, 1.0)
        return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
    falling = decay * steps
    left = (steps - 1 - step) / falling if falling else 1.0
    return final + (1 - final) * min(left, 1.0)
