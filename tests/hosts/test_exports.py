"""Every pattern against the real names of the hosts' models, and the exported files executed."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mssp
from mssp.cli import main
from mssp.hosts import HOSTS, SIDES, Sizes, export
from tests.hosts.real_hosts import (
    BASE,
    TARGET,
    MoE,
    OptimizersContainer,
    listed,
    load,
    model_of,
    plan_for,
)

FILES = {"torchtitan": "torchtitan", "olmo-core": "olmo_core", "megatron": "megatron_core"}
MODELS = [(host, label) for host, file in FILES.items() for label in listed(file)]
# The README's plan: hidden lr 4e-3 x (2048/256)^-1 = 5e-4, weight decay 0.1 x 8 = 0.8, eps 1e-8 / 8 / (16/8).
PLAN = mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.1)
SMALL = {"width": 64, "expert_width": 32, "experts": 8, "active": 4, "depth": 2}

Numbers = dict[str, tuple[float, float | None, float]]


def options_for(host: str, label: str) -> dict[str, Any]:
    return {"qk_norm": "head"} if "use_head_qk_norm" in label else {}


def torchtitan_groups(planned: SimpleNamespace, model: nn.Module) -> Numbers:
    found, _ = planned.PlannedOptimizers._build_param_groups(model, planned.PARAM_GROUPS, {})
    return {
        name: (group["lr"], group.get("eps"), group.get("weight_decay", 0.0))
        for groups in found.values()
        for group in groups
        for name in group["param_names"]
    }


def olmo_groups(planned: SimpleNamespace, model: nn.Module) -> Numbers:
    """As OLMo-core builds them: strict, and a parameter in two groups is torch's error."""
    numbers: Numbers = {}
    for override in planned.group_overrides(model):
        for pattern in override.params:
            names = [name for name, _ in model.named_parameters() if fnmatch(name, pattern)]
            assert names, pattern
            assert not set(names) & set(numbers), pattern
            numbers |= dict.fromkeys(
                names, (override.opts["lr"], override.opts["eps"], override.opts.get("weight_decay", 0.0))
            )
    return numbers


def megatron_groups(planned: SimpleNamespace, model: nn.Module) -> Numbers:
    """As Megatron-core builds them: what several keys say is merged."""
    numbers: Numbers = {}
    for key, override in planned.config_overrides().items():
        for name, parameter in model.named_parameters():
            if key.matches(parameter, f"module.module.{name}"):
                assert name not in numbers
                assert override["start_wd"] == override["end_wd"] == override["weight_decay"]
                numbers[name] = (override["max_lr"], override.get("eps"), override["start_wd"])
    return numbers


def nanogpt_groups(planned: SimpleNamespace, model: nn.Module) -> Numbers:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = planned.configure_optimizers(model).param_groups
    return {
        names[id(parameter)]: (group["lr"], group.get("eps"), group.get("weight_decay", 0.0))
        for group in groups
        for parameter in group["params"]
    }


GROUPS: dict[str, Callable[[SimpleNamespace, nn.Module], Numbers]] = {
    "torchtitan": torchtitan_groups,
    "olmo-core": olmo_groups,
    "megatron": megatron_groups,
    "nanogpt": nanogpt_groups,
}


@pytest.mark.parametrize(("host", "label"), MODELS)
@pytest.mark.parametrize("said", [True, False])
def test_every_real_name_is_found_once_by_groups_and_by_starts(
    monkeypatch: pytest.MonkeyPatch, host: str, label: str, said: bool
) -> None:
    listing = listed(FILES[host])[label]
    plan = plan_for(listing["target"])
    sizes = Sizes(listing["sizes"], {k: max(1, v // 2) for k, v in listing["sizes"].items()}) if said else None
    planned = load(monkeypatch, plan, host, sizes, **options_for(host, label))
    model = model_of(listing["parameters"])
    if not said and any(not planned._fits(v, "grows") for k, v in listing["sizes"].items() if not k.endswith("rank")):
        with pytest.raises(ValueError, match="has to be said to `mssp export`"):
            _ = [planned._start(name, tuple(shape)) for name, shape in listing["parameters"].items()]
        return
    numbers = GROUPS[host](planned, model)
    assert set(numbers) == set(listing["parameters"])
    for name, shape in listing["parameters"].items():
        way, std = planned._start(name, tuple(shape))
        assert way in {"normal", "tied", "zeros", "ones"}
        assert math.isfinite(std)


# What the base of a quarter of the depth and an eighth of the width makes of lr 4e-3, eps 1e-8, weight decay 0.1.
HIDDEN, FIXED = (5e-4, 6.25e-10, 0.8), (4e-3, 6.25e-10, 0.1)
NORM, QK_NORM = (4e-3, 6.25e-10, 0.0), (4e-3, 5e-9, 0.0)
EMBEDDING, FINAL_NORM, READOUT = (4e-3, 1.25e-9, 0.1), (4e-3, 1.25e-9, 0.0), (5e-4, 1e-8, 0.8)
ROUTER, EXPERT, EXPERT_BIAS = (5e-4, 6.25e-10, 0.8), (5e-4, 7.8125e-11, 0.8), (4e-3, 7.8125e-11, 0.0)
EXPECTED: dict[str, dict[str, tuple[tuple[int, ...], tuple[float, float, float]]]] = {
    "torchtitan": {
        "tok_embeddings.weight": ((512, 2048), EMBEDDING),
        "layers.3.attention_norm.weight": ((2048,), NORM),
        "layers.3.attention.qkv_linear.wqkv.weight": ((4096, 2048), HIDDEN),
        "layers.3._checkpoint_wrapped_module.attention.wo.weight": ((2048, 4096), HIDDEN),
        "layers.3.attention.wkv_b.weight": ((8192, 512), FIXED),
        "layers.3.attention.q_norm.weight": ((128,), QK_NORM),
        "layers.3.attention.sinks": ((32,), NORM),
        "layers.3.moe.router.gate.weight": ((64, 2048), ROUTER),
        "layers.3.moe.routed_experts.inner_experts.w1_EFD": ((64, 1024, 2048), EXPERT),
        "layers.3.moe.routed_experts.inner_experts.w2_EDF": ((64, 2048, 1024), EXPERT),
        "layers.3.moe.routed_experts.inner_experts.mlp1_bias_EG": ((64, 2048), EXPERT_BIAS),
        "layers.3.moe.shared_experts.w2.weight": ((2048, 2048), HIDDEN),
        "norm.weight": ((2048,), FINAL_NORM),
        "lm_head.weight": ((512, 2048), READOUT),
    },
    "olmo-core": {
        "embeddings.weight": ((512, 2048), EMBEDDING),
        "blocks.3.attention.w_k.weight": ((256, 2048), HIDDEN),
        "blocks.3.attention.q_norm.weight": ((2048,), NORM),
        "blocks.3.feed_forward_moe.router.weight": ((131072,), ROUTER),
        "blocks.3.feed_forward_moe.experts.mlp.w1": ((131072, 1024), EXPERT),
        "blocks.3.feed_forward_moe.experts.mlp.w2": ((65536, 2048), EXPERT),
        "blocks.3.feed_forward_moe.shared_mlp.w2.weight": ((2048, 4096), HIDDEN),
        "blocks.3.feed_forward_moe.shared_mlp.w2.bias": ((2048,), NORM),
        "lm_head.norm.weight": ((2048,), FINAL_NORM),
        "lm_head.w_out.weight": ((512, 2048), READOUT),
    },
    "megatron": {
        "embedding.word_embeddings.weight": ((512, 2048), EMBEDDING),
        "decoder.layers.3.self_attention.linear_proj.weight": ((2048, 2048), HIDDEN),
        "decoder.layers.3.mlp.router.weight": ((64, 2048), ROUTER),
        "decoder.layers.3.mlp.linear_fc2.weight": ((2048, 8192), HIDDEN),
        "decoder.layers.3.mlp.experts.local_experts.7.linear_fc2.weight": ((2048, 1024), EXPERT),
        "decoder.layers.3.mlp.experts.local_experts.7.linear_fc1.bias": ((2048,), EXPERT_BIAS),
        "decoder.layers.3.mlp.shared_experts.gate_weight": ((1, 2048), (5e-4, 5e-9, 0.8)),
        # As Transformer Engine names them, in megatron-core's sources; it does not install without a GPU.
        "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight": ((2048,), NORM),
        "decoder.layers.3.mlp.experts.linear_fc1.weight13": ((2048, 2048), EXPERT),
        "decoder.layers.3.mlp.experts.linear_fc2.weight0": ((2048, 1024), EXPERT),
        "decoder.layers.3.self_attention.linear_q_down_proj.weight": ((1536, 2048), HIDDEN),
        "decoder.layers.3.self_attention.linear_kv_up_proj.weight": ((8192, 512), FIXED),
        "decoder.layers.3.self_attention.linear_kv_up_proj.layer_norm_weight": ((512,), QK_NORM),
        "decoder.final_layernorm.weight": ((2048,), FINAL_NORM),
        "output_layer.weight": ((512, 2048), READOUT),
    },
    "nanogpt": {
        "transformer.wte.weight": ((512, 2048), EMBEDDING),
        "transformer.h.3.ln_1.weight": ((2048,), NORM),
        "transformer.h.3.attn.c_attn.weight": ((6144, 2048), HIDDEN),
        "transformer.h.3.mlp.c_proj.weight": ((2048, 8192), HIDDEN),
        "transformer.h.3.mlp.router.w_g.weight": ((64, 2048), ROUTER),
        "transformer.h.3.mlp.experts.c_fc": ((64, 2048, 1024), EXPERT),
        "transformer.h.3.mlp.experts.c_proj": ((64, 1024, 2048), EXPERT),
        "transformer.h.3.mlp.experts.fc_bias": ((64, 1, 1024), EXPERT_BIAS),
        "transformer.ln_f.weight": ((2048,), FINAL_NORM),
        "lm_head.weight": ((512, 2048), READOUT),
    },
}


@pytest.mark.parametrize("host", HOSTS)
def test_numbers_by_hand(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    planned = load(monkeypatch, PLAN, host)
    model = model_of({name: shape for name, (shape, _) in EXPECTED[host].items()})
    found = GROUPS[host](planned, model)
    for name, (_, numbers) in EXPECTED[host].items():
        assert found[name] == pytest.approx(numbers, rel=1e-11), name


@pytest.mark.parametrize("host", HOSTS)
def test_a_name_of_no_role_is_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    planned = load(monkeypatch, PLAN, host)
    with pytest.raises(ValueError, match=r"unheard_of.weight .*matches 0 patterns"):
        planned._start("layers.0.unheard_of.weight", (2048, 2048))
    if host == "torchtitan":
        with pytest.raises(ValueError, match=r"no pattern of this export finds layers.0.unheard_of.weight"):
            torchtitan_groups(planned, model_of({"layers.0.unheard_of.weight": (2, 2)}))


def test_initial_values_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, PLAN, "torchtitan")
    wo = "layers.0.attention.wo.weight"
    assert planned._start(wo, (2048, 4096)) == ("normal", 4096**-0.5)  # its own input side
    assert planned._start("layers.0.attention.wkv_b.weight", (8192, 512)) == ("normal", 512**-0.5)
    way, std = planned._start("layers.0.moe.routed_experts.inner_experts.w2_EDF", (64, 2048, 1024))
    assert (way, std) == ("tied", pytest.approx(0.03125))
    assert planned._start("lm_head.weight", (7, 2048)) == ("zeros", 0.0)
    assert planned._start("norm.weight", (2048,)) == ("ones", 1.0)
    with pytest.raises(ValueError, match=r"wo.weight has shape \(2048, 3000\), this export is for \(2048, 'grows'\)"):
        planned._start(wo, (2048, 3000))
    with pytest.raises(ValueError, match=r"has shape \(32, 1024, 2048\)"):
        planned._start("layers.0.moe.routed_experts.inner_experts.w1_EFD", (32, 1024, 2048))
    # A tuned std is carried by the ratio of the width, whatever the side: 0.02 x 8^-1/2.
    tuned = load(monkeypatch, mssp.plan(TARGET, BASE, lr=4e-3, init_std=0.02), "torchtitan")
    assert tuned._start(wo, (2048, 4096)) == ("normal", pytest.approx(0.02 / math.sqrt(8)))


def test_sizes_that_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes({"attention_width": 4096, "ffn_width": 3000, "kv_rank": 512}, {"ffn_width": 1500, "kv_rank": 128})
    planned = load(monkeypatch, PLAN, "torchtitan", sizes)
    model = model_of(
        {
            "layers.0.attention.wo.weight": (2048, 4096),
            "layers.0.feed_forward.w2.weight": (2048, 3000),
            "layers.0.attention.wkv_b.weight": (4096, 512),
        }
    )
    lrs = {name: numbers[0] for name, numbers in torchtitan_groups(planned, model).items()}
    assert lrs["layers.0.attention.wo.weight"] == pytest.approx(5e-4)  # 512 -> 4096: assumed
    assert lrs["layers.0.feed_forward.w2.weight"] == pytest.approx(2e-3)  # 1500 -> 3000
    assert lrs["layers.0.attention.wkv_b.weight"] == pytest.approx(1e-3)  # 128 -> 512
    assert planned._start("layers.0.feed_forward.w2.weight", (2048, 3000)) == ("normal", pytest.approx(3000**-0.5))
    with pytest.raises(ValueError, match=r"this export is for \(2048, 3000\)"):
        planned._start("layers.0.feed_forward.w2.weight", (2048, 4096))
    text = export(PLAN, "torchtitan", sizes)
    assert "#   attention-width: 512 -> 4096 (the base's is assumed)" in text
    assert "#   ffn-width: 1500 -> 3000\n" in text
    assert "#   q-rank: taken to be fixed" in text


def test_without_a_base_sides_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mssp.plan(TARGET, lr=1.0, regime="III")
    planned = load(monkeypatch, plan, "torchtitan", Sizes({"ffn_width": 8192}))
    assert re.search(r'"lr": 0\.00048828125,  # fan_in', export(plan, "torchtitan"))  # 1 / 2048
    model = model_of({"layers.0.feed_forward.w2.weight": (2048, 8192)})
    assert torchtitan_groups(planned, model)["layers.0.feed_forward.w2.weight"][0] == pytest.approx(1 / 8192)
    with pytest.raises(ValueError, match=r"this export is for \(2048, 2048\)"):
        planned._start("layers.0.attention.wo.weight", (2048, 4096))  # another size was not said
    with pytest.raises(ValueError, match=r"matches 0 patterns .*--target.kv-rank"):
        planned._start("layers.0.attention.wkv_b.weight", (4096, 512))


def test_torchtitan_leaves_out_groups_that_a_part_of_the_model_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, PLAN, "torchtitan")
    last = model_of({"layers.9.attention_norm.weight": (2048,), "norm.weight": (2048,)})
    assert set(torchtitan_groups(planned, last)) == {"layers.9.attention_norm.weight", "norm.weight"}
    with pytest.raises(ValueError, match="matched no parameters"):
        OptimizersContainer._build_param_groups(last, planned.PARAM_GROUPS, {})


def test_torchtitan_fills_and_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(SMALL)
    planned = load(monkeypatch, plan, "torchtitan")
    model = model_of(
        {
            "layers.0.attention.wo.weight": (64, 128),
            "layers.0.moe.routed_experts.inner_experts.w1_EFD": (8, 32, 64),
            "layers.1.moe.routed_experts.inner_experts.w1_EFD": (8, 32, 64),
            "lm_head.weight": (16, 64),
        },
        "cpu",
    )
    moe = MoE("sigmoid", route_norm=False)
    model.add_module("moe", moe)
    planned.plan_model(model)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module._param_init[name](parameter)  # type: ignore[operator,index]
    experts = [model.get_parameter(f"layers.{i}.moe.routed_experts.inner_experts.w1_EFD") for i in (0, 1)]
    assert torch.equal(experts[0][0], experts[0][7])
    assert not torch.equal(experts[0], experts[1])
    assert float(experts[0].detach().std()) == pytest.approx(0.125, rel=0.05)
    assert float(model.get_parameter("layers.0.attention.wo.weight").detach().std()) == pytest.approx(
        128**-0.5, rel=0.05
    )
    assert not model.get_parameter("lm_head.weight").any()
    assert moe.router.route_scale == pytest.approx(1.0)  # 2.0 as tuned, x (4/2)^-1
    shard = torch.empty(2, 32, 64)
    planned._Initial("layers.0.moe.routed_experts.inner_experts.w1_EFD", "tied", 0.125)(shard)
    assert torch.equal(shard[1], experts[0][0])  # a rank with two of the experts draws what the others have
    with pytest.raises(ValueError, match="shard experts only"):
        planned._Initial("layers.0.moe.routed_experts.inner_experts.w1_EFD", "tied", 0.125)(torch.empty(8, 16, 64))
    model.add_module("other", MoE("softmax", route_norm=True))
    with pytest.warns(UserWarning, match="gates that sum to one"):
        planned.plan_model(model)


def test_torchtitan_scales_the_residual_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for({**SMALL, "depth": 6}, scheme="mup"), "torchtitan")
    assert planned.RESIDUAL == 1.0
    deeper = mssp.plan(mssp.Shape(64, 32, 8, 4, 6), mssp.Shape(32, 16, 4, 2, 2), lr=1e-3)
    planned = load(monkeypatch, deeper, "torchtitan")

    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model = nn.Module()
    model.layers = nn.ModuleDict({"0": nn.ModuleDict({"attention": Doubles(), "norm": Doubles()})})
    planned.plan_model(model)
    layer = model.get_submodule("layers.0")
    assert float(layer.get_submodule("attention")(torch.tensor(3.0))) == pytest.approx(2.0)  # 6 x (6/2)^-1
    assert float(layer.get_submodule("norm")(torch.tensor(3.0))) == 6.0


def test_olmo_core_fills_flat_experts_and_undoes_the_average_with_shared_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "olmo-core")
    names = {f"blocks.0.feed_forward_moe.experts.mlp.w{i}": shape for i, shape in ((1, (512, 32)), (2, (256, 64)))}
    model = model_of({**names, "blocks.0.feed_forward_moe.router.weight": (512,)}, "cpu")
    planned.initialize(model)
    for name, std in (("w1", 0.125), ("w2", 32**-0.5)):
        experts = model.get_parameter(f"blocks.0.feed_forward_moe.experts.mlp.{name}").unflatten(0, (8, -1))
        assert torch.equal(experts[0], experts[7])
        assert float(experts[0].detach().std()) == pytest.approx(std, rel=0.05)
    with pytest.raises(ValueError, match=r"\(512, 33\), this export is for \(512, 32\) or \(256, 64\)"):
        planned.initialize(model_of({"blocks.0.feed_forward_moe.experts.mlp.w1": (512, 33)}, "cpu"))
    # K from 2 to 4: 1/3 became 1/5, and 2/3 became 4/5.
    assert pytest.approx(5 / 3) == planned.SHARED
    assert pytest.approx(5 / 6) == planned.ROUTED_BESIDE_SHARED
    assert planned.AGGREGATION == 0.5


CHECKPOINTED = {
    "blocks.0.attention._checkpoint_wrapped_module.w_q.weight": (64, 64),
    "blocks.1.attention.w_q.weight": (64, 64),
    "blocks.2._checkpoint_wrapped_module.attention.w_q.weight": (64, 64),
    "lm_head.w_out.weight": (16, 64),
}


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module."])
def test_olmo_core_overrides_all_that_a_wrapped_model_has(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "olmo-core")
    names = {prefix + name: shape for name, shape in CHECKPOINTED.items()}
    numbers = olmo_groups(planned, model_of(names))
    assert {name: lr for name, (lr, _, _) in numbers.items()} == dict.fromkeys(names, pytest.approx(2e-3))
    params = [pattern for override in planned.group_overrides(model_of(names)) for pattern in override.params]
    if prefix:
        assert set(params) == set(names)
    else:
        wrapped = "blocks.0.attention._checkpoint_wrapped_module.w_q.weight"
        assert params == [wrapped, "blocks.*.attention.w_q.weight", "lm_head.w_out.weight"]


def test_olmo_core_refuses_to_leave_a_trained_parameter_to_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "olmo-core")
    model = model_of({"lm_head.w_out.weight": (16, 64), "other_wrapper.lm_head.w_out.weight": (16, 64)})
    with pytest.raises(ValueError, match=r"^other_wrapper.lm_head.w_out.weight \(16, 64\) matches 0 patterns .*$"):
        planned.group_overrides(model)
    model.get_parameter("other_wrapper.lm_head.w_out.weight").requires_grad_(False)
    assert [override.params for override in planned.group_overrides(model)] == [["lm_head.w_out.weight"]]


class FakeRouter(nn.Module):
    normalize_expert_weights: float | None = None
    gating_function = "sigmoid"

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x, "index"


def test_olmo_core_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    deeper = mssp.plan(mssp.Shape(64, 32, 8, 4, 6), mssp.Shape(32, 16, 4, 2, 2), lr=1e-3)
    planned = load(monkeypatch, deeper, "olmo-core")
    block, dense, model = nn.Module(), nn.Module(), nn.Module()
    block.dropout, block.feed_forward_moe = nn.Identity(), nn.Module()
    moe = block.feed_forward_moe
    moe.router, moe.shared_mlp = FakeRouter(), nn.Identity()
    dense.attention_residual_stream, dense.feed_forward_residual_stream = nn.Identity(), nn.Identity()
    dense.attention_residual_stream.alpha = dense.feed_forward_residual_stream.alpha = 1.0  # type: ignore[assignment]
    model.blocks = nn.ModuleDict({"0": block, "1": dense})
    planned.install_multipliers(model)
    one = torch.tensor(1.0)
    assert float(block.dropout(one)) == pytest.approx(1 / 3)
    assert dense.attention_residual_stream.alpha == pytest.approx(1 / 3)
    weights, index = moe.router(one)
    assert float(weights) == pytest.approx(0.5 * 5 / 6)
    assert index == "index"
    assert float(moe.shared_mlp(one)) == pytest.approx(5 / 3)
    moe.router.normalize_expert_weights = 2.0
    with pytest.raises(ValueError, match=r"normalised by their 2.0-norm"):
        planned.install_multipliers(model)


def test_olmo_core_asks_for_the_kind_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "olmo-core", qk_norm="head")
    with pytest.raises(ValueError, match="export with --qk-norm full"):
        planned.initialize(model_of({"blocks.0.attention.q_norm.weight": (64,)}, "cpu"))
    planned = load(monkeypatch, plan_for(SMALL), "olmo-core")
    with pytest.raises(ValueError, match=r"has shape \(16,\)"):
        planned.initialize(model_of({"blocks.0.attention.q_norm.weight": (16,)}, "cpu"))


def test_megatron_groups_differ_where_checkpoints_look(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = list(load(monkeypatch, PLAN, "megatron").config_overrides(0.1).values())
    keys = {(override["wd_mult"], override["lr_mult"]) for override in overrides}
    assert len(keys) == len(overrides)
    for override in overrides:
        assert override["lr"] == override["max_lr"]
        assert override["min_lr"] == pytest.approx(0.1 * override["max_lr"])
        assert override["lr_mult"] == pytest.approx(1.0, abs=1e-3)


def megatron_model(experts: int, first_layer: int = 1) -> nn.Module:
    shapes = {"decoder.layers.0.self_attention.linear_proj.weight": (64, 64), "output_layer.weight": (16, 64)}
    for expert in range(experts):
        prefix = f"decoder.layers.0.mlp.experts.local_experts.{expert}"
        shapes |= {f"{prefix}.linear_fc1.weight": (64, 64), f"{prefix}.linear_fc2.weight": (64, 32)}
    model = model_of(shapes, "cpu")
    model.get_submodule("decoder").layers = nn.ModuleList(model.get_submodule("decoder.layers").children())
    model.get_submodule("decoder.layers.0").layer_number = first_layer  # type: ignore[assignment]
    model.config = SimpleNamespace(gated_linear_unit=True)  # type: ignore[assignment]
    return model


def test_megatron_fills_the_same_on_every_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL, scheme="mup"), "megatron")
    whole, part, later = megatron_model(8), megatron_model(2), megatron_model(8, first_layer=2)
    planned.initialize(whole)
    planned.initialize(later)
    state = planned.parallel_state
    state.get_expert_model_parallel_world_size, state.get_expert_model_parallel_rank = lambda: 4, lambda: 3
    planned.initialize(part)
    experts = "decoder.layers.0.mlp.experts.local_experts"
    for fc in ("linear_fc1", "linear_fc2"):
        held = [model.get_parameter(f"{experts}.1.{fc}.weight") for model in (whole, part, later)]
        assert torch.equal(held[1], whole.get_parameter(f"{experts}.7.{fc}.weight"))
        assert not torch.equal(held[0], held[1])
        assert not torch.equal(held[0], held[2])  # the same place in another stage is another layer
    # Two ranks of tensor parallelism: halves of the input side, and of gate and up each.
    state.get_expert_model_parallel_world_size, state.get_expert_model_parallel_rank = lambda: 1, lambda: 0
    proj, fc1 = "decoder.layers.0.self_attention.linear_proj.weight", f"{experts}.0.linear_fc1.weight"
    for rank in (0, 1):
        half = megatron_model(8)
        for name, axis in ((proj, 1), (fc1, 0)):
            module = half.get_submodule(name.rpartition(".")[0])
            module.weight = nn.Parameter(torch.empty((64, 32) if axis else (32, 64)))
            module.weight.tensor_model_parallel, module.weight.partition_dim = True, axis  # type: ignore[attr-defined]
        for kind in ("expert_tensor_parallel", "tensor_model_parallel"):
            setattr(state, f"get_{kind}_world_size", lambda: 2)
            setattr(state, f"get_{kind}_rank", lambda rank=rank: rank)
        planned.initialize(half)
        assert torch.equal(half.get_parameter(proj), whole.get_parameter(proj).chunk(2, 1)[rank])
        gate, up = whole.get_parameter(fc1).chunk(2, 0)
        assert torch.equal(half.get_parameter(fc1), torch.cat([gate.chunk(2, 0)[rank], up.chunk(2, 0)[rank]]))


def test_megatron_ties_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "megatron")
    model = megatron_model(8)
    planned.initialize(model)
    experts = [model.get_parameter(f"decoder.layers.0.mlp.experts.local_experts.{i}.linear_fc1.weight") for i in (0, 7)]
    assert torch.equal(*experts)
    assert float(experts[0].detach().std()) == pytest.approx(0.125, rel=0.05)
    model.config.gated_linear_unit = False  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="has 64 rows, this export is for experts of width 32"):
        planned.initialize(model)
    model.share_embeddings_and_output_weights = True  # type: ignore[assignment]
    with pytest.raises(ValueError, match="planned apart"):
        planned.initialize(model)


def test_megatron_scales_an_output_and_its_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    deeper = mssp.plan(mssp.Shape(64, 32, 8, 4, 6), mssp.Shape(32, 16, 4, 2, 2), lr=1e-3)
    planned = load(monkeypatch, deeper, "megatron")

    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return x, None

    model = nn.Module()
    model.decoder = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"mlp": Pair()})])})
    planned.install_multipliers(model)
    output, bias = model.get_submodule("decoder.layers.0.mlp")(torch.tensor(3.0))
    assert float(output) == pytest.approx(1.0)
    assert bias is None


def test_nanogpt_refuses_a_tied_readout(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL), "nanogpt")
    model = model_of({"transformer.wte.weight": (16, 64), "lm_head.weight": (16, 64)}, "cpu")
    model.get_submodule("lm_head").weight = model.get_parameter("transformer.wte.weight")
    with pytest.raises(ValueError, match=r"untie lm_head.weight"):
        planned.initialize(model)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_nanogpt_plans_what_compile_and_ddp_wrap(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    deeper = mssp.plan(mssp.Shape(64, 32, 8, 4, 6), mssp.Shape(32, 16, 4, 2, 2), lr=1e-3)
    planned = load(monkeypatch, deeper, "nanogpt")
    names = {"transformer.h.0.attn.c_proj.weight": (64, 64), "transformer.h.0.mlp.experts.c_fc": (8, 64, 32)}
    plain, wrapped = model_of(names, "cpu"), model_of({prefix + name: shape for name, shape in names.items()}, "cpu")
    for model in (plain, wrapped):
        planned.initialize(model)
        assert len(planned.install_multipliers(model, gates_sum_to_one=False)) == 3  # attn, mlp, experts
    for name in names:
        assert planned._clean(prefix + name) == name
        assert torch.equal(plain.get_parameter(name), wrapped.get_parameter(prefix + name))
    assert list(nanogpt_groups(planned, wrapped).values()) == list(nanogpt_groups(planned, plain).values())


def test_nanogpt_scales_gradients_and_learning_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = load(monkeypatch, plan_for(SMALL, grad_scale=True, lr_mult={"readout": 3.0}), "nanogpt")
    model = model_of({"transformer.h.0.mlp.experts.c_fc": (8, 64, 32), "lm_head.weight": (16, 64)}, "cpu")
    planned.initialize(model)
    optimizer = planned.configure_optimizers(model)
    planned.set_lr(optimizer, 8e-3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([4e-3, 12e-3])
    assert [group["grad_scale"] for group in optimizer.param_groups] == [4.0, 1.0]  # M N: twice 2
    planned.scale_gradients(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [float(p.grad.max()) for p in model.parameters() if p.grad is not None] == [4.0, 1.0]


@pytest.mark.parametrize(
    ("host", "options", "message"),
    [
        ("keras", {}, "host must be one of torchtitan, megatron, olmo-core, nanogpt, got 'keras'"),
        (
            "torchtitan",
            {"optimizer": "sgd", "weight_decay": 0.0},
            "torchtitan does not take sgd: plan with adam or adamw",
        ),
        ("megatron", {"grad_scale": True}, "the plan scales gradients instead of eps, which Megatron-core cannot"),
    ],
)
def test_refusals(host: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        export(plan_for(SMALL, **options), host)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown size 'width'"):
        Sizes({"width": 3})
    with pytest.raises(ValueError, match=r"target.ffn-width must be a positive whole number, got 0"):
        Sizes({"ffn_width": 0})
    with pytest.raises(ValueError, match=r"base.ffn-width is given without target.ffn-width"):
        Sizes({}, {"ffn_width": 3})
    with pytest.raises(ValueError, match="but the plan has no base"):
        export(plan_for(SMALL, halved=False), "megatron", Sizes({"ffn_width": 3}, {"ffn_width": 3}))
    with pytest.raises(ValueError, match=r"target.ffn-width 97 cannot have grown .*: say base.ffn-width too"):
        export(plan_for(SMALL), "megatron", Sizes({"ffn_width": 97}))
    with pytest.raises(ValueError, match="qk_norm is a question for olmo-core only"):
        export(plan_for(SMALL), "megatron", qk_norm="head")
    with pytest.raises(ValueError, match="qk_norm must be one of full, head, got 'both'"):
        export(plan_for(SMALL), "olmo-core", qk_norm="both")


@pytest.mark.parametrize("side", SIDES)
def test_every_size_that_can_be_said_counts_somewhere(side: str) -> None:
    def code(sizes: Sizes | None) -> list[str]:
        written = [line for host in HOSTS for line in export(PLAN, host, sizes).splitlines()]
        return [line for line in written if not line.lstrip().startswith("#")]

    assert code(Sizes({side: 96}, {side: 32})) != code(None)


def test_a_matrix_of_queries_keys_and_values_takes_the_queries_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mssp.plan(TARGET, BASE, lr=0.1, optimizer="sgd")
    sizes = Sizes({"attention_width": 4096}, {"attention_width": 1024})
    planned = load(monkeypatch, plan, "megatron", sizes)
    lrs = {pattern: group["max_lr"] for key, group in planned.GROUPS for pattern in key.name}
    # L fan_out / fan_in: twice the layers, queries 1024 -> 4096 from a width of 256 -> 2048.
    assert lrs["*decoder.layers.*.self_attention.linear_qkv.weight"] == pytest.approx(0.1)
    for host, name in (("megatron", "linear_qkv"), ("nanogpt", "c_attn")):
        said = (
            f"{name} holds queries, keys and values in one matrix, and takes the learning rate that SGD has for queries"
        )
        assert said in " ".join(export(plan, host, sizes).replace("\n#", " ").split())
        assert "SGD has for queries" not in export(PLAN, host, sizes)


GATES = "for gates that do not sum to one"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("plan", "aggregation", "residual"),
    [
        (PLAN, "0.125  # relative to the base: K^-1", "0.5  # relative to the base: L^-1"),
        (mssp.plan(TARGET, lr=1.0, regime="III"), "0.03125  # K^-1", "0.0625  # L^-1"),
        (mssp.plan(TARGET, BASE, lr=1.0, scheme="sp"), "1.0  # 1 in SP", "1.0  # 1 in SP"),
        (mssp.plan(TARGET, lr=1.0, scheme="sp"), "1.0  # 1 in SP", "1.0  # 1 in SP"),
        (
            mssp.plan(TARGET, lr=1.0, regime="III", aggregation_mult=3.0),
            "0.09375  # K^-1, times the tuned 3.0",
            "0.0625  # L^-1",
        ),
    ],
)
def test_comments_on_factors_are_true(host: str, plan: mssp.Plan, aggregation: str, residual: str) -> None:
    lines = export(plan, host).splitlines()
    assert f"RESIDUAL = {residual}" in lines
    if host != "megatron":
        assert f"AGGREGATION = {aggregation}, {GATES}" in lines
    if plan.base is None:
        assert not [line for line in lines if "the base" in line]
    if host == "olmo-core":  # K from 4 to 32, or 32 in full
        shared, routed, since = (
            ("6.6", "0.825", "how {} changed since the base") if plan.base else ("33.0", "1.03125", "{}")
        )
        assert f"SHARED = {shared}  # undoes {since.format('1 / (K + 1)')}" in lines
        assert f"ROUTED_BESIDE_SHARED = {routed}  # undoes {since.format('K / (K + 1)')}" in lines


@pytest.mark.parametrize("host", HOSTS)
def test_a_start_that_experts_share_in_part_is_refused(host: str) -> None:
    plan = mssp.plan(mssp.Shape(64, 64, 8, 4, 2), mssp.Shape(64, 32, 8, 4, 2), lr=4e-3)
    with pytest.raises(ValueError, match=r"experts share 0\.3333 of their start under this plan, which files for"):
        export(plan, host)


def test_megatron_takes_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mssp.plan(TARGET, BASE, lr=0.1, optimizer="sgd")
    sizes = Sizes({"kv_rank": 512, "ffn_width": 4096}, {"ffn_width": 1024, "kv_rank": 512})
    planned = load(monkeypatch, plan, "megatron", sizes)
    lrs = {pattern: group["max_lr"] for key, group in planned.GROUPS for pattern in key.name if "eps" not in group}
    # L fan_out / fan_in with L 8 -> 16: the FFN's second matrix, 1024 -> 4096 in and 256 -> 2048 out, gets 2 x 8 / 4.
    assert lrs["*decoder.layers.*.mlp.linear_fc2.weight"] == pytest.approx(0.4)
    assert lrs["*decoder.layers.*.mlp.linear_fc1.weight"] == pytest.approx(0.1)


@pytest.mark.parametrize("host", HOSTS)
def test_the_file_says_what_it_is_and_needs_no_mssp(host: str) -> None:
    text = export(PLAN, host)
    head = " ".join(line.removeprefix("#").strip() for line in text.partition("\nimport")[0].splitlines())
    assert f"MSSP, Regime III, AdamW; plan {PLAN.hash}, written by mssp {mssp.__version__} for" in head
    assert "base N=256 N_e=128 M=8 K=4 L=8 D=1 -> target N=2048 N_e=1024 M=64 K=32 L=16 D=1" in head
    assert "tuned: lr 0.004, eps 1e-08, weight decay 0.1" in head
    assert "To do by hand:" in head
    assert not re.search(r"^\s*(import|from) mssp", text, re.MULTILINE)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("torchtitan", "order 1/M: there multiply it by 0.125."),  # M from 8 to 64
        ("megatron", "moe_aux_loss_coeff and moe_z_loss_coeff as tuned, times 0.5,"),  # L from 8 to 16
        ("olmo-core", "Where it is False, multiply both by 0.5."),
        ("nanogpt", "multiply aux_loss_weight by 0.0625."),  # and K from 4 to 32
    ],
)
def test_the_file_says_what_becomes_of_load_balancing(host: str, said: str) -> None:
    assert said in " ".join(export(PLAN, host).replace("\n#", " ").split())


@pytest.mark.parametrize("host", HOSTS)
def test_the_file_has_no_names_that_are_unknown_or_unused(host: str) -> None:
    scaled = plan_for(SMALL, grad_scale=host == "nanogpt")
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F", "--quiet", "-"]
    for text in (export(PLAN, host), export(scaled, host)):
        checked = subprocess.run(lint, input=text, capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_code_of_files_is_in_the_package() -> None:
    """As text, wherever the package is installed."""
    named = {module.__name__.rpartition(".")[2] for module in HOSTS.values()}
    held = {path.name.removesuffix(".py") for path in files("mssp.hosts").joinpath("exported").iterdir()}
    assert named < held


def test_betas_are_written_where_the_plan_has_them() -> None:
    plan = plan_for(SMALL, recipe=mssp.Recipe(betas=(0.9, 0.95)))
    for host in HOSTS:
        assert "(0.9, 0.95)" in export(plan, host)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(PLAN.json(), encoding="utf-8")
    assert main(["export", "torchtitan", "--plan", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed == export(PLAN, "torchtitan")
    out = tmp_path / "planned.py"
    said = ["--target.ffn-width", "4096", "--base.ffn-width", "1024", "--qk-norm", "head"]
    assert main(["export", "olmo-core", "--plan", str(file), "-o", str(out), *said]) == 0
    sizes = Sizes({"ffn_width": 4096}, {"ffn_width": 1024})
    assert out.read_text(encoding="utf-8") == export(PLAN, "olmo-core", sizes, "head")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "planned.py"]
    binary, other = tmp_path / "binary.json", tmp_path / "other.json"
    binary.write_bytes(b"\x80\x81")
    other.write_text("{}", encoding="utf-8")
    for arguments, message in (
        (["torchtitan"], "--plan is missing: give the file that `mssp plan --json` wrote"),
        (["keras", "--plan", str(file)], "HOST must be one of torchtitan, megatron, olmo-core, nanogpt, got 'keras'"),
        (["megatron", "--plan", str(tmp_path / "no.json")], "--plan must be a file that is there, got"),
        (["megatron", "--plan", str(out)], f"error: {out}: not a plan file: Expecting value"),
        (["megatron", "--plan", str(binary)], f"error: {binary}: not a plan file: 'utf-8' codec can't decode"),
        (
            ["megatron", "--plan", str(other)],
            f"error: {other}: not a plan file: expected what `mssp plan --json` writes",
        ),
        (["megatron", "--plan", str(file), "--target.kv-width", "256"], "--target.kv-width"),
        (
            ["megatron", "--plan", str(file), "-o", str(tmp_path)],
            "--output must be a file to write in a folder that is there, got",
        ),
        (["megatron", "--plan", str(file), "-o", str(tmp_path / "no" / "x.py")], "--output must be a file to write"),
    ):
        capsys.readouterr()
        assert main(["export", *arguments]) == 2
        complaint = capsys.readouterr().err
        assert complaint.startswith("mssp: error: ")
        assert message in complaint
        assert complaint.count("\n") == 1


def test_exporting_does_not_import_torch(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(PLAN.json(), encoding="utf-8")
    code = f"from mssp.cli import main; main(['export', 'megatron', '--plan', {str(file)!r}])"
    check = f"{code}\nimport sys; assert not {{'torch', 'numpy', 'rich'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)
