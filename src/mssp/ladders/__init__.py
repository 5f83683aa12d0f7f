"""Ladders: families of models of growing size, one for each width. The paper's MLP MoEs, and what was tuned for them.

It imports planning, nn, data and replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.ladders.ladder import Ladder, Ladders
    from mssp.ladders.mlp import MLPLadder, family
    from mssp.ladders.tuned import Tuned, multipliers_for
    from mssp.ladders.tuned_transformers import transformer_multipliers

_HOMES = {
    "ladder": ("Ladder", "Ladders"),
    "mlp": ("MLPLadder", "family"),
    "tuned": ("Tuned", "multipliers_for"),
    "tuned_transformers": ("transformer_multipliers",),
}
__all__ = ["Ladder", "Ladders", "MLPLadder", "Tuned", "family", "multipliers_for", "transformer_multipliers"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
