"""The refined coordinate check: it trains models, fits exponents, judges them, and says what is wrong.

It imports planning, apply, data, measure, theory, replicas and ladders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.coordcheck.module_runs import check
    from mssp.coordcheck.result import Check

_HOMES = {
    "module_runs": ("check",),
    "result": ("Check",),
}
__all__ = ["Check", "check"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
