"""R models in lockstep on one device: a sweep as one tensor program."""

from mssp.replicas.lockstep import Lockstep
from mssp.replicas.mlp import MLPProgram
from mssp.replicas.module import ModuleProgram
from mssp.replicas.replica import Replica
from mssp.replicas.training import Feed, Outcome, Schedule, train

__all__ = ["Feed", "Lockstep", "MLPProgram", "ModuleProgram", "Outcome", "Replica", "Schedule", "train"]
