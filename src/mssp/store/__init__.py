"""Runs in a file: SQLite that many processes write to, who is at which run, and the runs as a table.

It imports the private modules at the root and planning's documents, and knows nothing of what a run is.
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
