"""Sizes of every term of a model's dynamics, on a fixed probe batch: forward, backward, through the sum over experts.

It imports planning, apply, nn and hf (for stacks of experts in foreign models).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.measure.forward import verify
    from mssp.measure.modules import ModuleProbe
    from mssp.measure.monitoring import Monitor, monitor

_HOMES = {
    "forward": ("verify",),
    "modules": ("ModuleProbe",),
    "monitoring": ("Monitor", "monitor"),
}
__all__ = ["ModuleProbe", "Monitor", "monitor", "verify"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
