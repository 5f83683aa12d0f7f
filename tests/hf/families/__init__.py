"""Every family of MoE models in the installed transformers, as its tests and the table in the documentation know it."""

from __future__ import annotations

from tests.hf.families import inside, odd, recurrent, usual

_ALL = (usual, odd, recurrent, inside)
PLANNED = {name: entry for part in _ALL for name, entry in part.PLANNED.items()}
REFUSED = {name: entry for part in _ALL for name, entry in part.REFUSED.items()}
# Families that have no entry yet: empty when all are done.
NOT_YET = tuple(name for part in _ALL for name in part.NOT_YET)
