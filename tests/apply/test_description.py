from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mssp
from mssp import ParamInfo, describe
from mssp.apply.description import name_cleaner
from mssp.planning.parameter import parse_layout
from mssp.planning.rules import ROLES
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


def test_unclaimed_parameters_of_blocks_and_experts_are_folded_into_patterns() -> None:
    experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList(nn.ModuleDict({"experts": experts}) for _ in range(1)), "head": small()}
    )
    with pytest.raises(ValueError, match="needs exactly one role") as refused:
        describe(model, {"head.1.bias": "bias"})
    assert str(refused.value) == (
        "every trainable parameter needs exactly one role: "
        "blocks.*.experts.{expert}.weight (4, 4), 3 parameters, is unclaimed; head.0.weight (8, 4) is unclaimed; "
        "head.1.weight (3, 8) is unclaimed; mssp.suggest_claims(model) drafts claims"
    )


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
        (ParamInfo("hidden", layout="in"), "names 1 axes, the tensor has"),
        (ParamInfo("hidden", layout="(3 out) in"), "splits an axis of 8 into 3 parts"),
        (ParamInfo("hidden", layout="out in", fan_in=5), "fan_in is given as 5, but its layout 'out in' says 4"),
        (ParamInfo("expert_in", layout="in", expert_axis=2), "has no axis 2 for experts"),
        (ParamInfo("expert_in", layout="out in"), r"say its expert_axis, or write \{expert\} for the number"),
        (ParamInfo("hidden", layout="out", expert_axis=1), "names no input axis, which a hidden has"),
    ],
)
def test_claims_that_do_not_fit_the_tensor(claim: ParamInfo, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        describe(nn.Linear(4, 8, bias=False), {"weight": claim})


def test_claims_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="role must be one of embedding"):
        ParamInfo("attention")
    with pytest.raises(ValueError, match="'rows' is not an axis"):
        ParamInfo("hidden", layout="rows in")
    for layout in ("(0 out) in", "out out", "in vocab", ""):
        with pytest.raises(ValueError, match="layout"):
            ParamInfo("hidden", layout=layout)
    fans: Any
    for fans in ({"fan_in": -8}, {"fan_in": 0}, {"base_fan_in": 0}, {"fan_out": 2.5}, {"base_fan_out": float("nan")}):
        with pytest.raises(ValueError, match="must be a positive whole number"):
            ParamInfo("hidden", **fans)
    for axis in ("0", 0.0, True):
        with pytest.raises(ValueError, match="expert_axis must be a whole number"):
            ParamInfo("expert_in", expert_axis=axis)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layout must be a text such as 'out in', got 5"):
        ParamInfo("hidden", layout=5)  # type: ignore[arg-type]
    claims: Any = ["w"]
    with pytest.raises(ValueError, match="claims must be a mapping of names to what parameters are"):
        describe(small(), claims)
    for claims in ({"w": 5}, {3: "bias"}):
        with pytest.raises(ValueError, match="claims must map name patterns to ParamInfo or a role, got "):
            describe(small(), claims)
    with pytest.raises(ValueError, match=r"names \{expert\} more than once"):
        describe(small(), {"{expert}.{expert}": "bias"})


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
    inner = nn.ModuleDict({"a": nn.ModuleDict({"module": nn.Linear(2, 2)})})
    assert name_cleaner(inner)("a.module.weight") == "a.module.weight"
    wrapped = nn.ModuleDict({"_orig_mod": nn.ModuleDict({"module": inner})})
    assert name_cleaner(wrapped)("_orig_mod.module.a.module.weight") == "a.module.weight"
    assert name_cleaner(wrapped)("module.a.*") == "a.*"
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
    compiled: Any = torch.compile(Router(8, 4, bias=False))  # a wrapper that forwards param_infos
    assert [info.role for info in describe(compiled)] == ["router"]

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Router(8, 4, bias=False)

        def param_infos(self) -> dict[str, ParamInfo]:
            return {"a.weight": ParamInfo("hidden", layout="out in")}

    with pytest.raises(ValueError, match=r"two modules describe a\.weight: as hidden and as router"):
        describe(Parent())


def test_claims_hold_bare_and_wrapped() -> None:
    inner = nn.ModuleDict({"module": nn.Linear(8, 8, bias=False), "head": nn.Linear(8, 3, bias=False)})
    claims = {
        "module.weight": ParamInfo("hidden", layout="out in"),
        "head.weight": ParamInfo("readout", layout="out in"),
    }
    for model in (inner, nn.ModuleDict({"module": inner})):
        assert [info.name for info in describe(model, claims)] == ["module.weight", "head.weight"]


def test_experts_that_are_modules_of_their_own() -> None:
    experts = nn.ModuleList(nn.Linear(8, 4, bias=False) for _ in range(3))
    model = nn.ModuleDict({"layer": nn.ModuleDict({"experts": experts})})
    infos = describe(model, {"*.experts.{expert}.weight": ParamInfo("expert_in", layout="out in")})
    assert {info.tied_as for info in infos} == {"layer.experts.{expert}.weight"}
    assert {info.experts for info in infos} == {3}


def test_expert_numbers_are_whole() -> None:
    experts = nn.ModuleList(nn.Linear(8, 4, bias=False) for _ in range(12))
    infos = describe(experts, {"*{expert}.weight": ParamInfo("expert_in", layout="out in")})
    assert {info.tied_as for info in infos} == {"{expert}.weight"}
    assert {info.experts for info in infos} == {12}


def test_parameters_that_would_share_a_name_are_refused() -> None:
    class Confusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(4, 4, bias=False)
            self.weight = nn.Parameter(torch.ones(4, 4))

    with pytest.raises(ValueError, match="two parameters are called weight"):
        describe(Confusing(), {"*": ParamInfo("hidden", layout="out in")})

    class Honest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4, bias=False)
            self.weight = nn.Parameter(torch.ones(4, 4))

    names = [info.name for info in describe(Honest(), {"*": ParamInfo("hidden", layout="out in")})]
    assert names == ["weight", "module.weight"]


def test_parameters_without_a_shape_or_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="weight has no shape yet: run the model once"):
        describe(nn.LazyLinear(4), {"*": "bias"})
    with pytest.raises(ValueError, match=r"w \(0, 5\) is empty"):
        describe(_holding(torch.empty(0, 5)), {"w": ParamInfo("hidden", layout="out in")})


def test_every_name_of_a_shared_parameter_is_claimed() -> None:
    model: Any = nn.ModuleDict({"embed": nn.Embedding(10, 8), "head": nn.Linear(8, 10, bias=False)})
    model["head"].weight = model["embed"].weight
    with pytest.raises(ValueError, match=r"head.weight \(10, 8\) \(the same parameter as embed.weight\) is unclaimed"):
        describe(model, {"embed.weight": ParamInfo("embedding", layout="vocab out")})


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
