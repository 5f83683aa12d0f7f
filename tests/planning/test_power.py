from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mssp import Power, Shape

exponents = st.fractions(min_value=-3, max_value=3, max_denominator=4)
powers = st.builds(
    lambda given: Power(**given),
    st.dictionaries(st.sampled_from(["N", "N_e", "M", "K", "L", "D", "fan_in"]), exponents),
)
sizes = st.integers(1, 4096)
dims = st.fixed_dictionaries(dict.fromkeys(("N", "N_e", "M", "K", "L", "D", "fan_in"), sizes))


def test_prints_as_in_the_paper() -> None:
    assert str(Power(N=-1, L=-1)) == "N⁻¹L⁻¹"
    assert str(Power(M="1/2", N_e="-1/2")) == "M¹ᐟ²N_e⁻¹ᐟ²"
    assert str(Power()) == "1"
    assert str(Power(N=1)) == "N"


def test_value_at_a_shape() -> None:
    shape = Shape(width=256, expert_width=64, experts=16, active=8, depth=4, inputs=9)
    assert Power(M="1/2", N_e="-1/2").value(shape.dims) == 0.5
    assert Power(N=-1, L=-1).value(shape.dims) == 0.0009765625
    assert Power(D="-1/2").value(shape.dims) == pytest.approx(1 / 3)


def test_json_is_symbol_to_fraction() -> None:
    assert Power(M="1/2", N_e="-1/2").json() == {"M": "1/2", "N_e": "-1/2"}
    assert Power().json() == {}


def test_zero_exponents_vanish() -> None:
    assert Power(N=0, M=1) == Power(M=1)
    assert hash(Power(N=0, M=1)) == hash(Power(M=1))


def test_unknown_symbol_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown symbol 'Q'"):
        Power(Q=1)


def test_constant_factors_are_refused() -> None:
    with pytest.raises(ValueError, match="no constant factor"):
        2 / Power(N=1)


@given(powers, powers, dims)
def test_product_and_quotient(a: Power, b: Power, at: dict[str, float]) -> None:
    assert (a * b).value(at) == pytest.approx(a.value(at) * b.value(at))
    assert (a / b).value(at) == pytest.approx(a.value(at) / b.value(at))
    assert a * b == b * a
    assert a / a == Power()


@given(powers, exponents, dims)
def test_power_of_a_power(a: Power, exponent: Fraction, at: dict[str, float]) -> None:
    assert (a**exponent).value(at) == pytest.approx(a.value(at) ** float(exponent))


@given(powers, dims, dims)
def test_ratio_is_one_where_nothing_changes(a: Power, here: dict[str, float], there: dict[str, float]) -> None:
    assert a.ratio(here, here) == 1.0
    assert a.ratio(there, here) == pytest.approx(a.value(there) / a.value(here))


@given(powers)
def test_json_names_the_power(a: Power) -> None:
    assert Power(**a.json()) == a
