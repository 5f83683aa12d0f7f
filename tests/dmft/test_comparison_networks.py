"""Networks of finite width: the numbers of one, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mssp
from mssp import Shape
from mssp.dmft import example
from mssp.dmft.comparison import compare, trained
from mssp.dmft.observables import relative
from mssp.dmft.solution import solve
from mssp.nn import MLPMoE

CPU = torch.device("cpu")


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_a_network_is_what_the_library_initialises_and_trains(regime: str) -> None:
    """Against a module with its own plan, torch's SGD, and derivatives by autograd of one output at a time."""
    of = example(regime, "mssp", inputs=2, test_inputs=1, steps=3)
    (found,) = trained(of, 32, [5], CPU)
    plan, config = of.member(32), of.config(32)
    model = MLPMoE(config)
    mssp.initialize(model, plan, seed=5)
    optimizer = torch.optim.SGD(mssp.param_groups(model, plan))
    x, y = torch.from_numpy(of.all_inputs).float(), torch.from_numpy(of.targets).float()
    for step in range(4):
        acts = model.activations(x)
        assert found["f"][step] == pytest.approx(acts["readout"][:, 0].detach().numpy(), abs=2e-5)
        loss = model.loss(x[:2], y.unsqueeze(1))
        assert found["loss"][step] == pytest.approx(loss.item(), rel=1e-4)
        back = [
            torch.autograd.grad(acts["readout"][row, 0], acts["embedding"], retain_graph=True)[0] for row in range(3)
        ]
        g1 = 32 * torch.stack([back[row][row] for row in range(3)]).double()
        rows = slice(3 * step, 3 * step + 3)
        assert found["g1"][rows, rows] == pytest.approx((g1 @ g1.T / 32).numpy(), abs=1e-5)
        phi1, phi3 = acts["features"].detach().double(), acts["blocks.0.aggregate"].detach().double()
        assert found["phi1"][rows, rows] == pytest.approx((phi1 @ phi1.T / 32).numpy(), rel=1e-4)
        assert found["phi3"][rows, rows] == pytest.approx((phi3 @ phi3.T / 32).numpy(), rel=1e-3, abs=1e-5)
        psi = acts["blocks.0.router"].detach()
        assert found["router_mean"][step] == pytest.approx(psi.mean(-1).numpy(), abs=1e-5)
        assert found["router_variance"][step] == pytest.approx(psi.var(-1).numpy(), rel=1e-3, abs=1e-7)
        v = 32 * model.get_parameter("readout").detach()[0].double()
        assert found["g3"][step, step] == pytest.approx(float(v @ v / 32), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_networks_in_groups_are_those_trained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    of = example("II", "mssp", inputs=2, steps=3)
    whole = trained(of, 16, range(5), CPU)
    monkeypatch.setattr("mssp.dmft.comparison._BYTES_AT_ONCE", {"cpu": 1})
    for one, other in zip(whole, trained(of, 16, range(5), CPU), strict=True):
        assert one["f"] == pytest.approx(other["f"], abs=1e-5)


@pytest.mark.parametrize("scheme", ["mssp", "mup"])
def test_top_k_in_regime_two_comes_to_its_limit(scheme: str) -> None:
    half = Shape(width=16, expert_width=2, experts=8, active=4, depth=1)
    of = example("II", scheme, inputs=2, steps=8, smallest=half, readout="mup")
    limit = solve(of, samples=10_000, solves=4)
    all_active = solve(example("II", scheme, inputs=2, steps=8, readout="mup"), samples=10_000, solves=2)
    networks = trained(of, 256, range(60), CPU)
    mean = {name: np.mean([each[name] for each in networks], 0) for name in limit.mean}
    for name in ("f", "phi1", "phi2", "router_gradient"):
        assert relative(mean[name] - limit.mean[name], limit.mean[name]) < 0.08
        assert name == "phi1" or relative(mean[name] - all_active.mean[name], limit.mean[name]) > 0.2


def test_softmax_gates_come_to_the_limit_while_their_tails_are_not_seen() -> None:
    of = example("II", "mssp", gate="softmax", inputs=2, steps=8, lr=0.03, stds={"router": 0.3}, readout="mup")
    limit = solve(of, samples=10_000, solves=3)
    networks = trained(of, 256, range(60), CPU)
    mean = {name: np.mean([each[name] for each in networks], 0) for name in limit.mean}
    for name in ("f", "phi1", "phi2", "phi3", "router_variance"):
        assert relative(mean[name] - limit.mean[name], limit.mean[name]) < 0.1
    sigmoid = solve(example("II", "mssp", inputs=2, steps=8, lr=0.03, readout="mup"), samples=4_000, solves=2)
    assert relative(mean["phi3"] - sigmoid.mean["phi3"], mean["phi3"]) > 0.5


def test_networks_of_one_expert_have_no_spread_over_experts() -> None:
    solution = solve(example("II", "mssp", inputs=2, steps=2), samples=400, solves=1)
    [narrowest] = compare(solution, [2], seeds=2).widths
    assert not narrowest.networks.mean["router_variance"].any()
    assert math.isfinite(narrowest.deviation["router_variance"])
