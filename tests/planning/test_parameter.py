"""Values of parameters whose matrices have sides of their own."""

from __future__ import annotations

import pytest

import mssp
from mssp import ParamInfo, Shape

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
TARGET = Shape(width=1024, expert_width=512, experts=32, active=16, depth=8)


def info(role: str, fan_in: int | None, fan_out: int | None, **more: int) -> ParamInfo:
    return ParamInfo(role, fan_in, fan_out, name="w", **more)  # type: ignore[arg-type]


def test_without_a_base_each_matrix_uses_its_own_sides() -> None:
    adam = mssp.plan(TARGET, regime="III", optimizer="adam", lr=1.0)
    sgd = mssp.plan(TARGET, regime="III", optimizer="sgd", lr=1.0)
    down = info("hidden", 4096, 1024)
    assert adam.resolve([down])["w"].lr == 1 / 4096
    assert adam.resolve([down])["w"].init_std == 4096**-0.5
    assert adam.resolve([down])["w"].eps == pytest.approx(1e-8 / (1024 * 8))
    assert sgd.resolve([down])["w"].lr == 8 * 1024 / 4096


def test_with_a_base_sides_grow_as_the_width_unless_said_otherwise() -> None:
    plan = mssp.plan(TARGET, BASE, optimizer="adam", lr=1e-3, init_std=0.02)
    grows = plan.resolve([info("hidden", 4096, 1024)])["w"]
    assert (grows.lr, grows.source) == (1e-3 / 4, "table")
    assert grows.init_std == pytest.approx(0.01)
    rank = plan.resolve([info("hidden", 512, 1024, base_fan_in=512)])["w"]
    assert (rank.lr, rank.init_std, rank.source) == (1e-3, 0.02, "derived")
    sgd = mssp.plan(TARGET, BASE, optimizer="sgd", lr=1e-3)
    few_heads = sgd.resolve([info("hidden", 1024, 128, base_fan_out=128)])["w"]
    assert (few_heads.lr, few_heads.source) == (1e-3 / 4, "derived")


def test_dense_inputs_and_lookups() -> None:
    images = Shape(width=1024, expert_width=512, experts=32, active=32, depth=1, inputs=3072)
    plan = mssp.plan(images, regime="III", optimizer="adam", lr=1.0)
    assert plan.resolve([info("embedding", 3072, 1024)])["w"].lr == 1 / 3072
    assert plan.resolve([info("embedding", 1, 1024)])["w"].lr == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (info("router", 256, 32), "router 'w' has fan_in 256, but the plan's target .* asks for 1024"),
        (info("router", 1024, 8), "router 'w' has fan_out 8, but the plan's target .* asks for 32"),
        (info("expert_in", 1024, 128), "fan_out 128.* asks for 512"),
        (info("expert_out", 128, 1024), "fan_in 128.* asks for 512"),
        (info("expert_in", 1024, 512, experts=8), "experts 8.* asks for 32"),
        (info("embedding", 1, 256), "fan_out 256.* asks for 1024"),
        (info("embedding", 3072, 1024), "fan_in 3072.* asks for 1"),
        (info("readout", 256, 10), "fan_in 256.* asks for 1024"),
        (info("shared_gate", 256, 1), "fan_in 256.* asks for 1024"),
        (info("final_norm", None, 999), "fan_out 999.* asks for 1024"),
        (info("expert_in_bias", None, 1024), "fan_out 1024.* asks for 512"),
        (info("router_bias", None, 8), "fan_out 8.* asks for 32"),
    ],
)
def test_a_plan_for_another_model_is_refused(wrong: ParamInfo, message: str) -> None:
    plan = mssp.plan(TARGET, regime="III", lr=1.0)
    with pytest.raises(ValueError, match=f"the plan is for another model: .*{message}"):
        plan.resolve([info("hidden", 3, 5), wrong])


def test_a_fused_axis_is_hinted_at() -> None:
    plan = mssp.plan(TARGET, regime="III", lr=1.0)
    with pytest.raises(ValueError, match=r"fan_out 1024.* asks for 512 \(name what else lies along that axis"):
        plan.resolve([info("expert_in_bias", None, 1024)])


def test_sides_that_need_not_have_grown_with_the_width_are_asked_for() -> None:
    plan = mssp.plan(TARGET, BASE, lr=1.0)
    with pytest.raises(ValueError, match=r"hidden 'w' has fan_in 128, which is no multiple of the width 1024"):
        plan.resolve([info("hidden", 128, 1024)])
    assert plan.resolve([info("hidden", 1024, 128)])["w"].lr == 0.25  # Adam does not look at fan_out
    with pytest.raises(ValueError, match="say its size at the base, base_fan_out"):
        mssp.plan(TARGET, BASE, lr=1.0, optimizer="sgd").resolve([info("hidden", 1024, 128)])


def test_shared_experts_follow_the_expert_width_where_it_grows() -> None:
    everything = mssp.plan(TARGET, BASE, lr=1.0)
    assert everything.resolve([info("hidden", 512, 1024)])["w"].lr == 0.25
    fixed = Shape(width=1024, expert_width=128, experts=32, active=16, depth=8)
    with pytest.raises(ValueError, match="no multiple of the width"):
        mssp.plan(fixed, BASE, lr=1.0).resolve([info("hidden", 256, 1024)])
    shared = mssp.plan(fixed, BASE, lr=1.0).resolve([info("hidden", 256, 1024, base_fan_in=256)])["w"]
    assert (shared.lr, shared.source) == (1.0, "derived")
