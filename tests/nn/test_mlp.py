"""The MLP MoE: the formula, replicas, treatments, losses, the plan."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mssp
from mssp.nn import MLPConfig, MLPMoE, mlp
from mssp.nn.mlp import Multipliers

CONFIG = MLPConfig(inputs=6, outputs=3, width=8, expert_width=4, experts=4)


def model(config: MLPConfig = CONFIG, seed: int = 0) -> MLPMoE:
    torch.manual_seed(seed)
    return MLPMoE(config).double()


def inputs(batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def test_activations_are_the_papers_formula() -> None:
    net, x = model(), inputs()
    net.aggregation = 0.3
    acts, p = net.activations(x), dict(net.named_parameters())
    for b in range(len(x)):
        h = F.gelu(p["embedding"] @ x[b])
        gates = torch.sigmoid(p["blocks.0.router"] @ h)
        mixed = torch.zeros(8, dtype=torch.float64)
        for m in range(4):
            pre = p["blocks.0.w_in"][m] @ h
            torch.testing.assert_close(acts["blocks.0.expert_in"][b, m], pre)
            mixed += gates[m] * (p["blocks.0.w_out"][m].T @ F.gelu(pre))
        torch.testing.assert_close(acts["embedding"][b], p["embedding"] @ x[b])
        torch.testing.assert_close(acts["features"][b], h)
        torch.testing.assert_close(acts["blocks.0.router"][b], p["blocks.0.router"] @ h)
        torch.testing.assert_close(acts["blocks.0.gates"][b], gates)
        torch.testing.assert_close(acts["blocks.0.aggregate"][b], 0.3 * mixed)
        torch.testing.assert_close(acts["readout"][b], p["readout"] @ (0.3 * mixed))


VARIANTS: dict[str, dict[str, Any]] = {
    "soft": {},
    "top-K": {"active": 2},
    "softmax": {"gate": "softmax", "inverse_temperature": 2.0},
    "normalised": {"active": 2, "normalise": True},
    "blocks": {"blocks": 3},
    "residual": {"blocks": 2, "residual": True},
    "rmsnorm": {"after_aggregation": "rmsnorm"},
    "sigmoid": {"after_aggregation": "sigmoid", "activation": "tanh"},
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shared_input", [True, False])
def test_replicas_are_models_side_by_side(name: str, shared_input: bool) -> None:
    config = replace(CONFIG, **VARIANTS[name])
    models = [model(config, seed) for seed in range(3)]
    parameters = [dict(net.named_parameters()) for net in models]
    stacked = {key: torch.stack([each[key] for each in parameters]).detach().requires_grad_() for key in parameters[0]}
    batches = [inputs() * (1 if shared_input else 1 + r) for r in range(3)]
    targets = torch.tensor([0, 1, 2, 0, 1])
    factors = Multipliers(0.5, 0.25)
    acts = mlp.forward(stacked, batches[0] if shared_input else torch.stack(batches), config, factors)
    losses = mlp.loss(acts["readout"], targets, "cross_entropy")
    gradients = torch.autograd.grad(losses.sum(), list(stacked.values()))
    for r in range(3):
        alone = mlp.forward(parameters[r], batches[r], config, factors)
        assert alone.keys() == acts.keys()
        for key, tensor in alone.items():
            torch.testing.assert_close(acts[key][r], tensor, rtol=1e-10, atol=1e-12)
        loss = mlp.loss(alone["readout"], targets, "cross_entropy")
        torch.testing.assert_close(losses[r], loss)
        for stack, gradient in zip(gradients, torch.autograd.grad(loss, list(parameters[r].values())), strict=True):
            torch.testing.assert_close(stack[r], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradcheck(name: str) -> None:
    config = replace(CONFIG, inputs=3, width=4, expert_width=2, experts=3, outputs=2, **VARIANTS[name])
    net = model(config)
    names, tensors = zip(*net.named_parameters(), strict=True)
    x = inputs(2)[:, :3]

    def outputs(*given: torch.Tensor) -> torch.Tensor:
        factors = Multipliers.default(config)
        return mlp.forward(dict(zip(names, given, strict=True)), x, config, factors)["readout"]

    assert torch.autograd.gradcheck(outputs, tensors)


def test_treated_aggregates_are_normal_however_small() -> None:
    net = model(replace(CONFIG, after_aggregation="rmsnorm")).float()
    net.aggregation = 1e-4
    size = net.activations(inputs().float())["blocks.0.output"].square().mean(-1)
    torch.testing.assert_close(size, torch.ones(5), rtol=1e-2, atol=0)


def test_treatments() -> None:
    normal = model(replace(CONFIG, after_aggregation="rmsnorm")).activations(inputs())
    torch.testing.assert_close(normal["blocks.0.output"].square().mean(-1), torch.ones(5, dtype=torch.float64))
    squashed = model(replace(CONFIG, after_aggregation="sigmoid")).activations(inputs())
    torch.testing.assert_close(squashed["blocks.0.output"], squashed["blocks.0.aggregate"].sigmoid())
    net = model(replace(CONFIG, residual=True, blocks=2))
    net.residual = 0.25
    kept = net.activations(inputs())
    torch.testing.assert_close(kept["blocks.0.output"], kept["features"] + 0.25 * kept["blocks.0.aggregate"])
    torch.testing.assert_close(kept["blocks.1.output"], kept["blocks.0.output"] + 0.25 * kept["blocks.1.aggregate"])


def test_losses_by_hand() -> None:
    outputs = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    targets = torch.tensor([1, 0])
    assert mlp.loss(outputs, targets, "cross_entropy").item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    # Half the squared distance to the one-hot targets: (0, -1) and (log 3 - 1, 0).
    half = (1 / 2 + (math.log(3) - 1) ** 2 / 2) / 2
    assert mlp.loss(outputs, targets, "mse").item() == pytest.approx(half)
    assert mlp.loss(outputs, F.one_hot(targets).float(), "mse").item() == pytest.approx(half)
    assert mlp.loss(torch.stack([outputs, outputs]), targets, "mse").tolist() == pytest.approx([half, half])


def test_losses_are_summed_in_float32() -> None:
    outputs = torch.full((3, 1000), 1.0, dtype=torch.bfloat16)
    assert mlp.loss(outputs, torch.zeros(3, 1000), "mse").item() == 500.0
    assert mlp.loss(outputs, torch.tensor([0, 1, 2]), "cross_entropy").dtype == torch.float32


def test_fresh_weights_are_of_the_size_of_their_inputs() -> None:
    net = MLPMoE(MLPConfig(inputs=50, outputs=9, width=64, expert_width=8, experts=64))
    assert net.get_parameter("blocks.0.w_out").std().item() == pytest.approx(8**-0.5, rel=0.05)
    assert net.get_parameter("blocks.0.w_in").std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert net.get_parameter("embedding").std().item() == pytest.approx(50**-0.5, rel=0.1)


def test_a_factor_that_is_not_used_is_not_checked() -> None:
    config = replace(CONFIG, blocks=3)
    net, plan = MLPMoE(config), mssp.plan(config.shape, regime="III", lr=0.1, scheme="mup")
    mssp.verify(net, torch.optim.AdamW(mssp.param_groups(net, plan)), plan)


def test_the_shape_of_a_config() -> None:
    assert replace(CONFIG, experts=16).shape.active == 16
    assert CONFIG.shape == mssp.Shape(width=8, expert_width=4, experts=4, active=4, depth=1, inputs=6)
    assert replace(CONFIG, active=2, blocks=3, residual=True).shape.depth == 3
    assert replace(CONFIG, blocks=3).shape.depth == 1  # depth multipliers belong to residual branches


@pytest.mark.parametrize("scheme", ["mssp", "mup"])
@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_one_call_applies_a_plan(scheme: str, regime: str) -> None:
    config = MLPConfig(inputs=300, outputs=10, width=64, expert_width=32, experts=16)
    net = MLPMoE(config)
    plan = mssp.plan(config.shape, regime=regime, scheme=scheme, optimizer="sgd", lr=0.1, aggregation_mult=2.0)
    mssp.initialize(net, plan, seed=3)
    assert net.aggregation == 2 / 16
    for info in mssp.describe(net):
        parameter = net.get_parameter(info.name)
        values = plan.roles[info.role]
        if values.zero:
            assert not parameter.any()
        else:
            entries = parameter[0] if values.shared == 1 else parameter
            assert entries.std().item() == pytest.approx(values.init_std, rel=4 / (2 * entries.numel()) ** 0.5)
    mssp.verify(net, torch.optim.SGD(mssp.param_groups(net, plan)), plan)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_it_learns(loss: str) -> None:
    config = MLPConfig(inputs=6, outputs=3, width=32, expert_width=16, experts=4, loss=loss)
    net = MLPMoE(config)
    plan = mssp.plan(config.shape, regime="III", optimizer="adam", lr=0.1)
    mssp.initialize(net, plan)
    optimizer = torch.optim.Adam(mssp.param_groups(net, plan))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=generator)
    y = x[:, :3].argmax(-1)
    losses = []
    for _ in range(60):
        value = net.loss(x, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.3 * losses[0]


def test_noise_decides_between_equal_logits() -> None:
    config = replace(CONFIG, active=2)
    plan = mssp.plan(config.shape, regime="I", lr=0.1)
    noisy = MLPMoE(replace(config, noise=0.1))
    mssp.initialize(noisy, plan)
    with torch.no_grad():
        noisy.get_parameter("blocks.0.router").zero_()
    gates = noisy.activations(torch.randn(200, 6))["blocks.0.gates"]
    assert ((gates > 0).sum(-1) == 2).all()
    assert ((gates > 0).float().mean(0) - 0.5).abs().max() < 0.15
    fixed = noisy.eval().activations(torch.randn(200, 6))["blocks.0.gates"]
    assert ((fixed > 0) == (fixed[0] > 0)).all()


def test_routing_is_in_float32_under_autocast() -> None:
    net = MLPMoE(replace(CONFIG, active=2))
    x = inputs().float()
    with torch.autocast("cpu", torch.bfloat16):
        acts = net.activations(x)
    assert acts["blocks.0.router"].dtype == acts["blocks.0.gates"].dtype == torch.float32
    exact = acts["features"].float() @ net.get_parameter("blocks.0.router").T
    torch.testing.assert_close(acts["blocks.0.router"], exact)
    assert net.bfloat16().activations(x.bfloat16())["blocks.0.router"].dtype == torch.float32


def test_every_block_has_noise_of_its_own() -> None:
    torch.manual_seed(0)
    net = MLPMoE(replace(CONFIG, active=2, blocks=2, noise=1.0))
    for name, parameter in net.named_parameters():
        if name.endswith("router"):
            torch.nn.init.zeros_(parameter)
    acts = net.activations(torch.randn(50, 6))
    same = (acts["blocks.0.gates"] > 0) == (acts["blocks.1.gates"] > 0)
    assert 0.2 < same.all(-1).float().mean() + 0.2 < 0.6


def test_factors_are_saved_with_the_weights() -> None:
    net, again = model(), model(seed=1)
    net.aggregation = 0.7
    again.load_state_dict(net.state_dict())
    assert again.aggregation == 0.7
    assert torch.equal(again(inputs()), net(inputs()))


@pytest.mark.parametrize(
    ("outputs", "targets", "kind", "message"),
    [
        ((3, 1), torch.zeros(3), "mse", r"targets \(3,\) do not go with outputs \(3, 1\)"),
        ((2, 3), torch.zeros(2, 1), "mse", r"targets \(2, 1\) do not go with outputs \(2, 3\)"),
        ((2, 3), torch.zeros(3, dtype=torch.long), "cross_entropy", r"targets \(3,\) do not go with"),
        ((2, 3), torch.zeros(2), "cross_entropy", "cross_entropy takes classes, which are whole numbers, got"),
        ((2, 3), torch.zeros(2, dtype=torch.long), "hinge", "loss must be one of cross_entropy, mse, got 'hinge'"),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    outputs: tuple[int, ...], targets: torch.Tensor, kind: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mlp.loss(torch.zeros(outputs), targets, kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be a positive whole number, got 0"),
        ({"active": 9}, "active = 9 of 4 experts"),
        ({"gate": "relu"}, "gate must be one of sigmoid, softmax, got 'relu'"),
        ({"activation": "swish"}, "activation must be one of gelu, relu, silu, tanh, identity, got 'swish'"),
        ({"after_aggregation": "layernorm"}, "after_aggregation must be one of nothing, rmsnorm"),
        ({"noise": -1.0}, "noise must be a number of at least 0"),
        ({"inverse_temperature": 0.0}, "inverse_temperature must be a positive number"),
        ({"loss": "hinge"}, "loss must be one of cross_entropy, mse, got 'hinge'"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **change)


def test_wrong_inputs_and_wrong_plans_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the model takes inputs \[batch, 6\], got \(5, 7\)"):
        model()(torch.ones(5, 7))
    other = mssp.plan(mssp.Shape(8, 4, 4, 2, 1, 6), regime="III", lr=0.1, scheme="mup")
    with pytest.raises(ValueError, match=r"the plan is for Shape\(.*K=2.*, the model is Shape\(.*K=4"):
        mssp.initialize(model(), other)
