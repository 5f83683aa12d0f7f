"""Right models of Hugging Face pass, what is planted in them is caught, and as they come they fail.

Two families with two seeds each are of every run, one of them with a readout that is its embedding. Ten families with
three seeds are in records/2026-11-19-check-on-hugging-face.md.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import mssp
from mssp.coordcheck.result import Check
from tests.coordcheck.family_checks import checked


def off(check: Check) -> dict[str, object]:
    return {str(quantity.name): quantity.judged or quantity.reason for quantity in check.off}


@pytest.mark.parametrize(
    ("family", "growth"),
    [("mixtral", "III"), ("ernie4_5_moe", "II"), pytest.param("qwen3_next", "III", marks=pytest.mark.slow)],
)
def test_a_right_model_passes_and_as_it_comes_it_fails(family: str, growth: str) -> None:
    right, plain = (checked(family, growth, seeds=2, plain=plain) for plain in (False, True))
    assert off(right) == {}
    assert right.causes == ()
    assert len(plain.off) > 20
    assert {cause.setting for cause in plain.causes} >= {"weights", "eps"}
    for name in ("weights/norm", "rate/norm", "rate/embedding", "activation/readout", "features/delta"):
        assert right.quantities[name].verdict == "ok", name


def with_wrong_rate(role: str, power: float) -> Callable[[nn.Module, mssp.Plan], torch.optim.Optimizer]:
    """The plan's optimizer, but a learning rate that is N^power too large."""

    def optimizer(model: nn.Module, plan: mssp.Plan) -> torch.optim.Optimizer:
        groups = mssp.param_groups(model, plan)
        roles = {id(parameter): info.role for info, parameter in described(model)}
        for group in groups:
            if {roles[id(parameter)] for parameter in group["params"]} == {role}:
                group["lr"] *= (plan.target.width / 64) ** power
        return torch.optim.AdamW(groups)

    return optimizer


def described(model: nn.Module) -> list[tuple[mssp.ParamInfo, nn.Parameter]]:
    parameters = dict(model.named_parameters())
    return [(info, parameters[info.name]) for info in mssp.describe(model)]


def with_wrong_gradient(role: str, power: float) -> Callable[[nn.Module, mssp.Plan], torch.optim.Optimizer]:
    """The plan's optimizer, but gradients that are N^power too large."""

    def optimizer(model: nn.Module, plan: mssp.Plan) -> torch.optim.Optimizer:
        wrong = (plan.target.width / 64) ** power
        for info, parameter in described(model):
            if info.role == role:
                parameter.register_hook(lambda gradient: gradient * wrong)
        return torch.optim.AdamW(mssp.param_groups(model, plan))

    return optimizer


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.5, -1.0])
def test_a_wrong_power_in_a_routers_gradient_is_no_finite_number_of_experts(power: float) -> None:
    """Gates that sum to one raise it by N^0.3 here, which is measured. N^-1/2 is the room of random products."""
    check = checked("mixtral", "II", optimizer=with_wrong_gradient("router", power))
    gradient = check.quantities["gradient/router"]
    assert gradient.expected_power is not None
    assert -0.8 < gradient.expected_power < -0.65
    assert {quantity.name for quantity in check.off} == {"gradient/router", "faithfulness/router"}


@pytest.mark.slow
@pytest.mark.parametrize("power", [0.5, -0.5])
def test_half_a_power_in_a_sum_of_finite_size_is_caught(power: float) -> None:
    """What expert_out's updates do falls as N^-0.18 here, as a sum of so few terms should: N^±1/2 more is a miss."""
    check = checked("mixtral", "III", seeds=4, optimizer=with_wrong_rate("expert_out", power))
    update = check.quantities["effective/expert_out"]
    assert update.expected_power is not None
    assert -0.25 < update.expected_power < -0.05
    assert update.verdict == "off"
    assert check.quantities["aggregate/effective"].verdict == "off"
    assert {cause.role for cause in check.causes} == {"expert_out"}
