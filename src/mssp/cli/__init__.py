"""The command line: a dataclass per command, one line per mistake.

``commands.py`` lists them all. A command's fields are its flags. It imports everything else, when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.cli.commands import main

_HOMES = {"commands": ("main",)}
__all__ = ["main"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
