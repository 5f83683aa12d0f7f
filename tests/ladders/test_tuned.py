"""Tuned multipliers, and the families they belong to."""

from __future__ import annotations

from typing import Any

import pytest

import mssp
from mssp.ladders.mlp import family
from mssp.ladders.tuned import TUNED_ROLES, Tuned, entries, multipliers_for, planned
from mssp.planning.setting import Setting


def test_the_authors_numbers() -> None:
    best = multipliers_for("tinyimagenet", Setting.of("mssp", "II", "sgd"))
    assert (best.lr, best.init_mult, best.aggregation_mult, best.top5) == (0.01, 0.25, 8.0, 0.3135)
    assert best.lr_mult == {
        "embedding": 0.015625, "router": 4.0, "expert_in": 1.0, "expert_out": 0.015625, "readout": 65536.0,
    }  # fmt: skip
    assert multipliers_for("tinyimagenet", Setting.of("mup", "I", "adam")) == multipliers_for(
        "tinyimagenet", Setting.of("mssp", "I", "adam")
    )
    assert multipliers_for("tinyimagenet", Setting.of("mup", "III", "sgd", "mup")).lr_mult["router"] == 4096.0
    sparse = multipliers_for("tinyimagenet", Setting.of("mssp", "III", "adam"), 2)
    assert (sparse.aggregation_mult, sparse.top5) == (2.0, 0.295)


@pytest.mark.parametrize("data", ["tinyimagenet", "clusters"])
def test_every_entry_makes_a_plan(data: str) -> None:
    for entry in entries(data):
        assert set(entry["lr_mult"]) == set(TUNED_ROLES)
        shape = family(entry["regime"], 128, inputs=12, active=entry["active"])
        for scheme in entry["schemes"]:
            setting = Setting.of(scheme, entry["regime"], entry["optimizer"], entry["readout"])
            found = multipliers_for(data, setting, entry["active"])
            plan = mssp.plan(
                shape, regime=entry["regime"], scheme=scheme, optimizer=entry["optimizer"], lr=found.lr,
                lr_mult=found.lr_mult, init_mult=found.init_mult, aggregation_mult=found.aggregation_mult,
            )  # fmt: skip
            assert Tuned.of(plan) == Tuned(found.lr, found.init_mult, dict(plan.lr_mult), found.aggregation_mult)


def test_a_plain_model_is_kept_for_spectra() -> None:
    for entry in entries("spectra"):
        for scheme in entry["schemes"]:
            setting = Setting.of(scheme, entry["regime"], entry["optimizer"])
            found = multipliers_for("spectra", setting)
            assert found == Tuned({"sgd": 1.0, "adam": 0.005}[entry["optimizer"]], base_width=64)
            small, large = (family(entry["regime"], width, inputs=8) for width in (64, 128))
            assert planned(large, found, setting).base == small


def test_what_nobody_tuned_is_said() -> None:
    with pytest.raises(ValueError, match=r"no multipliers were tuned for 'mnist' \(there are for tinyimagenet"):
        multipliers_for("mnist", Setting.of("mssp", "II", "sgd"))
    with pytest.raises(ValueError, match="no multipliers were tuned on tinyimagenet for adamw, Regime II, mssp, 3"):
        multipliers_for("tinyimagenet", Setting.of("mssp", "II", "adamw"), 3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"init_mult": {"router": 2.0}}, "the plan's init_mult by role cannot be used here"),
        ({"init_std": 0.02}, "the plan's init_std cannot"),
        ({"weight_decay": 0.3}, "the plan's weight decay cannot"),
        ({"eps": 1e-4}, "the plan's eps cannot"),
        ({"recipe": mssp.Recipe(betas=(0.9, 0.95))}, "the plan's betas cannot"),
        ({"base": family("II", 64)}, "the plan's base cannot"),
        ({"as_printed": True}, "the plan's as_printed cannot"),
    ],
)
def test_a_plan_that_says_more_is_not_used_in_part(settings: dict[str, Any], complaint: str) -> None:
    plan = mssp.plan(family("II", 128), regime="II", lr=1.0, **settings)
    with pytest.raises(ValueError, match=complaint):
        Tuned.of(plan)


@pytest.mark.parametrize(
    ("regime", "expected"),
    [("I", (512, 512, 8, 8)), ("II", (512, 16, 32, 32)), ("III", (512, 512, 32, 32))],
)
def test_families(regime: str, expected: tuple[int, int, int, int]) -> None:
    shape = family(regime, 512)
    assert (shape.width, shape.expert_width, shape.experts, shape.active) == expected
    assert family(regime, 128).experts == 8
    assert family(regime, 512, active=2).active == expected[3] // 4


def test_shapes_that_no_family_has() -> None:
    with pytest.raises(ValueError, match="regime must be one of I, II, III, got 'IV'"):
        family("IV", 128)
    with pytest.raises(ValueError, match="Regime III has an expert for every 16 of width: 120 is no multiple of it"):
        family("III", 120)
    with pytest.raises(ValueError, match="2 of 8 experts active is no whole number of the 2 at width 32"):
        family("II", 32, active=2)
    with pytest.raises(ValueError, match="9 of 8 experts active"):
        family("I", 128, active=9)
