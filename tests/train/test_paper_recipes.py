"""The recipes of the paper's Transformers: group by group the numbers of the authors' code, and their parameter counts.

The numbers were computed from the authors' rules and tuned multipliers: standard deviation, learning rate, eps and
weight decay, at width 256 and at width 2048.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import mssp
from mssp.apply.description import planned_parameters
from mssp.ladders import transformer_multipliers
from mssp.nn import GPT
from mssp.planning.setting import regime_named
from mssp.train import RunSettings, read_recipe
from mssp.train.language_models import gpt_config, plan_of

Numbers = tuple[float, float, float, float]

WANTED: dict[tuple[str, int], dict[str, Numbers]] = {
    ("paper-ii", 256): {
        "embedding": (0.08, 0.24776448, 3.90625e-11, 0.003125),
        "norm": (1, 0.00774264, 3.90625e-11, 0.1),
        "attention_in": (0.0078125, 0.03097056, 3.90625e-11, 0.025),
        "attention_out": (0.015625, 0.00774264, 3.90625e-11, 0.1),
        "ffn_in": (0.03125, 0.01548528, 3.90625e-11, 0.05),
        "ffn_out": (0.0625, 0.03097056, 3.90625e-11, 0.025),
        "router": (0.001953125, 0.00387132, 3.125e-10, 0.2),
        "expert_in": (0.0078125, 0.03097056, 3.125e-10, 0.025),
        "expert_out": (1, 1.98211584, 1.22070313e-12, 0.000390625),
        "final_norm": (1, 0.00774264, 3.90625e-11, 0.1),
        "readout": (0, 0.06194112, 1e-08, 0.0125),
    },
    ("paper-ii", 2048): {
        "embedding": (0.08, 0.24776448, 4.8828125e-12, 0.003125),
        "norm": (1, 0.00774264, 4.8828125e-12, 0.1),
        "attention_in": (0.00276213586, 0.00387132, 4.8828125e-12, 0.2),
        "attention_out": (0.00552427173, 0.00096783, 4.8828125e-12, 0.8),
        "ffn_in": (0.0110485435, 0.00193566, 4.8828125e-12, 0.4),
        "ffn_out": (0.0220970869, 0.00387132, 4.8828125e-12, 0.2),
        "router": (0.000690533966, 0.000483915, 3.90625e-11, 1.6),
        "expert_in": (0.00276213586, 0.00387132, 3.90625e-11, 0.2),
        "expert_out": (2.82842712, 1.98211584, 1.90734863e-14, 0.000390625),
        "final_norm": (1, 0.00774264, 4.8828125e-12, 0.1),
        "readout": (0, 0.00774264, 1e-08, 0.1),
    },
    ("paper-iii", 256): {
        "embedding": (0.02, 0.07426544, 3.90625e-11, 0.00625),
        "norm": (1, 0.00464159, 3.90625e-11, 0.1),
        "attention_in": (0.0625, 0.00928318, 3.90625e-11, 0.05),
        "attention_out": (0.0625, 0.00928318, 3.90625e-11, 0.05),
        "router": (0.0625, 0.03713272, 1.25e-09, 0.0125),
        "expert_in": (0.0625, 0.00928318, 4.8828125e-12, 0.05),
        "expert_out": (0.353553391, 0.59412352, 4.8828125e-12, 0.00078125),
        "final_norm": (1, 0.00464159, 3.90625e-11, 0.1),
        "readout": (0, 0.03713272, 1e-08, 0.0125),
    },
    ("paper-iii", 2048): {
        "embedding": (0.02, 0.07426544, 4.8828125e-12, 0.00625),
        "norm": (1, 0.00464159, 4.8828125e-12, 0.1),
        "attention_in": (0.0220970869, 0.0011603975, 4.8828125e-12, 0.4),
        "attention_out": (0.0220970869, 0.0011603975, 4.8828125e-12, 0.4),
        "router": (0.0220970869, 0.00464159, 1.5625e-10, 0.1),
        "expert_in": (0.0220970869, 0.0011603975, 7.62939453e-14, 0.4),
        "expert_out": (0.125, 0.07426544, 7.62939453e-14, 0.00625),
        "final_norm": (1, 0.00464159, 4.8828125e-12, 0.1),
        "readout": (0, 0.00464159, 1e-08, 0.1),
    },
}


def of_width(name: str, width: int, scheme: str = "mssp") -> RunSettings:
    """A recipe of the package at another width of its family, as the flags of ``mssp train`` would have it."""
    settings = RunSettings.of(read_recipe(name))
    base = mssp.Shape(**settings.plan["base"])
    member = regime_named(settings.plan["regime"]).member(base, width).json()
    sizes = {size: member[size] for size in ("width", "expert_width", "experts", "active")}
    return replace(settings, model={**settings.model, **sizes}, plan={**settings.plan, "scheme": scheme})


def model_and_plan(settings: RunSettings) -> tuple[GPT, mssp.Plan]:
    config = gpt_config(settings)
    with torch.device("meta"):
        return GPT(config), plan_of(settings, config.shape)


@pytest.mark.parametrize(("name", "width"), WANTED)
def test_groups_have_the_numbers_of_the_authors(name: str, width: int) -> None:
    model, plan = model_and_plan(of_width(name, width))
    found: dict[str, Numbers] = {}
    for info, _, values in planned_parameters(model, plan, None):
        assert values.eps is not None
        numbers = values.init_std, values.lr, values.eps, values.weight_decay
        assert found.setdefault(info.part or info.role, numbers) == numbers
        assert values.starts_equal == (name == "paper-iii" and info.role in ("expert_in", "expert_out"))
    wanted = WANTED[name, width]
    assert set(found) == set(wanted)
    for role, numbers in wanted.items():
        assert found[role] == pytest.approx(numbers, rel=1e-6), role
    names = {"norm", "embedding", "router", "expert_in", "expert_out", "final_norm", "readout"}
    parts = {f"hidden {part}" for part in wanted if part.startswith(("attention", "ffn"))}
    groups = {group["name"].partition(" 2")[0]: group for group in mssp.param_groups(model, plan)}
    assert set(groups) == names | parts
    for group in groups.values():
        _, lr, eps, decay = wanted[group["name"].removeprefix("hidden ")]
        assert (group["lr"], group["eps"], group["weight_decay"]) == pytest.approx((lr, eps, decay), rel=1e-6)
        assert group["betas"] == (0.9, 0.95)
    assert {block.residual for block in _with_factors(model, plan).blocks} == {1.0}
    assert {block.ffn.aggregation for block in model.blocks if hasattr(block.ffn, "aggregation")} == {
        1 / plan.target.active
    }


def _with_factors(model: Any, plan: mssp.Plan) -> Any:
    """The model with the plan's factors of the forward pass, which need no memory."""
    for module in model.modules():
        if hasattr(module, "plan_multipliers"):
            for name, factor in module.plan_multipliers(plan).items():
                setattr(module, name, factor)
    return model


@pytest.mark.parametrize(
    ("name", "width", "count"),
    [
        ("paper-ii", 2048, 408_438_784),  # 408.4 M
        ("paper-iii", 2048, 2_488_829_952),  # 2.49 B
    ],
)
def test_parameter_counts(name: str, width: int, count: int) -> None:
    model, _ = model_and_plan(of_width(name, width))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_mup_in_regime_two_is_the_same_model_at_the_base() -> None:
    tuned = {scheme: transformer_multipliers("II", scheme) for scheme in ("mssp", "mup")}
    recipe = of_width("paper-ii", 256)
    changed = {**recipe.plan, **tuned["mup"], "scheme": "mup"}
    mup = replace(recipe, plan=changed)
    for width, ratio in ((256, 1.0), (2048, 8**0.5)):
        sizes = of_width("paper-ii", width).model
        plans = [
            plan_of(replace(each, model=sizes), gpt_config(replace(each, model=sizes)).shape) for each in (recipe, mup)
        ]
        for role in set(plans[0].roles) - {"shared_gate"}:
            values, other = (plan.roles[role] for plan in plans)
            factor = ratio if role == "expert_out" else 1.0
            assert values.init_std == pytest.approx(other.init_std * factor)
            assert (values.lr, values.eps, values.weight_decay) == (other.lr, other.eps, other.weight_decay)


@pytest.mark.parametrize(("name", "regime"), [("paper-ii", "II"), ("paper-iii", "III")])
def test_recipes_have_the_tuned_multipliers_of_the_package(name: str, regime: str) -> None:
    entries = RunSettings.of(read_recipe(name)).plan
    tuned = transformer_multipliers(regime)
    assert {key: entries[key] for key in tuned} == tuned


@pytest.mark.parametrize(("name", "regime", "sizes"), [
    ("paper-check-ii", "II", {256: (16, 64, 64), 2048: (16, 512, 512)}),
    ("paper-check-iii", "III", {256: (128, 8, 8), 2048: (1024, 64, 64)}),
])  # fmt: skip
def test_coordinate_checks_are_soft_and_without_multipliers(
    name: str, regime: str, sizes: dict[int, tuple[int, int, int]]
) -> None:
    for width, (expert_width, experts, active) in sizes.items():
        settings = of_width(name, width)
        model, plan = model_and_plan(settings)
        shape = plan.target
        assert (shape.expert_width, shape.experts, shape.active, shape.depth) == (expert_width, experts, active, 8)
        assert (plan.lr, dict(plan.lr_mult), dict(plan.init_mult), plan.regime) == (7.74e-3, {}, {}, regime)
        assert len(model.blocks) == 8
        assert settings.training.balance == 0.0


def test_the_rest_of_the_recipes() -> None:
    for name in ("paper-ii", "paper-iii", "paper-check-ii", "paper-check-iii"):
        settings = RunSettings.of(read_recipe(name))
        training = settings.training
        assert (training.steps, training.warmup, training.final, training.clip) == (4768, 700, 0.1, 1.0)
        assert settings.sequences_per_step == 512
        assert settings.data.sequence == 1024
        assert training.balance_form == ("mean" if "check" in name else "authors")


def test_other_transformers_have_no_tuned_multipliers() -> None:
    with pytest.raises(ValueError, match="no multipliers of Transformers were tuned for Regime I and mssp"):
        transformer_multipliers("I")
