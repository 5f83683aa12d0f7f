"""What the rules imply over the paper's families, worked out by hand from Table 1."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import mssp
from mssp import Plan, PlanWarning, Shape
from mssp.ladders.mlp import family
from mssp.planning import rules
from mssp.planning.setting import Setting
from mssp.theory.implied import Implied
from mssp.theory.propagation import Exponent

WIDTHS = (64, 128, 256)
DEPTHS = (2, 4, 8)
ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")
ZERO = "zero"

# With M and K as N in II and III, N_e as N in I and III. In the order of ROLES.
WEIGHTS = {
    ("mssp", "I"): ("0", ZERO, "-1/2", "-1/2", ZERO),
    ("mssp", "II"): ("0", "-1/2", "-1/2", "1/2", ZERO),
    ("mssp", "III"): ("0", "-1/2", "-1/2", "-1/2", ZERO),
    ("mup", "I"): ("0", "-1", "-1/2", "-1/2", ZERO),
    ("mup", "II"): ("0", "-1/2", "-1/2", "0", ZERO),
    ("mup", "III"): ("0", "-1/2", "-1/2", "-1/2", ZERO),
}
RATES = {
    ("sgd", "I"): ("1", "-1", "0", "0", "-1"),
    ("sgd", "II"): ("1", "0", "0", "2", "-1"),
    ("sgd", "III"): ("1", "0", "1", "1", "-1"),
    ("adam", "I"): ("0", "-1", "-1", "-1", "-1"),
    ("adam", "II"): ("0", "-1", "-1", "0", "-1"),
    ("adam", "III"): ("0", "-1", "-1", "-1", "-1"),
}
EPS = {"I": ("-1", "0", "-1", "-1", "0"), "II": ("-1", "-1", "-1", "-2", "0"), "III": ("-1", "-1", "-2", "-2", "0")}
AGGREGATION = {"I": 0, "II": -1, "III": -1}


@pytest.fixture
def _rules_can_change() -> Iterator[None]:
    yield
    Setting.rule.cache_clear()


def planned(shape: Shape, regime: str | None, **options: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        return mssp.plan(shape, regime=regime, **{"lr": 0.1, **options})


def over_widths(regime: str, **options: Any) -> Implied:
    return Implied({width: planned(family(regime, width, 48), regime, **options) for width in WIDTHS})


def over_depths(regime: str, **options: Any) -> Implied:
    shape = family(regime, 64, 48)
    return Implied({depth: planned(replace(shape, depth=depth), regime, **options) for depth in DEPTHS})


def powers(implied: Implied, kind: str, step: int) -> tuple[str, ...]:
    """As the tables above have them; "-" where nothing is implied."""
    found = [implied.exponent(f"{kind}/{role}", step) for role in ROLES]
    return tuple("-" if each is None else ZERO if each.power is None else str(each.power) for each in found)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("scheme", "regime"), WEIGHTS)
def test_initial_weights_over_widths(scheme: str, regime: str, optimizer: str) -> None:
    implied = over_widths(regime, scheme=scheme, optimizer=optimizer)
    assert powers(implied, "weights", 0) == powers(implied, "weights", 9) == WEIGHTS[scheme, regime]
    assert implied.tied() == ((scheme, regime) == ("mssp", "III"))


def test_a_readout_that_does_not_start_at_zero() -> None:
    implied = over_widths("II", scheme="mup", optimizer="sgd", readout="mup")
    assert powers(implied, "weights", 0) == ("0", "-1/2", "-1/2", "0", "-1")
    # Nothing is held back: the first update moves every layer.
    assert powers(implied, "rate", 1) == RATES["sgd", "II"]
    assert powers(implied, "rate", 2) == ("-",) * 5


@pytest.mark.parametrize("scheme", ["mssp", "mup"])
@pytest.mark.parametrize(("optimizer", "regime"), RATES)
def test_learning_rates_show_in_a_layers_first_update(optimizer: str, regime: str, scheme: str) -> None:
    implied = over_widths(regime, scheme=scheme, optimizer=optimizer)
    expected = RATES[optimizer, regime]
    assert powers(implied, "rate", 0) == powers(implied, "rate", 3) == ("-",) * 5
    assert powers(implied, "rate", 1) == ("-", "-", "-", "-", expected[-1])
    assert powers(implied, "rate", 2) == (*expected[:-1], "-")


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_eps_and_gradients_over_widths(regime: str) -> None:
    adam, sgd = over_widths(regime, optimizer="adamw"), over_widths(regime, optimizer="sgd")
    assert powers(adam, "eps", 0) == powers(adam, "eps", 5) == EPS[regime]
    assert powers(sgd, "eps", 0) == powers(sgd, "faithfulness", 5) == ("-",) * 5
    for implied in (adam, sgd):
        assert powers(implied, "gradient", 0) == (ZERO, ZERO, ZERO, ZERO, "0")
        assert powers(implied, "gradient", 1) == powers(implied, "gradient", 20) == EPS[regime]
        assert implied.exponent("aggregation", 3) == Exponent(Fraction(AGGREGATION[regime]))
    # eps follows the gradient; above it by up to √N while the router's gradient is below its order.
    assert powers(adam, "faithfulness", 0) == ("-", "-", "-", "-", "0")
    assert powers(adam, "faithfulness", 1) == ("0", "1/2", "0", "0", "0")
    assert adam.exponent("gradient/router", 2) == Exponent(Fraction(EPS[regime][1]), Fraction(1, 2))
    assert adam.exponent("faithfulness/router", 2) == Exponent(Fraction(1, 2), Fraction(1, 2))
    assert adam.exponent("faithfulness/expert_in", 2) == Exponent(Fraction(0))


def test_gradients_are_known_where_the_dynamics_are_those_of_mssp() -> None:
    in_i = over_widths("I", scheme="mup", optimizer="adam")
    assert powers(in_i, "gradient", 2) == EPS["I"]
    for regime in ("II", "III"):
        other = over_widths(regime, scheme="mup", optimizer="adam")
        assert powers(other, "gradient", 2) == powers(other, "faithfulness", 2) == ("-",) * 5
        assert powers(other, "eps", 2) == EPS[regime]


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_over_depths_the_l_in_blocks(regime: str) -> None:
    """Gradients in blocks fall as 1/L: eps follows them, SGD's learning rate makes up for them, Adam needs nothing."""
    sgd, adam = over_depths(regime, optimizer="sgd"), over_depths(regime, optimizer="adam")
    assert powers(sgd, "rate", 2) == ("0", "1", "1", "1", "-")
    assert powers(sgd, "rate", 1) == ("-", "-", "-", "-", "0")
    assert powers(adam, "rate", 2) == ("0", "0", "0", "0", "-")
    assert powers(adam, "eps", 2) == ("0", "-1", "-1", "-1", "0")
    for implied in (sgd, adam):
        assert powers(implied, "gradient", 2) == ("0", "-1", "-1", "-1", "0")
        assert powers(implied, "weights", 0)[2:4] == ("0", "0")
        assert implied.exponent("aggregation", 0) == Exponent(Fraction(0))
    assert powers(over_depths(regime, optimizer="sgd", as_printed=True), "rate", 2) == ("0", "0", "0", "0", "-")


def test_another_scheme_has_its_own() -> None:
    """Jiang et al.: a router of 1/N and one eps for all."""
    jiang = over_widths("III", scheme="jiang", optimizer="adam")
    assert powers(jiang, "weights", 0) == ("0", "-1", "-1/2", "-1/2", ZERO)
    assert powers(jiang, "eps", 0) == ("0",) * 5
    assert not jiang.tied()
    standard = {width: planned(family("III", width, 48), None, scheme="sp", optimizer="adam") for width in WIDTHS}
    assert powers(Implied(standard), "weights", 0) == ("0", "-1/2", "-1/2", "-1/2", ZERO)
    assert powers(Implied(standard), "rate", 2) == ("0", "0", "0", "0", "-")
    assert Implied(standard).exponent("aggregation", 0) == Exponent(Fraction(0))


@pytest.mark.usefixtures("_rules_can_change")
def test_a_rule_that_changes_changes_what_is_implied(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rules.TABLE_1["expert_out"]
    changed = replace(
        rows,
        init=(rules.std(rules.N**-2),) * 3,
        adam=rules.for_all(rules.N ** Fraction(1, 2)),
        eps=rules.for_all(1 / rules.M),
    )
    monkeypatch.setitem(rules.TABLE_1, "expert_out", changed)
    Setting.rule.cache_clear()
    implied = over_widths("II", optimizer="adam")
    assert powers(implied, "weights", 0) == ("0", "-1/2", "-1/2", "-2", ZERO)
    assert powers(implied, "rate", 2) == ("0", "-1", "-1", "1/2", "-")
    # The rule of eps is that of the gradient: both move, and the one over the other does not.
    assert powers(implied, "eps", 2) == powers(implied, "gradient", 2) == ("-1", "-1", "-1", "-1", "0")
    assert powers(implied, "faithfulness", 2) == ("0", "1/2", "0", "0", "0")


def test_multipliers_that_are_the_same_for_all_do_not_matter() -> None:
    plain = over_widths("II", optimizer="adam")
    tuned = over_widths("II", optimizer="adam", lr_mult={"router": 64.0}, init_mult={"all": 0.25}, aggregation_mult=8.0)
    for kind in ("weights", "rate", "eps"):
        assert powers(plain, kind, 2) == powers(tuned, kind, 2)
    assert tuned.exponent("aggregation", 0) == Exponent(Fraction(-1))


def test_what_the_rules_do_not_determine() -> None:
    implied = over_widths("II", optimizer="adam")
    for name in ("effective/router", "activation/expert_in", "rate/nothing", "experts/distance", "loss"):
        assert implied.exponent(name, 2) is None


def test_a_case_is_read_off_a_plan() -> None:
    plan = planned(family("III", 64, 48), "III", scheme="mup", optimizer="sgd", readout="mup")
    assert plan.setting == Setting.of("mup", "III", "sgd", "mup")
    assert planned(family("III", 64, 48), None, scheme="sp", optimizer="adam").setting == Setting.of("sp", None, "adam")
