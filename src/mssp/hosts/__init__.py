"""A plan in the native form of a training framework: a Python file that needs torch and the host, and not mssp.

    export(plan, "torchtitan")       patterns with lr, eps and weight decay, initial values, forward multipliers

It imports planning alone: neither torch nor a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.hosts.registry import HOSTS, export
    from mssp.hosts.rows import SIDES, Sizes

_HOMES = {
    "registry": ("HOSTS", "export"),
    "rows": ("SIDES", "Sizes"),
}
__all__ = ["HOSTS", "SIDES", "Sizes", "export"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
