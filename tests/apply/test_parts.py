"""Parts of hidden from a plan to an optimizer: groups, initial values, and what claims and adapters say."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import mssp
from mssp import ParamInfo
from mssp.nn import GPT, GPTConfig

CONFIG = GPTConfig(
    width=32, expert_width=8, experts=4, active=2, depth=2, vocabulary=16, context=8, head=16, moe_every=2
)
PARTS = {
    "blocks.0.attention.qkv.weight": "attention_in",
    "blocks.0.attention.out.weight": "attention_out",
    "blocks.0.ffn.w_in.weight": "ffn_in",
    "blocks.0.ffn.w_out.weight": "ffn_out",
    "blocks.1.attention.qkv.weight": "attention_in",
    "blocks.1.attention.out.weight": "attention_out",
}


def make(**settings: Any) -> mssp.Plan:
    return mssp.plan(CONFIG.shape, regime="II", **{"lr": 0.01, **settings})


def test_the_gpt_says_its_parts() -> None:
    assert {info.name: info.part for info in mssp.describe(GPT(CONFIG)) if info.part} == PARTS


def test_each_part_that_a_plan_names_has_groups_of_its_own() -> None:
    model = GPT(CONFIG)
    plan = make(lr_mult={"attention_in": 4.0, "attention_out": 1.0, "ffn_out": 2.0}, init_mult={"attention_in": 0.125})
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    groups = {
        group["name"]: (group["lr"], group["lr_mult"], [tuple(parameter.shape) for parameter in group["params"]])
        for group in optimizer.param_groups
        if group["name"].startswith("hidden")
    }
    assert groups == {
        "hidden attention_in": (0.01 / 8, 4.0, [(96, 32), (96, 32)]),
        "hidden attention_out": (0.01 / 32, 1.0, [(32, 32), (32, 32)]),
        "hidden": (0.01 / 32, 1.0, [(128, 32)]),
        "hidden ffn_out": (0.02 / 128, 2.0, [(32, 128)]),
    }
    mssp.verify(model, optimizer, plan)
    assert mssp.check_schedule(optimizer, plan) == 1.0
    std = model.state_dict()["blocks.0.attention.qkv.weight"].std().item()
    assert math.isclose(std, 32**-0.5 / 8, rel_tol=0.05)
    with pytest.raises(ValueError, match=r"blocks\.0\.attention\.qkv\.weight \(hidden\) has .* the plan says"):
        mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, make(lr_mult={"attention_out": 2.0}))), plan)


def test_without_parts_hidden_is_one_role() -> None:
    names = [group["name"] for group in mssp.param_groups(GPT(CONFIG), make())]
    assert [name for name in names if name.startswith("hidden")] == ["hidden 32->32", "hidden 128->32"]


def test_claims_may_say_parts_and_a_plan_warns_where_none_does() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
    plan = make(lr_mult={"attention_in": 4.0})
    plain = ParamInfo("hidden", layout="out in")
    claims = {"0.weight": replace(plain, part="attention_in"), "1.weight": plain}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mssp.initialize(model, plan, claims)
    assert [group["lr"] for group in mssp.param_groups(model, plan, claims)] == [0.01 / 8, 0.01 / 32]
    with pytest.warns(mssp.PlanWarning, match="numbers of attention_in have no effect: no hidden matrix of the"):
        mssp.initialize(model, plan, {"*": plain})


def test_the_role_stands_before_the_part_in_names_of_groups() -> None:
    """Schedules look up the tuned rate by the first word of a group's name."""
    model = GPT(CONFIG)
    plan = make(lr_mult={"attention_in": 4.0})
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert math.isclose(mssp.check_schedule(optimizer, plan), 0.5)
