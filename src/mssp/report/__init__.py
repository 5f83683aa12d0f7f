"""Pictures and the page: everything that was found, for people.

    read(files)  ->  findings_of(contents)  ->  report(contents)

It imports the evidence: measure, theory, coordcheck, sweep, store, dmft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.report.contents import read
    from mssp.report.findings import findings_of
    from mssp.report.sections import report

_HOMES = {
    "contents": ("read",),
    "findings": ("findings_of",),
    "sections": ("report",),
}
__all__ = ["findings_of", "read", "report"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
