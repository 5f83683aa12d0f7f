"""Contracts as test classes, which parts that others write can inherit: what a part must do to work with the rest.

    class TestMyHost(HostContract): ...      pytest runs every test of the contract on MyHost

It imports everything that it tests; pytest is imported when a contract is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.testing.hosts import HostContract
    from mssp.testing.ladders import LadderContract
    from mssp.testing.programs import ProgramContract
    from mssp.testing.rules import OptimizerContract, SchemeContract

_HOMES = {
    "hosts": ("HostContract",),
    "ladders": ("LadderContract",),
    "programs": ("ProgramContract",),
    "rules": ("OptimizerContract", "SchemeContract"),
}
__all__ = ["HostContract", "LadderContract", "OptimizerContract", "ProgramContract", "SchemeContract"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
