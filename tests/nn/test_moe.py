"""The MoE layer with a plan: multipliers, refusals, warnings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import mssp
from mssp import PlanWarning, Shape
from mssp.nn import MoE

SHAPE = Shape(width=32, expert_width=16, experts=8, active=8, depth=1)
TOP_2 = Shape(width=32, expert_width=16, experts=8, active=2, depth=1)


def layer(shape: Shape = SHAPE, **options: Any) -> MoE:
    return MoE(shape.width, shape.expert_width, shape.experts, shape.active, **options)


def plan(shape: Shape = SHAPE, **options: Any) -> mssp.Plan:
    return mssp.plan(shape, **{"regime": "II", "lr": 0.1, **options})


def test_the_plan_sets_the_aggregation() -> None:
    moe = layer()
    assert moe.aggregation == 1 / 8
    mssp.initialize(moe, plan(aggregation_mult=4.0))
    assert moe.aggregation == 0.5
    mssp.initialize(moe, plan(scheme="sp", regime=None))
    assert moe.aggregation == 1.0


def test_gates_that_sum_to_one_take_only_what_was_tuned() -> None:
    moe = layer(gate="softmax")
    assert moe.aggregation == 1.0
    mssp.initialize(moe, plan(scheme="mup", aggregation_mult=4.0))
    assert moe.aggregation == 4.0
    mssp.initialize(moe, plan(scheme="sp", regime=None))
    assert moe.aggregation == 1.0


def test_the_output_is_the_weighted_sum_of_experts() -> None:
    torch.manual_seed(0)
    moe = layer(TOP_2, dispatch="dense")
    x = torch.randn(5, 32)
    y, routing = moe(x)
    assert routing.chosen is not None
    for t in range(5):
        wanted = torch.zeros(32)
        for m in routing.chosen[t].tolist():
            gate = torch.sigmoid(moe.router.weight[m] @ x[t])
            hidden = torch.nn.functional.gelu(moe.experts.w_in[m] @ x[t])
            wanted = wanted + gate * (moe.experts.w_out[m].T @ hidden) / 2
        torch.testing.assert_close(y[t], wanted, rtol=1e-4, atol=1e-5)


def test_summing_gates_with_tied_experts_have_an_eps_of_their_own() -> None:
    with pytest.warns(PlanWarning, match="a softmax gate what moves the router is how they differ"):
        mssp.initialize(layer(gate="softmax"), plan(regime="III"))
    with pytest.warns(PlanWarning, match="a renormalised gate what moves the router is how they differ"):
        mssp.initialize(layer(normalise=True), plan(regime="III"))
    mssp.initialize(layer(normalise=True), plan(regime="III", gates_sum_to_one=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_parameters_are_warned_about_in_regime_ii(dtype: torch.dtype) -> None:
    message = r"experts.w_out is in half precision: in Regime II its relative updates fall as N\^-1/2"
    with pytest.warns(PlanWarning, match=message):
        mssp.initialize(layer().to(dtype), plan(regime="II"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mssp.initialize(layer().to(dtype), plan(regime="III"))
        mssp.initialize(layer().to(dtype), plan(regime="II", scheme="mup"))  # whose init does not grow
        mssp.initialize(layer(), plan(regime="II"))


def test_a_plan_for_another_size_is_refused_and_nothing_changes() -> None:
    moe = layer()
    before = {name: tensor.clone() for name, tensor in moe.state_dict().items()}
    other = Shape(width=32, expert_width=16, experts=8, active=4, depth=1)
    with pytest.raises(ValueError, match="the plan is for 4 active experts, a layer has 8"):
        mssp.initialize(moe, plan(other, scheme="mup", aggregation_mult=3.0))
    assert moe.aggregation == 1 / 8
    assert all(torch.equal(tensor, before[name]) for name, tensor in moe.state_dict().items())


def test_verify_compares_multipliers() -> None:
    moe, made = layer(), plan()
    mssp.initialize(moe, made)
    optimizer = torch.optim.AdamW(mssp.param_groups(moe, made))
    mssp.verify(moe, optimizer, made)
    moe.aggregation = 1.0
    with pytest.raises(ValueError, match=r"^aggregation is 1.0, the plan says 0.125"):
        mssp.verify(moe, optimizer, made)


def test_a_layer_inside_a_model_of_ones_own() -> None:
    model = nn.Sequential(nn.Linear(4, 32, bias=False), layer())
    embedding = {"0.weight": mssp.ParamInfo("embedding", layout="out in")}
    made = plan(Shape(width=32, expert_width=16, experts=8, active=8, depth=1, inputs=4), aggregation_mult=2.0)
    mssp.initialize(model, made, embedding)
    assert model[1].aggregation == 0.25
    assert len(mssp.param_groups(model, made, embedding)) == 4


def test_a_module_with_a_method_of_that_name_is_left_alone() -> None:
    class Plotter(nn.Module):
        def draw(self, path: str) -> None:
            raise AssertionError

    model = nn.ModuleList([layer(), Plotter()])
    mssp.initialize(model, plan())


def test_verify_names_the_layer() -> None:
    second = layer()
    model, made = nn.ModuleList([layer(), second]), plan()
    mssp.initialize(model, made)
    second.aggregation = 0.9
    with pytest.raises(ValueError, match=r"^1.aggregation is 0.9, the plan says 0.125"):
        mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, made)), made)


def test_a_state_of_another_kind_is_refused() -> None:
    state = layer().state_dict()
    state["_extra_state"] = torch.ones(2)
    with pytest.raises(ValueError, match=r"the state of a MoE holds aggregation, got \(2,\) numbers"):
        layer().load_state_dict(state)
