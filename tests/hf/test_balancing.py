"""Coefficients of load-balancing losses: a plan keeps what such a loss is at uniform routing, whatever it is called."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    DbrxConfig,
    JetMoeConfig,
    OlmoeConfig,
    OlmoeForCausalLM,
)
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

import mssp
import mssp.hf
from mssp.hf.balancing import as_tuned, coefficients_of, read
from mssp.hf.meta import on_meta
from mssp.planning.recipe import PlanWarning, without_plan_warnings
from tests.hf.tiny_models import BASE, FAMILIES, TARGET, config_of, initialized, model_of, plan_of, shapes_of, tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:experts start alike:mssp.PlanWarning", "ignore:without mssp this checkpoint:mssp.PlanWarning"
)
NAME = "router_aux_loss_coef"


def adapted(config: Any, base: Any = None, shapes: tuple[mssp.Shape, ...] = (), **settings: Any) -> Any:
    model = model_of(config)
    mssp.hf.adapt(model, base=base)
    return initialized(model, plan_of(*shapes, **settings))


def of_uniform_routing(model: Any) -> float:
    """What the loss for balance adds to that of predictions, where all routers are zero."""
    with torch.no_grad():
        for info in mssp.describe(model) if hasattr(model, "param_infos") else ():
            if info.role in ("router", "router_bias"):
                model.get_parameter(info.name).zero_()
        batch = tokens()
        added = [model(batch, labels=batch, output_router_logits=on).loss for on in (True, False)]
    return float(added[0].double() - added[1].double())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_at_uniform_routing_stays_what_it_was_tuned_at(family: str) -> None:
    target, base = (config_of(family, shape, **{NAME: 0.25}) for shape in (TARGET, BASE))
    found = coefficients_of(on_meta(target), TARGET.depth, TARGET.experts) or []
    # Those of the library that have such a loss have this function; all of them take the mean over layers.
    assert len(found) == hasattr(sys.modules[type(on_meta(target)).__module__], "load_balancing_loss_func")
    if not found:
        return
    small = model_of(base)
    mssp.hf.adapt(small)
    shapes = shapes_of(family)
    model, own = adapted(target, base, shapes), found[0].own
    planned = own * shapes[1].active / shapes[0].active
    assert (read(model, found[0].name), read(model, f"config.{found[0].entry}")) == (planned, planned)
    assert own == (0.25 if NAME in str(found[0].entry) else 0.01)
    # It is K at uniform routing in each of them.
    assert of_uniform_routing(small) == pytest.approx(own * 2, rel=1e-4)
    assert of_uniform_routing(model) == pytest.approx(own * 2, rel=1e-4)


@pytest.mark.parametrize("active", [2, 4, 8, 16])
def test_the_library_s_loss_is_the_number_of_active_experts(active: int) -> None:
    shape = mssp.Shape(width=32, expert_width=16, experts=32, active=active, depth=2)
    (found,) = coefficients_of(on_meta(config_of("olmoe", shape)), 2, 32) or []
    assert (found.name, found.entry, found.own, found.uniform) == (NAME, NAME, 0.01, active)


def test_names_are_found_and_not_known() -> None:
    """JetMoE and DBRX have names of their own, and DBRX's config has it in a part."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "kv_channels": 8, "vocab_size": 64, "intermediate_size": 16}
    jetmoe = JetMoeConfig(**sizes, num_local_experts=8, num_experts_per_tok=4)
    (found,) = coefficients_of(on_meta(jetmoe), 2, 8) or []
    assert (found.name, found.entry, found.own, found.uniform) == ("aux_loss_coef", "aux_loss_coef", 0.01, 4)

    ffn = {"ffn_hidden_size": 16, "moe_num_experts": 8, "moe_top_k": 4, "moe_loss_weight": 0.05}
    attention = {"kv_n_heads": 2, "rope_theta": 1e4}
    dbrx = DbrxConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=64, ffn_config=ffn, attn_config=attention)
    dbrx.attn_config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    (found,) = coefficients_of(on_meta(dbrx), 2, 8) or []
    assert (found.name, found.entry, found.own, found.uniform) == (NAME, "ffn_config.moe_loss_weight", 0.05, 4)


# -- a model of nobody's ----------------------------------------------------------------------------------------------


class EvenConfig(OlmoeConfig):  # type: ignore[misc]
    model_type = "even"
    evenness: float = 0.5
    calm: float = 0.0
    reads: str = "attribute"


class Even(OlmoeForCausalLM):  # type: ignore[misc]
    """Adds the loss of each layer, which is 1 at uniform routing, to that of predictions; nobody has to ask for it."""

    config_class = EvenConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.push = config.evenness if config.reads == "attribute" else None

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        outputs = self.model(input_ids=input_ids, output_router_logits=True)
        logits = self.lm_head(outputs.last_hidden_state)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        weight = {"attribute": self.push, "config": self.config.evenness, "nothing": 0.5}[self.config.reads]
        for of_layer in outputs.router_logits:
            shares = of_layer.softmax(-1)
            chosen = nn.functional.one_hot(shares.topk(self.num_experts_per_tok, -1).indices, shares.shape[-1])
            loss = loss + weight * self.num_experts * (chosen.float().mean((0, 1)) * shares.mean(0)).sum()
            loss = loss + self.config.calm * of_layer.logsumexp(-1).square().mean()  # a z-loss, which balances nothing
        return MoeCausalLMOutputWithPast(loss=loss, logits=logits)


@pytest.fixture(scope="module")
def _even() -> Iterator[None]:
    AutoConfig.register("even", EvenConfig)
    AutoModelForCausalLM.register(EvenConfig, Even)
    yield
    del CONFIG_MAPPING._extra_content["even"], AutoModelForCausalLM._model_mapping._extra_content[EvenConfig]


def even(shape: mssp.Shape, **changes: Any) -> EvenConfig:
    return EvenConfig(**{**config_of("olmoe", shape).to_dict(), "model_type": "even", **changes})


@pytest.mark.usefixtures("_even")
@pytest.mark.parametrize("reads", ["attribute", "config"])
def test_another_loss_by_another_name(reads: str, tmp_path: Path) -> None:
    """It is summed over layers: what it adds to a router stays what it was beside residual branches of 1/L."""
    model = adapted(even(TARGET, reads=reads, calm=0.1), even(BASE, reads=reads, calm=0.1))
    assert model.config.evenness == pytest.approx(0.5 * 2 / 3)  # L from 2 to 3
    assert model.config.calm == 0.1
    assert model.push == (pytest.approx(0.5 * 2 / 3) if reads == "attribute" else None)
    model.save_pretrained(tmp_path)
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    mssp.hf.adapt(read)
    assert (read.config.evenness, read.push) == (model.config.evenness, model.push)


@pytest.mark.usefixtures("_even")
def test_what_cannot_be_set_is_said() -> None:
    with pytest.warns(PlanWarning, match=r"its coefficient is no number that it holds: .* multiply its coeff"):
        mssp.hf.adapt(model_of(even(TARGET, reads="nothing")))
    config = even(TARGET)
    config.twin = 0.5  # as large as the coefficient, and the model's attribute has the name of neither
    with pytest.warns(PlanWarning, match=r"which entry of the config the model has push from is not known: set it"):
        mssp.hf.adapt(model_of(config))
    model = model_of(even(TARGET))
    mssp.hf.adapt(model)
    plan = mssp.hf.plan(even(TARGET), even(BASE), lr=1e-3)
    with pytest.raises(ValueError, match=r"loss of push is 3 at uniform routing, and what it is at the base is n"):
        mssp.initialize(model, plan)


def test_a_loss_that_cannot_be_measured_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = model_of(config_of("olmoe", TARGET))

    usual = type(model).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(type(self.model), "config_class"):
            raise RuntimeError("it needs\na real trunk")
        return usual(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", forward)
    mssp.hf.adapt(model)  # nobody asks for the loss
    model.config.output_router_logits = True
    with pytest.warns(PlanWarning, match=r"could not be measured \(it needs a real trunk\): where such a loss is K"):
        mssp.hf.adapt(model)


# -- once, and back again ---------------------------------------------------------------------------------------------


def test_it_is_set_once(tmp_path: Path) -> None:
    target, base = config_of("olmoe", TARGET), config_of("olmoe", BASE)
    model = adapted(target, base)
    for _ in range(2):
        mssp.hf.adapt(model, base, plan_of())
        mssp.initialize(model, plan_of())
        assert (model.router_aux_loss_coef, model.config.router_aux_loss_coef) == (0.005, 0.005)
    model.save_pretrained(tmp_path / "1")
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "1")
    for again in ({}, {"base": base}, {"base": base, "plan": plan_of()}):
        mssp.hf.adapt(read, **again)
        assert (read.router_aux_loss_coef, read.config.router_aux_loss_coef) == (0.005, 0.005)
    read.save_pretrained(tmp_path / "2")
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "2")
    mssp.hf.release(read)
    assert (read.router_aux_loss_coef, read.config.router_aux_loss_coef) == (0.01, 0.01)
    assert target.router_aux_loss_coef == 0.01


def test_a_sibling_with_the_same_config_leaves_it() -> None:
    model = adapted(config_of("olmoe", TARGET), config_of("olmoe", BASE))
    mssp.hf.release(model_of(model.config))
    assert (model.router_aux_loss_coef, model.config.router_aux_loss_coef) == (0.005, 0.005)


def test_what_somebody_sets_afterwards_stays() -> None:
    model = adapted(config_of("olmoe", TARGET), config_of("olmoe", BASE))
    model.router_aux_loss_coef = 0.3
    with pytest.raises(ValueError, match=r"router_aux_loss_coef is 0.3, the plan says 0.005"):
        mssp.verify(model, torch.optim.AdamW(mssp.param_groups(model, plan_of())), plan_of())
    mssp.hf.release(model)
    assert (model.router_aux_loss_coef, model.config.router_aux_loss_coef) == (0.3, 0.01)


def test_what_a_plan_has_set_in_a_config_is_no_change_to_the_next(tmp_path: Path) -> None:
    """The config of an adapted model as a target, from the object and from a checkpoint."""
    base = config_of("olmoe", BASE)
    model = adapted(config_of("olmoe", TARGET), base, shapes_of("olmoe"))
    assert model.config.router_aux_loss_coef == 0.005
    model.save_pretrained(tmp_path)
    told = "router_aux_loss_coef changes from 0.01 to 0.02: the theory holds it fixed"
    with without_plan_warnings():
        for target in (model.config, tmp_path):
            assert not [note for note in mssp.hf.plan(target, base, lr=1e-3).warnings if "router_aux" in note]
        model.config.router_aux_loss_coef = 0.02  # by somebody since
        assert told in mssp.hf.plan(model.config, base, lr=1e-3).warnings


def test_a_folded_model_has_the_plan_s() -> None:
    model = adapted(config_of("olmoe", TARGET), config_of("olmoe", BASE), readout="mup")
    mssp.hf.fold(model)
    assert (model.router_aux_loss_coef, model.config.router_aux_loss_coef) == (0.005, 0.005)


def test_without_the_base_s_config_the_sizes_tell() -> None:
    target, base = config_of("olmoe", TARGET), config_of("olmoe", BASE)
    model: Any = model_of(target)
    mssp.hf.adapt(model)
    initialized(model, mssp.hf.plan(target, base, lr=1e-3))
    assert model.router_aux_loss_coef == 0.005
    initialized(model, mssp.plan(TARGET, regime="III", lr=1e-3))
    assert model.router_aux_loss_coef == 0.0025  # that of a loss that is 1 at uniform routing


def test_the_base_s_coefficient_is_carried() -> None:
    target, base = config_of("olmoe", TARGET), config_of("olmoe", BASE, router_aux_loss_coef=0.04)
    with pytest.warns(PlanWarning, match=r"router_aux_loss_coef is 0.01 in the model and 0.04 at the base, from"):
        model = adapted(target, base)
    assert model.router_aux_loss_coef == 0.02
    by_hand = config_of("olmoe", TARGET, router_aux_loss_coef=0.02)  # somebody has done what the plan does
    assert adapted(by_hand, base).router_aux_loss_coef == 0.02


def test_schemes_without_factors_leave_it() -> None:
    assert adapted(config_of("olmoe", TARGET), config_of("olmoe", BASE), scheme="sp").router_aux_loss_coef == 0.01


# -- where it is shown ------------------------------------------------------------------------------------------------


def test_a_plan_says_it() -> None:
    plan = plan_of()
    assert (plan.multiplier("load_balance"), plan.multiplier("load_balance", relative=True)) == (0.25, 0.5)
    over_configs = mssp.hf.plan(config_of("olmoe", TARGET), config_of("olmoe", BASE), lr=1e-3).json()
    assert json.loads(over_configs)["load_balance"] == 0.5
    assert mssp.Plan.from_json(over_configs).json() == over_configs
    with pytest.raises(ValueError, match="corrupt plan file: load_balance is not what its settings give"):
        mssp.Plan.from_json(over_configs.replace('"load_balance": 0.5', '"load_balance": 0.25'))
    assert "load_balance" not in plan.json()  # which is to the letter what it was
    table = mssp.hf.by_name(plan, config_of("olmoe", TARGET), config_of("olmoe", BASE))
    line = "router_aux_loss_coef 0.005 = 0.01 × 0.5  (a load-balancing loss that is 4 at uniform routing)"
    assert f"  {line}" in str(table).splitlines()
    assert f"- {line}" in table.markdown().splitlines()
    assert line in table.json()["factors"]
    assert mssp.hf.by_name(plan, config_of("dots1", TARGET), config_of("dots1", BASE)).coefficients == ()


def test_as_tuned_needs_no_weights() -> None:
    target, base = (on_meta(config_of("gpt_oss", shape)) for shape in (TARGET, BASE))
    (found,) = as_tuned(coefficients_of(target, 3, 8) or [], base, 2, 4)
    assert (found.uniform, found.uniform_at_base, found.tuned) == (4, 2, 0.001)
