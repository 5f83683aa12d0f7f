"""The column for any growth: at the paper's growths it is the paper's, and elsewhere as worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mssp
from mssp import Plan, Shape
from mssp.planning.rules import ROLES

BASE = Shape(width=64, expert_width=32, experts=8, active=4, depth=2)
sizes = st.integers(1, 6).map(lambda power: 2**power)


def grown(n: float, n_e: float, m: float, k: float, base: Shape = BASE) -> Shape:
    width, expert_width = round(base.width * n), round(base.expert_width * n_e)
    return replace(
        base, width=width, expert_width=expert_width, experts=round(base.experts * m), active=round(base.active * k)
    )


def carried(target: Shape, regime: str, base: Shape = BASE, **options: object) -> Plan:
    return mssp.plan(target, base, regime=regime, lr=1.0, eps=1.0, init_std=0.5, weight_decay=0.1, **options)  # type: ignore[arg-type]


@given(sizes, st.sampled_from(["I", "II", "III"]))
def test_at_the_papers_growths_every_printed_cell_comes_out(n: int, regime: str) -> None:
    """But for how the starts of III are tied, which is a choice of its own, and the zero router of I."""
    base = replace(BASE, active=8) if regime == "I" else BASE
    factors = {"I": (n, n, 1, 1), "II": (n, 1, n, n), "III": (n, n, n, n)}[regime]
    target = grown(*factors, base)
    any_growth, printed = (carried(target, word, base) for word in ("any", regime))
    for role in ROLES:
        here, there = any_growth.roles[role], printed.roles[role]
        assert math.isclose(here.lr, there.lr), role
        assert math.isclose(here.eps or 0, there.eps or 0), role
        assert math.isclose(here.weight_decay, there.weight_decay), role
        if not there.zero:
            assert math.isclose(here.init_std, there.init_std), role
    if regime == "I":
        assert math.isclose(
            any_growth.roles["router"].init_std, carried(target, "I", base, scheme="mup").roles["router"].init_std
        )


# n, n_e, m, k; then by hand: b n_e^-1/2 of expert_out, the router's std, eps of expert_in, expert_out, router, and ρ.
@pytest.mark.parametrize(
    ("factors", "out", "router", "eps_in", "eps_out", "eps_router", "share"),
    [
        ((4, 1, 4, 1), 1.0, 0.25, 1 / 4, 1 / 16, 1 / 4, 0.0),  # K stays: no boost; router 4^-1/2 (1/4)^1/2
        ((4, 4, 4, 1), 0.5, 0.25, 1 / 16, 1 / 16, 1 / 4, 0.0),
        ((1, 1, 4, 1), 1.0, 1.0, 1 / 4, 1 / 4, 1 / 4, 0.0),  # M alone
        ((4, 1, 4, 2), 2**0.5, 0.5 * 0.5**0.5, 1 / 4, 1 / 16, 1 / 4, 0.0),  # K ~ N^1/2: b = 2^1/2
        ((1, 4, 1, 1), 0.25, 1.0, 1 / 4, 1.0, 1.0, 1.0),  # N_e alone: b = 1/2, κ = 4 is the base's K: equal starts
        ((2, 4, 2, 2), 0.5**0.5 / 2, 2**-0.5, 1 / 8, 1 / 4, 1 / 2, 3 / 7),  # κ = 4: (4 - 1)/(8 - 1)
    ],
)
def test_the_column_by_hand(
    factors: tuple[float, float, float, float], out: float, router: float, eps_in: float, eps_out: float,
    eps_router: float, share: float,
) -> None:  # fmt: skip
    roles = carried(grown(*factors), "any").roles
    assert roles["expert_out"].init_std == pytest.approx(0.5 * out)
    assert roles["router"].init_std == pytest.approx(0.5 * router)
    assert roles["expert_in"].init_std == pytest.approx(0.5 * factors[0] ** -0.5)
    assert (roles["expert_in"].lr, roles["expert_out"].lr) == pytest.approx((1 / factors[0], 1 / factors[1]))
    assert [roles[role].eps for role in ("expert_in", "expert_out", "router")] == pytest.approx(
        [eps_in, eps_out, eps_router]
    )
    assert roles["expert_in"].shared == roles["expert_out"].shared == pytest.approx(share)
    assert {role for role in ROLES if roles[role].shared} == ({"expert_in", "expert_out"} if share else set())


def test_extending_keeps_the_tuned_base() -> None:
    """DeepSeek's sizes: V2-Lite, V2, V3. In one step and in two the boost is 1.155; from V2 alone it is 1.025."""
    lite, two = Shape(2048, 1408, 64, 6, 27), Shape(5120, 1536, 160, 6, 60)
    three = Shape(7168, 2048, 256, 8, 61)
    direct = mssp.plan(three, lite, lr=1e-3)
    assert mssp.plan(two, lite, lr=1e-3).extend(three) == direct
    boost = direct.roles["expert_out"].init_std * 2048**0.5
    assert boost == pytest.approx(1.1547, rel=1e-4)
    assert mssp.plan(three, two, lr=1e-3).roles["expert_out"].init_std * 2048**0.5 == pytest.approx(1.0247, rel=1e-4)


def test_a_plan_says_what_of_it_is_whose() -> None:
    says = dict(mssp.plan(grown(4, 1, 4, 1), BASE, lr=1.0).scope)
    assert says["growth"] == "N × 4, M × 4; κ = k n_e / n = 0.25; no regime of the paper"
    assert "routers and experts are those of the paper's table" in says["paper"]
    assert says["derived"].endswith("expert_out starts × 1, min(k, n/n_e)^1/2")
    assert "grows as κ^-1/2, here × 2, whatever their std; init_mult expert_in=0.7071 (κ^1/4)" in says["unstable"]
    assert says["router"] == "its logits start with a spread of 0.5"
    assert dict(mssp.plan(grown(2, 4, 2, 2), BASE, lr=1.0).scope)["shared"].endswith(
        "so they share 0.4286 of their start, (κ - 1) / (K - 1)"
    )
    assert [label for label, _ in mssp.plan(grown(4, 4, 4, 4), BASE, lr=1.0).scope] == ["growth"]
    assert mssp.plan(BASE, regime="III", lr=1.0).scope == []


def test_sgd_is_refused_where_it_was_not_measured() -> None:
    with pytest.raises(
        ValueError, match="sgd is not planned for a growth that is none of the paper's regimes: its rates"
    ):
        mssp.plan(grown(4, 1, 4, 1), BASE, optimizer="sgd", lr=1.0)
    assert mssp.plan(Shape(width=256, depth=2), Shape(width=64, depth=2), optimizer="sgd", lr=1.0).regime == "I"


def test_plan_files_of_any_growth_come_back() -> None:
    plan = mssp.plan(grown(2, 4, 2, 2), BASE, lr=1.0, gates_sum_to_one=True)
    entries = json.loads(plan.json())
    assert (entries["version"], entries["kappa"], entries["gates_sum_to_one"]) == (2, 4.0, True)
    assert entries["roles"]["expert_in"]["shared"] == pytest.approx(3 / 7)
    assert Plan.from_json(plan.json()) == plan
    assert json.loads(mssp.plan(grown(4, 4, 4, 4), BASE, lr=1.0).json())["version"] == 1


def test_a_plan_file_of_before_names_the_cell_that_changed() -> None:
    """In version 1 a router of top-K started at zero in Regime I."""
    entries = json.loads(mssp.plan(grown(4, 4, 1, 1), BASE, lr=1.0).json())
    old = json.dumps(entries | {"version": 1})
    with pytest.raises(
        ValueError, match=r"version 1, in which routers of top-K started at zero in Regime I \(router, init"
    ):
        Plan.from_json(old)
    kept = mssp.plan(grown(4, 4, 4, 4), BASE, lr=1.0).json()
    with pytest.raises(ValueError, match="corrupt plan file: version is 2, its settings are of version 1"):
        Plan.from_json(json.dumps(json.loads(kept) | {"version": 2}))


def test_dense_models_have_two_sizes() -> None:
    small, large = Shape(width=64, depth=2), Shape(width=256, depth=8)
    plan = mssp.plan(large, small, lr=1.0, init_std=0.02)
    assert small == Shape(64, 64, 1, 1, 2)
    assert (plan.regime, plan.warnings) == ("I", ())
    assert plan.roles["hidden"].lr == 0.25
    assert plan.roles["hidden"].init_std == pytest.approx(0.01)
    assert plan.multiplier("residual", relative=True) == 0.25
    assert dict(plan.scope)["growth"] == "N × 4, L × 4; a dense model: μP over width, 1/L over depth"
    with pytest.raises(ValueError, match="active is missing: all of width, expert_width, experts, active and depth"):
        Shape(width=64, expert_width=32, experts=4, depth=2)
    with pytest.raises(ValueError, match="depth is missing"):
        Shape(width=64)
