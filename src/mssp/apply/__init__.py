"""Applies a plan to a model: descriptions of its parameters, initial values, parameter groups, and checks of both.

    describe  ->  initialize  ->  param_groups  ->  verify

It imports planning and torch. Models say what they are through ``protocols.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.apply.description import Claims, describe
    from mssp.apply.groups import check_schedule, optimizer_for, param_groups, scale_gradients
    from mssp.apply.initial_weights import initialize
    from mssp.apply.verification import verify

_HOMES = {
    "description": ("Claims", "describe"),
    "groups": ("check_schedule", "optimizer_for", "param_groups", "scale_gradients"),
    "initial_weights": ("initialize",),
    "verification": ("verify",),
}
__all__ = [
    "Claims", "check_schedule", "describe", "initialize", "optimizer_for", "param_groups", "scale_gradients", "verify",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
