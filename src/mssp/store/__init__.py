"""Runs in a file: an SQLite database that many processes work on together, and its studies as tables.

It imports the private modules at the root and planning's plan files, and does not know what a run computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.store.runs import Chunk, NewRun, Result, Run, Store, Study
    from mssp.store.table import export, frame

_HOMES = {
    "runs": ("Chunk", "NewRun", "Result", "Run", "Store", "Study"),
    "table": ("export", "frame"),
}
__all__ = ["Chunk", "NewRun", "Result", "Run", "Store", "Study", "export", "frame"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
