"""Protocols of modules that describe themselves: their parameters, factors, routing, and numbers beside the plan's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mssp.planning.parameter import ParamInfo

if TYPE_CHECKING:
    from torch import Tensor

    from mssp.planning.plans import Plan


@runtime_checkable
class DescribesItself(Protocol):
    """A module that knows the roles of its own parameters, by their local names."""

    def param_infos(self) -> Mapping[str, ParamInfo]: ...


@runtime_checkable
class Multiplies(Protocol):
    """A module whose forward pass has factors that a plan sets, by the names of its attributes."""

    def plan_multipliers(self, plan: Plan) -> Mapping[str, float]: ...


@runtime_checkable
class Routes(Protocol):
    """A router that says how it makes gates, so that a plan for other gates is noticed."""

    @property
    def gate_kind(self) -> str: ...


@runtime_checkable
class Draws(Protocol):
    """A module with random numbers beside its parameters, drawn by the seed and its own name."""

    def draw_for_plan(self, seed: int, name: str) -> None: ...


@runtime_checkable
class KeepsPlan(Protocol):
    """A module that saves the plan it was initialized by with its checkpoints."""

    def keep_plan(self, plan: Plan) -> None: ...


@runtime_checkable
class HasOwnValues(Protocol):
    """A model with numbers that its own library computes, which a model that was materialised empty does not have."""

    def missing_own_values(self, plan: Plan, seed: int) -> Sequence[tuple[Tensor, Tensor]]: ...

    def check_own_values(self) -> None: ...
