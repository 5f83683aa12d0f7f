"""The check on a model of one's own: here our GPT, with what a user may change about its training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mssp
from mssp import Plan, Shape
from mssp.coordcheck.result import Check
from mssp.nn import GPT, GPTConfig
from tests.measure import hand_written
from tests.measure.hand_written import STYLES, Factors, built

VOCABULARY, CONTEXT, BATCH, STEPS = 32, 12, 8, 4


def build(shape: Shape) -> GPT:
    sizes = shape.width, shape.expert_width, shape.experts, shape.active, shape.depth
    return GPT(GPTConfig(*sizes, vocabulary=VOCABULARY, context=CONTEXT, head=8))


def shapes(regime: str = "II", widths: Sequence[int] = (16, 32, 64), active: Callable[[int], int] | None = None) -> Any:
    found = []
    for width in widths:
        experts = 4 if regime == "I" else width // 8
        expert_width = 8 if regime == "II" else width // 2
        found.append(Shape(width, expert_width, experts, experts if active is None else active(experts), 1))
    return found


TOKENS = torch.randint(VOCABULARY, (STEPS, BATCH, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
BATCHES = [(tokens[:, :-1], tokens[:, 1:]) for tokens in TOKENS]


def planned(regime: str | None = "II", optimizer: str = "adamw", **options: Any) -> Plan:
    first = shapes(regime or "II")[0]
    return mssp.plan(
        first, regime=regime, optimizer=optimizer, **{"lr": 10.0 if optimizer == "sgd" else 0.01, **options}
    )


def verdicts(check: Check, *kinds: str) -> dict[str, str]:
    """The verdicts of quantities of these kinds, where anything is predicted."""
    return {
        name: each.verdict
        for name, each in check.quantities.items()
        if name.partition("/")[0] in kinds and each.verdict not in ("zero", "unpredicted")
    }


@pytest.mark.parametrize(("regime", "optimizer"), [("I", "adam"), ("II", "adamw"), ("II", "sgd"), ("III", "adamw")])
def test_a_gpt_was_told_what_its_plan_says(regime: str, optimizer: str) -> None:
    check = mssp.check(build, shapes(regime), BATCHES, planned(regime, optimizer), seeds=2)
    assert (check.axis, check.sizes, check.steps, check.seeds) == ("width", (16, 32, 64), STEPS, 2)
    assert check.causes == ()
    told = verdicts(check, "weights", "rate", "eps", "aggregation", "experts")
    assert set(told.values()) == {"ok"}
    roles = {"embedding", "norm", "qk_norm", "hidden", "router", "expert_in", "expert_out", "final_norm", "readout"}
    assert {name.partition("/")[2] for name in told if name.startswith("rate/")} == roles
    assert {name.partition("/")[2] for name in told if name.startswith("eps/")} == (
        set() if optimizer == "sgd" else roles
    )
    assert {"aggregation", "experts/distance", "weights/expert_out"} <= set(told)
    assert len(check.loss[16]) == STEPS
    losses = check.loss[64]
    assert losses[0] == pytest.approx(torch.tensor(float(VOCABULARY)).log().item(), abs=1e-4)  # a zero readout


def test_gradients_of_a_gpt_fall_as_those_of_the_paper() -> None:
    check = mssp.check(build, shapes(widths=(16, 32, 64, 128)), BATCHES, planned(), seeds=2)
    expected = {"embedding": -1, "norm": -1, "hidden": -1, "expert_in": -1, "expert_out": -2, "readout": 0}
    for role, power in expected.items():
        each = check.quantities[f"gradient/{role}"]
        assert each.judged is not None
        assert each.judged.value == pytest.approx(power, abs=0.25), role
        assert each.verdict == "ok"


def one_lr(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """An optimizer with the plan's groups but one learning rate for all, which is a common mistake."""
    return torch.optim.AdamW([{**group, "lr": 0.01} for group in mssp.param_groups(model, plan)])


def test_one_learning_rate_for_all_is_found_out() -> None:
    check = mssp.check(build, shapes(), BATCHES, planned(), seeds=2, optimizer=one_lr)
    assert not check.passed
    assert {(cause.setting, cause.role) for cause in check.causes} == {
        ("rate", "router"), ("rate", "expert_in"), ("rate", "readout"), ("rate", "hidden"),
    }  # fmt: skip
    assert check.causes[0].text.endswith("is multiplied by N once too often")


def test_the_same_under_sgd() -> None:
    def plain(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=10.0)

    check = mssp.check(build, shapes(), BATCHES, planned(optimizer="sgd"), seeds=2, optimizer=plain)
    texts = {cause.role: cause.text for cause in check.causes}
    assert texts == {
        "expert_out": "the learning rate of expert_out is divided by N^2 too much",
        "norm": "the learning rate of norm is divided by N once too often",
        "final_norm": "the learning rate of final_norm is divided by N once too often",
        "embedding": "the learning rate of embedding is divided by N once too often",
        "readout": "the learning rate of readout is multiplied by N once too often",
    }


def test_one_eps_for_all_is_found_out() -> None:
    def global_eps(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{**group, "eps": 1e-8} for group in mssp.param_groups(model, plan)])

    check = mssp.check(build, shapes(), BATCHES, planned(), seeds=2, optimizer=global_eps)
    assert check.causes[0].text == "Adam's eps of expert_out scales as N^0, the rule says N^−2"
    assert {cause.setting for cause in check.causes} == {"eps"}
    assert check.quantities["faithfulness/expert_out"].verdict == "off"


def test_initial_weights_of_ones_own_are_found_out() -> None:
    def torchs_own(model: nn.Module, plan: Plan, seed: int) -> None:
        mssp.initialize(model, plan, seed=seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("experts.w_out"):
                    parameter.mul_(plan.target.experts**-0.5)  # muP's: without MSSP's boost

    check = mssp.check(build, shapes(), BATCHES, planned(), seeds=2, initialize=torchs_own)
    first = check.causes[0]
    assert (first.setting, first.role) == ("weights", "expert_out")
    assert first.text.endswith(", the rule says N^0.5")


def test_over_depths() -> None:
    deep = [Shape(16, 8, 2, 2, depth) for depth in (1, 2, 4)]
    check = mssp.check(build, deep, BATCHES, planned(optimizer="sgd"), seeds=2)
    assert (check.axis, check.sizes) == ("depth", (1, 2, 4))
    assert set(verdicts(check, "rate").values()) == {"ok"}
    judged = check.quantities["rate/expert_in"].judged
    assert judged is not None
    assert judged.value == pytest.approx(1.0, abs=0.05)


def test_shapes_are_taken_in_order_and_a_plan_is_extended_to_each() -> None:
    mixed = shapes(widths=(64, 16, 32))
    based = mssp.plan(mixed[0], mixed[1], regime="II", lr=0.01)
    check = mssp.check(build, mixed, BATCHES[:2], based, seeds=2)
    assert check.sizes == (16, 32, 64)
    assert set(verdicts(check, "weights", "rate", "eps").values()) == {"ok"}


def test_a_model_that_gives_a_tensor_and_a_loss_of_ones_own() -> None:
    class Logits(nn.Module):
        def __init__(self, shape: Shape) -> None:
            super().__init__()
            self.gpt = build(shape)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.gpt(tokens).logits
            return out

    two = shapes(widths=(16, 32))
    plain = mssp.check(build, two, BATCHES[:2], planned(), seeds=1)
    wrapped = mssp.check(Logits, two, BATCHES[:2], planned(), seeds=1)
    assert wrapped.loss[16][0] == pytest.approx(plain.loss[16][0])
    halved = mssp.check(build, two, BATCHES[:2], planned(), seeds=1, loss=lambda model, batch: model(*batch).loss / 2)
    assert halved.loss[16][0] == pytest.approx(plain.loss[16][0] / 2)


@pytest.mark.parametrize(
    ("given", "batches", "message"),
    [
        (shapes()[:1], BATCHES, "an exponent needs at least two shapes, got 1"),
        (shapes(), [], "no batches to train on: one update is taken for each"),
        (
            [shapes()[0], shapes()[1], Shape(16, 8, 2, 2, 2)],
            BATCHES,
            "exponents are over the width: the 3 shapes have 2 of them",
        ),
        ([shapes()[0]] * 2, BATCHES, "exponents are over the depth: the 2 shapes have 1 of them"),
    ],
)
def test_what_cannot_be_checked(given: list[Shape], batches: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mssp.check(build, given, batches, planned())


def test_a_model_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="the plan is for another model"):
        mssp.check(lambda shape: build(shapes()[0]), shapes(), BATCHES, planned(), seeds=1)


def task(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(*batch).loss
    return loss


def balanced(model: nn.Module, batch: Any) -> Tensor:
    out = model(*batch)
    total: Tensor = out.loss + 0.01 * out.load_balancing_loss() + 0.001 * out.z_loss()
    return total


def half(experts: int) -> int:
    return experts // 2


def late_exponents(check: Check) -> dict[str, float]:
    """Mean exponents of layers and of their sums from the second update on, when all layers move."""
    found = {}
    for name, each in check.quantities.items():
        if name.startswith(("effective/", "aggregate/")) and name != "aggregate/cross":
            exponents = [exponent.value for exponent in each.exponents[2:] if exponent is not None]
            assert len(exponents) == STEPS - 1
            found[name] = fmean(exponents)
    return found


def test_auxiliary_losses_move_no_exponents_under_adam() -> None:
    top_k = shapes(widths=(32, 64, 128), active=half)
    plan = mssp.plan(top_k[0], regime="II", lr=0.01)
    without, with_them = (mssp.check(build, top_k, BATCHES, plan, seeds=4, loss=loss) for loss in (task, balanced))
    ours, theirs = late_exponents(without), late_exponents(with_them)
    assert {"effective/router", "effective/expert_in", "aggregate/init", "aggregate/A21"} <= set(ours)
    for name, exponent in ours.items():
        assert theirs[name] == pytest.approx(exponent, abs=0.15), name
    # The losses act: they move the router at the first update, when the readout sends no gradient back to it.
    assert without.quantities["effective/router"].values[32][1] == 0.0
    assert with_them.quantities["effective/router"].values[32][1] > 0.0


def test_a_right_model_with_auxiliary_losses_passes() -> None:
    top_k = shapes(active=half)
    plan = mssp.plan(top_k[0], regime="II", lr=0.01)
    check = mssp.check(build, top_k, BATCHES, plan, seeds=2, loss=balanced)
    assert [each.name for each in check.off if "exactly zero" in each.reason] == []


def test_scaled_gradients_are_to_adam_a_smaller_eps() -> None:
    check = mssp.check(build, shapes(), BATCHES, planned(grad_scale=True), seeds=2)
    assert set(verdicts(check, "eps", "rate", "weights").values()) == {"ok"}


def test_a_scheme_without_a_regime() -> None:
    plan = mssp.plan(shapes()[0], scheme="sp", lr=0.01)
    check = mssp.check(build, shapes(widths=(16, 32)), BATCHES[:2], plan, seeds=1)
    assert check.setting.regime is None


def test_no_seeds() -> None:
    with pytest.raises(ValueError, match="seeds must be a positive whole number, got 0"):
        mssp.check(build, shapes(), BATCHES, planned(), seeds=0)


def test_shapes_that_grow_as_another_regime_does() -> None:
    with pytest.raises(ValueError, match="the plan is for Regime II, and the shapes grow as Regime III does"):
        mssp.check(build, shapes("III"), BATCHES, planned("II"))


def test_batches_from_a_loader() -> None:
    check = mssp.check(build, shapes(widths=(16, 32)), iter(BATCHES[:2]), planned(), seeds=1)  # type: ignore[arg-type]
    assert check.steps == 2


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (
            Factors(aggregation=0, relative=False),
            "blocks.0.moe and 1 more: what one of its experts puts out counts 1 times as much in the sum as at "
            "width 32, and the plan's aggregation factor is 0.25 times what it is at width 32: it is missing",
        ),
        (
            Factors(aggregation=2, relative=False),
            "blocks.0.moe and 1 more: what one of its experts puts out counts 0.0625 times as much in the sum as at "
            "width 32, and the plan's aggregation factor is 0.25 times what it is at width 32: it is there twice",
        ),
        (Factors(relative=False), ""),
    ],
)
def test_an_aggregation_factor_in_a_model_of_ones_own(factors: Factors, says: str) -> None:
    check = own_model_checked([Shape(n, n // 4, n // 8, n // 16, 2) for n in (32, 64, 128)], "III", factors)
    assert [cause.text for cause in check.causes if cause.setting == "forward"] == ([says] if says else [])
    assert check.passed is not bool(says)
    assert "look at the forward pass" not in str(check)
    assert Check.from_json(check.json()).causes == check.causes


@pytest.mark.parametrize(("power", "how"), [(0, "missing"), (2, "there twice"), (1, "")])
def test_a_residual_factor_in_a_model_of_ones_own(power: int, how: str) -> None:
    deep = [Shape(32, 8, 4, 2, depth) for depth in (1, 2, 4)]
    check = own_model_checked(deep, "II", Factors(residual=power, relative=False))
    expected = [
        f"{name} and 3 more: its output reaches the stream times {0.25**power:.4g}, at depth 1 times 1, and the plan's "
        f"residual factor is 0.25 times what it is at depth 1: it is {how}"
        for name in ("blocks.0.attention.out", "blocks.0.moe")
    ]
    assert [cause.text for cause in check.causes if cause.setting == "forward"] == (expected if how else [])
    assert check.passed is not bool(how)


def own_model_checked(sizes: list[Shape], regime: str, factors: Factors) -> Check:
    plan = mssp.plan(sizes[0], regime=regime, lr=3e-3)

    def build(shape: Shape) -> nn.Module:
        return built("stacked", plan.extend(shape), factors)

    tokens = hand_written.TOKENS
    batches = [(tokens, tokens.roll(1, -1))] * 4
    return mssp.check(build, sizes, batches, plan, seeds=2, claims=STYLES["stacked"][1])
