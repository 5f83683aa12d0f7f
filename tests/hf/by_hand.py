"""Values worked out by hand, held against what a model gets.

The pair of shapes grows N x2, N_e x3, M x4, K x4 and L x1.5, so that every product of them is another number. Under
MSSP, AdamW, Regime III, from lr 1e-3, eps 1e-8, weight decay 0.1 and std 0.02 at the base (``rules.TABLE_1``):

    embedding   lookup, fan_in 1: std 0.02, lr 1e-3            eps N^-1: 1e-8/2
    hidden      std fan_in^-1/2, lr fan_in^-1                  eps N^-1 L^-1: 1e-8/3
                fan_in x2: 0.02/sqrt(2) = 0.0141421356, 5e-4; x3: 0.02/sqrt(3) = 0.0115470054, 1e-3/3; fixed: as it was
    router      std N^-1/2 = 0.0141421356, lr N^-1 = 5e-4      eps M^-1 L^-1: 1e-8/6
    expert_in   std N^-1/2 = 0.0141421356, lr N^-1 = 5e-4      eps M^-1 N^-1 L^-1: 1e-8/12
    expert_out  std N_e^-1/2 = 0.0115470054, lr N_e^-1 = 1e-3/3  eps M^-1 N^-1 L^-1: 1e-8/12
    readout     zero, lr N^-1 = 5e-4                           eps 1: 1e-8
    gains, biases: lr 1e-3; eps of their gradients             weight decay 0; else 0.1 over the lr's factor
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn

import mssp
import mssp.hf
from mssp.hf.vocabulary import for_all_blocks
from tests.hf.tiny_models import config_of, initialized, model_of, plan_of

BASE = mssp.Shape(width=64, expert_width=32, experts=2, active=1, depth=2)
TARGET = mssp.Shape(width=128, expert_width=96, experts=8, active=4, depth=3)
# A group of experts has two at least: its score is the sum of its two best.
RUNNABLE: dict[str, dict[str, int]] = {"deepseek_v3": {"n_group": 1, "topk_group": 1}}
ROOT_2, ROOT_3 = 0.0141421356, 0.0115470054  # 0.02 over them


class ByHand(NamedTuple):
    """``std`` of gains is the value they start from; fans None where a vector has none."""

    role: str
    fans: tuple[int | None, int | None]
    std: float
    lr: float
    eps: float
    weight_decay: float
    source: str = "table"


def adapted(family: str) -> tuple[nn.Module, mssp.Plan]:
    model, plan = model_of(config_of(family, TARGET)), plan_of(TARGET, BASE)
    mssp.hf.adapt(model, base=config_of(family, BASE, **RUNNABLE.get(family, {})))
    return initialized(model, plan), plan


def check(family: str, expected: dict[str, ByHand]) -> None:
    """Every parameter, of every block, against the entry of its name; what is not in the table fails."""
    model, plan = adapted(family)
    groups = {id(parameter): group for group in mssp.param_groups(model, plan) for parameter in group["params"]}
    seen = set()
    for info in mssp.describe(model):
        name = for_all_blocks(info.name)
        by_hand = expected[name]
        seen.add(name)
        values = plan.resolve([info])[info.name]
        assert (info.role, values.source) == (by_hand.role, by_hand.source), info.name
        assert (info.fan_in, info.fan_out) == by_hand.fans, info.name
        numbers = values.init_std, values.lr, values.eps, values.weight_decay
        assert numbers == pytest.approx(by_hand[2:6]), info.name
        parameter = model.get_parameter(info.name)
        group = groups[id(parameter)]
        assert (group["lr"], group["eps"], group["weight_decay"]) == pytest.approx(by_hand[3:6]), info.name
        assert group["name"].split()[0] == by_hand.role
        if by_hand.role in {"norm", "qk_norm", "final_norm"}:
            assert torch.equal(parameter, torch.ones_like(parameter)), info.name
        elif by_hand.std == 0:
            assert not parameter.any(), info.name
        elif parameter.numel() >= 8000:
            # Tied experts are one draw: its entries count once.
            one = parameter[0] if info.expert_axis == 0 else parameter
            assert one.std().item() == pytest.approx(by_hand.std, rel=0.03), info.name
    assert seen == set(expected)
