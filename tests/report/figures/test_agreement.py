"""Predicted against measured: every judged quantity is a point, at its place and in its look."""

from __future__ import annotations

from fractions import Fraction

from mssp.report.figures.agreement import agreement_figure
from mssp.report.figures.checks import router_figure
from mssp.theory.propagation import Exponent
from tests.report.figures.test_checks import check_of, quantity
from tests.report.reading import headings, panel_of, series_of


def exponent(power: str) -> Exponent:
    return Exponent(Fraction(power))


RIGHT = check_of(
    quantity("effective/router", 0.1, expected=exponent("0")),
    quantity("effective/readout", -0.1, expected=exponent("0")),
    quantity("aggregate/init", -0.5, expected=exponent("-1/2"), stable=False),
    quantity("activation/router", 0.3),
)
WRONG = check_of(quantity("effective/router", 0.7, expected=exponent("0"), verdict="off"))


def test_every_judged_quantity_is_a_point() -> None:
    figure = agreement_figure({"right": RIGHT, "wrong": WRONG})
    stable, unstable = series_of(figure, "right", mode="markers")
    assert (stable.name, stable.y, stable.x) == ("as predicted, stable", [0.1, -0.1], [0.0, 0.0])
    assert (unstable.name, unstable.y) == ("as predicted, not stable", [-0.5])
    assert stable.ci == [0.1, 0.1]
    (off,) = series_of(figure, "wrong", mode="markers")
    assert (off.name, off.y) == ("off", [0.7])
    assert "activation/router" not in str([series.hover for series in series_of(figure)])


def test_points_of_one_prediction_stand_side_by_side_in_order() -> None:
    (stable, _) = series_of(agreement_figure({"right": RIGHT}), mode="markers")
    by_measured = sorted(zip(stable.y, stable.at_x, strict=True))
    assert [x for _, x in by_measured] == sorted(stable.at_x)
    assert all(abs(x) < 0.2 for x in stable.at_x)


def test_all_panels_share_their_ends_and_have_the_diagonal() -> None:
    figure = agreement_figure({"right": RIGHT, "wrong": WRONG})
    ends = [axis.look["range"] for panel in figure.panels for axis in (panel.x, panel.y)]
    assert ends == [ends[0]] * 4
    diagonals = series_of(figure, mode="lines")
    assert len(diagonals) == 2
    assert all(line.x == line.y for line in diagonals)


def test_words_and_verdicts() -> None:
    words = agreement_figure({"right": RIGHT, "wrong": WRONG}).summary
    assert "all 3 exponents as predicted · not stable" in words
    assert "1 of 1 exponents off" in words
    assert "effective/router 0.700 ± 0.100 for 0" in words


def test_nothing_predicted_is_said() -> None:
    figure = agreement_figure({"nothing": check_of(quantity("activation/router", 0.3))})
    assert panel_of(figure, "nothing").why_empty == "nothing is predicted"


def test_the_router_by_size() -> None:
    routed = check_of(*(quantity(f"router/{name}", 0.0) for name in ("highest", "lowest", "load", "delta")))
    figure = router_figure(routed)
    assert headings(figure) == ["scores, lowest dotted", "largest load, 1 if all are equal", "change of logits"]
    assert len(series_of(figure, "scores, lowest dotted")) == 2 * 3
    assert [series.name for series in series_of(figure, "change of logits")] == ["N = 64", "N = 128", "N = 256"]
    assert "router/load at the end: 4 for 64" in figure.summary
