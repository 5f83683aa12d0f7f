"""Sizes of every term of a model's dynamics, on a fixed probe batch: forward, backward, through the sum over experts.

It imports planning, apply, nn and hf (for stacks of experts in foreign models).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.measure.alarms import Alarm
    from mssp.measure.forward import verify
    from mssp.measure.modules import ModuleProbe
    from mssp.measure.monitoring import Monitor, monitor
    from mssp.measure.router_health import RouterHealth

_HOMES = {
    "alarms": ("Alarm",),
    "forward": ("verify",),
    "modules": ("ModuleProbe",),
    "monitoring": ("Monitor", "monitor"),
    "router_health": ("RouterHealth",),
}
__all__ = ["Alarm", "ModuleProbe", "Monitor", "RouterHealth", "monitor", "verify"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
