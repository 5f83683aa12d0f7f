"""A model measured through hooks: against the MLP's own probe, against torch-module-monitor, and exact sums."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_module_monitor import ModuleMonitor
from torch_module_monitor.refined_coordinate_check import RefinedCoordinateCheck

from mssp import ParamInfo
from mssp.measure.magnitudes import Layer, layer_sizes, rms
from mssp.measure.mlp import MLPProbe
from mssp.measure.modules import Call, ModuleProbe, own_loss
from mssp.measure.moe_layers import own_layer
from mssp.measure.moe_terms import FORWARD, expert_terms
from mssp.measure.quantities import BACKWARD
from mssp.measure.recording import recorded, wide_copy
from mssp.nn import GPT, GPTConfig, MLPConfig, MoE, Router, mlp

MATRIX = "out in"
CLAIMS: dict[str, ParamInfo | str] = {
    "embedding.weight": ParamInfo("embedding", layout=MATRIX),
    "readout.weight": ParamInfo("readout", layout=MATRIX),
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Net(nn.Module):
    """The MLP MoE as a model of one's own."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.embedding = nn.Linear(config.inputs, config.width, bias=False)
        self.moe = MoE(config.width, config.expert_width, config.experts, config.active, gate=config.gate)
        self.readout = nn.Linear(config.width, config.outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.readout(self.moe(F.gelu(self.embedding(x)))[0])
        return out


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def trained(model: nn.Module, batch: Any, loss: Any = cross_entropy, steps: int = 3, lr: float = 0.3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad()


def as_mlp(net: Net) -> dict[str, Tensor]:
    parameters = {
        "embedding": net.embedding.weight,
        "blocks.0.router": net.moe.router.weight,
        "blocks.0.w_in": net.moe.experts.w_in,
        "blocks.0.w_out": net.moe.experts.w_out,
        "readout": net.readout.weight,
    }
    return {name: each.detach().unsqueeze(0) for name, each in parameters.items()}


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize("active", [None, 2])
@pytest.mark.parametrize("zero_readout", [False, True])
def test_it_measures_what_the_probe_of_the_mlp_measures(active: int | None, zero_readout: bool, gate: str) -> None:
    config = MLPConfig(10, 5, width=12, expert_width=6, experts=4, active=active, gate=gate)
    net = Net(config)
    if zero_readout:
        nn.init.zeros_(net.readout.weight)
    batch = (torch.randn(7, 10), torch.randint(5, (7,)))
    factors = mlp.Multipliers(torch.full((1, 1, 1), net.moe.aggregation), torch.ones(1, 1, 1))
    reference = MLPProbe(config, factors, as_mlp(net), *batch)
    probe = ModuleProbe(net, batch, cross_entropy, CLAIMS)
    before = mlp.forward(as_mlp(net), batch[0], config, factors)
    trained(net, batch)
    wanted, found = reference(as_mlp(net)), probe()
    after = mlp.forward(as_mlp(net), batch[0], config, factors)
    # There the features are what the embedding's activation function makes of them; here, what the layer gives.
    wanted["activation/embedding"] = rms(after["embedding"])
    wanted["change/embedding"] = rms(after["embedding"] - before["embedding"])
    assert found.keys() == wanted.keys()
    assert ("backward/A4.1" in found) is not zero_readout
    for name, size in found.items():
        assert size.shape == (1,)
        assert size.dtype == torch.float64
        torch.testing.assert_close(size, wanted[name], rtol=1e-4, atol=1e-9, msg=name)


def test_at_the_start_nothing_has_changed() -> None:
    net = Net(MLPConfig(10, 5, width=12, expert_width=6, experts=4))
    sizes = ModuleProbe(net, (torch.randn(7, 10), torch.randint(5, (7,))), cross_entropy, CLAIMS)()
    changes = ("effective", "propagating", "update", "input-change", "change", "features", "backward/effective")
    for name, size in sizes.items():
        if name.startswith(changes) or name.endswith(("/delta", ".2", "/effective", "/cross", "/A21", "/A22")):
            assert size == 0, name
    assert sizes["gradient/readout"] > 0


# ---- against the literature's implementation


class Expert(nn.Module):
    def __init__(self, width: int, expert_width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, expert_width, bias=False), nn.Linear(expert_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class ExpertModules(nn.Module):
    """A MoE whose experts are modules: all of them on every token, or only on those that chose them."""

    def __init__(self, width: int = 8, experts: int = 3, active: int | None = None) -> None:
        super().__init__()
        self.embedding = nn.Linear(6, width, bias=False)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, 5) for _ in range(experts))
        self.readout = nn.Linear(width, 4)
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        logits = self.router(h)
        gates = torch.sigmoid(logits)
        mixed = torch.zeros_like(h)
        for m, expert in enumerate(self.experts):
            rows = torch.arange(len(x))
            if self.active is not None:
                rows = (logits.topk(self.active).indices == m).any(-1).nonzero().squeeze(1)
            mixed = mixed.index_add(0, rows, gates[rows, m, None] * expert(h[rows]))
        out: Tensor = self.readout(mixed / len(self.experts))
        return out


EXPERT_CLAIMS: dict[str, ParamInfo | str] = {
    **CLAIMS,
    "readout.bias": "bias",
    "router.weight": ParamInfo("router", layout=MATRIX),
    "experts.{expert}.up.weight": ParamInfo("expert_in", layout=MATRIX),
    "experts.{expert}.down.weight": ParamInfo("expert_out", layout=MATRIX),
}


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.readout = nn.Linear(6, 9), nn.Linear(9, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.readout(F.relu(self.hidden(torch.tanh(self.embedding(x)))))
        return out


DENSE_CLAIMS: dict[str, ParamInfo | str] = {
    **CLAIMS,
    "hidden.weight": ParamInfo("hidden", layout=MATRIX),
    "*.bias": "bias",
}


@pytest.mark.parametrize(("build", "claims"), [(Dense, DENSE_CLAIMS), (ExpertModules, EXPERT_CLAIMS)])
def test_it_agrees_with_torch_module_monitor_layer_by_layer(build: Any, claims: dict[str, ParamInfo | str]) -> None:
    """On one token: that package takes the mean of the tokens' norms, and we their root mean square."""
    model, target = build().double(), torch.randint(4, (1,))
    token = torch.randn(1, 6, dtype=torch.float64)  # that package subtracts outputs, which float32 would show
    initial = copy.deepcopy(model)
    # One layer at a time, since layers of one role are pooled: the others are frozen, and so not described.
    probes = {}
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for name in linears:
        for each, parameter in model.named_parameters():
            parameter.requires_grad_(each == f"{name}.weight")
        probes[name] = ModuleProbe(model, (token, target), cross_entropy, claims)
    model.requires_grad_(True)
    trained(model, (token, target), lr=0.1)
    theirs = monitored(model, initial, token)
    assert len(linears) == (3 if build is Dense else 9)
    for name, linear in linears.items():
        sizes = probes[name]()
        (role,) = (each.removeprefix("effective/") for each in sizes if each.startswith("effective/"))
        for ours, title in (("effective", "(W_t-W_0)x_t"), ("propagating", "W_0(x_t-x_0)")):
            wanted = theirs[f"RCC {title}/{name}.weight/l2norm"] / linear.out_features**0.5
            assert float(sizes[f"{ours}/{role}"]) == pytest.approx(wanted, rel=1e-5), name
        for ours, title in (("input", "x_t"), ("input-change", "(x_t-x_0)")):
            wanted = theirs[f"RCC {title}/{name}/l2norm"] / linear.in_features**0.5
            assert float(sizes[f"{ours}/{role}"]) == pytest.approx(wanted, rel=1e-5), name
        assert sizes[f"effective/{role}"] > 0


def monitored(model: nn.Module, initial: nn.Module, x: Tensor) -> dict[str, float]:
    """The refined coordinate check of torch-module-monitor, by its names."""
    monitor: Any = ModuleMonitor(monitor_step_fn=lambda step: True)
    monitor.set_module(model)
    monitor.set_reference_module(initial)
    check: Any = RefinedCoordinateCheck(monitor)
    monitor.begin_step(0)
    initial(x)
    model(x)
    check.refined_coordinate_check()
    monitor.end_step()
    found: dict[str, float] = {name: float(value) for name, value in monitor.get_step_metrics().items()}
    return found


def test_layers_of_one_role_are_pooled() -> None:
    model, batch = ExpertModules(), (torch.randn(5, 6), torch.randint(4, (5,)))
    probe = ModuleProbe(model, batch, cross_entropy, EXPERT_CLAIMS)
    start = copy.deepcopy(model)
    trained(model, batch)
    x = model.embedding(batch[0])
    pairs: list[Any] = list(zip(model.experts, start.experts, strict=True))
    each = [(x @ (now.up.weight - then.up.weight).mT).square().mean() for now, then in pairs]
    wanted = torch.stack(each).mean().sqrt()
    torch.testing.assert_close(probe()["effective/expert_in"].float()[0], wanted.detach())


def test_an_expert_that_sees_other_tokens_has_no_change_of_its_input() -> None:
    model, batch = ExpertModules(active=1), (torch.randn(6, 6), torch.randint(4, (6,)))
    probe = ModuleProbe(model, batch, cross_entropy, EXPERT_CLAIMS)
    assert "propagating/expert_in" in probe()
    nn.init.zeros_(model.router.weight)  # every token to the first expert, and none to the others
    sizes = probe()
    for name in ("propagating/expert_in", "input-change/expert_in", "change/expert_out"):
        assert name not in sizes
    for name in ("effective/expert_in", "activation/expert_out", "gradient/expert_in", "backward/propagating/router"):
        assert name in sizes


# ---- exact sums


OPTIONS: dict[str, dict[str, Any]] = {
    "soft": {},
    "top-2": {"active": 2},
    "gated": {"gated": True, "activation": "silu", "active": 2},
    "softmax": {"gate": "softmax"},
    "renormalised": {"normalise": True, "active": 2},
    "random choice": {"active": 2, "random_bias": 1.0},
    "biases": {"active": 2, "bias": True, "router_bias": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_terms_of_a_moe_layer_add_up(options: dict[str, Any]) -> None:
    moe, x = MoE(8, 5, 4, **options).double(), torch.randn(2, 3, 8, dtype=torch.float64)
    start = copy.deepcopy(moe)
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    x_0, x = x, (x + 0.2 * torch.randn_like(x)).requires_grad_()
    before, _ = passed_through(start, x_0)
    now, out = passed_through(moe, x)
    layer = own_layer(moe)
    first, last = own_layer(start).moment(before, wide_copy), layer.moment(now, wide_copy)
    back = torch.randn_like(out)
    terms = expert_terms(first, last, layer.hidden, [back.flatten(0, 1)[None]])

    total = sum((terms.forward[name] for name in FORWARD), torch.zeros(()))
    torch.testing.assert_close(total.view_as(out), out.detach(), rtol=1e-8, atol=1e-12)

    to_logits = layer.through_gates(layer.routings(now), sum(terms.to_gates[0], torch.zeros(())))
    found = sum((terms.backward[0][name] for name in BACKWARD.terms), to_logits @ moe.router.weight.detach())
    (wanted,) = torch.autograd.grad(out, x, back)
    torch.testing.assert_close(found.view_as(wanted), wanted, rtol=1e-8, atol=1e-12)


def passed_through(moe: MoE, x: Tensor) -> tuple[Any, Tensor]:
    with recorded([moe.router, moe.experts], with_calls=[moe.router]) as passed:
        out, _ = moe(x)
    return passed, out


def test_the_terms_of_a_gpt_add_up() -> None:
    """The same inside a model, and what the two parts of the readout send is all that comes back."""
    model, batch = gpt(active=2, gated=True)
    start = ModuleProbe(model.double(), batch)
    trained(model, batch, own_loss)
    with recorded(start._hooked(), start._with_calls) as now:
        loss = own_loss(model, batch)
    assert loss is not None
    gradients = start._backward(loss, now)
    for moe in start._moes:
        parts = list(gradients.by_sender[moe.experts].values())
        assert len(parts) == 2
        torch.testing.assert_close(parts[0] + parts[1], gradients.at_outputs[moe.experts], rtol=1e-8, atol=1e-12)
        first, last = moe.moment(start._passed_at_start, start._initial.__getitem__), moe.moment(now, wide_copy)
        terms = expert_terms(first, last, moe.hidden, parts)
        total = sum((terms.forward[name] for name in FORWARD), torch.zeros(()))
        torch.testing.assert_close(total, now[moe.experts].y, rtol=1e-8, atol=1e-12)
        to_gates = sum((each for pair in terms.to_gates for each in pair), torch.zeros(()))
        through_router = moe.through_gates(moe.routings(now), to_gates) @ moe.router.get_parameter("weight").detach()
        found = sum((each[name] for each in terms.backward for name in BACKWARD.terms), through_router)
        (wanted,) = torch.autograd.grad(loss, now[moe.experts].input_edges, retain_graph=True)
        torch.testing.assert_close(found.view_as(wanted), wanted * 12, rtol=1e-8, atol=1e-12)


def test_both_ways_to_a_gradient_agree() -> None:
    model, batch = Dense(), (torch.randn(5, 6), torch.randint(4, (5,)))
    weight = model.hidden.weight
    with recorded([model.hidden]) as passed:
        loss = cross_entropy(model, batch)
    now = passed[model.hidden]
    back = now.gradient_rows(torch.autograd.grad(loss, now.output_edges)) * 5
    layer = Layer(weight.detach()[None], now.x)
    of_layer = layer_sizes("hidden", layer, layer, back)["gradient/hidden"]
    by_autograd = ModuleProbe(model, batch, cross_entropy, DENSE_CLAIMS)()["gradient/hidden"]
    torch.testing.assert_close(of_layer, by_autograd, rtol=1e-5, atol=0)


# ---- the Transformer


def gpt(**options: Any) -> tuple[GPT, tuple[Tensor, Tensor]]:
    settings: dict[str, Any] = {"width": 16, "expert_width": 8, "experts": 4, "depth": 2, "vocabulary": 11, "head": 8}
    model = GPT(GPTConfig(**{**settings, "context": 6, **options}))
    return model, (torch.randint(11, (2, 6)), torch.randint(11, (2, 6)))


def test_every_role_of_a_gpt_is_measured() -> None:
    model, batch = gpt(moe_every=2, active=2)
    probe = ModuleProbe(model, batch)  # whose output holds the loss
    trained(model, batch, own_loss)
    sizes, loss = probe.measure()
    matrices = {"embedding", "hidden", "router", "expert_in", "expert_out", "readout"}
    every = matrices | {"norm", "qk_norm", "final_norm"}
    for kind in ("effective", "weights", "update", "gradient"):
        assert {name.removeprefix(f"{kind}/") for name in sizes if name.startswith(f"{kind}/")} == every
    assert {name.removeprefix("propagating/") for name in sizes if name.startswith("propagating/")} == matrices
    assert sizes["propagating/embedding"] == 0
    for name in (
        "features/delta",
        "router/delta",
        "aggregate/cross",
        "backward/E.1",
        "experts/distance",
        "router/load",
    ):
        assert sizes[name] > 0, name
    assert all(size.isfinite() for size in sizes.values())
    assert loss is not None
    assert loss == own_loss(model, batch)


def test_a_lookup_is_measured_on_the_rows_looked_up() -> None:
    model, batch = gpt()
    probe = ModuleProbe(model, batch)
    start = model.embedding.weight.detach().clone()
    with torch.no_grad():
        model.embedding.weight.add_(torch.randn(11, 16))
    update = (model.embedding.weight - start).detach()
    sizes = probe()
    torch.testing.assert_close(sizes["effective/embedding"], rms(update[batch[0].flatten()][None]))
    torch.testing.assert_close(sizes["update/embedding"], rms(update[None]))
    torch.testing.assert_close(sizes["change/embedding"], sizes["effective/embedding"])


def test_gradients_are_over_all_entries_of_a_role() -> None:
    model, batch = gpt()
    sizes = ModuleProbe(model, batch)()
    loss = own_loss(model, batch)
    assert loss is not None
    loss.backward()
    blocks: list[Any] = list(model.blocks)
    hidden = [each.grad for block in blocks for each in (block.attention.qkv.weight, block.attention.out.weight)]
    wanted = torch.cat([each.flatten() for each in hidden]).square().mean().sqrt()
    torch.testing.assert_close(sizes["gradient/hidden"].float()[0], wanted)


def test_checkpointing_and_compiling_change_nothing() -> None:
    model, batch = gpt(checkpointing=True, active=2)
    plain = copy.deepcopy(model)
    plain.config = GPTConfig(**{**vars(model.config), "checkpointing": False})
    compiled: Any = torch.compile(copy.deepcopy(plain), backend="eager")
    found = []
    for each in (plain, model, compiled):
        probe = ModuleProbe(each, batch)
        trained(each, batch, own_loss)
        found.append(probe())
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, size in other.items():
            torch.testing.assert_close(size, found[0][name], rtol=1e-4, atol=1e-9)


def test_tied_and_missing_readouts_send_nothing_in_parts() -> None:
    model, batch = gpt(tied=True)
    sizes = ModuleProbe(model, batch)()
    assert "backward/A4.2" in sizes
    assert "backward/A4.1" not in sizes
    assert "features/delta" not in sizes


def test_a_linear_that_is_tied_to_a_lookup_is_measured_as_the_readout() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.readout = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.readout.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.readout(torch.tanh(self.embedding(x)))
            return out

    model, batch = Tied(), (torch.randint(7, (5,)), torch.randint(7, (5,)))
    claims: dict[str, ParamInfo | str] = {**CLAIMS, "embedding.weight": ParamInfo("embedding", layout="vocab out")}
    probe = ModuleProbe(model, batch, cross_entropy, claims)
    trained(model, batch)
    sizes = probe()
    assert {"effective/readout", "effective/embedding", "features/delta", "gradient/embedding"} <= sizes.keys()
    assert "gradient/readout" not in sizes


def test_a_layer_that_is_called_twice_has_the_rows_of_both_calls() -> None:
    class Twice(Dense):
        def forward(self, x: Tensor) -> Tensor:
            halves = [self.hidden(torch.tanh(self.embedding(part))) for part in x.split(2)]
            out: Tensor = self.readout(F.relu(torch.cat(halves), inplace=True))
            return out

    once, batch = Dense(), (torch.randn(5, 6), torch.randint(4, (5,)))
    twice = Twice()
    twice.load_state_dict(once.state_dict())
    found = []
    for model in (once, twice):
        probe = ModuleProbe(model, batch, cross_entropy, DENSE_CLAIMS)
        trained(model, batch)
        found.append(probe())
    for name, size in found[0].items():
        torch.testing.assert_close(size, found[1][name], rtol=1e-5, atol=1e-9)


def test_a_shared_moe_layer_is_measured_over_all_its_calls() -> None:
    class Shared(Net):
        def forward(self, x: Tensor) -> Tensor:
            parts = [self.moe(F.gelu(self.embedding(part)))[0] for part in x.split(4)]
            out: Tensor = self.readout(torch.cat(parts))
            return out

    config = MLPConfig(10, 5, width=12, expert_width=6, experts=4, active=2)
    once, batch = Net(config), (torch.randn(7, 10), torch.randint(5, (7,)))
    shared = Shared(config)
    shared.load_state_dict(once.state_dict())
    found = []
    for model in (once, shared):
        probe = ModuleProbe(model, batch, cross_entropy, CLAIMS)
        trained(model, batch)
        found.append(probe())
    assert found[0].keys() == found[1].keys()
    for name, size in found[0].items():
        torch.testing.assert_close(size, found[1][name], rtol=1e-4, atol=1e-9)


def test_values_are_those_before_writing_in_place() -> None:
    class InPlace(Dense):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.readout(F.relu(self.hidden(torch.tanh(self.embedding(x))), inplace=True))
            return out

    plain, batch = Dense(), (torch.randn(5, 6), torch.randint(4, (5,)))
    in_place = InPlace()
    in_place.load_state_dict(plain.state_dict())
    wanted, found = (ModuleProbe(each, batch, cross_entropy, DENSE_CLAIMS)() for each in (plain, in_place))
    for name, size in wanted.items():
        torch.testing.assert_close(size, found[name], msg=name)


def test_half_precision_is_measured_in_float32() -> None:
    model, batch = gpt(active=2)
    probe = ModuleProbe(model.bfloat16(), batch)
    trained(model, batch, own_loss)
    sizes = probe()
    assert all(size.dtype == torch.float64 and size.isfinite() for size in sizes.values())
    assert sizes["effective/expert_out"] > 0


def test_a_router_alone() -> None:
    router, x = Router(8, 4, active=2), torch.randn(5, 8)
    probe = ModuleProbe(router, x, lambda model, x: model(x).gates.square().sum())
    with torch.no_grad():
        router.weight.mul_(3)
    sizes = probe()
    assert {"effective/router", "router/delta", "router/highest", "router/load", "gradient/router"} <= sizes.keys()
    torch.testing.assert_close(sizes["router/delta"], sizes["effective/router"])


# ---- nothing is left behind


class Counting(nn.Module):
    """A model that counts its calls in a buffer, and draws random numbers whether it trains or not."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Linear(4, 3, bias=False)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        out: Tensor = self.readout(x + 0.1 * torch.randn_like(x))
        return out


def test_a_probe_leaves_the_model_as_it_was() -> None:
    model, batch = gpt(active=2, noise=1.0)
    trained(model, batch, own_loss)
    loss = own_loss(model, batch)
    assert loss is not None
    loss.backward()
    model.blocks[0].eval()
    flags = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    rng = torch.get_rng_state()
    ModuleProbe(model, batch)()
    assert torch.equal(rng, torch.get_rng_state())
    assert flags == [module.training for module in model.modules()]
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    left = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(grads, left, strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    counting, x = Counting(), torch.randn(5, 4)
    rng = torch.get_rng_state()
    ModuleProbe(counting, x, lambda model, x: model(x).mean(), {"readout.weight": CLAIMS["readout.weight"]})()
    assert counting.calls == 0
    assert counting.last is None
    assert torch.equal(rng, torch.get_rng_state())


def test_hooks_are_gone_after_an_error() -> None:
    model, (tokens, _) = gpt()
    with pytest.raises(ValueError, match="tokens are whole numbers"):
        ModuleProbe(model, (tokens.float(),))
    assert not any(module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())


def test_noise_in_the_routing_is_off() -> None:
    model, batch = gpt(active=1, noise=100.0)
    probe = ModuleProbe(model, batch)
    assert probe()["change/aggregate"] == 0


def test_autocast_around_a_probe_does_not_count() -> None:
    model, batch = gpt()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        probe = ModuleProbe(model, batch)
    assert probe()["change/readout"] == 0


def test_without_a_loss_only_the_forward_pass_is_measured() -> None:
    model, (tokens, _) = gpt()
    for batch in (tokens, (tokens,), {"tokens": tokens}, Call((), {"tokens": tokens})):
        sizes, loss = ModuleProbe(model, batch).measure()
        assert loss is None
        assert {"effective/readout", "aggregate/A22", "weights/norm"} <= sizes.keys()
        assert not any(name.startswith(("gradient", "backward")) for name in sizes)


def test_what_is_frozen_on_the_way_has_no_gradient() -> None:
    model, batch = gpt()
    probe = ModuleProbe(model, batch)
    model.embedding.requires_grad_(False)
    sizes = probe()
    assert sizes["gradient/embedding"] == 0
    assert sizes["gradient/hidden"] > 0


def test_what_cannot_be_measured_is_refused() -> None:
    model, batch = gpt()
    with pytest.raises(ValueError, match=r"a loss is one number that depends on the parameters, got \(2, 6, 11\)"):
        ModuleProbe(model, batch, lambda model, batch: model(batch[0]).logits)()
    with pytest.raises(ValueError, match="a loss is one number that depends on the parameters, got one without a grad"):
        ModuleProbe(model, batch, lambda model, batch: torch.zeros(()))()
    with pytest.raises(ValueError, match="the model has no trainable parameters to measure"):
        ModuleProbe(nn.GELU(), batch)


def test_sharded_parameters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = gpt()
    monkeypatch.setattr("mssp.measure.modules.is_sharded", lambda tensor: True)  # as if every one were
    with pytest.raises(ValueError, match=r"embedding.weight is sharded, and a probe reads whole parameters"):
        ModuleProbe(model, batch)
