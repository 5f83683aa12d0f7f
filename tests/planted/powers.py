"""Wrong powers of the width in one setting of a run: mistakes that the coordinate check must find, and name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from mssp.coordcheck.ladder_runs import PlannedProgram
from mssp.ladders.mlp import TUNED_WIDTH
from mssp.planning import Plan
from mssp.replicas.lockstep import Lockstep


@dataclass(frozen=True)
class Mistake:
    """One wrong power of the width; ``role`` is empty for the aggregation factor and for tied experts."""

    what: str  # rate, weights, eps, aggregation, experts
    role: str
    power: float
    regime: str
    optimizer: str

    def __str__(self) -> str:
        who = f" of {self.role}" if self.role else ""
        how = "" if self.what == "experts" else f" × N^{self.power:g}"
        return f"{self.what}{who}{how}"

    def planted(self, runs: Mapping[int, PlannedProgram]) -> dict[int, PlannedProgram]:
        """The runs with the mistake in their plans, where a plan can hold it."""
        return {size: replace(run, plan=self._changed(run.plan, size)) for size, run in runs.items()}

    def _changed(self, plan: Plan, size: int) -> Plan:
        factor = (size / TUNED_WIDTH) ** self.power
        if self.what == "rate":
            return replace(plan, lr_mult={**plan.lr_mult, self.role: plan.lr_mult.get(self.role, 1.0) * factor})
        if self.what == "weights":
            every = plan.init_mult.get("all", 1.0)
            return replace(plan, init_mult={"all": every, self.role: every * factor})
        if self.what == "aggregation":
            return replace(plan, aggregation_mult=plan.aggregation_mult * factor)
        return plan

    def prepare(self, lockstep: Lockstep) -> None:
        """What no plan can say: eps by role, and ties."""
        if self.what == "eps":
            width = lockstep.replicas[0].plan.target.width
            for name, rates in lockstep.rates.items():
                if name.endswith(_ENDINGS[self.role]):
                    rates.eps.mul_((width / TUNED_WIDTH) ** self.power)
        if self.what == "experts":
            for name, parameter in lockstep.parameters.items():
                if name.endswith(("w_in", "w_out")):
                    tie_or_untie(parameter, tie=lockstep.replicas[0].plan.regime != "III")


_ENDINGS = {"expert_in": "w_in", "expert_out": "w_out", "router": "router", "embedding": "embedding"}


def tie_or_untie(parameter: torch.Tensor, tie: bool) -> None:
    """[R, M, ...]: every expert the first one, or each one's units in an order of its own."""
    for expert in range(1, parameter.shape[1]):
        if tie:
            parameter[:, expert] = parameter[:, 0]
        else:
            generator = torch.Generator().manual_seed(expert)
            for axis in (1, 2):
                order = torch.randperm(parameter.shape[axis + 1], generator=generator).to(parameter.device)
                parameter[:, expert] = parameter[:, expert].index_select(axis, order)
