"""The predicted orders for any growth: the paper's where it has any, and by hand at a fixed K."""

from __future__ import annotations

from fractions import Fraction

import pytest

import mssp
from mssp import Shape
from mssp.measure.quantities import AGGREGATE, BACKWARD, PROPAGATING, Quantity
from mssp.planning.plans import Plan
from mssp.theory.expected import Theory
from mssp.theory.orders import _ORDERS, Orders
from mssp.theory.propagation import tabulated

SIZES = (64, 128, 256, 512)


def plans(shape: dict[int, Shape], scheme: str = "mssp") -> dict[int, Plan]:
    base = shape[min(shape)]
    return {
        n: mssp.plan(each, base, regime="any", scheme=scheme, optimizer="adam", lr=0.1) for n, each in shape.items()
    }


FIXED_K = {n: Shape(n, 16, n // 16, 2, 1, 64) for n in SIZES}  # κ = 1/n, M/K = n
TWO = {n: Shape(n, 16, n // 8, n // 16, 1, 64) for n in SIZES}
ONE = {n: Shape(n, n // 2, 8, 8, 1, 64) for n in SIZES}


# From the lowest to the highest: the law under random routing, and with tokens that are alike, (M/K)^1/2 = n^1/2.
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        (AGGREGATE("init"), "0", "0"),
        (BACKWARD("A5"), "-1/2", "0"),  # n^-1 κ^-1/2, and n^1/2 of it
        (BACKWARD("A4"), "-1", "0"),
        (BACKWARD("A6"), "-5/2", "-1/2"),  # r = (N_e/N)^1/2 = n^-1/2; inner products that align slowly may lower it
        (PROPAGATING("expert_in"), "0", "1"),
    ],
)
def test_at_a_fixed_k_what_comes_back_through_starts_grows(name: Quantity, low: str, high: str) -> None:
    exponent = Orders(plans(FIXED_K)).exponent(name, 5)
    assert exponent is not None
    assert exponent.power is not None
    assert (exponent.power - exponent.slack, exponent.power) == (Fraction(low), Fraction(high))


@pytest.mark.parametrize(("shapes", "regime"), [(ONE, "I"), (TWO, "II")])
def test_at_the_papers_growths_the_orders_are_the_papers(shapes: dict[int, Shape], regime: str) -> None:
    orders, setting = Orders(plans(shapes)), mssp.plan(shapes[64], regime=regime, optimizer="adam", lr=0.1).setting
    for name in _ORDERS:
        assert orders.exponent(name, 5) == tabulated(name, 5, setting), name
        assert orders.stable(name) == orders.exponent(name, 5).power, name  # type: ignore[union-attr]


def test_a_scheme_without_a_boost_is_predicted_to_lose_its_aggregate() -> None:
    orders = Orders(plans(TWO, "mup"))
    start = orders.exponent(AGGREGATE("init"), 0)
    assert start is not None
    assert start.power == Fraction(-1, 2)
    assert orders.exponent(BACKWARD("A5"), 5) is None


def test_terms_that_the_zero_router_of_regime_one_has_not_are_not_predicted_where_it_starts_small() -> None:
    small = {n: mssp.plan(Shape(n, n // 2, 8, 2, 1), regime="I", lr=0.1) for n in SIZES}
    zero = {n: mssp.plan(Shape(n, n // 2, 8, 8, 1), regime="I", lr=0.1) for n in SIZES}
    assert Theory(small).prediction("propagating/router", 3) is None
    predicted = Theory(zero).prediction("propagating/router", 3)
    assert predicted is not None
    assert predicted.exponent.power is None
