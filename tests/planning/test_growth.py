from __future__ import annotations

import pytest

from mssp import Shape
from mssp.planning.growth import infer, outside_theory
from mssp.planning.setting import II, III, I

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)


def grown(width: int = 256, expert_width: int = 128, experts: int = 8, active: int = 4, depth: int = 8) -> Shape:
    return Shape(width=width, expert_width=expert_width, experts=experts, active=active, depth=depth)


@pytest.mark.parametrize(
    ("target", "regime"),
    [
        (grown(width=512, expert_width=256), "I"),
        (grown(width=512, expert_width=256, depth=16), "I"),
        (grown(width=1024, experts=32, active=16), "II"),
        (grown(width=2048, expert_width=1024, experts=64, active=32), "III"),
        (grown(width=512, expert_width=512), "I"),  # ratios 2 and 4: a spread of 2 is still in proportion
    ],
)
def test_the_three_growing_sets(target: Shape, regime: str) -> None:
    assert infer(BASE, target).name == regime


@pytest.mark.parametrize(
    ("base", "target", "reason"),
    [
        (None, BASE, "there is no base"),
        (BASE, BASE, "base and target have the same sizes"),
        (BASE, grown(depth=16), "only depth grows"),
        (BASE, grown(width=512), r"width \(N\) grows, which is none of them"),
        (BASE, grown(experts=16), r"experts \(M\) grows, which is none of them"),
        (BASE, grown(width=512, experts=16), r"width \(N\), experts \(M\) grow, which is none"),
        (BASE, grown(width=128), r"width \(N\) shrinks"),
        (BASE, grown(width=2048, expert_width=256), r"do not grow in proportion \(N x8, N_e x2\)"),
    ],
)
def test_open_cases_ask_and_say_why(base: Shape | None, target: Shape, reason: str) -> None:
    with pytest.raises(ValueError, match=f"regime cannot be inferred: .*{reason}.*--regime"):
        infer(base, target)


def test_a_changing_share_is_outside_the_theory() -> None:
    [warning] = outside_theory(BASE, grown(width=512, experts=32, active=8), II)
    assert warning == "the active share K/M changes from 4/8 to 8/32: the theory holds for a fixed share"


def test_another_regime_than_the_growth_says_is_mentioned() -> None:
    [warning] = outside_theory(BASE, grown(width=512, expert_width=256), III)
    assert "regime III is used, but base to target grows width (N), expert_width (N_e), which is regime I" in warning
    assert outside_theory(BASE, grown(width=512, expert_width=256), I) == []
