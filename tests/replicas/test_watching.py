"""A few measured steps, of any program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from mssp.measure.mlp import MLPProbe
from mssp.nn.mlp import MLPMoE, Multipliers
from mssp.replicas import Lockstep, MLPProgram, ModuleProgram
from mssp.replicas.program import Constants, Probe
from mssp.replicas.watching import watch
from tests.replicas.models import batches, config, replica

STEPS = 3


def watched(lockstep: Lockstep) -> Mapping[str, np.ndarray]:
    steps = [(x.unsqueeze(0), targets.unsqueeze(0)) for x, targets in batches(0, STEPS)]
    return watch(lockstep, steps[0], steps)


def test_the_mlps_sizes_are_its_probes() -> None:
    replicas = [replica(config(), "adam", lr, aggregation_mult=mult) for lr, mult in ((0.01, 1.0), (0.02, 3.0))]
    lockstep = Lockstep(MLPProgram(config()), replicas, measure_gradients=True)
    start = {name: each.clone() for name, each in lockstep.parameters.items()}
    aggregation = lockstep.constants["aggregation"]
    found = watched(lockstep)
    x, targets = batches(0, 1)[0]
    probe = MLPProbe(config(), Multipliers(aggregation, 1.0), start, x.unsqueeze(0), targets.unsqueeze(0))
    for step, parameters in ((0, start), (STEPS, lockstep.parameters)):
        for name, size in probe(parameters).items():
            assert found[name][step].tolist() == size.tolist(), name
    assert aggregation.flatten().tolist() == [0.25, 0.75]
    assert found["aggregation"].tolist() == [[0.25, 0.75]] * (STEPS + 1)
    assert found["loss"].shape == (STEPS + 1, 2)
    assert np.isnan(found["loss"][-1]).all()
    assert (np.diff(found["gradient-sum/router"][1:], axis=0) > 0).all()


def test_watching_knows_a_program_and_no_more() -> None:
    class Short(ModuleProgram):
        """A module with one term, and one factor."""

        def probe(self, parameters: Mapping[str, Tensor], constants: Constants, x: Tensor, targets: Tensor) -> Probe:
            start = parameters["readout"].clone()
            return lambda now: {"moved": (now["readout"] - start).flatten(1).norm(dim=1).double()}

        def factors(self, constants: Constants) -> Mapping[str, Tensor]:
            return {"branch": torch.tensor([0.5, 0.5])}

    replicas = [replica(config(), "sgd", lr, aggregation_mult=1.0) for lr in (0.01, 0.02)]
    found = watched(Lockstep(Short(MLPMoE(config())), replicas, measure_gradients=True))
    assert found["moved"][0].tolist() == [0.0, 0.0]
    assert (found["moved"][1:] > 0).all()
    assert found["branch"].tolist() == [[0.5, 0.5]] * (STEPS + 1)
    assert "aggregation" not in found


def test_modules_are_measured_elsewhere() -> None:
    lockstep = Lockstep(
        ModuleProgram(MLPMoE(config())), [replica(config(), "sgd", 0.1, aggregation_mult=1.0)], measure_gradients=True
    )
    with pytest.raises(
        ValueError, match=r"replicas of MLPMoE are not measured term by term: mssp\.check\(build, \.\.\.\) measures"
    ):
        watched(lockstep)
