from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mssp
from mssp import Plan, PlanWarning, Recipe, Shape
from mssp.planning.rules import BIASES, GAINS, ROLES
from tests.words import REGIMES

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
TARGET = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=16)
III: dict[str, Any] = {"lr": 4e-3, "weight_decay": 0.1}

shapes = st.builds(
    lambda n, f, m, k, d, i: Shape(width=n, expert_width=f, experts=m * k, active=k, depth=d, inputs=i),
    st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 16), st.integers(1, 64), st.integers(1, 100),
    st.integers(1, 1000),
)  # fmt: skip
schemes = st.sampled_from(
    [("mssp", o) for o in ("sgd", "adam", "adamw")]
    + [("mup", o) for o in ("sgd", "adam", "adamw")]
    + [("mup-heuristic", "sgd"), ("mup-heuristic", "adamw"), ("sp", "adamw"), ("ntp", "sgd")]
)


def quiet_plan(*arguments: Any, **options: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        return mssp.plan(*arguments, **options)


def quiet_extend(plan: Plan, target: Shape) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        return plan.extend(target)


def test_the_readme_example() -> None:
    roles = mssp.plan(TARGET, BASE, **III).roles
    assert roles["hidden"].lr == pytest.approx(4e-3 / 8, rel=1e-12)
    assert roles["expert_in"].lr == pytest.approx(4e-3 / 8, rel=1e-12)
    assert roles["expert_in"].eps == pytest.approx(1e-8 / (8 * 8 * 2), rel=1e-12)  # M x8, N x8, L x2
    assert roles["expert_in"].init_std == pytest.approx(2048**-0.5, rel=1e-12)
    assert roles["expert_in"].weight_decay == pytest.approx(0.8, rel=1e-12)
    assert roles["embedding"].lr == 4e-3
    assert roles["embedding"].weight_decay == 0.1
    assert roles["norm"].weight_decay == roles["bias"].weight_decay == 0.0
    assert roles["readout"].init_std == 0.0


def test_forward_multipliers() -> None:
    plan = mssp.plan(TARGET, BASE, aggregation_mult=8.0, **III)
    assert plan.multiplier("aggregation") == 8 / 32
    assert plan.multiplier("residual") == 1 / 16
    assert plan.multiplier("aggregation", relative=True) == 8 * 4 / 32
    assert plan.multiplier("residual", relative=True) == 8 / 16
    assert plan.multiplier("tied_readout", relative=True) == 256 / 2048


@given(shapes, schemes, st.sampled_from(REGIMES), st.floats(1e-6, 10))
def test_at_the_base_every_value_is_the_tuned_one(
    shape: Shape, scheme: tuple[str, str], regime: str, lr: float
) -> None:
    name, optimizer = scheme
    decay = 0.1 if optimizer == "adamw" else 0.0
    plan = quiet_plan(
        shape, shape, scheme=name, optimizer=optimizer, regime=regime, lr=lr, weight_decay=decay, init_std=0.02
    )
    for role, values in plan.roles.items():
        assert values.lr == lr
        assert values.eps == (None if optimizer == "sgd" else 1e-8)
        assert values.weight_decay == (0.0 if role in GAINS | BIASES else decay)
        expected = 1.0 if role in GAINS else 0.0 if values.zero else 0.02
        assert values.init_std == expected
    assert plan.multiplier("aggregation", relative=True) == plan.multiplier("residual", relative=True) == 1.0


@given(shapes, shapes, shapes, schemes, st.sampled_from(REGIMES))
def test_a_to_b_to_c_is_a_to_c(a: Shape, b: Shape, c: Shape, scheme: tuple[str, str], regime: str) -> None:
    name, optimizer = scheme
    options: dict[str, Any] = {
        "scheme": name, "optimizer": optimizer, "regime": regime, "lr": 3e-3, "init_std": {"hidden": 0.02},
        "lr_mult": {"router": 4.0}, "init_mult": 0.5, "weight_decay": 0.1 if optimizer == "adamw" else 0.0,
    }  # fmt: skip
    stepwise = quiet_extend(quiet_plan(b, a, **options), c)
    direct = quiet_plan(c, a, **options)
    assert stepwise == direct
    # And re-basing by hand, with the values of B taken as tuned there, ends at the same numbers.
    at_b = quiet_plan(b, a, **options)
    for role in ROLES:
        rebased = quiet_plan(c, b, **{**options, "lr": at_b.roles[role].lr, "lr_mult": None})
        assert math.isclose(rebased.roles[role].lr, direct.roles[role].lr, rel_tol=1e-12)


@given(shapes, shapes, st.sampled_from(REGIMES))
def test_effective_weight_decay_is_constant(a: Shape, b: Shape, regime: str) -> None:
    plan = quiet_plan(b, a, scheme="mssp", regime=regime, lr=1e-2, weight_decay=0.1, lr_mult={"hidden": 16.0})
    for role, values in plan.roles.items():
        multiplier = 16.0 if role == "hidden" else 1.0
        expected = 0.0 if role in GAINS | BIASES else 1e-3 * multiplier
        assert values.lr * values.weight_decay == pytest.approx(expected, rel=1e-12)


def test_init_without_a_tuned_std_has_constant_one() -> None:
    for base in (None, BASE):
        plan = mssp.plan(TARGET, base, regime="III", init_mult={"all": 0.5, "router": 4.0}, lr=1e-3)
        assert plan.roles["hidden"].init_std == pytest.approx(0.5 * 2048**-0.5, rel=1e-12)
        assert plan.roles["router"].init_std == pytest.approx(2.0 * 2048**-0.5, rel=1e-12)
        assert plan.roles["norm"].init_std == 1.0


def test_a_tuned_std_is_the_std_at_the_base() -> None:
    plan = mssp.plan(TARGET, BASE, init_std={"all": 0.02, "embedding": 0.5}, readout="mup", **III)
    assert plan.roles["hidden"].init_std == pytest.approx(0.02 * 8**-0.5, rel=1e-12)
    assert plan.roles["readout"].init_std == pytest.approx(0.02 / 8, rel=1e-12)
    assert plan.roles["embedding"].init_std == 0.5
    without_base = mssp.plan(TARGET, regime="III", init_std=0.02, lr=1e-3)
    assert without_base.roles["hidden"].init_std == pytest.approx(0.02 * 2048**-0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("readout", "scheme", "std"),
    [("zero", "sp", 0.0), ("mup", "sp", 1 / 2048), ("scheme", "sp", 2048**-0.5), ("scheme", "mssp", 1 / 2048)],
)
def test_readouts(readout: str, scheme: str, std: float) -> None:
    plan = mssp.plan(TARGET, scheme=scheme, regime="III", readout=readout, lr=1e-3)
    assert plan.roles["readout"].init_std == pytest.approx(std, rel=1e-12)
    assert plan.roles["readout"].zero == (readout == "zero")


def test_grad_scale_is_the_inverse_of_the_eps_factor() -> None:
    by_eps = mssp.plan(TARGET, BASE, **III)
    by_gradient = mssp.plan(TARGET, BASE, grad_scale=True, **III)
    for role in ROLES:
        eps = by_eps.roles[role].eps
        assert eps is not None
        assert by_gradient.roles[role].eps == 1e-8
        assert by_gradient.roles[role].grad_scale * eps == pytest.approx(1e-8, rel=1e-12)
    assert by_gradient.roles["expert_out"].grad_scale == 128.0


def test_inputs_default_to_the_targets() -> None:
    target = Shape(width=512, expert_width=256, experts=8, active=8, depth=1, inputs=3072)
    base = Shape(width=256, expert_width=128, experts=8, active=8, depth=1)
    plan = mssp.plan(target, base, lr=1.0, optimizer="adam")
    assert plan.base is not None
    assert plan.base.inputs == 3072
    assert plan.roles["embedding"].lr == 1.0
    other = mssp.plan(target, Shape(**{**base.json(), "inputs": 768}), lr=1.0, optimizer="adam")  # type: ignore[arg-type]
    assert other.roles["embedding"].lr == 0.25


def test_regime_is_inferred_and_asked_for() -> None:
    assert mssp.plan(TARGET, BASE, **III).regime == "III"
    with pytest.raises(ValueError, match="regime cannot be inferred"):
        mssp.plan(TARGET, **III)
    assert mssp.plan(TARGET, scheme="sp", **III).regime is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": -1}, "lr must be a positive number, got -1"),
        ({"lr": float("inf")}, "lr must be a positive number, got inf"),
        ({"lr": "1e-3"}, "lr must be a positive number, got '1e-3'"),
        ({"eps": 0}, "eps must be a positive number, got 0"),
        ({"weight_decay": -0.1}, "weight_decay must be a number of at least 0, got -0.1"),
        ({"optimizer": "adam", "weight_decay": 0.1}, "weight_decay is for adamw, not adam"),
        ({"optimizer": "sgd", "weight_decay": 0.1}, "weight_decay is for adamw, not sgd"),
        ({"optimizer": "sgd", "eps": 1e-8}, "eps is Adam's: leave it out with sgd"),
        ({"optimizer": "sgd", "grad_scale": True}, "grad_scale is Adam's"),
        ({"optimizer": "sgd", "recipe": Recipe(betas=(0.9, 0.95))}, "betas is Adam's"),
        ({"optimizer": "muon"}, "optimizer must be one of sgd, adam, adamw, got 'muon'"),
        ({"scheme": "nope"}, "scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'nope'"),
        ({"regime": "4"}, "regime must be one of I, II, III, any, got '4'"),
        ({"readout": "small"}, "readout must be one of zero, mup, scheme, got 'small'"),
        ({"lr_mult": {"attention": 2.0}}, "unknown role 'attention' in lr_mult"),
        ({"lr_mult": {"router": 0.0}}, "lr_mult of router must be a positive number, got 0.0"),
        ({"init_std": {"norm": 0.02}}, "init_std does not apply to norm: gains start at 1"),
        ({"init_mult": -1.0}, "init_mult must be a positive number"),
        ({"aggregation_mult": 0.0}, "aggregation_mult must be a positive number"),
        ({"lr": 10**400}, "lr must be a positive number"),
        ({"as_printed": "no"}, "as_printed must be True or False, got 'no'"),
        ({"grad_scale": 1}, "grad_scale must be True or False, got 1"),
        ({"recipe": {}}, "recipe must be a Recipe, got a dict"),
        ({"base": {"width": 3}}, "base must be a Shape, got a dict"),
        ({"target": None}, "target must be a Shape, got None"),
        ({"eps": 5e-324}, "eps of .* comes to 0.0: outside the range of floating point"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mssp.plan(**{"target": TARGET, "base": BASE, "lr": 1e-3, **options})


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"betas": (0.9, 1.0)}, "betas must be two numbers"),
        ({"betas": 0.9}, "betas must be two numbers"),
        ({"betas": ("0.9", "0.95")}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"batch": 0}, "batch must be a positive whole number"),
        ({"batch": True}, "batch must be a positive whole number"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0"),
        ({"warmup": False}, "warmup must be a whole number of at least 0"),
        ({"warmup": 0.0}, "warmup must be a whole number of at least 0"),
    ],
)
def test_bad_recipes_are_named(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe(**recipe)


def test_warnings_are_raised_and_kept() -> None:
    target = Shape(width=512, expert_width=128, experts=32, active=8, depth=8)
    with pytest.warns(PlanWarning) as caught:
        plan = mssp.plan(target, BASE, regime="II", lr=1e-3)
    assert [str(warning.message) for warning in caught] == list(plan.warnings)
    assert "K/M changes from 4/8 to 8/32" in plan.warnings[0]
    with pytest.warns(PlanWarning, match="init_std of readout has no effect"):
        mssp.plan(TARGET, BASE, init_std={"readout": 0.1}, **III)


def test_a_changed_recipe_is_warned_of() -> None:
    tuned = mssp.plan(BASE, BASE, regime="III", recipe=Recipe(batch=256, steps=1000), lr=1e-3)
    with pytest.warns(PlanWarning, match="batch changes from 256 to 512") as caught:
        tuned.extend(TARGET, Recipe(batch=512, steps=1000))
    assert len(caught) == 1


def test_numpy_numbers_are_numbers() -> None:
    import numpy as np

    numbers: Any = {"lr": np.float64(4e-3), "weight_decay": np.float32(0.5), "lr_mult": {"router": np.int64(2)}}
    plan = mssp.plan(TARGET, BASE, **numbers)
    assert plan == mssp.plan(TARGET, BASE, lr=4e-3, weight_decay=0.5, lr_mult={"router": 2.0})
    assert Recipe(betas=[np.float64(0.5), 0.75], batch=np.int64(8)) == Recipe((0.5, 0.75), 8)  # type: ignore[arg-type]


def test_what_a_recipe_leaves_open_stays() -> None:
    tuned = mssp.plan(BASE, BASE, regime="III", recipe=Recipe(betas=(0.9, 0.95), warmup=0), lr=1e-3)
    assert tuned.extend(TARGET, Recipe(batch=64)).recipe == Recipe(betas=(0.9, 0.95), batch=64, warmup=0)
    assert mssp.plan(TARGET, BASE, lr=1.0, tuned_with=Recipe(betas=(0.9, 0.95))).recipe.betas == (0.9, 0.95)


def test_recipes_compose() -> None:
    tuned = mssp.plan(BASE, BASE, regime="III", lr=1e-3)
    stepwise = tuned.extend(TARGET, Recipe(batch=64)).extend(TARGET, Recipe(batch=128))
    assert stepwise == tuned.extend(TARGET, Recipe(batch=128))
    assert stepwise.warnings == ()


def test_extending_is_checked_like_planning() -> None:
    sgd = mssp.plan(TARGET, BASE, optimizer="sgd", lr=1.0)
    with pytest.raises(ValueError, match="betas is Adam's"):
        sgd.extend(TARGET, Recipe(betas=(0.9, 0.95)))
    with pytest.raises(ValueError, match="target must be a Shape, got a dict"):
        sgd.extend({"width": 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown multiplier 'sum': use one of aggregation"):
        sgd.multiplier("sum")  # type: ignore[arg-type]


def test_plans_cannot_be_changed() -> None:
    plan = mssp.plan(TARGET, BASE, **III)
    with pytest.raises(AttributeError):
        plan.lr = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        plan.lr_mult["router"] = 2.0  # type: ignore[index]
    with pytest.raises(TypeError):
        plan.roles["router"] = plan.roles["hidden"]  # type: ignore[index]


def test_plans_can_be_copied_pickled_and_hashed() -> None:
    plan = mssp.plan(TARGET, BASE, lr_mult={"router": 2.0}, **III)
    assert copy.deepcopy(plan) == plan == pickle.loads(pickle.dumps(plan))
    assert len({plan, copy.copy(plan)}) == 1
