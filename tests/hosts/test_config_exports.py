"""Exports of plans over configs: the numbers are those of the plan by name and of the model's parameter groups."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import mssp
import mssp.hf
from mssp.cli import main
from mssp.hf.meta import on_meta
from mssp.hosts import HOSTS, Sizes, export
from mssp.hosts.planned_sides import LIKE
from mssp.hosts.rows import planned_vocabulary
from mssp.planning.plans import Values
from mssp.planning.recipe import without_plan_warnings
from tests.hf.families import PLANNED
from tests.hf.test_sides import LARGE, SMALL, WIDE, uneven
from tests.hf.tiny_models import BASE, FAMILIES, TARGET, config_of
from tests.hosts.real_hosts import load, model_of, plan_for
from tests.hosts.test_exports import torchtitan_groups

# Two kinds of attention have the same names in different blocks, and numbers of their own.
MIXED = ("kimi_linear", "inkling_text")
# Their attention has names of its own, which no host has: exports leave its matrices out, and refuse them by name.
ELSEWHERE = ("dbrx", "longcat_flash")


def numbers(values: Values) -> tuple[Any, ...]:
    return values.role, values.lr, values.eps, values.weight_decay, values.grad_scale, values.init_std


@cache
def _adapted(family: str) -> nn.Module:
    base, target = uneven(family)
    model = on_meta(target)
    mssp.hf.adapt(model, base if PLANNED[family].taken_out else None)
    return model


@cache
def planned(family: str, optimizer: str) -> tuple[mssp.Plan, dict[str, tuple[Any, ...]]]:
    """A plan, and the numbers of the model's parameters, which are those of the table by name and of the groups."""
    base, target = uneven(family)
    options: dict[str, Any] = {"regime": "III"} if optimizer == "sgd" else {"weight_decay": 0.1}
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=4e-3, optimizer=optimizer, scheme="mup", init_std=0.02, **options)
        table = mssp.hf.by_name(plan, target, base)
    model = _adapted(family)
    values = plan.resolve(mssp.describe(model))
    assert {numbers(row.values) for row in table.parameters} == {numbers(each) for each in values.values()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in mssp.param_groups(model, plan):
        for name in (names[id(each)] for each in group["params"]):
            held = (group["lr"], group.get("eps"), group.get("weight_decay", 0.0))
            assert held == (values[name].lr, values[name].eps, values[name].weight_decay)
    return plan, {name: numbers(each) for name, each in values.items()}


# The scope makes pytest run the tests of a family one after the other, so that no two processes plan the same one.
@pytest.mark.parametrize("family", FAMILIES, scope="module")
@pytest.mark.parametrize(("host", "optimizer"), [*((host, "adamw") for host in HOSTS), ("nanogpt", "sgd")])
def test_exports_tables_and_groups_have_one_number(family: str, host: str, optimizer: str) -> None:
    plan, of_model = planned(family, optimizer)
    if family in MIXED:
        with pytest.raises(ValueError, match=r"sizes and numbers differ from block to block in the plan's configs"):
            export(plan, host)
        return
    text = export(plan, host)
    assert "taken to grow" not in text
    assert "taken to be fixed" not in text
    compared = 0
    for row in planned_vocabulary(plan, HOSTS[host].VOCABULARY, Sizes()):
        assert row.way != "own fan-in"
        kind, role = LIKE.get(row.parameter.like, ""), row.parameter.role
        for name in of_model if kind else ():
            # A gain over all heads is another parameter than one of a head, which this host has.
            if re.search(kind, name.removeprefix("model.")) and (role == "hidden" or of_model[name][0] == "qk_norm"):
                assert of_model[name] == numbers(row.values), (name, row.parameter.pattern)
                compared += 1
    assert compared == 0 if family in ELSEWHERE else compared >= TARGET.depth


def rates(planned: SimpleNamespace, model: nn.Module) -> dict[str, float]:
    groups = torchtitan_groups(planned, model)
    return {name.removeprefix("layers.0.").removesuffix(".weight"): lr for name, (lr, _, _) in groups.items()}


def test_the_output_of_attention_and_a_dense_layer_in_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width grows x4, the heads x2, the dense layers not at all."""
    dense = {"mlp_only_layers": [0], "intermediate_size": 192}
    base, target = config_of("qwen3_moe", BASE, **SMALL, **dense), config_of("qwen3_moe", WIDE, **LARGE, **dense)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=4e-3, scheme="mup")
    model = on_meta(target)
    mssp.hf.adapt(model)
    values = plan.resolve(mssp.describe(model))
    assert values["model.layers.0.self_attn.o_proj.weight"].lr == 0.002
    assert values["model.layers.0.mlp.down_proj.weight"].lr == 0.004
    shapes = {"attention.wo": (256, 128), "feed_forward.w2": (256, 192), "feed_forward.w1": (192, 256)}
    host = model_of({f"layers.0.{name}.weight": shape for name, shape in shapes.items()})
    exported = load(monkeypatch, plan, "torchtitan", None)
    assert rates(exported, host) == {"attention.wo": 0.002, "feed_forward.w2": 0.004, "feed_forward.w1": 0.001}
    assert exported._start("layers.0.attention.wo.weight", (256, 128)) == ("normal", pytest.approx(128**-0.5))
    with pytest.raises(ValueError, match="was made for another model"):
        exported._start("layers.0.attention.wo.weight", (256, 256))
    with pytest.raises(ValueError, match="it has no role"):  # the configs have no shared experts
        exported._start("layers.0.moe.shared_experts.w2.weight", (256, 256))


def test_low_ranks_in_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks grow x4 with the width, where an export used to take them for fixed."""
    ranks = {"q_lora_rank": 96, "kv_lora_rank": 64, "num_attention_heads": 16, "num_key_value_heads": 16}
    base, target = config_of("deepseek_v3", BASE), config_of("deepseek_v3", WIDE, **ranks)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=4e-3, scheme="mup")
    host = model_of({"layers.0.attention.wq_b.weight": (256, 96), "layers.0.attention.wkv_b.weight": (384, 64)})
    expected = {"attention.wq_b": 0.001, "attention.wkv_b": 0.001}
    assert rates(load(monkeypatch, plan, "torchtitan", None), host) == expected


def test_what_the_user_says_must_be_what_the_configs_say() -> None:
    base, target = config_of("qwen3_moe", BASE, **SMALL), config_of("qwen3_moe", WIDE, **LARGE)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=4e-3, scheme="mup")
    export(plan, "torchtitan", Sizes({"attention_width": 128}, {"attention_width": 64}))
    with pytest.raises(ValueError, match=r"^target.attention-width 256 contradicts the plan's configs: the model has"):
        export(plan, "torchtitan", Sizes({"attention_width": 256}))
    with pytest.raises(ValueError, match=r"^base.attention-width 32 contradicts the plan's configs: the model has 64$"):
        export(plan, "torchtitan", Sizes({"attention_width": 128}, {"attention_width": 32}))
    with pytest.raises(ValueError, match=r"^target.kv-rank 32 contradicts the plan's configs: the model has no such"):
        export(plan, "torchtitan", Sizes({"kv_rank": 32}))
    with without_plan_warnings():
        extended = plan.extend(mssp.Shape(width=512, expert_width=128, experts=4, active=2, depth=2))
    with pytest.raises(ValueError, match=r"does not know the sides of layers.*at its target: extend it to a config"):
        export(extended, "torchtitan")


def test_the_command_says_which_sides_it_assumes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan_for({"width": 64, "expert_width": 32, "experts": 8, "active": 4, "depth": 2}).json())
    assert main(["export", "torchtitan", "--plan", str(file), "--target.ffn-width", "128"]) == 0
    assert capsys.readouterr().err == (
        "mssp: warning: the plan is over sizes alone, and these are guesses: attention-width and shared-width grow "
        "with the width, q-rank and kv-rank stay; say --target.attention-width and --base.attention-width and the "
        "like, or plan over configs\n"
    )
