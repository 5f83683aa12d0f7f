from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mssp
from mssp import ParamInfo, Plan, PlanWarning, Shape
from mssp.apply.initial_weights import draw, draw_normals
from mssp.apply.random_numbers import BLOCK
from mssp.planning.rules import ROLES
from own_transformer import CLAIMS, Transformer, batch

SHAPE = Shape(width=64, expert_width=32, experts=4, active=4, depth=2)
LARGE = Shape(width=128, expert_width=64, experts=8, active=8, depth=2)


def make(shape: Shape = SHAPE, regime: str = "III", **options: Any) -> Plan:
    return mssp.plan(shape, regime=regime, **{"lr": 1e-2, **options})


def ready(plan: Plan, seed: int = 0) -> nn.Module:
    model = Transformer(plan)
    mssp.initialize(model, plan, CLAIMS, seed=seed)
    return model


def backward(model: nn.Module, step: int = 0) -> torch.Tensor:
    tokens, following = batch(step, size=4)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
    loss.backward()
    return loss.detach()


# -- initial values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", ["I", "II", "III"])
@pytest.mark.parametrize("scheme", ["mssp", "mup"])
def test_initial_values_follow_the_plan(scheme: str, regime: str) -> None:
    plan = make(LARGE, regime, scheme=scheme, init_mult={"all": 0.5}, readout="mup")
    model = ready(plan)
    values = plan.resolve(mssp.describe(model, CLAIMS))
    for name, parameter in model.named_parameters():
        expected = values[name]
        if expected.zero:
            assert not parameter.any(), name
        elif name.endswith("norm.weight") or ".norm_" in name:
            assert (parameter == 1).all(), name
        else:
            # A tied tensor has as many independent entries as one expert.
            independent = parameter[0] if expected.shared == 1 else parameter
            tolerance = 4 / (2 * independent.numel()) ** 0.5
            assert parameter.std().item() == pytest.approx(expected.init_std, rel=tolerance), name


def test_tied_experts_are_equal_to_the_bit_and_others_are_not() -> None:
    tied, free = ready(make()), ready(make(scheme="mup"))
    for name in ("blocks.0.moe.w_in", "blocks.1.moe.w_out"):
        assert (tied.get_parameter(name) == tied.get_parameter(name)[:1]).all()
        assert (free.get_parameter(name)[0] != free.get_parameter(name)[1]).any()
    assert (tied.get_parameter("blocks.0.moe.w_in") != tied.get_parameter("blocks.1.moe.w_in")).any()


def test_the_values_depend_on_seed_and_name_alone() -> None:
    plan = make(scheme="mup", regime="II")
    reference = ready(plan).state_dict()
    assert all(torch.equal(v, reference[k]) for k, v in ready(plan).state_dict().items())
    assert not torch.equal(ready(plan, seed=1).state_dict()["embed.weight"], reference["embed.weight"])
    model = Transformer(plan)
    reversed_claims = dict(reversed(CLAIMS.items()))
    torch.manual_seed(123)
    mssp.initialize(model, plan, reversed_claims)
    assert all(torch.equal(v, reference[k]) for k, v in model.state_dict().items())
    compiled: Any = torch.compile(Transformer(plan))
    mssp.initialize(compiled, plan, CLAIMS)
    assert torch.equal(compiled.state_dict()["_orig_mod.embed.weight"], reference["embed.weight"])


@pytest.mark.filterwarnings("ignore:.* is rounded away:mssp.PlanWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes_are_roundings_of_the_same_draw(dtype: torch.dtype) -> None:
    plan = make(scheme="mup")
    reference = ready(plan)
    other = Transformer(plan).to(dtype)
    mssp.initialize(other, plan, CLAIMS)
    for (name, a), b in zip(reference.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-2 if dtype != torch.float64 else 1e-6, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_the_row_of_padding_stays_zero(kind: type[nn.Module]) -> None:
    """As torch starts it: it has no gradient, so that what is drawn there would stay for ever."""
    table, plain = (kind(12, 64, padding_idx=padding) for padding in (-3, None))
    for each in (table, plain):
        mssp.initialize(each, make(), {"weight": ParamInfo("embedding", layout="vocab out")})
    drawn = plain.get_parameter("weight").detach().clone()
    assert drawn[9].any()
    drawn[9] = 0.0
    assert torch.equal(table.get_parameter("weight"), drawn)


def test_many_small_parameters_are_drawn_as_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, claims = make(), {"*": ParamInfo("hidden", layout="out in")}
    several = nn.ModuleDict({f"m{index}": nn.Linear(64, 1000 * index, bias=False) for index in range(1, 40, 3)})
    for threads in ("1", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        mssp.initialize(several, plan, claims, seed=3)
        assert any(weight.numel() > BLOCK for weight in several.parameters())
        for info, weight in zip(mssp.describe(several, claims), several.parameters(), strict=True):
            expected = draw_normals(tuple(weight.shape), tuple(slice(0, size) for size in weight.shape), info.name, 3)
            std = plan.resolve([info])[info.name].init_std
            assert torch.equal(weight, expected * std)
            weight.data.zero_()


def test_what_half_precision_rounds_away_is_said_with_the_number() -> None:
    """Of Adam's first update, which is the learning rate: between 1 and 2 numbers of bfloat16 are 1/128 apart."""
    gain, matrix = nn.RMSNorm(64), nn.Linear(64, 64, bias=False)
    model = nn.Sequential(gain, matrix).to(torch.bfloat16)
    claims = {"0.weight": ParamInfo("norm"), "1.weight": ParamInfo("hidden", layout="out in")}
    before = gain.weight.detach().clone()

    def take_a_step(lr: float) -> None:
        """A step with a gradient of 1 everywhere."""
        plan = make(lr=lr)
        optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, claims))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mssp.initialize(model, plan, claims)
            mssp.verify(model, optimizer, plan, claims)
        said = [str(each.message) for each in caught]
        assert len(said) == (2 if lr < 1 / 128 else 0)
        for message in said:
            assert message.startswith(
                "0.weight is in bfloat16, where a first update, of the size of the learning rate, is"
            )
            assert "as shares of it, norm (0.13), hidden (" in message
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    take_a_step(1e-3)
    assert torch.equal(gain.weight, before)
    take_a_step(0.5)
    assert not torch.equal(gain.weight, before)


def test_experts_that_are_modules_are_tied_by_name() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(64, 32, bias=False) for _ in range(4))

    claims = {"experts.{expert}.weight": ParamInfo("expert_in", layout="out in")}
    tied, free = Layer(), Layer()
    mssp.initialize(tied, make(), claims)
    mssp.initialize(free, make(scheme="mup"), claims)
    weights = [expert.weight for expert in tied.experts]
    assert all(torch.equal(weight, weights[0]) for weight in weights)  # type: ignore[arg-type]
    assert not torch.equal(free.experts[0].weight, free.experts[1].weight)  # type: ignore[arg-type]


def test_nothing_is_touched_when_anything_fails() -> None:
    plan = make()
    model = Transformer(plan)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    incomplete = {pattern: claim for pattern, claim in CLAIMS.items() if not pattern.startswith("readout")}
    with pytest.raises(ValueError, match=r"readout.weight \(32, 64\) is unclaimed"):
        mssp.initialize(model, plan, incomplete)
    with pytest.raises(ValueError, match="the plan is for another model"):
        mssp.initialize(model, make(LARGE), CLAIMS)
    with pytest.raises(ValueError, match="gate must be one of sigmoid, softmax, renormalised, got 'relu'"):
        mssp.initialize(model, plan, CLAIMS, gate="relu")
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    assert all(not vars(parameter) for parameter in model.parameters())


def test_nothing_is_attached_to_parameters() -> None:
    model = ready(make())
    mssp.param_groups(model, make(), CLAIMS)
    assert all(not vars(parameter) for parameter in model.parameters())


def test_parameters_that_cannot_be_written_are_refused_before_any_is() -> None:
    plan = make(scheme="mup")
    model = nn.ParameterDict({"a": torch.ones(8, 64), "b": nn.Parameter(torch.ones(64).expand(64, 64))})
    claims = {"a": ParamInfo("readout", layout="out in"), "b": ParamInfo("hidden", layout="out in")}
    with pytest.raises(ValueError, match="b is an expanded view"):
        mssp.initialize(model, plan, claims)
    assert (model["a"] == 1).all()
    with pytest.raises(ValueError, match=r"seed must be a whole number, got 0\.5"):
        mssp.initialize(model, plan, claims, seed=0.5)  # type: ignore[arg-type]


def test_weights_with_few_axes_are_drawn() -> None:
    plan = make(readout="mup")
    model = nn.ParameterDict({"gate": torch.ones(64), "scalar": torch.ones(()), "head": torch.ones(64)})
    claims = {"gate": ParamInfo("shared_gate", layout="in"), "scalar": ParamInfo("hidden", fan_in=1, fan_out=1),
              "head": ParamInfo("readout", layout="in")}  # fmt: skip
    mssp.initialize(model, plan, claims)
    assert not model["gate"].any()
    assert model["scalar"].item() != 1
    assert 0 < model["head"].std().item() < 0.05


def test_a_router_of_top_k_starts_small_and_not_at_zero() -> None:
    base = Shape(width=64, expert_width=32, experts=4, active=2, depth=2)
    plan = mssp.plan(replace(base, width=256, expert_width=128), base, lr=1e-2)
    assert (plan.regime, plan.roles["router"].zero, plan.roles["router"].source) == ("I", False, "derived")
    assert plan.roles["router"].init_std == pytest.approx(256**-0.5 * (256 / 64) ** -0.5)
    assert ("router", "its logits start with a spread of 0.5") in plan.scope
    model = Transformer(plan)
    mssp.initialize(model, plan, CLAIMS)
    router = model.get_parameter("blocks.0.moe.router.weight")
    assert router.std().item() == pytest.approx(1 / 32, rel=0.1)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    mssp.verify(model, optimizer, plan, CLAIMS)
    with torch.no_grad():
        router.mul_(0.1)
    with pytest.warns(PlanWarning, match=r"0.moe.router.weight: its logits have a spread of 0\.05 .* watch them"):
        mssp.verify(model, optimizer, plan, CLAIMS)


def test_gates_that_sum_to_one_have_an_eps_of_their_own_where_experts_start_alike() -> None:
    own, shares = (make(gates_sum_to_one=sum_to_one) for sum_to_one in (False, True))
    assert own.roles["router"].eps is not None
    assert shares.roles["router"].eps == pytest.approx(own.roles["router"].eps * SHAPE.width**-0.5, rel=1e-12)
    assert {role for role in ROLES if own.roles[role] != shares.roles[role]} == {"router"}
    model = Transformer(own)
    with pytest.warns(PlanWarning, match="a softmax gate what moves the router is how they .*gates_sum_to_one=True"):
        mssp.initialize(model, own, CLAIMS, gate="softmax")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mssp.initialize(model, own, CLAIMS, gate="sigmoid")
        mssp.initialize(model, shares, CLAIMS, gate="softmax")


@pytest.mark.parametrize(("layout", "matrices"), [("out in", 2), ("(2 out) in", 3)])
def test_experts_share_a_part_of_their_start(layout: str, matrices: int) -> None:
    """Of each matrix so much that outputs share ρ: the square root for two matrices, the third root for gated ones."""
    base = Shape(width=64, expert_width=32, experts=8, active=4, depth=2)
    plan = mssp.plan(replace(base, expert_width=64), base, lr=1.0)
    rho = plan.roles["expert_in"].shared
    assert rho == pytest.approx(1 / 3)
    halves = 2 if matrices == 3 else 1
    model = nn.ParameterDict({
        "w_in": nn.Parameter(torch.empty(8, halves * 64, 64)), "w_out": nn.Parameter(torch.empty(8, 64, 64)),
    })  # fmt: skip
    claims = {
        "w_in": ParamInfo("expert_in", layout=layout, expert_axis=0),
        "w_out": ParamInfo("expert_out", layout="in out", expert_axis=0),
    }
    mssp.initialize(model, plan, claims, seed=3)
    for name, role in (("w_in", "expert_in"), ("w_out", "expert_out")):
        weights = model[name].detach().flatten(1)
        assert weights.std().item() == pytest.approx(plan.roles[role].init_std, rel=0.02)
        correlations = torch.corrcoef(weights)[~torch.eye(8, dtype=torch.bool)]
        assert correlations.mean().item() == pytest.approx(rho ** (1 / matrices), abs=0.03)
    common = torch.corrcoef(torch.stack([model["w_in"][0].flatten(), model["w_in"].mean(0).flatten()]))
    assert common[0, 1] < 0.95  # no expert is the common part


def test_no_and_all_of_a_start_shared_are_what_they_were_to_the_bit() -> None:
    info = ParamInfo("expert_in", layout="out in", expert_axis=0, name="w")
    plan = make()
    tied = draw((4, 8, 6), (slice(0, 4), slice(0, 8), slice(0, 6)), info, plan.roles["expert_in"], 5, torch.float32)
    alone = draw_normals((8, 6), (slice(0, 8), slice(0, 6)), "w", 5) * plan.roles["expert_in"].init_std
    assert all(torch.equal(expert, alone) for expert in tied)
    own = replace(plan.roles["expert_in"], shared=0.0)
    free = draw((4, 8, 6), (slice(0, 4), slice(0, 8), slice(0, 6)), info, own, 5, torch.float32)
    assert torch.equal(free, draw_normals((4, 8, 6), (slice(0, 4), slice(0, 8), slice(0, 6)), "w", 5) * own.init_std)


def test_tied_embeddings_follow_the_lookup_and_name_the_multiplier() -> None:
    plan = mssp.plan(LARGE, SHAPE, lr=1e-2, init_std={"embedding": 1.0})
    model = Transformer(plan)
    model.readout.weight = model.embed.weight
    with pytest.warns(PlanWarning, match=r"embed.weight is embedding and readout in one: .* scale logits by 0.5"):
        mssp.initialize(model, plan, CLAIMS)
    assert model.embed.weight.std().item() == pytest.approx(1.0, rel=0.05)
    groups = mssp.param_groups(model, plan, CLAIMS)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_meta_models_can_be_planned_but_not_filled() -> None:
    plan = make()
    with torch.device("meta"):
        model = Transformer(plan)
    assert mssp.param_groups(model, plan, CLAIMS)
    with pytest.raises(
        ValueError, match=r"embed.weight is on the meta device: call model.to_empty\(device=...\) first"
    ):
        mssp.initialize(model, plan, CLAIMS)
    model.to_empty(device="cpu")
    mssp.initialize(model, plan, CLAIMS)
    assert torch.equal(model.embed.weight, ready(plan).get_parameter("embed.weight"))


# -- parameter groups -------------------------------------------------------------------------------------------------


def test_groups_carry_what_loops_and_schedulers_need() -> None:
    plan = mssp.plan(
        LARGE, SHAPE, lr=1e-2, weight_decay=0.1, lr_mult={"router": 4.0}, recipe=mssp.Recipe(betas=(0.9, 0.95))
    )
    groups = {group["name"]: group for group in mssp.param_groups(Transformer(plan), plan, CLAIMS)}
    assert {key: groups["router"][key] for key in groups["router"] if key != "params"} == {
        "lr": 0.02, "initial_lr": 0.02, "lr_scale": 0.5, "lr_mult": 4.0, "eps": 5e-9, "grad_scale": 1.0,
        "weight_decay": 0.2, "name": "router", "betas": (0.9, 0.95),
    }  # fmt: skip
    assert len(groups) == 14
    assert sum(len(group["params"]) for group in groups.values()) == len(list(Transformer(plan).parameters()))


def test_matrices_with_sides_of_their_own_get_groups_of_their_own() -> None:
    plan = make(optimizer="adam")
    names = [group["name"] for group in mssp.param_groups(Transformer(plan), plan, CLAIMS)]
    assert [name for name in names if name.startswith("hidden")] == ["hidden 64->64", "hidden 128->64"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_groups_work_with_torch_optimizers_and_schedulers(optimizer: str) -> None:
    plan = make(optimizer=optimizer, lr=1e-3, weight_decay=0.1 if optimizer == "adamw" else 0.0)
    model = ready(plan)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    stepper: torch.optim.Optimizer = kinds[optimizer](mssp.param_groups(model, plan, CLAIMS))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepper, T_max=10)
    mssp.verify(model, stepper, plan, CLAIMS)
    assert mssp.check_schedule(stepper, plan) == pytest.approx(1.0)
    for step in range(3):
        backward(model, step)
        stepper.step()
        stepper.zero_grad()
        schedule.step()
    mssp.verify(model, stepper, plan, CLAIMS)
    assert mssp.check_schedule(stepper, plan) == pytest.approx(0.7939, abs=1e-4)  # (1 + cos(0.3 pi)) / 2


def test_adam_with_groups_takes_the_planned_step() -> None:
    """After one Adam step from zero moments every weight moves by lr g / (|g| + eps), group by group."""
    plan = make(optimizer="adam", eps=1e-4)
    model = ready(plan)
    before = copy.deepcopy(model)
    stepper = torch.optim.Adam(mssp.param_groups(model, plan, CLAIMS))
    backward(model)
    stepper.step()
    values = plan.resolve(mssp.describe(model, CLAIMS))
    for (name, old), new in zip(before.named_parameters(), model.parameters(), strict=True):
        assert new.grad is not None
        eps = values[name].eps
        assert eps is not None
        moved = values[name].lr * new.grad / (new.grad.abs() + eps)
        torch.testing.assert_close(old - new, moved, rtol=1e-3, atol=1e-6)


# -- verification -----------------------------------------------------------------------------------------------------


def verified(change: Any, **options: Any) -> None:
    plan = make(optimizer="adamw", weight_decay=0.1, **options)
    model = ready(plan)
    stepper = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    change(stepper)
    mssp.verify(model, stepper, plan, CLAIMS)


def _set(key: str, number: float) -> Any:
    def change(stepper: torch.optim.Optimizer) -> None:
        group = next(g for g in stepper.param_groups if g["name"] == "router")
        group[key] = number

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("eps", 1e-8), r"router.weight \(router\) has eps 1e-08, the plan says"),
        (_set("weight_decay", 0.1), r"has weight_decay 0.1, the plan says 6.4"),
        (_set("lr", 1e-2), r"group 'router' has lr 0.01, 64 of its planned value, where most have 1"),
        (_set("initial_lr", 1e-2), r"router.weight \(router\) has initial_lr 0.01, the plan says 0.00015625"),
        (lambda s: s.param_groups[0]["params"].clear(), "embed.weight is in no group of the optimizer"),
        (lambda s: s.param_groups[0]["params"].append(nn.Parameter(torch.ones(3))), r"holds a parameter \(3,\) that"),
        (lambda s: s.param_groups[1]["params"].append(s.param_groups[0]["params"][0]), "embed.weight is in two groups"),
    ],
)
def test_verify_names_what_is_wrong(change: Any, message: str) -> None:
    verified(lambda stepper: None)
    with pytest.raises(ValueError, match=message):
        verified(change)


def test_verify_wants_the_planned_optimizer() -> None:
    plan = make(optimizer="adamw")
    model = ready(plan)
    for other in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop):
        stepper = other(mssp.param_groups(model, plan, CLAIMS))
        with pytest.raises(ValueError, match=f"the plan is for AdamW, the optimizer is {other.__name__}"):
            mssp.verify(model, stepper, plan, CLAIMS)


def test_a_schedule_that_sets_one_lr_for_all_is_caught() -> None:
    plan = make()
    model = ready(plan)
    stepper = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    for group in stepper.param_groups:
        group["lr"] = 3e-4
    with pytest.raises(ValueError, match="learning rates left the plan's ratios: group"):
        mssp.check_schedule(stepper, plan)
    with pytest.raises(ValueError, match="group 0 has no name, lr_scale and lr_mult"):
        mssp.check_schedule(torch.optim.AdamW(model.parameters()), plan)


def test_one_cycle_moves_the_initial_learning_rates_together() -> None:
    plan = make()
    model = ready(plan)
    stepper = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    highest = [group["lr"] for group in stepper.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(stepper, highest, total_steps=10)
    for _ in range(4):
        backward(model)
        stepper.step()
        schedule.step()
    mssp.verify(model, stepper, plan, CLAIMS)
    with pytest.raises(ValueError, match=r"initial_lr 0\.01, the plan says 0\.02"):
        mssp.verify(model, stepper, make(lr=2e-2), CLAIMS)


def test_subclasses_count_as_what_they_derive_from() -> None:
    class Logged(torch.optim.AdamW):
        pass

    plan, other = make(optimizer="adamw"), make(optimizer="sgd")
    model = ready(plan)
    mssp.verify(model, Logged(mssp.param_groups(model, plan, CLAIMS)), plan, CLAIMS)
    with pytest.raises(ValueError, match="the plan is for SGD, the optimizer is Logged"):
        mssp.verify(model, Logged(mssp.param_groups(model, plan, CLAIMS)), other, CLAIMS)


def test_groups_of_one_role_have_names_of_their_own() -> None:
    plan = mssp.plan(LARGE, SHAPE, lr=1e-2)
    model = nn.ParameterDict({name: torch.ones(128, 128) for name in "abc"})
    claims = {
        "a": ParamInfo("hidden", layout="out in"),
        "b": ParamInfo("hidden", layout="out in", base_fan_in=128),
        "c": ParamInfo("hidden", layout="out in", base_fan_in=32),
    }
    names = [group["name"] for group in mssp.param_groups(model, plan, claims)]
    assert names == ["hidden 128->128", "hidden 128->128 (2)", "hidden 128->128 (3)"]


def test_a_reloaded_optimizer_verifies() -> None:
    plan = make()
    model = ready(plan)
    stepper = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    backward(model)
    stepper.step()
    reloaded = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    reloaded.load_state_dict(stepper.state_dict())
    mssp.verify(model, reloaded, plan, CLAIMS)


# -- gradient scaling instead of eps ----------------------------------------------------------------------------------


def test_scaling_gradients_equals_scaling_eps_in_float64() -> None:
    losses: dict[bool, list[float]] = {}
    for scaled in (False, True):
        plan = make(optimizer="adamw", lr=0.3, eps=1e-3, weight_decay=0.1, grad_scale=scaled)
        model = Transformer(plan).double()
        mssp.initialize(model, plan, CLAIMS)
        stepper = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
        if scaled:
            with pytest.raises(ValueError, match=r"call mssp.scale_gradients\(optimizer\)"):
                mssp.verify(model, stepper, plan, CLAIMS)
            mssp.scale_gradients(stepper)
        mssp.verify(model, stepper, plan, CLAIMS)
        losses[scaled] = []
        for step in range(20):
            losses[scaled].append(backward(model, step).item())
            stepper.step()
            stepper.zero_grad()
    assert losses[True] == pytest.approx(losses[False], rel=1e-10)
    assert losses[True][-1] < losses[True][0] - 0.1


def test_scaling_needs_our_groups_and_can_be_removed() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="group 0 has no grad_scale"):
        mssp.scale_gradients(torch.optim.Adam([weight]))
    stepper = torch.optim.SGD([{"params": [weight], "grad_scale": 3.0, "lr": 1.0}])
    handle = mssp.scale_gradients(stepper)
    with pytest.raises(ValueError, match=r"scales gradients already: call mssp.scale_gradients once"):
        mssp.scale_gradients(stepper)
    weight.grad = torch.ones(2)
    stepper.step()
    assert weight.tolist() == [-2.0, -2.0]
    with pytest.raises(ValueError, match=r"do not go with step\(closure\)"):
        stepper.step(lambda: 0.0)
    handle.remove()
    weight.grad = torch.ones(2)
    stepper.step()
    assert weight.tolist() == [-3.0, -3.0]
