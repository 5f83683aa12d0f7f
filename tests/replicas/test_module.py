"""Any module as replicas: the same trajectories as alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mssp
from mssp import ParamInfo
from mssp.nn import GPT, GPTConfig, MLPMoE
from mssp.replicas import Lockstep, MLPProgram, ModuleProgram, Replica
from tests.replicas.models import CLASSES, INPUTS, OPTIMIZERS, batches, config, replica

CLAIMS = {"0.weight": ParamInfo("embedding", layout="out in"), "2.weight": ParamInfo("readout", layout="out in")}


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 32, bias=False), nn.GELU(), nn.Linear(32, CLASSES, bias=False))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_module_of_ones_own(optimizer: str) -> None:
    replicas = [replica(config(), optimizer, 0.01 * 1.3**r, seed=r // 2, aggregation_mult=1.0) for r in range(4)]
    lockstep = Lockstep(ModuleProgram(two_layers(), CLAIMS), replicas)
    data = [batches(seed) for seed in lockstep.seeds]
    for step in range(60):
        x, targets = (torch.stack([batch[step][part] for batch in data]) for part in (0, 1))
        losses = lockstep.step(x, targets)[:, 0]
    for index, chosen in enumerate(replicas):
        model = two_layers()
        mssp.initialize(model, chosen.plan, CLAIMS, seed=chosen.seed)
        steps = OPTIMIZERS[optimizer](mssp.param_groups(model, chosen.plan, CLAIMS))
        for inputs, targets in batches(chosen.seed)[:60]:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            steps.zero_grad()
            loss.backward()
            steps.step()
        assert losses[index].item() == pytest.approx(loss.item(), rel=1e-5)


def test_the_mlp_as_a_module_is_the_mlp_as_a_program() -> None:
    replicas = [replica(config(), "adam", 0.01 * 1.3**r) for r in range(3)]
    found = []
    for program in (MLPProgram(config()), ModuleProgram(MLPMoE(config()))):
        lockstep = Lockstep(program, replicas)
        for x, targets in batches(0)[:30]:
            losses = lockstep.step(x.unsqueeze(0), targets.unsqueeze(0))
        held_out = lockstep.evaluate(*batches(5)[0], batch=5)
        found.append((losses, held_out))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, of attention under vmap
def test_a_gpt() -> None:
    small = GPTConfig(
        vocabulary=13, context=8, width=32, head=16, depth=2, experts=4, active=2, expert_width=16, dispatch="dense"
    )
    plans = [mssp.plan(small.shape, regime="III", optimizer="adam", lr=lr) for lr in (1e-3, 1e-2)]
    lockstep = Lockstep(ModuleProgram(GPT(small)), [Replica(plan) for plan in plans])
    tokens = torch.randint(13, (1, 4, 9), generator=torch.Generator().manual_seed(0))
    first = lockstep.step(tokens[..., :-1], tokens[..., 1:])
    for _ in range(20):
        last = lockstep.step(tokens[..., :-1], tokens[..., 1:])
    assert first[0].tolist() == first[1].tolist()  # the same seed
    assert (last[:, 0] < first[:, 0]).all()
    assert last[1, 0] < last[0, 0]


def test_a_module_has_one_forward_pass() -> None:
    replicas = [replica(config(), "sgd", 0.1, aggregation_mult=mult) for mult in (1.0, 2.0)]
    with pytest.raises(ValueError, match=r"replicas of a module share its multipliers: aggregation is 0\.25 in"):
        Lockstep(ModuleProgram(MLPMoE(config())), replicas)


def test_programs_keep_to_themselves() -> None:
    model = MLPMoE(config())
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    program = ModuleProgram(model)
    Lockstep(program, [replica(config(), "sgd", 0.1, aggregation_mult=1.0)])
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    with pytest.raises(ValueError, match="make a program for each"):
        Lockstep(program, [replica(config(), "sgd", 0.1, aggregation_mult=2.0)])


def test_a_diverged_module_is_frozen() -> None:
    replicas = [replica(config(), "sgd", lr, aggregation_mult=1.0) for lr in (0.01, 1e25)]
    lockstep = Lockstep(ModuleProgram(two_layers(), CLAIMS), replicas)
    losses: Tensor = torch.empty(0)
    for x, targets in batches(0)[:10]:
        losses = lockstep.step(x.unsqueeze(0), targets.unsqueeze(0))[:, 0]
    assert lockstep.diverged_at[0] is None
    assert lockstep.diverged_at[1] is not None
    assert losses[0].isfinite()
    assert losses[1].isnan()
