"""Exponents of a bias that is known, and noise that hides it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mssp.dmft import Solution, compare, example, solve
from mssp.dmft.comparison import Comparison, compared
from mssp.dmft.document import as_json, lines, verdict
from mssp.dmft.observables import Array, Observables, averaged

LIMIT = solve(example("II", "mssp", inputs=2, steps=3), samples=400, solves=2)
SHAPE = {name: each.shape for name, each in LIMIT.mean.items()}


def exact(values: float = 1.0) -> Solution:
    """A limit whose numbers are all one, known almost exactly."""
    draws = [{name: np.full(shape, values + off) for name, shape in SHAPE.items()} for off in (-1e-6, 1e-6)]
    return Solution(LIMIT.experiment, LIMIT.constants, LIMIT.samples, averaged(draws), tuple(draws), averaged([{}]), ())


def networks(width: int, exponent: float, noise: float, count: int = 40) -> list[Observables]:
    """Their mean is off by 3·N^exponent in all directions alike."""
    generator = np.random.default_rng(width)

    def off(shape: Sequence[int]) -> Array:
        found: Array = 3.0 * width**exponent + noise * generator.normal(size=shape)
        return found

    return [{name: 1 + off(shape) for name, shape in SHAPE.items()} for _ in range(count)]


def measured(exponent: float, noise: float, widths: Sequence[int] = (16, 32, 64, 128)) -> Comparison:
    return compared(exact(), {width: networks(width, exponent, noise) for width in widths})


@pytest.mark.parametrize("exponent", [-0.5, -1.0, -1.5])
def test_an_exponent_is_found_within_its_error(exponent: float) -> None:
    found = measured(exponent, noise=0.01)
    assert found.exponents["f"].value == pytest.approx(exponent, abs=max(0.02, 1.5 * found.exponents["f"].ci))
    assert found.exponents["f"].ci < 0.1
    assert found.verdict == ("slow" if exponent > -0.7 else "converges")
    assert found.slow == (["f", "phi1", "phi3", "g1"] if exponent > -0.7 else [])


def test_an_error_covers_the_truth_as_often_as_it_says() -> None:
    missed = 0
    for trial in range(40):
        generator = np.random.default_rng(trial)
        runs = {
            width: [{"f": 1 + 3 / width + 0.3 * generator.normal(size=(4, 2))} for _ in range(24)]
            for width in (16, 32, 64)
        }
        draws = [{"f": np.full((4, 2), 1 + 0.003 * generator.normal())} for _ in range(6)]
        limit = Solution(
            LIMIT.experiment, LIMIT.constants, LIMIT.samples, averaged(draws), tuple(draws), averaged([{}]), ()
        )
        found = compared(limit, runs).exponents["f"]
        missed += not np.isnan(found.value) and abs(found.value + 1) > found.ci
    assert missed <= 6  # two are expected; seven or more have a chance of one in a hundred


def test_deviation_and_error_are_relative_sizes() -> None:
    (at,) = compared(exact(), {32: networks(32, -1.0, noise=0.0)}).widths
    assert at.deviation["f"] == pytest.approx(3 / 32)
    assert at.error["f"] == pytest.approx(0, abs=1e-12)
    noisy = measured(-1.0, noise=0.5).widths[0]
    assert noisy.error["g1"] == pytest.approx(0.5 / 40**0.5, rel=0.1)


def test_noise_hides_a_bias_and_that_is_said() -> None:
    found = measured(-1.0, noise=50.0)
    assert np.isnan(found.exponents["f"].value)
    assert found.verdict == "unclear"
    assert verdict(found).startswith("unclear: the bias is hidden in the noise of these seeds; at N = 128")


def test_one_width_has_no_exponent() -> None:
    assert np.isnan(measured(-1.0, noise=0.01, widths=(16,)).exponents["f"].value)


def test_words_and_json() -> None:
    found = measured(-1.0, noise=0.01)
    assert verdict(found).startswith("converges: the bias falls as N^−1.0")
    assert verdict(found).endswith("at N = 128 they are within 2.4%")
    assert any(line.lstrip().startswith("exponent of N") for line in lines(found.solution, found))
    assert verdict(measured(-0.3, noise=0.01)).startswith("slow: the bias falls more slowly than 1/N (f as N^−0.3")
    told = as_json(found.solution, found)
    assert list(told["finite"]) == ["16", "32", "64", "128"]
    assert told["exponent"]["f"] == pytest.approx(-1, abs=0.05)


def test_finite_networks_of_a_plan_come_closer() -> None:
    limit = solve(example("II", "mssp"), samples=8_000, solves=3)
    found = compare(limit, [64, 16, 32, 16], seeds=60)
    assert [(at.width, at.networks.count) for at in found.widths] == [(16, 240), (32, 120), (64, 60)]
    assert found.widths[0].deviation["f"] > 2 * found.widths[2].deviation["f"]
    assert found.verdict != "slow"
