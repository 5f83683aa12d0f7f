"""Exponents of values whose exponents are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mssp.coordcheck.series import bent_estimate, estimate, slopes
from tests.coordcheck.synthetic import SIZES, law


@pytest.mark.parametrize("power", [-2.0, -0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("factor", [1e-12, 3.0])
def test_exponents_and_what_seeds_leave_open(power: float, factor: float) -> None:
    exponent = estimate(SIZES, law(power, factor=factor, spread=(-0.1, 0.0, 0.1))[:, 0])
    assert exponent.value == pytest.approx(power, abs=1e-12)
    assert exponent.ci == pytest.approx(4.3027 * 0.1 / math.sqrt(3), abs=1e-4)  # Student's t, two degrees of freedom


def test_steps_are_averaged_seed_by_seed() -> None:
    # After one update the first seed is lower, after two the second: their means over the updates are equal.
    one, two = law(0.5, spread=(-0.1, 0.1), steps=0), law(1.0, spread=(0.1, -0.1), steps=0)
    exponent = estimate(SIZES, np.concatenate([one, two], axis=1))
    assert exponent.value == pytest.approx(0.75, abs=1e-12)
    assert exponent.ci == pytest.approx(0.0, abs=1e-12)


def test_zeros_and_what_is_not_finite_have_no_exponent() -> None:
    values = law(1.0, spread=(0.0, 0.0, 0.0, 0.0))[:, 0]
    values[1, 0], values[1, 1], values[1, 2] = 0.0, np.inf, np.nan
    by_seed = slopes(SIZES, values)
    assert np.isnan(by_seed[:3]).all()
    assert by_seed[3] == pytest.approx(1.0)
    exponent = estimate(SIZES, values)  # by the seed that is left
    assert exponent.value == pytest.approx(1.0)
    assert math.isnan(exponent.ci)
    assert math.isnan(estimate(SIZES, np.zeros((3, 2))).value)
    assert values[1, 0] == 0.0  # what was measured is not touched


def test_one_seed_is_judged_by_its_scatter_about_the_line() -> None:
    # In units of log 2 the sizes are at −1, 0 and 1. Of logs 0, a, 0 the line is flat; residuals −a/3, 2a/3, −a/3
    # leave a slope uncertain by 12.706 · sqrt(2a²/3 / 2) / log 2.
    a = 0.01
    exponent = estimate(SIZES, np.exp(np.array([[0.0], [a], [0.0]])))
    assert exponent.value == pytest.approx(0.0, abs=1e-12)
    assert exponent.ci == pytest.approx(12.7062 * a / math.sqrt(3) / math.log(2), rel=1e-4)
    exact = estimate(SIZES, law(-1.5, spread=(0.0,))[:, 0])
    assert exact.value == pytest.approx(-1.5)
    assert exact.ci == pytest.approx(0.0, abs=1e-9)


def test_two_sizes_always_meet_a_line() -> None:
    values = law(0.5, sizes=(64, 256), spread=(0.0,))[:, 0]
    exponent = estimate((64, 256), values)
    assert exponent.value == pytest.approx(0.5)
    assert math.isnan(exponent.ci)
    assert bent_estimate((64, 256), values) is None
    assert bent_estimate(SIZES, law(0.5)[:, 0]) is None  # with a bend, a line meets three of them
    several = estimate((64, 256), law(0.5, sizes=(64, 256))[:, 0])
    assert several.ci == pytest.approx(4.3027 * 0.01 / math.sqrt(3), abs=1e-4)


def test_a_bend_in_one_over_n_is_seen_through() -> None:
    sizes = (64, 128, 256, 512)
    n = np.array(sizes, dtype=float)[:, None]
    values = n**-1.0 * np.exp(16 / n) * np.array([[0.5, 2.0]])
    plain, bent = estimate(sizes, values), bent_estimate(sizes, values)
    assert bent is not None
    # By hand: 16/N is 1/4, 1/8, 1/16, 1/32 at −1.5, −0.5, 0.5, 1.5 in units of log 2; its slope −0.359375/5 per unit.
    assert plain.value == pytest.approx(-1 - 0.071875 / math.log(2), abs=1e-9)
    assert bent.value == pytest.approx(-1.0, abs=1e-9)
    # 1 + b/N is nearly that; what is left of b²/N² is small.
    nearly = bent_estimate(sizes, law(-1.0, bend=16.0, sizes=sizes)[:, 0])
    assert nearly is not None
    assert nearly.value == pytest.approx(-1.0, abs=0.02)


def test_the_price_of_the_bend_is_noise() -> None:
    sizes = (64, 128, 256, 512)
    rng = np.random.default_rng(0)
    values = np.exp(rng.normal(0.0, 0.05, size=(4, 20)))
    plain, bent = estimate(sizes, values), bent_estimate(sizes, values)
    assert bent is not None
    assert 2 < bent.ci / plain.ci < 6
    assert abs(plain.value) < 2 * plain.ci


def test_models_that_are_no_pairs_count_each_with_its_own_scatter() -> None:
    # In units of log 2 the slope is (c - a)/2 of logs a, b, c. Three models at each size scatter by 0.1 at the smallest
    # and largest, and as it happens the three slopes are equal.
    values = np.exp(np.array([[-0.1, 0.0, 0.1], [0.3, -0.3, 0.0], [-0.1, 0.0, 0.1]]))
    assert estimate(SIZES, values).ci == pytest.approx(0.0, abs=1e-12)
    exponent = estimate(SIZES, values, paired=False)
    assert exponent.value == pytest.approx(0.0, abs=1e-12)
    # Student's t with four degrees of freedom, two at either end.
    assert exponent.ci == pytest.approx(2.7764 * 0.1 * math.sqrt(2 / 3) / (2 * math.log(2)), abs=1e-4)
    # A single model, and a seed that was lost, are as before.
    assert estimate(SIZES, values[:, :1], paired=False) == estimate(SIZES, values[:, :1])
    lost = np.concatenate([values, np.array([[np.nan], [1.0], [1.0]])], axis=1)
    assert estimate(SIZES, lost, paired=False) == exponent
    # Scatter at one size alone leaves the degrees of freedom of that size.
    alone = np.exp(np.array([[-0.1, 0.0, 0.1], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    expected = 4.3027 * 0.1 / math.sqrt(3) / (2 * math.log(2))
    assert estimate(SIZES, alone, paired=False).ci == pytest.approx(expected, abs=1e-4)


def test_intervals_of_three_models_a_size_cover_what_they_should() -> None:
    random = np.random.default_rng(0)
    logs = 0.2 * random.standard_normal((1000, 3, 3))
    found = {paired: [estimate(SIZES, np.exp(each), paired=paired) for each in logs] for paired in (True, False)}
    covered = {paired: np.mean([not each.excludes_zero for each in found[paired]]) for paired in found}
    width = {paired: np.median([each.ci for each in found[paired]]) for paired in found}
    assert covered[True] == pytest.approx(0.95, abs=0.02)
    assert covered[False] == pytest.approx(0.95, abs=0.02)
    assert width[False] < 0.9 * width[True]
