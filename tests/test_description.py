from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mssp
from mssp import ParamInfo, describe
from mssp.description import clean_name, parse_layout
from mssp.rules import ROLES
from own_transformer import CLAIMS, Transformer

SHAPE = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=2)
PLAN = mssp.plan(SHAPE, regime="III", lr=1e-2)


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3))


def test_a_model_with_every_role() -> None:
    infos = {info.name: info for info in describe(Transformer(PLAN), CLAIMS)}
    assert {info.role for info in infos.values()} == set(ROLES)
    w_in = infos["blocks.1.moe.w_in"]
    assert (w_in.role, w_in.fan_in, w_in.fan_out, w_in.experts, w_in.expert_axis) == ("expert_in", 32, 16, 4, 0)
    qkv = infos["blocks.0.qkv.weight"]
    assert (qkv.fan_in, qkv.fan_out) == (32, 32)
    assert infos["embed.weight"].fan_in == 1
    assert infos["embed.weight"].fan_out == 32


def test_unclaimed_parameters_are_all_listed() -> None:
    with pytest.raises(ValueError, match=r"0.weight \(8, 4\) is unclaimed; 1.weight \(3, 8\) is unclaimed"):
        describe(small(), {"1.bias": "bias"})


def test_doubly_claimed_parameters_are_listed() -> None:
    claims: dict[str, ParamInfo | str] = {
        "*.weight": ParamInfo("hidden", layout="out in"),
        "0.*": ParamInfo("embedding", layout="out in"),
        "1.bias": "bias",
    }
    with pytest.raises(ValueError, match=r"0.weight \(8, 4\) is claimed more than once, by '\*.weight', '0.\*'"):
        describe(small(), claims)


def test_frozen_parameters_need_no_role() -> None:
    model = small()
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    assert [i.name for i in describe(model, {"1.bias": "bias", "1.weight": ParamInfo("readout", layout="out in")})] == [
        "1.weight",
        "1.bias",
    ]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (ParamInfo("hidden"), "say its layout"),
        (ParamInfo("hidden", layout="out in out"), "names 3 axes"),
        (ParamInfo("hidden", layout="(3 out) in"), "splits an axis of 8 into 3 parts"),
        (ParamInfo("hidden", layout="out in", fan_in=5), "fan_in is given as 5, but its layout 'out in' says 4"),
        (ParamInfo("expert_in", layout="out", expert_axis=2), "has no axis 2 for experts"),
    ],
)
def test_claims_that_do_not_fit_the_tensor(claim: ParamInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(nn.Linear(4, 8, bias=False), {"weight": claim})


def test_claims_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="unknown role 'attention'"):
        ParamInfo("attention")
    with pytest.raises(ValueError, match="'rows' is not an axis"):
        ParamInfo("hidden", layout="rows in")


def test_layouts() -> None:
    assert parse_layout("out in") == [("out", 1), ("in", 1)]
    assert parse_layout("in (out 2)") == [("in", 1), ("out", 2)]
    [interleaved] = describe(
        _holding(torch.empty(4, 32, 24)), {"w": ParamInfo("expert_in", layout="in (out 2)", expert_axis=0)}
    )
    assert (interleaved.fan_in, interleaved.fan_out, interleaved.experts) == (32, 12, 4)


def test_fans_may_be_given_instead_of_a_layout() -> None:
    [info] = describe(_holding(torch.empty(3, 5, 7)), {"w": ParamInfo("hidden", fan_in=35, fan_out=3)})
    assert (info.fan_in, info.fan_out) == (35, 3)


def test_wrappers_do_not_change_names() -> None:
    assert clean_name("module._orig_mod.a.module.b") == "a.module.b"
    assert clean_name("_orig_mod.module.a") == "a"
    assert clean_name("module") == "module"
    compiled: Any = torch.compile(Transformer(PLAN))
    assert [i.name for i in describe(compiled, CLAIMS)] == [i.name for i in describe(Transformer(PLAN), CLAIMS)]


def test_modules_may_describe_themselves() -> None:
    class Router(nn.Linear):
        def param_infos(self) -> dict[str, ParamInfo]:
            return {"weight": ParamInfo("router", layout="out in")}

    model = nn.ModuleDict({"a": Router(8, 4, bias=False), "b": nn.Linear(8, 8, bias=False)})
    infos = describe(model, {"b.weight": ParamInfo("hidden", layout="out in")})
    assert [(info.name, info.role) for info in infos] == [("a.weight", "router"), ("b.weight", "hidden")]
    with pytest.raises(ValueError, match=r"a.weight \(4, 8\) is claimed more than once"):
        describe(model, {"*.weight": ParamInfo("hidden", layout="out in")})


def test_experts_that_are_modules_of_their_own() -> None:
    experts = nn.ModuleList(nn.Linear(8, 4, bias=False) for _ in range(3))
    model = nn.ModuleDict({"layer": nn.ModuleDict({"experts": experts})})
    infos = describe(model, {"*.experts.{expert}.weight": ParamInfo("expert_in", layout="out in")})
    assert {info.tied_as for info in infos} == {"layer.experts.{expert}.weight"}
    assert {info.experts for info in infos} == {3}


def test_tied_embeddings_are_seen_by_identity() -> None:
    model: Any = nn.ModuleDict({"embed": nn.Embedding(10, 8), "head": nn.Linear(8, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    claims = {
        "embed.weight": ParamInfo("embedding", layout="vocab out"),
        "head.weight": ParamInfo("readout", layout="out in"),
    }
    [info] = describe(model, claims)
    assert (info.name, info.role, info.tied_readout) == ("embed.weight", "embedding", True)
    with pytest.raises(
        ValueError, match=r"one parameter has two roles: embed.weight as embedding, head.weight as hidden"
    ):
        describe(model, {**claims, "head.weight": ParamInfo("hidden", layout="out in")})


def _holding(tensor: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_parameter("w", nn.Parameter(tensor))
    return module
