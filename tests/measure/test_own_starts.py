"""What starts elsewhere than the rules say: gains of 1 + weight, values that a model keeps, a readout that is tied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mssp
from mssp import ParamInfo, Shape
from mssp.coordcheck.result import Check
from mssp.hf.factors import PlannedFactor, attach, factor_of
from mssp.measure.modules import ModuleProbe
from mssp.planning.recipe import without_plan_warnings
from tests.hf.tiny_models import BASE, config_of, model_of, plan_of

VOCABULARY = 16


class Block(nn.Module):
    """A gain of 1 + weight, a decay of the model's own and a dense layer, under names that no library uses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.loudness = nn.Parameter(torch.zeros(width))
        self.forgets = nn.Parameter(torch.rand(4) + 1.0)
        self.mixes = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normal = F.rms_norm(x, x.shape[-1:]) * (1 + self.loudness)
        decays = torch.exp(-self.forgets).repeat_interleave(x.shape[-1] // 4)
        out: Tensor = x + self.mixes(normal * decays)
        return out


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.block = Block(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.embed(tokens)))
        return out


CLAIMS = {
    "embed.weight": ParamInfo("embedding", layout="vocab out"),
    "block.loudness": ParamInfo("norm", start=0.0),
    "block.forgets": ParamInfo("bias", start="own"),
    "block.mixes.weight": ParamInfo("hidden", layout="out in"),
    "head.weight": ParamInfo("readout", layout="out in"),
}
TOKENS = torch.arange(48).view(4, 12) % VOCABULARY


def checked(gain: float = 0.0, power: float = 0.0) -> Check:
    """A check over widths of models whose gains start ``gain`` N^power above where they are neutral."""
    shapes = [Shape(width, depth=1) for width in (32, 64, 128)]
    plan = mssp.plan(shapes[0], regime="I", lr=0.01)

    def initialize(model: nn.Module, plan: mssp.Plan, seed: int) -> None:
        mssp.initialize(model, plan, CLAIMS, seed=seed)
        with torch.no_grad():
            model.get_parameter("block.loudness").add_(gain * (plan.target.width / 32) ** power)

    batches = [(TOKENS, TOKENS.roll(1, -1))] * 2
    return mssp.check(lambda s: Model(s.width), shapes, batches, plan, claims=CLAIMS, initialize=initialize, seeds=2)


def causes_of(check: Check) -> Sequence[str]:
    return [cause.text for cause in check.causes]


def test_a_gain_of_one_plus_weight_is_judged_as_the_gain() -> None:
    check = checked()
    for values in check.quantities["weights/norm"].values.values():
        assert values == pytest.approx((1.0, 1.0, 1.0))
    assert check.quantities["weights/norm"].verdict == "ok"
    assert causes_of(check) == []


def test_a_gain_that_grows_is_named() -> None:
    texts = causes_of(checked(gain=7.0, power=1.0))
    assert [text.split(" scale as ")[0] for text in texts] == ["the initial weights of norm"]


def test_values_that_a_model_keeps_have_no_predicted_size() -> None:
    quantities = checked().quantities
    assert "weights/bias" not in quantities
    assert quantities["rate/bias"].verdict == quantities["eps/bias"].verdict == "ok"
    for name in ("gradient/bias", "faithfulness/bias"):
        assert (quantities[name].verdict, quantities[name].stable) == ("unpredicted", True)
    assert quantities["update/bias"].values[32][-1] > 0  # they are trained all the same


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_the_factor_of_a_readout_is_in_what_its_updates_do(factor: float) -> None:
    torch.manual_seed(0)
    model = Model(32)
    attach(model.head, PlannedFactor("tied readout", lambda plan: factor))
    model.head.mssp_factor = factor  # type: ignore[assignment]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    probe = ModuleProbe(model, TOKENS, loss, CLAIMS)
    before = model(TOKENS)
    with torch.no_grad():
        model.head.weight.add_(torch.randn_like(model.head.weight), alpha=0.1)
    moved = (model(TOKENS) - before).square().mean().sqrt()
    sizes = probe()
    torch.testing.assert_close(sizes["effective/readout"][0], moved.double(), rtol=1e-5, atol=0.0)
    torch.testing.assert_close(sizes["change/readout"][0], moved.double(), rtol=1e-5, atol=0.0)


def test_a_tied_readout_of_a_hugging_face_model_is_measured_with_its_factor() -> None:
    config = config_of("cohere2_moe", BASE)
    model = model_of(config)
    with without_plan_warnings():
        mssp.hf.adapt(model, base=config_of("cohere2_moe", Shape(32, 16, 2, 1, 2)))
        mssp.initialize(model, plan_of(BASE, Shape(32, 16, 2, 1, 2)))
    assert factor_of(model.get_submodule("lm_head")) == 0.5
    tokens = torch.arange(24).view(2, 12)
    probe = ModuleProbe(model, {"input_ids": tokens, "labels": tokens})
    with torch.no_grad():
        head = model.get_parameter("lm_head.weight")
        update = 0.01 * torch.randn_like(head)
        head.add_(update)
        features = model.get_submodule("model")(tokens).last_hidden_state
    by_hand = 0.5 * (features @ update.T)
    torch.testing.assert_close(
        probe()["effective/readout"][0], by_hand.square().mean().sqrt().double(), rtol=1e-5, atol=0.0
    )
