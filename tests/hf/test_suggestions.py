"""Drafts of claims, held against what models say of themselves: what is certain must be right, the rest is marked."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import OlmoeForCausalLM

import mssp
import mssp.hf
import nanogpt_moe
from hf_trainer import SMALL
from mssp import ParamInfo
from mssp.apply.description import described_parameters
from mssp.apply.patterns import Pattern, matcher
from mssp.hf import suggestions as drafting
from mssp.hf.suggestions import Suggestions
from mssp.nn import GPT, GPTConfig, MLPConfig, MLPMoE
from mssp.planning.configs import STORED
from own_transformer import CLAIMS, Transformer
from tests.hf.families import PLANNED
from tests.hf.tiny_models import BASE, config_of, model_of

N, F, M, V = 32, 48, 4, 64
Claims = Mapping[str, ParamInfo | str]


def run(suggestions: Suggestions) -> dict[str, ParamInfo | str]:
    """What the printed text gives."""
    names: dict[str, Any] = {}
    exec(str(suggestions), names)
    claims: dict[str, ParamInfo | str] = names["claims"]
    return claims


def silent(model: nn.Module) -> nn.Module:
    """The model, which does not describe itself any more."""
    for module in model.modules():
        if hasattr(module, "param_infos"):
            module.__class__ = type(type(module).__name__, (type(module),), {"param_infos": None})
    return model


def described(model: nn.Module, claims: Claims | None = None) -> dict[str, ParamInfo]:
    return {info.name: info for info in mssp.describe(model, claims)}


def wrong(model: nn.Module, truth: Mapping[str, ParamInfo]) -> list[str]:
    """The parameters about which a draft is certain, and differs from the truth in anything that plans read."""
    decided = [entry for entry in mssp.suggest_claims(model).entries if entry.certain]
    matching = matcher([Pattern([entry.pattern], entry.claim or "") for entry in decided])
    found = []
    for name, info in truth.items():
        for pattern in matching(name):
            shape = tuple(model.get_parameter(name).shape)
            draft = pattern.info.fitted(name, shape, pattern.tied_as(name))
            sides = [(each.role, each.fan_in, each.fan_out, each.expert_axis, each.tied_as) for each in (draft, info)]
            found += [name] if sides[0] != sides[1] or draft.start != info.start else []
    return found


def shares(model: nn.Module, truth: Mapping[str, ParamInfo]) -> tuple[float, float]:
    """How many roles of a draft are right, guesses included, and how many are certain: shares of the parameters."""
    entries = {entry.pattern: entry for entry in mssp.suggest_claims(model).entries}
    matching = matcher([Pattern([pattern], entry.claim or "bias") for pattern, entry in entries.items()])
    hits = {name: matching(name) for name in truth}
    assert all(len(patterns) == 1 for patterns in hits.values())
    right = [
        name for name, [pattern] in hits.items()
        if entries[pattern.text].claim is not None and pattern.info.role == truth[name].role
    ]  # fmt: skip
    certain = [name for name, [pattern] in hits.items() if entries[pattern.text].certain]
    return len(right) / len(truth), len(certain) / len(truth)


# -- our models, and those of the examples -----------------------------------------------------------------------------


def test_the_example_with_every_role() -> None:
    shape = mssp.Shape(width=64, expert_width=16, experts=4, active=2, depth=2)
    model = Transformer(mssp.plan(shape, regime="III", lr=1e-2))
    claims = mssp.suggest_claims(model).claims()
    assert described(model, claims) == described(model, CLAIMS)
    assert claims["blocks.*.qkv.weight"] == ParamInfo("hidden", layout="(3 out) in")
    assert claims["blocks.*.moe.gate_of_shared.weight"] == ParamInfo("shared_gate", layout="out in")


def test_the_example_in_the_style_of_nanogpt() -> None:
    model = nanogpt_moe.GPT(width=32, expert_width=16, experts=4, active=2, depth=2)
    assert mssp.suggest_claims(model).claims() == {
        "transformer.wte.weight": ParamInfo("embedding", layout="vocab out"),
        "transformer.wpe.weight": ParamInfo("embedding", layout="vocab out"),
        "transformer.h.*.ln_1.weight": "norm",
        "transformer.h.*.*.bias": "bias",
        "transformer.h.*.ln_2.weight": "norm",
        "transformer.h.*.attn.c_attn.weight": ParamInfo("hidden", layout="(3 out) in"),
        "transformer.h.*.attn.c_proj.weight": ParamInfo("hidden", layout="out in"),
        "transformer.h.*.mlp.router.weight": ParamInfo("router", layout="out in"),
        "transformer.h.*.mlp.experts.c_fc": ParamInfo("expert_in", layout="in out", expert_axis=0),
        "transformer.h.*.mlp.experts.c_proj": ParamInfo("expert_out", layout="in out", expert_axis=0),
        "transformer.ln_f.weight": "final_norm",
        "lm_head.weight": ParamInfo("readout", layout="out in"),
    }


def test_the_example_of_hugging_face() -> None:
    config = copy.deepcopy(SMALL)
    vars(config).pop(STORED, None)  # what another test's model has kept in it
    model = OlmoeForCausalLM(config)
    mssp.hf.adapt(model)
    truth = described(model)
    mssp.hf.release(model)
    assert described(model, mssp.suggest_claims(model).claims()) == truth


# Sizes, and how many lines are left to decide.
GPTS: dict[str, tuple[dict[str, int], int]] = {
    "plain": ({}, 0),
    "gated, some blocks dense": ({"width": 64, "gated": True, "moe_every": 2}, 0),
    "many experts": ({"experts": 24}, 0),
    "one head": ({"head": 32}, 2),
    "as many experts as hidden units": ({"experts": 16}, 2),
    "square experts": ({"expert_width": 32}, 2),
    "gated, as wide as the model": ({"gated": True}, 1),
}


@pytest.mark.parametrize("name", GPTS)
def test_our_transformer(name: str) -> None:
    changes, undecided = GPTS[name]
    sizes: dict[str, Any] = {"width": N, "expert_width": 16, "experts": 4, "head": 16, "depth": 2, **changes}
    model = GPT(GPTConfig(vocabulary=V, context=16, **sizes))
    truth = described(model)
    suggestions = mssp.suggest_claims(silent(model))
    assert wrong(model, truth) == []
    assert len(suggestions.undecided) == undecided, str(suggestions)
    if not undecided:  # a draft guesses no parts of hidden
        without_parts = {name: replace(info, part=None) for name, info in truth.items()}
        assert described(model, run(suggestions)) == without_parts


def test_our_mlp() -> None:
    model = MLPMoE(MLPConfig(inputs=12, width=32, expert_width=16, experts=8, active=4, outputs=3))
    truth = described(model)
    suggestions = mssp.suggest_claims(silent(model))
    assert wrong(model, truth) == []
    assert [entry.pattern for entry in suggestions.undecided] == ["embedding"]  # a matrix, or a table stored transposed
    assert shares(model, truth) == (1.0, 0.8)


def test_modules_that_describe_themselves_are_left_out() -> None:
    model: Any = nn.ModuleDict({"blocks": GPT(_GPT).blocks, "head": nn.Linear(N, V, bias=False)})
    assert [entry.pattern for entry in mssp.suggest_claims(model).entries] == ["head.weight"]


_GPT = GPTConfig(width=N, expert_width=16, experts=4, depth=2, vocabulary=V, context=16, head=16)


# -- Hugging Face ------------------------------------------------------------------------------------------------------

# Shares of right roles and of certain ones, where the draft does not know the names of Hugging Face; 1 elsewhere.
BLIND = {
    "qwen3_next": (0.92, 0.72), "deepseek_v2": (1.0, 0.8), "deepseek_v3": (1.0, 0.8), "gpt_oss": (0.94, 0.94),
    "ernie4_5_moe": (1.0, 0.97), "cohere2_moe": (1.0, 0.97), "axk1": (1.0, 0.81), "beam": (0.94, 0.94),
    "flint": (0.93, 0.93), "glm4_moe_lite": (1.0, 0.8), "granitemoe_swa": (0.92, 0.92), "mimo_v2_flash": (0.94, 0.94),
    "mistral4": (1.0, 0.8), "qwen3_5_moe_text": (0.93, 0.67), "phimoe": (1.0, 0.98), "dbrx": (0.667, 0.444),
    "longcat_flash": (1.0, 0.071), "gemma4_text": (0.909, 0.894), "granitemoehybrid": (0.773, 0.636),
    "nemotron_h": (0.756, 0.61), "lfm2_moe": (0.944, 0.889), "kimi_linear": (0.927, 0.745),
    "bailing_hybrid": (0.923, 0.769), "deepseek_v32": (1.0, 0.8), "glm_moe_dsa": (1.0, 0.8), "axk2": (1.0, 0.786),
    "inkling_text": (0.859, 0.516),
}  # fmt: skip


# Of models of text alone: a draft describes all of a larger one.
@pytest.mark.parametrize("family", [name for name, entry in PLANNED.items() if not entry.larger])
def test_a_family_by_types_names_and_sizes_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "_of_transformers", lambda model: {})
    shape = mssp.Shape(width=128, expert_width=96, experts=8, active=4, depth=3)
    model = model_of(config_of(family, shape))
    mssp.hf.adapt(model, base=config_of(family, shape))  # some have factors of sizes, which a base makes known
    truth = described(model)
    mssp.hf.release(model)
    assert wrong(model, truth) == []
    truth |= {"lm_head.weight": ParamInfo("readout", layout="out in")}  # tied ones have one description for both names
    assert shares(model, truth) == pytest.approx(BLIND.get(family, (1.0, 1.0)), abs=0.005)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next", "gpt_oss", "glm4_moe", "mixtral", "kolibri1"])
def test_a_known_family_is_described_as_it_is_when_adapted(family: str) -> None:
    model = model_of(config_of(family, BASE))
    mssp.hf.adapt(model)
    truth = described(model)
    mssp.hf.release(model)
    suggestions = mssp.suggest_claims(model)
    assert described(model, run(suggestions)) == truth
    assert {entry.reason for entry in suggestions.entries} == {"as mssp.hf.adapt describes it"}


# -- models by hand ----------------------------------------------------------------------------------------------------


class Expert(nn.Module):
    def __init__(self, hidden: int = F, gated: bool = True) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(N, hidden, bias=False), nn.Linear(hidden, N, bias=False)
        if gated:
            self.w3 = nn.Linear(N, hidden, bias=False)


class ListMoE(nn.Module):
    def __init__(self, hidden: int = F, outputs: int = M, router: str = "gate") -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert(hidden) for _ in range(M))
        self.add_module(router, nn.Linear(N, outputs, bias=False))


class SequentialMoE(nn.Module):
    """Experts as sequences in a list that is not called so."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(N, M)
        self.ffns = nn.ModuleList(nn.Sequential(nn.Linear(N, F), nn.GELU(), nn.Linear(F, N)) for _ in range(M))


class ParameterListMoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(N, M, bias=False)
        self.w_in = nn.ParameterList(torch.randn(N, F) for _ in range(M))
        self.w_out = nn.ParameterList(torch.randn(F, N) for _ in range(M))


class StackedMoE(nn.Module):
    def __init__(
        self, w_in: tuple[int, ...], w_out: tuple[int, ...], names: tuple[str, str] = ("w_in", "w_out")
    ) -> None:
        super().__init__()
        self.router = nn.Linear(N, w_in[0], bias=False)
        for name, shape in zip(names, (w_in, w_out), strict=True):
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))


class GatedDense(nn.Module):
    """A layer whose gate is called as routers are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*sides, bias=False) for sides in ((N, F), (N, F), (F, N)))


class Block(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(N), nn.RMSNorm(N)
        self.attn = nn.MultiheadAttention(N, 2, bias=False)
        self.mlp = mlp


class Model(nn.Module):
    def __init__(self, mlp: nn.Module, **more: nn.Module) -> None:
        super().__init__()
        self.wte = nn.Embedding(V, N)
        self.h = nn.ModuleList(Block(copy.deepcopy(mlp)) for _ in range(2))
        self.ln_f = nn.RMSNorm(N)
        for name, module in more.items():
            self.add_module(name, module)
        self.lm_head = nn.Linear(N, V, bias=False)


def of_mlp(mlp: nn.Module) -> dict[str, tuple[ParamInfo | str | None, bool]]:
    """What a draft has for the MLP of a block, and whether it is certain."""
    entries = mssp.suggest_claims(Model(mlp)).entries
    return {
        entry.pattern.removeprefix("h.*.mlp."): (entry.claim, entry.certain)
        for entry in entries
        if entry.pattern.startswith("h.*.mlp.")
    }


def linear(role: str, layout: str = "out in", axis: int | None = None) -> ParamInfo:
    return ParamInfo(role, layout=layout, expert_axis=axis)


def test_experts_in_a_list() -> None:
    assert of_mlp(ListMoE()) == {
        "experts.{expert}.w1.weight": (linear("expert_in"), True),
        "experts.{expert}.w2.weight": (linear("expert_out"), True),
        "experts.{expert}.w3.weight": (linear("expert_in"), True),
        "gate.weight": (linear("router"), True),
    }
    model = Model(ListMoE())
    tied = described(model, run(mssp.suggest_claims(model)))["h.1.mlp.experts.3.w1.weight"]
    assert (tied.tied_as, tied.experts) == ("h.1.mlp.experts.{expert}.w1.weight", 4)


def test_experts_as_sequences_are_found_by_the_number_of_the_routers_outputs() -> None:
    assert of_mlp(SequentialMoE()) == {
        "router.weight": (linear("router"), True),
        "router.bias": ("router_bias", True),
        "ffns.{expert}.0.weight": (linear("expert_in"), True),
        "ffns.{expert}.0.bias": ("expert_in_bias", True),
        "ffns.{expert}.2.weight": (linear("expert_out"), True),
        "ffns.{expert}.2.bias": ("expert_out_bias", True),
    }


def test_experts_as_lists_of_parameters() -> None:
    assert of_mlp(ParameterListMoE()) == {
        "router.weight": (linear("router"), True),
        "w_in.{expert}": (linear("expert_in", "in out"), True),
        "w_out.{expert}": (linear("expert_out", "in out"), True),
    }
    assert described(Model(ParameterListMoE()), mssp.suggest_claims(Model(ParameterListMoE())).claims())


@pytest.mark.parametrize(
    ("w_in", "w_out", "layouts"),
    [
        ((M, F, N), (M, N, F), ("out in", "out in")),
        ((M, N, F), (M, F, N), ("in out", "in out")),
        ((M, F, N), (M, F, N), ("out in", "in out")),
        ((M, 2 * F, N), (M, N, F), ("(2 out) in", "out in")),
    ],
)
def test_stacks(w_in: tuple[int, ...], w_out: tuple[int, ...], layouts: tuple[str, str]) -> None:
    assert of_mlp(StackedMoE(w_in, w_out)) == {
        "w_in": (linear("expert_in", layouts[0], 0), True),
        "w_out": (linear("expert_out", layouts[1], 0), True),
        "router.weight": (linear("router"), True),
    }


def test_a_gated_stack_is_known_by_its_size_and_others_by_names_alone() -> None:
    gated = of_mlp(StackedMoE((M, 2 * F, N), (M, N, F), names=("a", "z")))
    assert (gated["a"], gated["z"]) == (
        (linear("expert_in", "(2 out) in", 0), True),
        (linear("expert_out", "out in", 0), True),
    )
    plain = of_mlp(StackedMoE((M, F, N), (M, N, F), names=("a", "z")))
    assert (plain["a"], plain["z"]) == ((None, False), (None, False))


@pytest.mark.parametrize(
    ("w_in", "w_out"),
    [
        ((M, N, N), (M, N, N)),  # square
        ((F, F, N), (F, N, F)),  # as many experts as hidden units
        ((N, F, N), (N, N, F)),  # as many experts as the width
    ],
)
def test_stacks_whose_sizes_do_not_tell_their_axes_are_marked(w_in: tuple[int, ...], w_out: tuple[int, ...]) -> None:
    found = of_mlp(StackedMoE(w_in, w_out))
    assert [certain for _, certain in (found["w_in"], found["w_out"])] == [False, False]


def test_square_experts_are_marked() -> None:
    assert of_mlp(ListMoE(hidden=N)) == {
        "experts.{expert}.w1.weight": (linear("expert_in"), False),
        "experts.{expert}.w2.weight": (linear("expert_out"), False),
        "experts.{expert}.w3.weight": (linear("expert_in"), False),
        "gate.weight": (linear("router"), True),
    }


def test_stacks_without_a_router_of_their_number_are_marked() -> None:
    moe = nn.ModuleDict({"experts": StackedMoE((M, F, N), (M, N, F)), "router": nn.Linear(N, M + 1, bias=False)})
    del moe["experts"].router
    assert {pattern: certain for pattern, (_, certain) in of_mlp(moe).items()} == {
        "experts.w_in": False,
        "experts.w_out": False,
        "router.weight": False,
    }


def test_shared_experts_are_hidden() -> None:
    moe = ListMoE()
    moe.shared_experts = nn.ModuleList(Expert() for _ in range(2))
    assert of_mlp(moe)["shared_experts.*.*.weight"] == (linear("hidden"), True)


@pytest.mark.parametrize("mlp", [ListMoE(outputs=M + 1), ListMoE(router="scores")])
def test_experts_without_a_router_of_their_number_are_marked(mlp: nn.Module) -> None:
    assert {certain for _, certain in of_mlp(mlp).values()} == {False}


def test_the_gate_of_a_dense_layer_is_no_router() -> None:
    assert of_mlp(GatedDense()) == {"*.weight": (linear("hidden"), True)}


def entry_of(model: nn.Module, pattern: str) -> tuple[ParamInfo | str | None, bool]:
    [entry] = [entry for entry in mssp.suggest_claims(model).entries if entry.pattern == pattern]
    return entry.claim, entry.certain


def test_tied_readouts_are_marked() -> None:
    model = Model(GatedDense())
    model.lm_head.weight = model.wte.weight
    assert entry_of(model, "wte.weight") == (ParamInfo("embedding", layout="vocab out"), True)
    assert entry_of(model, "lm_head.weight") == (linear("readout"), False)


class OnePlus(nn.Module):
    """A norm that multiplies by 1 + its weight."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((N,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.weight)


class OnePlusNorm(OnePlus):
    pass


class OddNorm(OnePlus):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.square()


def test_gains_that_do_not_start_at_one() -> None:
    def with_norm(norm: nn.Module) -> nn.Module:
        model: Any = Model(GatedDense())
        for block in model.h:
            block.ln_1 = norm
        kept: nn.Module = model
        return kept

    layer_norm = nn.LayerNorm(N, bias=False)
    nn.init.constant_(layer_norm.weight, 0.5)
    pattern = "h.*.ln_1.weight"
    assert entry_of(with_norm(OnePlusNorm(0.0)), pattern) == (ParamInfo("norm", start=0.0), True)
    assert entry_of(with_norm(OnePlusNorm(0.25)), pattern) == (ParamInfo("norm", start=0.25), False)
    assert entry_of(with_norm(layer_norm), pattern) == (ParamInfo("norm", start=0.5), False)
    assert entry_of(with_norm(OddNorm(1.0)), pattern) == ("norm", False)


class StateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.randn(4))
        self.conv = nn.Conv1d(N, N, 4, groups=N, bias=False)
        self.in_proj, self.out_proj = nn.Linear(N, 2 * N, bias=False), nn.Linear(2 * N, N, bias=False)


@pytest.mark.parametrize(
    ("mlp", "undecided"),
    [
        (StateSpace(), 4),
        (nn.ModuleDict({"heads": nn.ModuleList(nn.Linear(N, 8, bias=False) for _ in range(2))}), 1),
        (nn.ParameterDict({"scale": torch.ones(N), "matrix": torch.randn(N, F), "cube": torch.randn(2, 3, N)}), 3),
        (nn.LSTM(N, N), 4),
        (nn.Linear(F, F), 2),
        (nn.LayerNorm(F, bias=False), 1),
        (nn.Embedding(8, N), 1),
        (nn.ParameterDict({"number": torch.tensor(1.0)}), 1),
    ],
    ids=["state space", "heads", "plain", "LSTM", "away from the stream", "of another width", "inner table", "number"],
)
def test_what_no_clue_tells_is_marked(mlp: nn.Module, undecided: int) -> None:
    found = of_mlp(mlp)
    assert len(found) == undecided
    assert not any(certain for _, certain in found.values())


def test_matrices_outside_of_blocks() -> None:
    model = Model(GatedDense(), bridge=nn.Linear(N, N, bias=False), middle=nn.RMSNorm(N))
    assert entry_of(model, "bridge.weight")[1] is False
    assert entry_of(model, "lm_head.weight") == (linear("readout"), True)
    assert entry_of(model, "ln_f.weight") == ("final_norm", True)
    assert entry_of(model, "middle.weight")[1] is False
    assert entry_of(Model(GatedDense(), second=nn.Linear(N, 3)), "second.bias")[0] is None


def test_layers_that_are_no_blocks_of_a_residual_stream_are_marked() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sides = ((7, N), (N, N), (N, N))
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(*each, bias=False), nn.ReLU()) for each in sides)
            self.head = nn.Linear(N, 3, bias=False)

    assert entry_of(Plain(), "layers.0.*.weight") == (linear("hidden"), False)


def test_lines_to_decide_stand_for_one_parameter_of_each_block() -> None:
    odd = nn.ModuleDict({name: nn.ParameterDict({"w": torch.randn(N, F)}) for name in ("a", "b")})
    assert list(of_mlp(odd)) == ["a.w", "b.w"]


def test_without_blocks_nothing_is_certain() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    suggestions = mssp.suggest_claims(model)
    assert [(entry.claim, entry.certain) for entry in suggestions.entries] == [(None, False)] * 3
    assert run(suggestions) == {}


# -- the text, and the dictionary --------------------------------------------------------------------------------------


def test_the_text_gives_the_dictionary() -> None:
    for mlp in (ListMoE(), SequentialMoE(), StackedMoE((M, 2 * F, N), (M, N, F)), GatedDense()):
        model = Model(mlp)
        suggestions = mssp.suggest_claims(model)
        assert run(suggestions) == suggestions.claims()
        assert len(described_parameters(model, run(suggestions))) == len(list(model.parameters()))


def test_what_is_to_be_decided_is_not_pasted() -> None:
    model = Model(StackedMoE((M, N, N), (M, N, N)))
    suggestions = mssp.suggest_claims(model)
    first = (
        r"'h.\*.mlp.w_in' is to be decided, and 1 more: first matrix of experts, .* do not tell which axis is the input"
    )
    with pytest.raises(ValueError, match=first) as refused:
        suggestions.claims()
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"h.\*.mlp.w_in \(4, 32, 32\), 2 parameters, is unclaimed"):
        mssp.describe(model, run(suggestions))
    uncommented = str(suggestions).replace('# "h', '"h')
    names: dict[str, Any] = {}
    exec(uncommented, names)
    assert len(mssp.describe(model, names["claims"])) == len(list(model.parameters()))


def test_every_line_says_why() -> None:
    lines = str(mssp.suggest_claims(Model(StackedMoE((M, N, N), (M, N, N))))).splitlines()
    assert lines[:3] == ["import mssp", "", "claims: dict[str, mssp.ParamInfo | str] = {"]
    for before, line in itertools.pairwise(lines):
        if '": ' in line:
            assert ",  # " in line or before.startswith("    # ")
    assert sum("# DECIDE: " in line for line in lines) == 2
    assert max(map(len, lines)) <= 120


def test_frozen_parameters_are_left_out_and_models_on_the_meta_device_work() -> None:
    model = Model(ListMoE())
    there = mssp.suggest_claims(model)
    with torch.device("meta"):
        assert mssp.suggest_claims(Model(ListMoE())) == there
    model.wte.requires_grad_(False)
    assert "wte.weight" not in [entry.pattern for entry in mssp.suggest_claims(model).entries]


def test_wrapped_models_have_the_names_of_their_models() -> None:
    model = Model(GatedDense())
    wrapped = nn.ModuleDict({"module": nn.ModuleDict({"_orig_mod": model})})
    assert mssp.suggest_claims(wrapped) == mssp.suggest_claims(model)


def test_parameters_without_a_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="weight has no shape yet: run the model once"):
        mssp.suggest_claims(nn.LazyLinear(4))


def test_a_model_changes_nothing_by_being_drafted() -> None:
    model = Model(ListMoE())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    mssp.suggest_claims(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(mssp.__file__).parents[2] / "docs" / "own-model.md"
    section = page.read_text(encoding="utf-8").partition("### A draft")[2]
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)[:2]
    exec(code, {"mssp": mssp, "nn": nn, "torch": torch})
    assert capsys.readouterr().out == shown
