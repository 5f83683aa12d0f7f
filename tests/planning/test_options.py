"""The options of a plan, each beside the default: parts of hidden, decay, eps and the factor of residual branches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

import mssp
from mssp import ParamInfo, Shape
from mssp.planning.plan_file import schema

BASE = Shape(width=64, expert_width=16, experts=8, active=4, depth=4)
TARGET = Shape(width=256, expert_width=16, experts=32, active=16, depth=4)
EVERY_OPTION: dict[str, Any] = {
    "lr_mult": {"attention_in": 4.0, "expert_out": 256.0},
    "init_mult": {"ffn_out": 2.0},
    "decay_by_multiplier": True,
    "decay_gains": True,
    "eps_rule": "absolute",
    "residual_rule": "one",
}


def make(**settings: Any) -> mssp.Plan:
    return mssp.plan(TARGET, BASE, **{"lr": 0.01, "eps": 1e-8, "weight_decay": 0.1, **settings})


def test_a_multiplier_of_a_part_multiplies_that_of_hidden() -> None:
    plan = make(lr_mult={"hidden": 3.0, "attention_in": 4.0}, init_mult={"all": 2.0, "hidden": 0.5, "ffn_out": 8.0})
    assert list(plan.parts) == ["attention_in", "ffn_out"]
    assert plan.roles["hidden"].lr == 0.01 * 3 / 4
    assert plan.parts["attention_in"].lr == 0.01 * 12 / 4
    assert plan.parts["ffn_out"].lr == plan.roles["hidden"].lr
    assert plan.roles["hidden"].init_std == 1 / 16
    assert plan.parts["attention_in"].init_std == 1 / 16
    assert plan.parts["ffn_out"].init_std == 8 / 16


def test_the_std_of_a_part_is_taken_before_that_of_hidden() -> None:
    plan = make(init_std={"all": 0.1, "hidden": 0.2, "attention_out": 0.4}, init_mult={"ffn_in": 3.0})
    stds = {"hidden": 0.1, "attention_out": 0.2, "ffn_in": 0.3}
    named = {**plan.roles, **plan.parts}
    assert {name: named[name].init_std for name in stds} == pytest.approx(stds)


def test_each_parameter_gets_the_numbers_of_its_part_with_its_own_sides() -> None:
    plan = make(lr_mult={"ffn_out": 5.0})
    parts = {"plain": None, "out": "ffn_out", "in": "ffn_in"}
    infos = [ParamInfo("hidden", 1024, 256, name=name, part=part) for name, part in parts.items()]
    values = plan.resolve(infos)
    assert {name: each.lr for name, each in values.items()} == {"plain": 0.0025, "out": 0.0125, "in": 0.0025}
    assert {name: each.part for name, each in values.items()} == {"plain": None, "out": "ffn_out", "in": None}
    assert values["out"].init_std == 1 / 32


def test_without_parts_nothing_speaks_of_them() -> None:
    plan = make()
    assert not plan.parts
    assert "parts" not in json.loads(plan.json())
    assert not {"part", "options"} & set(str(plan).split())


@pytest.mark.parametrize("argument", ["lr_mult", "init_mult", "init_std"])
def test_an_unknown_part_is_refused_with_the_ones_there_are(argument: str) -> None:
    with pytest.raises(ValueError, match=rf"unknown role 'qkv' in {argument}: .* attention_in, attention_out, ffn_in"):
        make(**{argument: {"qkv": 2.0}})


def test_parts_are_of_hidden_matrices() -> None:
    with pytest.raises(ValueError, match="part is for hidden matrices: ffn_in does not go with expert_in"):
        ParamInfo("expert_in", layout="out in", part="ffn_in")
    with pytest.raises(ValueError, match="part must be one of attention_in, attention_out, ffn_in, ffn_out, got 'mlp'"):
        ParamInfo("hidden", layout="out in", part="mlp")


def test_decay_over_the_tuned_multiplier() -> None:
    multipliers = {"embedding": 32.0, "expert_out": 256.0, "attention_in": 4.0}
    ours, theirs = (make(lr_mult=multipliers, decay_by_multiplier=option) for option in (False, True))
    wanted = {  # ours, theirs: 0.1 over the scale, and over the multiplier too
        "embedding": (0.1, 0.003125), "hidden": (0.4, 0.4), "attention_in": (0.4, 0.1), "expert_in": (0.4, 0.4),
        "expert_out": (0.1, 0.000390625), "norm": (0.0, 0.0),
    }  # fmt: skip
    for plan, column in ((ours, 0), (theirs, 1)):
        named = {**plan.roles, **plan.parts}
        decays = {name: named[name].weight_decay for name in wanted}
        assert decays == pytest.approx({name: numbers[column] for name, numbers in wanted.items()})
    for values in theirs.roles.values():  # what the decay of a step is made of is one number for all
        assert values.weight_decay * values.lr in (0.0, pytest.approx(0.001))


def test_decay_of_gains_and_biases() -> None:
    plan = make(decay_gains=True)
    assert {plan.roles[role].weight_decay for role in ("norm", "qk_norm", "final_norm", "bias", "router_bias")} == {0.1}
    assert plan.roles["hidden"].weight_decay == 0.4


def test_rules_of_eps() -> None:
    roles = ("embedding", "hidden", "router", "expert_in", "expert_out", "readout", "norm")
    wanted = {  # × 1e-8
        "relative": [1 / 4, 1 / 4, 1 / 4, 1 / 4, 1 / 16, 1.0, 1 / 4],
        "absolute": [1 / 256, 1 / 1024, 1 / 128, 1 / 128, 1 / 32768, 1.0, 1 / 1024],
        "global": [1.0] * 7,
    }
    for rule, numbers in wanted.items():
        plan = make(eps_rule=rule)
        assert [plan.roles[role].eps for role in roles] == pytest.approx([1e-8 * number for number in numbers])
        assert {plan.roles[role].lr for role in roles} == {0.01, 0.0025}
        scaled = make(eps_rule=rule, grad_scale=True) if rule != "global" else plan
        for values, by_scale in zip(plan.roles.values(), scaled.roles.values(), strict=True):
            assert values.eps == pytest.approx((by_scale.eps or 0) / by_scale.grad_scale)
    assert [make(eps_rule="global").rule(role).eps for role in roles] == [mssp.planning.Power()] * 7


def test_residual_branches_times_one() -> None:
    deep = replace(TARGET, depth=16)
    ours = mssp.plan(deep, BASE, lr=0.01)
    with pytest.warns(mssp.PlanWarning, match="the depth changes from 4 to 16, and with residual_rule 'one' no number"):
        theirs = mssp.plan(deep, BASE, lr=0.01, residual_rule="one")
    assert (ours.multiplier("residual"), theirs.multiplier("residual")) == (1 / 16, 1.0)
    assert (ours.multiplier("residual", relative=True), theirs.multiplier("residual", relative=True)) == (1 / 4, 1.0)
    assert (ours.roles["hidden"].eps, theirs.roles["hidden"].eps) == pytest.approx((1e-8 / 16, 1e-8 / 4))
    assert all("L" not in theirs.rule(role).symbols for role in theirs.roles)
    sgd = {"optimizer": "sgd", "regime": "II", "lr": 0.01}
    assert make(**sgd, weight_decay=0.0, eps=None).rule("hidden").lr == mssp.planning.Power(fan_out=1, fan_in=-1, L=1)
    without = make(**sgd, weight_decay=0.0, eps=None, residual_rule="one")
    assert without.rule("hidden").lr == mssp.planning.Power(fan_out=1, fan_in=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps_rule": "fixed"}, "eps_rule must be one of relative, absolute, global, got 'fixed'"),
        ({"residual_rule": "1/L"}, "residual_rule must be one of depth, one, got '1/L'"),
        ({"decay_gains": 1}, "decay_gains must be"),
        ({"optimizer": "sgd", "eps": None, "weight_decay": 0.0, "eps_rule": "global"}, "eps_rule is Adam's"),
    ],
)
def test_what_options_refuse(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": 0.0, "decay_gains": True}, "decay_gains has no effect: the plan has no weight decay"),
        ({"weight_decay": 0.0, "decay_by_multiplier": True}, "decay_by_multiplier has no effect"),
        ({"grad_scale": True, "eps_rule": "global"}, "grad_scale has no effect: with eps_rule 'global'"),
    ],
)
def test_options_without_effect_are_warned_of(settings: dict[str, Any], message: str) -> None:
    with pytest.warns(mssp.PlanWarning, match=message):
        make(**settings)


def test_a_plan_file_has_an_option_only_where_it_is_used() -> None:
    assert not set(EVERY_OPTION) - {"lr_mult", "init_mult"} & json.loads(make().json()).keys()
    for name, value in EVERY_OPTION.items():
        plan = make(**{name: value})
        data = json.loads(plan.json())
        jsonschema.validate(data, schema())
        assert data["version"] == 4
        assert data[name] == value
        assert mssp.Plan.from_json(plan.json()) == plan
        assert plan.hash != make().hash
    whole = make(**EVERY_OPTION)
    assert mssp.Plan.from_json(whole.json()) == whole
    assert whole.extend(TARGET) == whole
    data = json.loads(whole.json())
    data["parts"]["attention_in"]["lr"] *= 2
    with pytest.raises(ValueError, match=r"corrupt plan file: parts\.attention_in\.lr is not what its settings give"):
        mssp.Plan.from_json(json.dumps(data))


def test_a_printed_plan_says_its_options() -> None:
    text = str(make(**EVERY_OPTION))
    assert (
        "options  weight decay over lr_mult too; gains and biases decay; eps is absolute, not relative to the base; "
        "residual branches × 1 at every depth; "
        "attention_in, ffn_out: parts of hidden, whose multipliers multiply its own\n"
    ) in text
    rows = [line.split() for line in text.splitlines() if line.endswith("part of hidden")]
    assert rows == [
        ["attention_in", "0.0625", "N⁻¹ᐟ²", "0.01", "N⁻¹", "3.906e-11", "N⁻¹", "0.1", "part", "of", "hidden"],
        ["ffn_out", "0.125", "N⁻¹ᐟ²", "0.0025", "N⁻¹", "3.906e-11", "N⁻¹", "0.4", "part", "of", "hidden"],
    ]
