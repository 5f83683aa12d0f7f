"""The command line: a dataclass per command, whose fields are its flags, and one line of output per mistake.

``commands.py`` lists the commands. They may import every other package, and import what is slow only when they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.cli.commands import main

_HOMES = {"commands": ("main",)}
__all__ = ["main"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
