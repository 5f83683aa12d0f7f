"""The recipe for a new family (``mssp.hf.vocabulary``), followed for one that does not exist, with names of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

import mssp
import mssp.hf
from mssp.apply.description import describe
from mssp.cli import main
from mssp.hf import vocabulary
from mssp.hf.factors import factor_of
from mssp.planning import configs
from mssp.planning.parameter import ParamInfo

TOKENS = torch.arange(12).view(2, 6)


class SieveConfig(PreTrainedConfig):  # type: ignore[misc] # transformers is taken as it comes
    model_type = "sieve"

    def __init__(
        self,
        d_stream: int = 32,
        d_specialist: int = 16,
        n_specialists: int = 4,
        n_consulted: int = 2,
        n_stages: int = 2,
        **settings: Any,
    ) -> None:
        self.d_stream, self.d_specialist = d_stream, d_specialist
        self.n_specialists, self.n_consulted, self.n_stages = n_specialists, n_consulted, n_stages
        super().__init__(**settings)


class Specialists(nn.Module):
    """A stack with the flags that transformers gives to every such class."""

    has_gate, has_bias, is_transposed, is_concatenated = True, False, False, True

    def __init__(self, config: SieveConfig) -> None:
        super().__init__()
        self.num_experts = config.n_specialists
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * config.d_specialist, config.d_stream))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, config.d_stream, config.d_specialist))

    def _apply_gate(self, pre: Tensor) -> Tensor:
        gate, up = pre.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def forward(self, x: Tensor, chosen: Tensor, gates: Tensor) -> Tensor:
        all_gates = torch.zeros(len(x), self.num_experts, dtype=x.dtype).scatter(-1, chosen, gates)
        hidden = self._apply_gate(torch.einsum("tn,mfn->tmf", x, self.gate_up_proj))
        return torch.einsum("tm,tmf,mnf->tn", all_gates, hidden, self.down_proj)


class Switch(nn.Module):
    """A router with sigmoid gates."""

    def __init__(self, config: SieveConfig) -> None:
        super().__init__()
        self.n_consulted = config.n_consulted
        self.weight = nn.Parameter(torch.empty(config.n_specialists, config.d_stream))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = nn.functional.linear(x, self.weight)
        gates, chosen = logits.sigmoid().topk(self.n_consulted, -1)
        return logits, gates, chosen


class Panel(nn.Module):
    def __init__(self, config: SieveConfig) -> None:
        super().__init__()
        self.switch = Switch(config)
        self.specialists = Specialists(config)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        _, gates, chosen = self.switch(flat)
        out: Tensor = self.specialists(flat, chosen, gates)
        return out.view_as(x)


class Blender(nn.Module):
    def __init__(self, config: SieveConfig) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(config.d_stream, config.d_stream, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(self.wq(x), self.wk(x), self.wv(x), is_causal=True)
        out: Tensor = self.wo(mixed)
        return out


class Stage(nn.Module):
    def __init__(self, config: SieveConfig) -> None:
        super().__init__()
        self.calm_one, self.calm_two = nn.RMSNorm(config.d_stream), nn.RMSNorm(config.d_stream)
        self.blender, self.panel = Blender(config), Panel(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.blender(self.calm_one(x))
        out: Tensor = x + self.panel(self.calm_two(x))
        return out


class SieveModel(PreTrainedModel):  # type: ignore[misc]
    config_class = SieveConfig

    def __init__(self, config: SieveConfig) -> None:
        super().__init__(config)
        self.lexicon = nn.Embedding(64, config.d_stream)
        self.stages = nn.ModuleList(Stage(config) for _ in range(config.n_stages))
        self.calm_out = nn.RMSNorm(config.d_stream)
        self.speak = nn.Linear(config.d_stream, 64, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.lexicon

    def get_output_embeddings(self) -> nn.Module:
        return self.speak

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.lexicon(tokens)
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.speak(self.calm_out(x))
        return out


BASE = SieveConfig()
TARGET = SieveConfig(d_stream=64, d_specialist=32, n_specialists=8, n_consulted=4, n_stages=3)

# -- what the recipe asks for -----------------------------------------------------------------------------------------

_LINEAR = ParamInfo("hidden", layout="out in")
SIEVE = vocabulary.Names(
    blocks=("stages",),
    attentions=("blender",),
    mlps=("panel",),
    norms_before_attention=("calm_one",),
    norms_before_mlp=("calm_two",),
    final_norms=("calm_out",),
    routers=("switch",),
    last_matrices=("wo",),
    parameters={
        r"blender\.w[qkvo]\.weight": _LINEAR,
        r"panel\.switch\.weight": ParamInfo("router", layout="out in"),
        r"calm_(?:one|two)\.weight": ParamInfo("norm"),
    },
    parameters_outside={
        r"lexicon\.weight": ParamInfo("embedding", layout="vocab out"),
        r"calm_out\.weight": ParamInfo("final_norm"),
        r"speak\.weight": ParamInfo("readout", layout="out in"),
    },
)
KEYS = {
    "width": "d_stream", "expert_width": "d_specialist", "experts": "n_specialists", "active": "n_consulted",
    "depth": "n_stages",
}  # fmt: skip


def add_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ENTRIES", (*vocabulary.ENTRIES, SIEVE))


def add_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "_SIZES", {name: (*keys, KEYS[name]) for name, keys in configs._SIZES.items()})


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """The family is known to transformers, as one that is released is."""
    AutoConfig.register("sieve", SieveConfig)
    AutoModelForCausalLM.register(SieveConfig, SieveModel)
    yield
    del CONFIG_MAPPING._extra_content["sieve"], AutoModelForCausalLM._model_mapping._extra_content[SieveConfig]


def planned(**settings: Any) -> mssp.Plan:
    return mssp.hf.plan(TARGET, BASE, lr=0.01, scheme="mup", **settings)


# -- before -----------------------------------------------------------------------------------------------------------


def test_before_the_family_is_refused_by_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the model config has no width: expected hidden_size"):
        mssp.hf.plan(TARGET, BASE, lr=0.01)
    add_keys(monkeypatch)
    message = (
        "SieveModel (model_type 'sieve') has parameters that are not understood: lexicon.weight (64, 64), "
        "stages.*.calm_one.weight (64,), stages.*.calm_two.weight (64,), stages.*.blender.wq.weight (64, 64)"
    )
    model = SieveModel(TARGET)
    with pytest.raises(ValueError, match=re.escape(message)):
        mssp.hf.adapt(model, base=BASE)


def test_a_block_with_a_part_that_is_not_known_keeps_the_bases_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters alone are named: which modules write to the stream is not known."""
    alone = vocabulary.Names(
        blocks=SIEVE.blocks,
        routers=SIEVE.routers,
        parameters=SIEVE.parameters,
        parameters_outside=SIEVE.parameters_outside,
    )
    monkeypatch.setattr(vocabulary, "ENTRIES", (*vocabulary.ENTRIES, alone))
    add_keys(monkeypatch)
    model = SieveModel(TARGET)
    mssp.hf.adapt(model, base=BASE)
    with pytest.raises(ValueError, match="which modules of a block write to the residual stream is not known"):
        mssp.initialize(model, planned())


# -- after ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _taught(monkeypatch: pytest.MonkeyPatch) -> None:
    add_names(monkeypatch)
    add_keys(monkeypatch)


@pytest.mark.usefixtures("_taught")
def test_after_the_family_is_planned_adapted_initialized_and_verified() -> None:
    plan = planned()
    assert plan.target == mssp.Shape(width=64, expert_width=32, experts=8, active=4, depth=3, inputs=1)
    assert plan.regime == "III"
    model = SieveModel(TARGET)
    mssp.hf.adapt(model, base=BASE)
    roles = {vocabulary.for_all_blocks(info.name): info.role for info in describe(model)}
    assert roles == {
        "lexicon.weight": "embedding",
        "stages.*.calm_one.weight": "norm",
        "stages.*.calm_two.weight": "norm",
        "stages.*.blender.wq.weight": "hidden",
        "stages.*.blender.wk.weight": "hidden",
        "stages.*.blender.wv.weight": "hidden",
        "stages.*.blender.wo.weight": "hidden",
        "stages.*.panel.switch.weight": "router",
        "stages.*.panel.specialists.gate_up_proj": "expert_in",
        "stages.*.panel.specialists.down_proj": "expert_out",
        "calm_out.weight": "final_norm",
        "speak.weight": "readout",
    }
    mssp.initialize(model, plan)
    mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan)), plan)
    factors = {path: factor_of(module) for path, module in model.named_modules() if factor_of(module) != 1.0}
    expected = {f"stages.{block}.{name}": 2 / 3 for block in range(3) for name in ("blender", "panel")}
    assert factors == pytest.approx(expected | {f"stages.{block}.panel.specialists": 0.5 for block in range(3)})


@pytest.mark.usefixtures("_taught")
def test_after_blocks_are_the_identity_where_what_writes_to_the_stream_is_multiplied_by_zero() -> None:
    model = SieveModel(TARGET)
    mssp.hf.adapt(model, base=BASE)
    mssp.initialize(model, planned())
    for path, module in model.named_modules():
        if path.endswith(("blender", "panel")):
            module.mssp_factor = 0.0
    x = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.stages[0](x), x)


@pytest.mark.usefixtures("_taught")
def test_after_a_trained_model_is_folded() -> None:
    model = SieveModel(TARGET)
    mssp.hf.adapt(model, base=BASE)
    mssp.initialize(model, planned(readout="mup"))
    with torch.no_grad():
        before = model(TOKENS)
        mssp.hf.fold(model)
        torch.testing.assert_close(model(TOKENS), before)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.usefixtures("_taught")
def test_after_the_command_shows_the_plan_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = []
    for which, config in (("base", BASE), ("target", TARGET)):
        file = tmp_path / f"{which}.json"
        file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
        flags += [f"--{which}-config", str(file)]
    assert main(["plan", *flags, "--lr", "0.01", "--scheme", "mup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("stages.*.panel.switch.weight") and " router " in line for line in lines)
    assert lines[-3:] == [
        "  × 0.6667  stages.*.blender  (residual)",
        "  × 0.6667  stages.*.panel  (residual)",
        "  × 0.5  stages.*.panel.specialists  (aggregation)",
    ]
