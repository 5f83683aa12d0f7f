"""Student's t against tables."""

from __future__ import annotations

import math

import pytest

from mssp._estimates import Estimate, cdf, mean_of, p_greater, quantile, slope_of, weighted_sum


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, expected: float) -> None:
    assert quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)
    assert cdf(quantile(0.975, freedom), freedom) == pytest.approx(0.975, abs=1e-9)
    assert quantile(0.025, freedom) == pytest.approx(-expected, abs=5e-4)


def test_the_mean_of_seeds_leaves_out_what_is_not_finite() -> None:
    found = mean_of([1.0, math.nan, 3.0, math.inf])
    assert found.value == 2.0
    assert found.ci == pytest.approx(12.706, abs=1e-3)
    assert not found.excludes_zero
    assert Estimate(2.0, 1.0).excludes_zero
    assert mean_of([2.0]).value == 2.0
    assert math.isnan(mean_of([2.0]).ci)
    assert math.isnan(mean_of([]).value)


def test_welch_by_hand() -> None:
    # t = 2 / sqrt(1/3 + 4/3) = 1.549 with (5/3)^2 / ((1/9 + 16/9) / 2) = 2.941 degrees of freedom.
    assert p_greater([4.0, 5.0, 6.0], [1.0, 3.0, 5.0]) == pytest.approx(0.1105, abs=2e-4)
    assert p_greater([1.0, 1.0], [0.0, 0.0]) == 0.0
    assert p_greater([0.0, 0.0], [1.0, 1.0]) == 1.0
    assert math.isnan(p_greater([1.0], [0.0, 0.0]))


def test_a_sum_of_means_by_hand() -> None:
    # Variances of the means are 1/3 and 4 · 4/3: (17/3)² over (1/9 + 256/9) / 2 are 2.249 degrees of freedom, and 2 are
    # taken. If both are 1/3, there are 4.
    found = weighted_sum([1.0, 2.0], [[4.0, 5.0, 6.0], [1.0, 3.0, 5.0]])
    assert found.value == 11.0
    assert found.ci == pytest.approx(4.3027 * math.sqrt(17 / 3), rel=1e-4)
    assert weighted_sum([1.0, 1.0], [[4.0, 5.0, 6.0]] * 2).ci == pytest.approx(2.7764 * math.sqrt(2 / 3), rel=1e-4)
    assert weighted_sum([1.0, -1.0], [[2.0, 2.0], [1.0, 1.0]]) == Estimate(1.0, 0.0)


def test_slopes() -> None:
    assert slope_of([1, 2, 4], [3.0, 5.0, 9.0]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="two different places"):
        slope_of([1, 1], [0.0, 1.0])


def test_any_number_of_degrees_of_freedom_has_a_quantile() -> None:
    normal = 1.959963985
    for freedom in (1e4, 1e8, 1e12, 2.0**53, 1e300):
        assert quantile(0.975, freedom) == pytest.approx(normal, rel=1e-3 if freedom < 1e5 else 1e-7)
