"""Plans over two configs keep the sides of every matrix, so that nothing about them is guessed later."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING

import mssp
import mssp.hf
from mssp.cli import main
from mssp.hf.meta import on_meta
from mssp.planning.recipe import without_plan_warnings
from mssp.planning.sides import Sides
from tests.hf.test_named_plan import GROWN, OLMOE, written
from tests.hf.tiny_models import BASE, FAMILIES, TARGET, config_of, initialized, model_of, plan_of

# Width x4, heads x2 of twice the size: the input of attention's output projection grows x4 or x2.
SMALL = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
LARGE = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 16}
WIDE = mssp.Shape(width=256, expert_width=128, experts=4, active=2, depth=2)


def uneven(family: str) -> tuple[Any, Any]:
    """Configs of which heads, dense and shared layers and ranks grow by factors that are not the width's."""
    base, target = config_of(family, BASE), config_of(family, TARGET)
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16 if hasattr(target, "kv_lora_rank") else 8}
    own_width = ("head_dim", "v_head_dim")
    target_is = target.to_dict()
    grown = heads if any(isinstance(target_is.get(key), int) for key in own_width) else {}
    ranks = {"q_lora_rank": 48, "kv_lora_rank": 64}
    grown |= {key: size for key, size in ranks.items() if target_is.get(key)}
    dense = ("shared_expert_intermediate_size", "shared_intermediate_size", "intermediate_size")
    is_expert_width = target_is.get("intermediate_size") == TARGET.expert_width
    for key in dense[: 2 if is_expert_width else 3]:
        if target_is.get(key):
            grown[key] = 6 * TARGET.width
    return base, config_of(family, TARGET, **grown)


def numbers_of(model: nn.Module, plan: mssp.Plan) -> dict[str, tuple[Any, ...]]:
    return {
        name: (values.role, values.lr, values.eps, values.weight_decay, values.init_std)
        for name, values in plan.resolve(mssp.describe(model)).items()
    }


# A router's input is multiplied by N^-1/2 in the forward pass, or queries and keys by the root of the width over
# their ranks. Only a base says by how much that has changed.
BASE_NEEDED = ("gemma4_text", "longcat_flash")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_its_base_gets_the_sides_of_the_plan(family: str) -> None:
    base, target = uneven(family)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3, weight_decay=0.1, init_std=0.02)
    assert plan.sides
    told, untold = on_meta(target), on_meta(target)
    mssp.hf.adapt(told, base=base)
    if family in BASE_NEEDED:
        with pytest.raises(ValueError, match=r"a factor that depends on sizes, .*: pass base"):
            mssp.hf.adapt(untold)
        return
    mssp.hf.adapt(untold)
    read = mssp.Plan.from_json(plan.json())
    by_shape = plan_of(plan.target, plan.base, lr=1e-3, gates_sum_to_one=plan.gates_sum_to_one, regime=plan.regime)
    assert numbers_of(untold, read) == numbers_of(told, read) == numbers_of(told, by_shape)
    rates = {group["lr"] for group in mssp.param_groups(untold, read)}
    assert rates == {group["lr"] for group in mssp.param_groups(told, by_shape)}
    with pytest.raises(ValueError, match=r"neither the plan nor the model says what that was at the base: give the"):
        mssp.param_groups(untold, by_shape)


def test_attention_that_grows_less_than_the_width() -> None:
    base, target = config_of("qwen3_moe", BASE, **SMALL), config_of("qwen3_moe", WIDE, **LARGE)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=4e-3)
    key = "layers.*.self_attn.o_proj.weight"
    assert plan.sides[key] == Sides(fan_in=128, fan_out=256, base_fan_in=64, base_fan_out=64)
    model = model_of(target)
    mssp.hf.adapt(model)
    initialized(model, plan)
    groups = mssp.param_groups(model, plan)
    optimizer = torch.optim.AdamW(groups)
    mssp.verify(model, optimizer, plan)
    o_proj = model.get_parameter("model.layers.0.self_attn.o_proj.weight")
    assert [group["lr"] for group in groups if any(o_proj is each for each in group["params"])] == [0.002]
    q_proj = model.get_parameter("model.layers.0.self_attn.q_proj.weight")
    assert [group["lr"] for group in groups if any(q_proj is each for each in group["params"])] == [0.001]


def test_a_wider_head_is_a_gain_that_grows() -> None:
    base, target = config_of("qwen3_moe", BASE, head_dim=8), config_of("qwen3_moe", TARGET, head_dim=32)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3)
    assert plan.sides["layers.*.self_attn.q_norm.weight"] == Sides(fan_out=32, base_fan_out=8)
    model = on_meta(target)
    mssp.hf.adapt(model)
    norms = [group for group in mssp.param_groups(model, plan) if group["name"] in ("norm", "qk_norm")]
    assert [group["name"] for group in norms] == ["norm"]


def test_blocks_with_sides_of_their_own_are_told_apart() -> None:
    sizes = {"num_key_value_heads": 2, "head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1}
    usual = {key: size for key, size in config_of("glm4_moe", BASE).to_dict().items() if key in _OF_MIMO}
    base = CONFIG_MAPPING["mimo_v2_flash"](**usual | sizes)
    target = CONFIG_MAPPING["mimo_v2_flash"](**usual | sizes | {"hidden_size": 128, "num_attention_heads": 8})
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3, regime="any")
    keys = [place for place in plan.sides if "k_proj" in place]
    assert len(keys) > 1
    assert all("*" not in place for place in keys)


_OF_MIMO = (
    "hidden_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok",
    "num_hidden_layers", "num_attention_heads", "vocab_size",
)  # fmt: skip


def test_a_plan_for_another_model_is_refused() -> None:
    base, target = uneven("qwen3_moe")
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3)
    other = on_meta(config_of("qwen3_moe", TARGET))
    mssp.hf.adapt(other)
    message = r"the plan is for another model: 'model.layers.0.self_attn.q_proj.weight' has fan_out 128, but the plan'"
    with pytest.raises(ValueError, match=message):
        mssp.param_groups(other, plan)
    model = on_meta(target)
    mssp.hf.adapt(model, base=config_of("qwen3_moe", BASE, head_dim=8))
    message = r"the plan has another base: 'model.layers.0.self_attn.q_proj.weight' has base_fan_out 32, but the plan's"
    with pytest.raises(ValueError, match=message):
        mssp.param_groups(model, plan)


def test_a_base_with_blocks_of_other_kinds_is_planned_by_its_own_config() -> None:
    """Block 1 of three has linear attention, that of two has attention, whose gate has one number for each head."""
    target, base = (config_of("bailing_hybrid", shape) for shape in (TARGET, BASE))
    model = model_of(base)
    mssp.hf.adapt(model, base)
    message = (
        "the plan's target is its own base, where it has fan_out 64 for 'model.layers.1.self_attn.g_proj.weight', and "
        "the model has 4: the model is not that base, or the plan was extended from a target whose block of this "
        "number is of another kind; then plan the base by its config alone, mssp.hf.plan(base, base, ...)"
    )
    with without_plan_warnings():
        extended = mssp.hf.plan(target, base, lr=1e-3).extend(BASE)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            mssp.initialize(model, extended)
        plan = mssp.hf.plan(base, base, lr=1e-3)
    initialized(model, plan)
    mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan)), plan)


def test_an_extended_plan_keeps_the_sides_of_the_base() -> None:
    base, target = uneven("deepseek_v3")
    larger = mssp.Shape(width=256, expert_width=96, experts=8, active=4, depth=3)
    config = config_of("deepseek_v3", larger, q_lora_rank=96, kv_lora_rank=64)
    with without_plan_warnings():
        plan = mssp.hf.plan(target, base, lr=1e-3)
        extended = plan.extend(larger)
        direct = mssp.hf.plan(config, base, lr=1e-3)
        back = plan.extend(BASE)
    model, small = on_meta(config), on_meta(base)
    mssp.hf.adapt(model)
    mssp.hf.adapt(small)
    assert numbers_of(model, extended) == numbers_of(model, direct)
    assert {values[1] for values in numbers_of(small, back).values()} == {1e-3}


@pytest.mark.parametrize("sides", [{"a": 3}, {"a": {"fan_in": 0}}, {"a": {"side": 1}}, {3: {}}, {"a": None}])
def test_sides_that_are_none(sides: Any) -> None:
    with pytest.raises(ValueError, match=r"^sides of .* are no sides of a matrix: "):
        mssp.plan(TARGET, BASE, lr=1e-3, sides=sides)


def test_what_cannot_be_described_has_no_sides_and_says_so() -> None:
    with pytest.warns(mssp.PlanWarning) as warned:
        plan = mssp.hf.plan(OLMOE | GROWN | {"model_type": "mixtral"}, OLMOE, lr=1.0)
    reason = "the base is a olmoe, the model a mixtral: base and target must be of one architecture"
    assert f"the sides of matrices are not known: {reason}" in [str(warning.message) for warning in warned]
    assert not plan.sides
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nameless = {key: size for key, size in OLMOE.items() if key != "model_type"}
        assert not mssp.hf.plan(nameless, nameless, lr=1.0, regime="III").sides


def test_without_transformers_everything_has_to_grow_by_one_factor(tmp_path: Path) -> None:
    uneven_heads = OLMOE | GROWN | {"num_attention_heads": 8, "num_key_value_heads": 4}
    files = [written(tmp_path, name, each) for name, each in (("a", OLMOE), ("b", OLMOE | GROWN), ("c", uneven_heads))]
    code = "import sys; sys.modules['transformers'] = None\nfrom mssp.cli import main\n"
    words = ["plan", "--base-config", files[0], "--lr", "1", "--json", "--target-config"]
    for file, expected in ((files[1], 0), (files[2], 2)):
        command = [sys.executable, "-c", f"{code}sys.exit(main({[*words, file]!r}))"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == expected, done.stderr
    assert "num_attention_heads goes from 4 to 8 while the width grows by 4" in done.stderr
    assert "install mssp[hf]" in done.stderr


def test_a_plan_file_from_the_command_line_has_sides(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [written(tmp_path, "a", OLMOE), written(tmp_path, "b", OLMOE | GROWN)]
    assert main(["plan", "--base-config", files[0], "--target-config", files[1], "--lr", "1", "--json"]) == 0
    plan = mssp.Plan.from_json(capsys.readouterr().out)
    assert plan.sides["layers.*.self_attn.o_proj.weight"].json() == {
        "fan_in": 256, "fan_out": 256, "base_fan_in": 64, "base_fan_out": 64,
    }  # fmt: skip
    file = tmp_path / "plan.json"
    file.write_text(plan.json(), encoding="utf-8")
    assert main(["plan", "--extend", str(file), "--target-config", files[0], "--json"]) == 0
    extended = mssp.Plan.from_json(capsys.readouterr().out)
    assert extended.sides["layers.*.self_attn.o_proj.weight"].json() == {
        "fan_in": 64, "fan_out": 64, "base_fan_in": 64, "base_fan_out": 64,
    }  # fmt: skip
