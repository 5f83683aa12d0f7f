"""Our programs keep the contract of programs, and one with a mistake does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from mssp import ParamInfo
from mssp.nn import MLPConfig, MLPMoE
from mssp.planning import Plan
from mssp.replicas import MLPProgram, ModuleProgram
from mssp.replicas.program import Batch, Constants, Program, Step
from mssp.testing import ProgramContract
from tests.replicas.models import CLASSES, INPUTS, batches, config, replica

CLAIMS = {"0.weight": ParamInfo("embedding", layout="out in"), "2.weight": ParamInfo("readout", layout="out in")}


class OfConfig(ProgramContract):
    """Programs for the shape of ``config``."""

    config = config()
    optimizer = "sgd"
    lrs = (0.05, 0.1)

    def plans(self) -> Sequence[Plan]:
        return [replica(self.config, self.optimizer, lr).plan for lr in self.lrs]

    def foreign_plan(self) -> Plan | None:
        return replica(MLPConfig(INPUTS, CLASSES, width=16, expert_width=8, experts=4), self.optimizer, 0.1).plan

    def batch(self, seed: int) -> tuple[Tensor, Tensor]:
        return batches(seed, steps=1)[0]


class TestMLP(OfConfig):
    def program(self) -> Program:
        return MLPProgram(self.config)


class TestMLPWithTopKAndAdam(OfConfig):
    config, optimizer, lrs = config(active=2), "adam", (0.003, 0.01)

    def program(self) -> Program:
        return MLPProgram(self.config)


class TestModule(OfConfig):
    measured, optimizer, lrs = False, "adamw", (0.003, 0.01)

    def program(self) -> Program:
        return ModuleProgram(MLPMoE(self.config))


class TestModuleWithClaims(OfConfig):
    measured = False

    def foreign_plan(self) -> None:
        """Its module does not say which shape it has."""

    def program(self) -> Program:
        layers = nn.Linear(INPUTS, 32, bias=False), nn.GELU(), nn.Linear(32, CLASSES, bias=False)
        return ModuleProgram(nn.Sequential(*layers), CLAIMS)


class Leaking(MLPProgram):
    """Every replica gets the mean gradient of all."""

    def gradients(self, parameters: Mapping[str, Tensor], constants: Constants, batch: Batch) -> Step:
        step = super().gradients(parameters, constants, batch)
        means = {
            name: g.mean(0, keepdim=True).expand_as(g) for name, g in step.gradients.items() if isinstance(g, Tensor)
        }
        return replace(step, gradients={**step.gradients, **means})


def test_replicas_that_leak_into_each_other_do_not_pass() -> None:
    contract = TestMLP()
    contract.program = lambda: Leaking(config())  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="not close"):
        contract.test_replicas_in_lockstep_are_each_alone()
    with pytest.raises(AssertionError):
        contract.test_a_replica_that_diverges_leaves_its_neighbours_alone()


def test_the_example_of_the_page_passes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    contract = names["TestTwoLayers"]
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) == 8
    for name in tests:
        getattr(contract(), name)()
