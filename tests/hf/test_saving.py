"""Checkpoints for those who do not have mssp: they are told apart, and folded ones compute the same."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Dots1ForCausalLM

import mssp
from mssp.hf.factors import factor_of, label_of
from tests.hf.test_refusals import refused
from tests.hf.tiny_models import BASE, TARGET, config_of, initialized, logits, model_of, plan_of, tokens

WARNING = "without mssp this checkpoint computes something else: 8 outputs are multiplied, as that of model.layers.0."


def ready(family: str, **settings: Any) -> Any:
    model = model_of(config_of(family, TARGET))
    mssp.hf.adapt(model, base=config_of(family, BASE))
    return initialized(model, plan_of(readout="mup", **settings))


def ready_as(model_class: Any, family: str, settings: Any = MappingProxyType({})) -> Any:
    """Like :func:`ready`, with a class of one's own, or with entries of one's own in the config."""
    config = config_of(family, TARGET, **settings)
    model = model_of(config) if model_class is None else model_class(config).eval()
    mssp.hf.adapt(model, base=config_of(family, BASE, **settings))
    return initialized(model, plan_of(readout="mup", aggregation_mult=1.5))


def read_plainly(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def test_a_checkpoint_that_needs_mssp_says_so(tmp_path: Path) -> None:
    model = ready("dots1", aggregation_mult=1.5)
    compiled: Any = torch.compile(model, backend="eager")
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), compiled):
        with pytest.warns(mssp.PlanWarning, match=WARNING):
            each.save_pretrained(tmp_path)
        with pytest.warns(mssp.PlanWarning, match=WARNING):
            mssp.hf.save_pretrained(each, tmp_path)
    assert not torch.allclose(logits(read_plainly(tmp_path)), logits(model), rtol=1e-3)


def test_one_that_does_not_need_it_says_nothing(tmp_path: Path) -> None:
    same = plan_of(TARGET, TARGET)  # warnings are errors here
    model: Any = model_of(config_of("olmoe", TARGET))
    mssp.hf.adapt(model, base=config_of("olmoe", TARGET))
    initialized(model, same).save_pretrained(tmp_path)  # type: ignore[operator]
    model = ready("olmoe")
    mssp.hf.release(model)
    model.save_pretrained(tmp_path)
    assert "save_pretrained" not in vars(model)


@pytest.mark.parametrize("family", ["olmoe", "dots1", "ernie4_5_moe", "gpt_oss", "qwen3_next"])
def test_folded_checkpoints_compute_the_same(family: str, tmp_path: Path) -> None:
    model = ready(family, aggregation_mult=1.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    expected = logits(model)
    mssp.hf.save_pretrained(model, tmp_path, folded=True)
    read = read_plainly(tmp_path)
    torch.testing.assert_close(logits(read), expected, rtol=1e-4, atol=1e-6)
    assert not hasattr(read.config, "mssp")
    # The model that was saved stays as it was, and can be trained further.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(logits(model), expected)
    assert model.config.mssp["plan"]["aggregation_mult"] == 1.5


@pytest.mark.parametrize(
    ("family", "entry", "label", "settings"),
    [
        ("dots1", "routed_scaling_factor", "aggregation", {}),  # which shared experts do not have
        ("hy_v3", "router_scaling_factor", "aggregation", {}),
        ("granitemoeshared", "residual_multiplier", "residual", {}),
        ("cohere2_moe", "logit_scale", "tied readout", {}),
        ("granitemoeshared", "logits_scaling", "tied readout", {"tie_word_embeddings": True}),  # divides
    ],
)
def test_numbers_of_the_config_take_factors(
    family: str, entry: str, label: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = ready_as(None, family, settings)
    own, expected = getattr(model.config, entry), logits(model)
    held = [path for path, module in model.named_modules() if label_of(module) == label]
    mssp.hf.save_pretrained(model, tmp_path, folded=True)
    read = read_plainly(tmp_path)
    torch.testing.assert_close(logits(read), expected, rtol=1e-4, atol=1e-6)
    factor = factor_of(model.get_submodule(held[0]))
    assert factor != 1.0
    assert getattr(read.config, entry) in (pytest.approx(own * factor), pytest.approx(own / factor))
    assert getattr(model.config, entry) == own
    assert factor_of(model.get_submodule(held[0])) == factor
    folded = {name for name, tensor in read.state_dict().items() if not torch.equal(tensor, model.state_dict()[name])}
    assert bool(folded) == any(factor_of(module) != 1 and label_of(module) != label for module in model.modules())


class AlsoOnLogits(Dots1ForCausalLM):  # type: ignore[misc]
    """A model that uses the scaling factor of its experts a second time."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.config.routed_scaling_factor
        return output


class OnSharedExperts(Dots1ForCausalLM):  # type: ignore[misc]
    """A model in whose last layer the factor multiplies shared experts as well."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        shared = self.model.layers[-1].mlp.shared_experts
        shared.act_fn = Times(config.routed_scaling_factor)


class Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * self.factor


@pytest.mark.parametrize("planted", [AlsoOnLogits, OnSharedExperts])
def test_numbers_with_another_use_are_left_alone(planted: Any, tmp_path: Path) -> None:
    model = ready_as(planted, "dots1")
    expected = logits(model)
    mssp.hf.save_pretrained(model, tmp_path, folded=True)
    read = planted.from_pretrained(tmp_path).eval()
    assert read.config.routed_scaling_factor == model.config.routed_scaling_factor
    torch.testing.assert_close(logits(read), expected, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_folded_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = ready("olmoe")
    with refused(model, "state_dict goes with factors that are not folded"):
        mssp.hf.save_pretrained(model, tmp_path, folded=True, state_dict={})
    model.model.layers[0].self_attn.o_proj = torch.nn.Sequential(torch.nn.Linear(128, 128))
    with refused(
        model, "model.layers.0.self_attn has a factor of 0.6666666666666666 and no last matrix that could take"
    ):
        mssp.hf.save_pretrained(model, tmp_path, folded=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="Linear is no model of transformers, and has no save_pretrained"):
        mssp.hf.save_pretrained(torch.nn.Linear(2, 2), tmp_path)
    assert model(tokens()).logits.shape == (2, 12, 128)
