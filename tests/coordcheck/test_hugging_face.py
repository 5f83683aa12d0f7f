"""The check on models of Hugging Face: as they come they fail, with reasons; with a plan they pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import transformers
from torch import nn

import mssp
from mssp.coordcheck.result import Check
from tests.coordcheck.hugging_face_models import as_it_comes, config, one_rate, windows

STEPS, LR = 4, 1e-3
WIDTHS = (64, 128, 256)
# Tied experts under gates that sum to one: said of every such model, and meant here.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:experts start alike:mssp.PlanWarning")]


def checked(
    family: str, regime: str, widths: tuple[int, ...] = WIDTHS, experts: str = "grouped_mm", **how: Any
) -> Check:
    base = config(family, regime, widths[0])
    shapes = [mssp.Shape.from_config(config(family, regime, width)) for width in widths]

    def build(shape: mssp.Shape) -> nn.Module:
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            config(family, regime, shape.width), experts_implementation=experts
        )
        mssp.hf.adapt(model, base=base)
        return model

    plan = mssp.plan(shapes[0], shapes[0], regime=regime, lr=LR)
    batches = [(window[:, :-1], window[:, 1:]) for window in windows(STEPS, seed=0, batch=4)]
    return mssp.check(build, shapes, batches, plan, **{"seeds": 2, **how})


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("regime", ["II", "III"])
def test_with_a_plan_it_passes(family: str, regime: str) -> None:
    check = checked(family, regime)
    assert check.passed, str(check)
    assert check.stable
    for name in (
        "effective/expert_in",
        "propagating/expert_out",
        "aggregate/init",
        "backward/A4",
        "backward/router-init-init",
    ):
        assert check.quantities[name].verdict == "ok"


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe"])
def test_as_it_comes_it_fails_with_reasons(family: str) -> None:
    check = checked(family, "II", initialize=as_it_comes, optimizer=one_rate(LR), seeds=4)
    assert not check.passed
    assert not check.stable
    told = str(check)
    assert "likely cause: the initial weights of expert_in scale as N^0, the rule says N^−0.5" in told
    assert check.quantities["eps/expert_out"].verdict == "off"
    assert check.quantities["aggregate/effective"].verdict == "off"


def test_both_expert_implementations_are_judged_alike() -> None:
    one, other = (checked("olmoe", "II", (32, 64), experts) for experts in ("eager", "grouped_mm"))
    assert one.quantities.keys() == other.quantities.keys()
    for name, quantity in one.quantities.items():
        assert quantity.verdict == other.quantities[name].verdict
        for size, values in quantity.values.items():
            for here, there in zip(values, other.quantities[name].values[size], strict=True):
                assert here == there or math.isclose(here, there, rel_tol=2e-3, abs_tol=1e-7), name
