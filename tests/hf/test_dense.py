"""What holds for every family of dense models that the adapter knows, from the config to the checkpoint."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import mssp
import mssp.hf
from mssp.cli import main
from mssp.hf.factors import FACTOR_ATTRIBUTE, factor_of
from mssp.hf.vocabulary import for_all_blocks
from mssp.planning.configs import DENSE_FAMILIES as PLANNED_FAMILIES
from mssp.planning.rules import BIASES, GAINS
from tests.hf.tiny_models import (
    DENSE_BASE,
    DENSE_FAMILIES,
    DENSE_TARGET,
    TARGET,
    config_of,
    dense_config_of,
    initialized,
    logits,
    model_of,
    tokens,
)

pytestmark = pytest.mark.filterwarnings("ignore:without mssp this checkpoint:mssp.PlanWarning")

# (std, lr, eps, weight decay) from N x2, L x1.5 and lr 1e-3, eps 1e-8, weight decay 0.1, std 0.02.
BY_HAND = {
    "embedding": (0.02, 1e-3, 1e-8 / 2, 0.1),
    "norm": (1.0, 1e-3, 1e-8 / 3, 0.0),
    "qk_norm": (1.0, 1e-3, 1e-8 / 1.5, 0.0),
    "hidden": (0.0141421356, 5e-4, 1e-8 / 3, 0.2),
    "bias": (0.0, 1e-3, 1e-8 / 3, 0.0),
    "final_norm": (1.0, 1e-3, 1e-8 / 2, 0.0),
    "readout": (0.0, 5e-4, 1e-8, 0.2),
}
# The FFN grows from 3 to 3.5 widths, and this matrix reads it: its inputs grow by 448 / 192 = 7 / 3.
DOWN_PROJ = (0.0130930734, 1e-3 * 3 / 7, 1e-8 / 3, 0.1 * 7 / 3)
TIED = ("qwen3", "gemma3_text")
AFTER = [f"layers.{block}.{norm}" for block in range(3)
         for norm in ("post_attention_layernorm", "post_feedforward_layernorm")]  # fmt: skip
MODULES = [f"layers.{block}.{module}" for block in range(3) for module in ("self_attn", "mlp")]
WRITERS = {family: AFTER if family in ("gemma3_text", "olmo2") else MODULES for family in DENSE_FAMILIES}

every_family = pytest.mark.parametrize("family", DENSE_FAMILIES)


def planned(family: str, target: mssp.Shape = DENSE_TARGET, **settings: Any) -> mssp.Plan:
    settings = {"lr": 1e-3, "weight_decay": 0.1, "init_std": 0.02} | settings
    return mssp.hf.plan(dense_config_of(family, target), dense_config_of(family, DENSE_BASE), **settings)


@cache
def _original(family: str, target: mssp.Shape) -> nn.Module:
    return model_of(dense_config_of(family, target))


def adapted(family: str, target: mssp.Shape = DENSE_TARGET, **settings: Any) -> tuple[nn.Module, mssp.Plan]:
    model, plan = copy.deepcopy(_original(family, target)), planned(family, target, **settings)
    mssp.hf.adapt(model, base=dense_config_of(family, DENSE_BASE))
    return initialized(model, plan), plan


def factors(model: nn.Module) -> dict[str, float]:
    return {path: factor_of(module) for path, module in model.named_modules() if FACTOR_ATTRIBUTE in vars(module)}


# -- configs ----------------------------------------------------------------------------------------------------------


def test_all_families_that_are_planned_are_tested() -> None:
    assert sorted(DENSE_FAMILIES) == sorted(PLANNED_FAMILIES)


@every_family
def test_a_config_is_a_width_and_a_depth(family: str) -> None:
    config = dense_config_of(family, DENSE_TARGET)
    assert mssp.Shape.from_config(config) == mssp.Shape(width=128, depth=3)
    assert mssp.Shape.from_config(config.to_dict()).is_without_experts
    assert (planned(family).regime, planned(family).warnings) == ("I", ())


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "num_experts_per_tok"])
def test_a_config_that_speaks_of_experts_is_not_taken_for_dense(key: str) -> None:
    config = dense_config_of("llama", DENSE_TARGET).to_dict() | {key: 8}
    with pytest.raises(ValueError, match=r"the model config has no (experts|active): expected"):
        mssp.Shape.from_config(config)


def test_a_config_of_another_family_is_not_taken_for_dense() -> None:
    config = dense_config_of("llama", DENSE_TARGET).to_dict()
    for family in ("unheard_of", None):
        with pytest.raises(ValueError, match=r"no experts: expected .* or a family that is known to be dense \(gemma3"):
            mssp.Shape.from_config(config | {"model_type": family} if family else {**config, "model_type": ""})


def test_what_the_theory_holds_fixed_is_warned_of() -> None:
    base, target = (dense_config_of("gemma3_text", shape) for shape in (DENSE_BASE, DENSE_TARGET))
    target.query_pre_attn_scalar, target.head_dim = 32, 32
    with pytest.warns(mssp.PlanWarning) as caught:
        mssp.hf.plan(target, base, lr=1e-3)
    assert [str(warning.message) for warning in caught] == [
        "the size of a head changes from 16 to 32: the theory holds it fixed",
        "query_pre_attn_scalar changes from 16 to 32: the theory holds it fixed",
    ]


def test_a_dense_base_says_nothing_of_experts() -> None:
    base = dense_config_of("qwen3", DENSE_BASE)
    with pytest.raises(ValueError, match="the base is dense and the target has 8 experts"):
        mssp.hf.plan(config_of("qwen3_moe", TARGET), base, lr=1e-3)


# -- parameters -------------------------------------------------------------------------------------------------------


@every_family
def test_every_trainable_parameter_is_claimed_once(family: str) -> None:
    model, _ = adapted(family)
    names = [info.name for info in mssp.describe(model)]
    assert names == [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    roles = {info.role for info in mssp.describe(model)}
    assert roles == {"embedding", "hidden", "norm", "final_norm"} | (
        ({"readout"} if family not in TIED else set())
        | ({"qk_norm"} if family in ("qwen3", "gemma3_text") else set())
        | ({"bias"} if family == "qwen2" else set())
    )


@every_family
def test_sides_are_those_of_the_linear_layers(family: str) -> None:
    model, _ = adapted(family)
    small = _original(family, DENSE_BASE)
    seen = 0
    for info in mssp.describe(model):
        if info.role == "hidden":
            owner = info.name.removesuffix(".weight")
            layer, before = model.get_submodule(owner), small.get_submodule(re.sub(r"layers\.2", "layers.1", owner))
            assert isinstance(layer, nn.Linear)
            assert isinstance(before, nn.Linear)
            assert (info.fan_in, info.fan_out) == (layer.in_features, layer.out_features), info.name
            assert (info.base_fan_in, info.base_fan_out) == (before.in_features, before.out_features), info.name
            seen += 1
    assert seen == 3 * 7


@every_family
def test_weights_start_as_planned(family: str) -> None:
    model, plan = adapted(family, readout="mup")
    values = plan.resolve(mssp.describe(model))
    measured = 0
    for name, parameter in model.named_parameters():
        role = values[name].role
        if role in GAINS | BIASES:
            # Gemma's norms multiply by 1 + weight.
            neutral = 1.0 if role in GAINS and family != "gemma3_text" else 0.0
            assert torch.equal(parameter, torch.full_like(parameter, neutral)), name
            continue
        by_hand = DOWN_PROJ if name.endswith("down_proj.weight") else BY_HAND[role]
        std = 0.01 if role == "readout" else by_hand[0]  # muP's readout falls as 1/N
        assert values[name].init_std == pytest.approx(std), name
        assert parameter.std().item() == pytest.approx(std, rel=0.03), name
        assert abs(parameter.mean().item()) < 4.5 * std / parameter.numel() ** 0.5, name
        measured += 1
    assert measured == 3 * 7 + (1 if family in TIED else 2)


@every_family
def test_groups_have_the_values_of_the_plan(family: str) -> None:
    model, plan = adapted(family)
    values = plan.resolve(mssp.describe(model))
    names = {id(held): name for name, held in model.named_parameters()}
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    seen = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            _, *by_hand = DOWN_PROJ if name.endswith("down_proj.weight") else BY_HAND[values[name].role]
            assert [group["lr"], group["eps"], group["weight_decay"]] == pytest.approx(by_hand), name
            seen.append(name)
    assert sorted(seen) == sorted(values)
    mssp.verify(model, optimizer, plan)


@every_family
def test_at_the_base_the_plan_is_what_was_tuned(family: str) -> None:
    model, plan = adapted(family, DENSE_BASE, readout="mup")
    assert set(factors(model).values()) == {1.0}
    for group in mssp.param_groups(model, plan):
        decay = 0.1 if group["name"].partition(" ")[0] in ("embedding", "hidden", "readout") else 0.0
        assert (group["lr"], group["eps"], group["weight_decay"]) == (1e-3, 1e-8, decay)
    for values in plan.resolve(mssp.describe(model)).values():
        assert values.init_std == {True: 1.0, False: 0.0 if values.role in BIASES else 0.02}[values.role in GAINS]
    with_hooks = logits(model)
    mssp.hf.release(model)
    assert torch.equal(logits(model), with_hooks)


# -- the forward pass -------------------------------------------------------------------------------------------------


@every_family
def test_factors_are_where_branches_are_added_to_the_stream(family: str) -> None:
    model, _ = adapted(family)
    tied = {"lm_head": 1 / 2} if family in TIED else {}
    scaled = {"model.embed_tokens": 2**-0.5} if family == "gemma3_text" else {}
    writers = {f"model.{writer}": 2 / 3 for writer in WRITERS[family]}
    assert factors(model) == pytest.approx(tied | scaled | writers)


@every_family
def test_with_a_residual_factor_of_zero_blocks_are_the_identity(family: str) -> None:
    model, _ = adapted(family, readout="mup")
    for path, module in model.named_modules():
        if path.removeprefix("model.") in WRITERS[family]:
            setattr(module, FACTOR_ATTRIBUTE, 0.0)
    seen: list[tuple[Tensor, Tensor]] = []

    def watch(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append((args[0], output[0] if isinstance(output, tuple) else output))

    layers = model.get_submodule("model.layers")
    assert isinstance(layers, nn.ModuleList)
    for block in layers:
        block.register_forward_hook(watch)
    logits(model)
    assert len(seen) == 3
    for into, out_of in seen:
        assert into.any()
        assert torch.equal(into, out_of)


@every_family
def test_a_step_moves_whatever_has_a_gradient(family: str) -> None:
    model, plan = adapted(family, readout="mup", weight_decay=0.0)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    batch = tokens(batch=4, length=16)
    first = model(batch, labels=batch).loss
    first.backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        got_gradient = parameter.grad != 0
        assert got_gradient.any(), name
        assert torch.equal(parameter != before[name], got_gradient), name
    with torch.no_grad():
        assert model(batch, labels=batch).loss < first - 0.01


@pytest.mark.parametrize("family", ["gemma3_text", "llama"])
def test_embeddings_are_as_large_as_at_the_base_and_move_as_far(family: str) -> None:
    """Gemma multiplies embeddings by the root of its width, which at the base is 8, and which the plan takes out."""
    scale = 8.0 if family == "gemma3_text" else 1.0
    for shape in (DENSE_BASE, DENSE_TARGET):
        model, plan = adapted(family, shape, readout="mup", weight_decay=0.0)
        optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
        batch = tokens(batch=4, length=16)
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        before = embedding(batch).detach()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        moved = (embedding(batch) - before).detach().abs().median().item()
        assert before.std().item() == pytest.approx(scale * 0.02, rel=0.03), shape
        assert moved == pytest.approx(scale * 1e-3, rel=0.01), shape


# -- checkpoints and tables -------------------------------------------------------------------------------------------


@every_family
def test_checkpoints_keep_logits_and_plan(family: str, tmp_path: Path) -> None:
    model, plan = adapted(family, readout="mup")
    expected = logits(model)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    read: nn.Module = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert not torch.allclose(logits(read), expected, rtol=1e-3)
    mssp.hf.adapt(read)  # which finds base and plan in the config
    assert torch.equal(logits(read), expected)
    mssp.verify(read, torch.optim.AdamW(mssp.param_groups(read, plan)), plan)


@every_family
def test_folded_factors_leave_a_plain_model(family: str) -> None:
    model, _ = adapted(family, readout="mup")
    expected = logits(model)
    mssp.hf.fold(model)
    assert not factors(model)
    assert not torch.allclose(expected, torch.zeros(()), atol=1e-4)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-6)


@every_family
def test_the_command_shows_the_plan_by_name(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for which, shape in (("base", DENSE_BASE), ("target", DENSE_TARGET)):
        path = tmp_path / f"{which}.json"
        path.write_text(json.dumps(dense_config_of(family, shape).to_dict()), encoding="utf-8")
        files += [f"--{which}-config", str(path)]
    assert main(["plan", *files, "--lr", "1e-3", "--init-std", "0.02", "--weight-decay", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[1:3] == ["  base     N 64  L 2  D 1", "  target   N 128  L 3  D 1"]
    assert "router" not in out
    assert "expert" not in out
    model = _original(family, DENSE_TARGET)
    named = {line.split()[0] for line in lines if line.startswith(("model.", "lm_head"))}
    assert named == {for_all_blocks(name) for name, _ in model.named_parameters()}
    down = next(line.split() for line in lines if line.startswith("model.layers.*.mlp.down_proj.weight"))
    assert down[-5:] == ["0.01309", "0.0004286", "3.333e-09", "0.2333", "derived"]
