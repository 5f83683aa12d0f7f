"""Factors in numbers of a checkpoint's config: it computes the same without mssp, and with it no factor acts twice."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Dots1ForCausalLM

import mssp
from mssp.hf.factors import factor_of
from mssp.planning.recipe import PlanWarning
from tests.hf.test_refusals import refused
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, logits, model_of, plan_of

WIDER = replace(TARGET, depth=BASE.depth)
NUMBERS = {"own": 1.0, "planned": 2.0}
NEEDS_MSSP = "without mssp this checkpoint computes something else"


class Case(NamedTuple):
    """A family, its sizes, and the number of its config that holds the factor: what it was, and what is saved."""

    family: str
    shape: mssp.Shape
    entry: str
    own: float
    saved: float
    settings: Any = MappingProxyType({})

    def config(self, shape: mssp.Shape) -> Any:
        return config_of(self.family, shape, **self.settings)


CASES = [
    Case("dots1", WIDER, "routed_scaling_factor", 1.0, 0.5),
    Case("hy_v3", WIDER, "router_scaling_factor", 2.826, 4.239),
    Case("granitemoeshared", TARGET, "residual_multiplier", 1.0, 2 / 3),
    Case("granitemoe", WIDER, "logits_scaling", 1.0, 2.0, {"tie_word_embeddings": True}),  # divides
]


def ready(case: Case, model_class: Any = None) -> Any:
    model = model_of(case.config(case.shape)) if model_class is None else model_class(case.config(case.shape)).eval()
    mssp.hf.adapt(model, base=case.config(BASE))
    aggregation = 1.5 if case.family == "hy_v3" else 1.0
    return initialized(model, plan_of(case.shape, BASE, readout="mup", aggregation_mult=aggregation))


class Saved(NamedTuple):
    case: Case
    model: Any  # which tests leave as it is
    folder: Path


@pytest.fixture(scope="module", params=CASES, ids=[case.family for case in CASES])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_in(tmp_path_factory.mktemp("checkpoint"), request.param)


@pytest.fixture(scope="module")
def dots1(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return saved_in(tmp_path_factory.mktemp("checkpoint"), CASES[0])


def saved_in(folder: Path, case: Case) -> Saved:
    model = ready(case)
    model.save_pretrained(folder)  # warnings are errors here
    return Saved(case, model, folder)


def read(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def numbers_on_modules(model: Any) -> dict[str, Any]:
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if type(value) is float
    }


def test_such_a_checkpoint_needs_nothing(saved: Saved, tmp_path: Path) -> None:
    case, model, folder = saved
    expected = logits(ready(case))
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        each.save_pretrained(tmp_path)
        assert getattr(each.config, case.entry) == case.own
        assert each.config.mssp.keys() == {"plan", "base"} | ({"coefficients"} if "granite" in case.family else set())
        assert torch.equal(logits(each), expected)
    plain = read(folder)
    assert getattr(plain.config, case.entry) == pytest.approx(case.saved, rel=1e-12)
    torch.testing.assert_close(logits(plain), expected, rtol=1e-4, atol=1e-6)


def test_adapted_again_no_factor_acts_twice(saved: Saved, tmp_path: Path) -> None:
    case, model, folder = saved
    again = read(folder)
    for base in (case.config(BASE), None):
        mssp.hf.adapt(again, base)
        for each in (again, copy.deepcopy(again)):
            assert torch.equal(logits(each), logits(model))
            assert numbers_on_modules(each) == numbers_on_modules(model)
            assert getattr(each.config, case.entry) == case.own
            assert each.config.mssp == model.config.mssp
    again.save_pretrained(tmp_path)
    first, second = ((each / "config.json").read_text() for each in (folder, tmp_path))
    assert json.loads(first) == json.loads(second)
    unplanned = copy.deepcopy(model)
    mssp.hf.release(unplanned)
    for released in (again, read(tmp_path)):
        mssp.hf.release(released)
        assert torch.equal(logits(released), logits(unplanned))
        assert numbers_on_modules(released) == numbers_on_modules(unplanned)
        assert getattr(released.config, case.entry) == case.own
        assert not hasattr(released.config, "mssp")


def test_a_model_that_is_folded_keeps_the_numbers(dots1: Saved) -> None:
    plain, adapted = read(dots1.folder), read(dots1.folder)
    mssp.hf.adapt(adapted)
    for each, number in ((plain, 0.5), (adapted, 1.0)):
        mssp.hf.fold(each)
        assert each.config.routed_scaling_factor == number
        assert not hasattr(each.config, "mssp")
        torch.testing.assert_close(logits(each), logits(dots1.model), rtol=1e-4, atol=1e-6)


def test_another_plan_is_relative_to_the_model_s_own_number(dots1: Saved, tmp_path: Path) -> None:
    model = read(dots1.folder)
    mssp.hf.adapt(model, CASES[0].config(BASE), plan_of(WIDER, BASE, readout="mup", aggregation_mult=3.0))
    assert model.config.routed_scaling_factor == 1.0
    assert {factor_of(module) for module in model.modules()} == {1.0, 1.5}
    random = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), random)  # so that training goes on as if nothing had been saved
    assert AutoConfig.from_pretrained(tmp_path).routed_scaling_factor == 1.5
    initialized(model, plan_of(WIDER, BASE, readout="mup", aggregation_mult=4.0))
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).routed_scaling_factor == 2.0


def test_what_is_refused_keeps_its_numbers(dots1: Saved) -> None:
    model = read(dots1.folder)
    before, numbers = logits(model), numbers_on_modules(model)
    with refused(model, "keeps a plan from another base"):
        mssp.hf.adapt(model, CASES[0].config(mssp.Shape(32, 32, 4, 2, 2)))
    assert torch.equal(logits(model), before)
    assert numbers_on_modules(model) == numbers


def test_models_of_one_config_have_numbers_of_their_own(dots1: Saved) -> None:
    config = AutoConfig.from_pretrained(dots1.folder)
    model, other = model_of(config), model_of(config)
    folded, before = model_of(config), logits(other)
    mssp.hf.adapt(model)
    mssp.hf.fold(folded)
    assert config.routed_scaling_factor == 0.5
    assert torch.equal(logits(other), before)
    mssp.hf.adapt(other)
    assert numbers_on_modules(other) == numbers_on_modules(model)


def test_what_somebody_sets_afterwards_stays(dots1: Saved) -> None:
    model = read(dots1.folder)
    model.config.routed_scaling_factor = 7.0
    model.model.layers[1].mlp.gate.routed_scaling_factor = 7.0
    mssp.hf.release(model)
    assert model.config.routed_scaling_factor == 7.0
    assert model.model.layers[1].mlp.gate.routed_scaling_factor == 7.0


# -- such a config as a base or a target -------------------------------------------------------------------------------


@pytest.mark.slow
def test_plans_over_configs_read_the_model_s_own_numbers(tmp_path: Path) -> None:
    case = CASES[2]._replace(settings={"router_aux_loss_coef": 0.0})
    saved = ready(case)
    saved.save_pretrained(tmp_path)
    large = case.config(mssp.Shape(width=256, expert_width=192, experts=16, active=8, depth=3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        upward = mssp.hf.plan(case.config(case.shape), case.config(BASE), lr=1e-3)
        onward = mssp.hf.plan(large, case.config(case.shape), lr=1e-3)
        for form in (tmp_path, AutoConfig.from_pretrained(tmp_path)):
            assert mssp.hf.plan(form, case.config(BASE), lr=1e-3).json() == upward.json()
            assert mssp.hf.plan(large, form, lr=1e-3).json() == onward.json()
            built: Any = mssp.hf.from_config(form, upward, base=case.config(BASE))
            assert built.config.residual_multiplier == 1.0
            assert numbers_on_modules(built) == numbers_on_modules(saved)
            model: Any = model_of(large)
            mssp.hf.adapt(model, base=form)  # and finds no factor that grows
            assert {factor.value(onward) for factor in model.planned_factors().values()} == {1.0}
    assert not any("residual_multiplier" in each for each in (*upward.warnings, *onward.warnings))


@pytest.mark.parametrize("kept", [3, {"hidden_size": 3}, {"hidden_size": {"own": "x"}}, {"a.b": NUMBERS}])
def test_odd_records_change_nothing(kept: Any) -> None:
    config = CASES[0].config(BASE)
    config.mssp = {"numbers": kept}
    assert mssp.Shape.from_config(config) == BASE
    assert mssp.hf.by_name(plan_of(BASE, BASE), config).plan.target.width == 64
    mssp.hf.release(model_of(config))


# -- numbers that cannot hold all factors, or cannot be taken back -----------------------------------------------------


def test_a_part_of_the_factors_is_not_written(tmp_path: Path) -> None:
    model = ready(CASES[0]._replace(shape=TARGET))  # whose residual factor no number holds
    with pytest.warns(PlanWarning, match=NEEDS_MSSP):
        model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.routed_scaling_factor == 1.0
    assert "numbers" not in config.mssp


class InATuple(Dots1ForCausalLM):  # type: ignore[misc]
    """A model that has its scaling factor where nobody finds it, so that it could not be taken back."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        router = self.model.layers[1].mlp.gate
        router.held = (vars(router).pop("routed_scaling_factor"),)
        router.__class__ = type("Held", (type(router),), {"routed_scaling_factor": property(_held)})


def _held(router: Any) -> float:
    held: float = router.held[0]
    return held


def test_a_number_that_could_not_be_taken_back_is_left_alone(tmp_path: Path) -> None:
    model = ready(CASES[0], InATuple)
    with pytest.warns(PlanWarning, match=NEEDS_MSSP):
        model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).routed_scaling_factor == 1.0
