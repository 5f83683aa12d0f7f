from __future__ import annotations

import pytest

import mssp
from mssp import Shape
from mssp.planning.growth import Growth, infer, outside_theory
from mssp.planning.setting import ANY, II, III, I

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)


def grown(width: int = 256, expert_width: int = 128, experts: int = 8, active: int = 4, depth: int = 8) -> Shape:
    return Shape(width=width, expert_width=expert_width, experts=experts, active=active, depth=depth)


@pytest.mark.parametrize(
    ("target", "regime"),
    [
        (grown(width=512, expert_width=256), "I"),
        (grown(width=512, expert_width=256, depth=16), "I"),
        (grown(width=512, expert_width=264), "I"),  # within a few percent of one factor
        (grown(width=512, expert_width=288), "any"),
        (grown(width=1024, experts=32, active=16), "II"),
        (grown(width=1024, expert_width=132, experts=33, active=16), "II"),
        (grown(width=2048, expert_width=1024, experts=64, active=32), "III"),
        (grown(width=512, expert_width=256, experts=32, active=16), "any"),  # a spread of two ties no experts
        (grown(width=512, expert_width=512), "any"),
        (BASE, "any"),
        (grown(depth=16), "any"),
        (grown(width=512), "any"),
        (grown(experts=16), "any"),
        (grown(width=512, expert_width=256, experts=32), "any"),
        (grown(width=128), "any"),
        (grown(width=128, expert_width=64), "any"),
        (grown(width=260), "any"),  # a few percent are no growth
    ],
)
def test_which_regime_a_growth_is(target: Shape, regime: str) -> None:
    assert infer(BASE, target).name == regime


def test_without_a_base_the_regime_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"there is no base to infer it from; say which one applies \(--regime I\|II"):
        infer(None, BASE)
    with pytest.raises(ValueError, match="regime any needs a base"):
        mssp.plan(BASE, regime="any", lr=1.0)


# κ and ρ, by hand.
@pytest.mark.parametrize(
    ("base", "target", "kappa", "share"),
    [
        (grown(), grown(width=512), 0.5, 0.0),
        (grown(), grown(expert_width=256), 2.0, 1 / 3),
        (grown(), grown(active=8), 2.0, 1 / 7),
        (grown(active=1), grown(active=2), 2.0, 1.0),  # one active expert is no mean: two start equal
        (grown(active=1), grown(active=1, expert_width=512), 4.0, 0.0),  # and stays alone
        (grown(active=2), grown(active=2, expert_width=512), 4.0, 1.0),  # beyond the base's K
        (Shape(5120, 1536, 160, 6, 60), Shape(7168, 2048, 256, 8, 61), 1.26984, 0.0385488),  # DeepSeek V2 -> V3
        (Shape(2048, 1408, 64, 6, 27), Shape(5120, 1536, 160, 6, 60), 0.436364, 0.0),  # V2-Lite -> V2
    ],
)
def test_kappa_and_the_share(base: Shape, target: Shape, kappa: float, share: float) -> None:
    growth = Growth(base, target)
    assert growth.kappa == pytest.approx(kappa, rel=1e-5)
    assert growth.share == pytest.approx(share, rel=1e-5)


def test_a_changing_share_is_outside_a_regime() -> None:
    [share] = outside_theory(BASE, grown(width=512, experts=32, active=8), II)
    assert share == "the active share K/M changes from 4/8 to 8/32: Regime II holds for a fixed share"
    assert outside_theory(BASE, grown(width=512, experts=32, active=8), ANY) == []


def test_another_regime_than_the_growth_says_is_mentioned() -> None:
    [warning] = outside_theory(BASE, grown(width=512, expert_width=256), III)
    assert warning == "regime III is used, but from base to target N × 2, N_e × 2 grows, which is regime I"
    assert outside_theory(BASE, grown(width=512, expert_width=256), I) == []


def test_a_regime_for_a_growth_that_is_none_is_mentioned() -> None:
    share, other = outside_theory(BASE, grown(width=512, experts=32), II)
    assert share.startswith("the active share K/M changes from 4/8 to 4/32")
    assert other == (
        "regime II is used, but from base to target N × 2, M × 4 grows, which no regime of the paper is: plan with "
        "regime any"
    )


def test_models_that_shrink_and_models_that_stay_are_said() -> None:
    [warning] = outside_theory(BASE, grown(width=512, expert_width=64, depth=4), ANY)
    assert warning == (
        "smaller in the target than in the base: expert_width (N_e), depth (L); nothing was measured of shrinking "
        "models"
    )
    with pytest.warns(mssp.PlanWarning) as caught:
        assert mssp.plan(BASE, BASE, lr=1.0).regime == "any"
    assert str(caught[0].message).startswith(
        "base and target have the same sizes: which regime they will grow in decides how"
    )


def test_a_dense_base_says_nothing_of_experts() -> None:
    with pytest.raises(ValueError, match="the base is dense and the target has 8 experts: what was tuned says nothing"):
        mssp.plan(BASE, Shape(width=256, depth=8), lr=1.0)
