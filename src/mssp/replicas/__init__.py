"""Trains R models side by side on one device, as tensors with a leading axis R: a sweep as one tensor program.

A replica is one of these models: a plan and a seed. Replicas in lockstep take every step together.

It imports planning, apply, nn, data and measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.replicas.lockstep import Lockstep
    from mssp.replicas.mlp import MLPProgram
    from mssp.replicas.module import ModuleProgram
    from mssp.replicas.program import Replica
    from mssp.replicas.training import Feed, Schedule, Trained, train

_HOMES = {
    "lockstep": ("Lockstep",),
    "mlp": ("MLPProgram",),
    "module": ("ModuleProgram",),
    "program": ("Replica",),
    "training": ("Feed", "Trained", "Schedule", "train"),
}
__all__ = ["Feed", "Lockstep", "MLPProgram", "ModuleProgram", "Replica", "Schedule", "Trained", "train"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
