"""What figures of a check show: lines where there are sizes, dashes where there are predictions, and words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from mssp._estimates import Estimate
from mssp.coordcheck.judgement import Judged
from mssp.coordcheck.result import Check
from mssp.measure.quantities import Quantity
from mssp.planning.setting import Setting
from mssp.report.figure import Figure, Series
from mssp.report.figures.checks import evaluation_figure, exponents_figure, sizes_figure
from mssp.report.page.document import page_of
from mssp.theory.expected import Prediction
from mssp.theory.propagation import Exponent
from tests.report.reading import headings, named, series_of

SIZES = (64, 128, 256)
STEPS = 3
LAYERS = ("embedding", "router", "expert_in", "expert_out", "readout")
FIGURES = (sizes_figure, exponents_figure, evaluation_figure)


def quantity(
    name: str,
    power: float = 0.0,
    *,
    start: int = 0,
    expected: Sequence[Exponent | None] | Exponent | None = None,
    verdict: str = "ok",
    steps: int = STEPS,
    sizes: Sequence[int] = SIZES,
    zero: bool = False,
    stable: bool = True,
) -> Judged:
    """(step + 1) size^power from ``start`` updates on, with an exponent of that power ± 0.1; zero before."""
    predicted = expected if isinstance(expected, Sequence) else [expected] * (steps + 1)
    there = [not zero and step >= start for step in range(steps + 1)]
    one = next((each for each in reversed(predicted) if each is not None), None)
    return Judged(
        Quantity.named(name),
        tuple(Estimate(power, 0.1) if each else None for each in there),
        {size: tuple((step + 1) * size**power if each else 0.0 for step, each in enumerate(there)) for size in sizes},
        tuple(None if each is None else Prediction(each, "paper") for each in predicted),
        None if zero or one is None else Estimate(power, 0.1),
        None if zero else one,
        stable,
        "zero" if zero else verdict if one is not None else "unpredicted",
    )


def check_of(
    *quantities: Judged,
    axis: str = "width",
    steps: int = STEPS,
    sizes: Sequence[int] = SIZES,
    loss: Mapping[int, tuple[float, ...]] | None = None,
) -> Check:
    by_name: dict[str, Judged] = {each.name: each for each in quantities}
    losses = dict.fromkeys(sizes, (4.6, 4.5, 4.4)[:steps]) if loss is None else loss
    return Check(Setting.of("mssp", "II", "sgd"), axis, tuple(sizes), steps, 3, by_name, (), losses)


def exponent(power: float, slack: float = 0.0) -> Exponent:
    return Exponent(Fraction(power), Fraction(slack))


ZERO = exponent(0)
WHOLE = check_of(
    *(quantity(f"effective/{layer}", start=1, expected=ZERO) for layer in LAYERS if layer != "router"),
    quantity("effective/router", -0.5, start=1, expected=exponent(0, 0.5)),
    quantity("propagating/embedding", zero=True),
    quantity("propagating/router", start=2, expected=ZERO, stable=False),
    quantity("propagating/expert_out", 0.5, start=2, expected=exponent(0.5)),
    quantity("aggregate/init", -0.5, expected=ZERO, verdict="off"),
    *(quantity(f"aggregate/{term}", start=2) for term in ("propagating", "effective", "cross", "A21", "A22")),
    *(quantity(f"backward/{term}", -1.0, start=2, expected=exponent(-1)) for term in ("A4", "A5", "A6", "E")),
    quantity("gradient/expert_in", -1.0, expected=exponent(-1)),
    quantity("gradient/router", -1.0, expected=exponent(-1)),
    quantity("gradient/expert_out", -2.0, expected=exponent(-2)),
    quantity("normalised/router", -0.5),
    *(quantity(name) for name in ("features/delta", "activation/router", "router/highest", "router/lowest")),
)
DENSE = check_of(quantity("effective/hidden"), quantity("gradient/hidden"), quantity("gradient/norm"), loss={})


def expected_lines(figure: Figure, heading: str) -> list[tuple[Any, ...]]:
    """Each as its places, its exponent and its colour."""
    lines = series_of(figure, heading, name="expected")
    return [(line.x, {y for y in line.y if y is not None}, line.colour) for line in lines]


def measured(figure: Figure, heading: str = "") -> list[Series]:
    return series_of(figure, heading, mode="lines+markers")


def verdicts(figure: Figure) -> list[str]:
    return [panel.subtitle for panel in figure.panels]


def test_sizes_have_a_panel_per_quantity_and_a_line_per_step() -> None:
    figure = sizes_figure(WHOLE)
    assert headings(figure) == [
        "effective/embedding", "effective/router", "effective/expert_in", "effective/expert_out", "effective/readout",
        "propagating/router", "propagating/expert_out",
        "aggregate/init", "aggregate/propagating", "aggregate/effective", "aggregate/cross",
    ]  # fmt: skip
    lines = measured(figure, "effective/router")
    assert [line.name for line in lines] == ["after 1 update", "after 2 updates", "after 3 updates"]
    assert lines[2].x == SIZES
    assert lines[2].y == [0.5, pytest.approx(4 * 128**-0.5), 0.25]
    late = measured(figure, "propagating/router")
    assert [line.name for line in late] == ["after 2 updates", "after 3 updates"]
    assert figure.panels[0].x.title == "width N"


def test_later_steps_are_darker() -> None:
    lines = measured(sizes_figure(WHOLE), "effective/router")
    lightness = [sum(map(int, re.findall(r"\d+", line.colour.split("|")[0]))) for line in lines]
    assert lightness == sorted(lightness, reverse=True)


def test_steps_shown_are_few() -> None:
    figure = sizes_figure(check_of(quantity("effective/router", steps=40), steps=40))
    names = [line.name for line in measured(figure)]
    assert names == [f"after {step} update{'' if step == 1 else 's'}" for step in (1, 2, 5, 10, 40)]


def test_the_guide_has_the_expected_slope_and_meets_the_last_steps_middle() -> None:
    figure = sizes_figure(check_of(quantity("aggregate/init", -0.5, expected=exponent(1))))
    (guide,) = series_of(figure, name="expected")
    assert guide.x == [64, 256]
    middle = 4 * 128**-0.5  # of 4, for the third step, times N^-1/2
    assert guide.y == pytest.approx([middle / 2, middle * 2])


def test_the_guide_keeps_to_steps_that_are_predicted() -> None:
    early = quantity("effective/router", 0.0, expected=[None, exponent(-1), exponent(0.5), None])
    (guide,) = series_of(sizes_figure(check_of(early)), name="expected")
    assert guide.y == pytest.approx([3 / math.sqrt(2), 3 * math.sqrt(2)])
    assert not series_of(sizes_figure(check_of(quantity("effective/router"))), name="expected")


def test_headings_say_exponent_expectation_and_verdict() -> None:
    figure = sizes_figure(WHOLE)
    assert {
        "−0.50 ± 0.10 (expected −0.5 … 0) ok", "−0.50 ± 0.10 (expected 0) <b>off</b>",
        "0.00 ± 0.10 (expected 0) ok, not stable", "0.00 ± 0.10 unpredicted",
    } <= set(verdicts(figure))  # fmt: skip
    assert figure.title == "MSSP · Regime II · SGD: sizes over the width"


def test_a_zero_quantity_that_is_asked_for_says_so() -> None:
    (panel,) = sizes_figure(WHOLE, ["propagating/embedding"]).panels
    assert (panel.why_empty, panel.series) == ("exactly zero", ())


def test_exponents_have_a_line_and_a_band_per_layer_that_is_not_zero() -> None:
    figure = exponents_figure(WHOLE)
    assert headings(figure) == ["propagating updates", "effective updates", "sum over experts", "gradients"]
    lines = measured(figure, "propagating updates")
    assert [line.name for line in lines] == ["router", "expert_out"]
    assert list(lines[1].x) == [0, 1, 2, 3]
    assert lines[1].y == [None, None, 0.5, 0.5]
    assert lines[1].band
    assert lines[1].ci == [pytest.approx(math.nan, nan_ok=True)] * 2 + [0.1, 0.1]


def test_expected_exponents_are_dashed_where_they_are_predicted() -> None:
    figure = exponents_figure(WHOLE)
    colour = {line.name: line.colour for line in measured(figure)}
    gradients = expected_lines(figure, "gradients")
    assert ([-0.5, 3.5], {-2.0}, colour["expert_out"]) in gradients
    shared = [line for line in gradients if line[1] == {-1.0}]
    assert len(shared) == 1
    assert shared[0][2] not in colour.values()  # two layers': grey
    effective = expected_lines(figure, "effective updates")
    assert ([-0.5, 3.5], {-0.5}, colour["router"]) in effective  # the least that is expected


def test_expected_exponents_that_change_are_drawn_step_by_step() -> None:
    changing = quantity("effective/router", expected=[exponent(-1), exponent(0.5), exponent(-1), None])
    lines = expected_lines(exponents_figure(check_of(changing)), "effective updates")
    assert [line[:2] for line in lines] == [([-0.5, 0.5, None, 1.5, 2.5], {-1.0}), ([0.5, 1.5], {0.5})]


def test_a_layer_has_one_colour_in_all_panels_and_figures() -> None:
    styles: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for figure in (exponents_figure(WHOLE), evaluation_figure(WHOLE), exponents_figure(WHOLE, ["gradient/router"])):
        for line in measured(figure):
            if not line.name.startswith("N = "):
                styles.setdefault((line.legend, line.name), set()).add((line.colour, line.symbol))
    assert all(len(each) == 1 for each in styles.values())
    layers = [style for (legend, _), each in styles.items() if legend == "layer" for style in each]
    assert len(set(layers)) == len(layers) == len(LAYERS)


def test_names_choose_panels_by_kind() -> None:
    figure = exponents_figure(WHOLE, ["backward/A4", "effective/router", "backward/E"])
    assert headings(figure) == ["backward", "effective"]
    assert [line.name for line in measured(figure, "backward")] == ["A4", "E"]


@pytest.mark.parametrize("draw", [sizes_figure, exponents_figure])
def test_a_name_that_is_not_there_is_named_with_some_that_are(draw: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^the check has no quantity 'effective/ruoter': it has effective/router, .*…$"
    ):
        draw(WHOLE, ["effective/embedding", "effective/ruoter"])


def test_an_evaluation_has_three_rows() -> None:
    figure = evaluation_figure(WHOLE)
    assert [[panel and panel.heading for panel in row] for row in figure.rows] == [
        ["training loss", "features’ change ‖Δh‖", "router logits ‖ψ‖", "router scores, lowest dotted"],
        ["propagating updates", "effective updates", "effective updates, input normalised"],
        ["sum over experts", "backward terms", "gradients"],
    ]
    losses = series_of(figure, "training loss")
    assert [(line.name, line.y) for line in losses] == [(f"N = {size}", [4.6, 4.5, 4.4]) for size in SIZES]
    scores = series_of(figure, "router scores, lowest dotted")
    assert [line.dash == "solid" for line in scores] == [True, False] * 3
    terms = measured(figure, "sum over experts")
    assert [line.name for line in terms] == ["init", "propagating", "effective", "cross", "A21", "A22"]


def test_an_evaluation_draws_no_expectation_of_zero() -> None:
    figure = evaluation_figure(WHOLE)
    assert {y for line in series_of(figure, name="expected") for y in line.y} == {0.5, -0.5, -1, -2}


def test_panels_say_how_many_are_as_expected() -> None:
    assert {"<b>off</b>: init", "5 ok", "nothing is expected"} <= set(verdicts(evaluation_figure(WHOLE)))


def test_depth_is_called_depth() -> None:
    deep = check_of(quantity("effective/router", -1.0, sizes=(3, 6)), axis="depth", sizes=(3, 6))
    figure = sizes_figure(deep)
    axis = figure.panels[0].x
    assert (axis.title, axis.look["ticktext"]) == ("depth L", ["3", "6"])
    assert "sizes over the depth" in figure.title
    assert "exponent of L" in {panel.y.title for panel in exponents_figure(deep).panels}
    assert series_of(evaluation_figure(deep), "training loss")[0].name == "L = 3"


def test_one_update_is_a_marker_with_its_uncertainty() -> None:
    once = check_of(*(quantity(f"effective/{layer}", steps=1, start=1) for layer in ("router", "readout")), steps=1)
    router, readout = measured(exponents_figure(once))
    assert router.y == [None, 0.0]
    assert router.ci[1] == 0.1
    assert router.bars is not None
    assert 0.1 < readout.x_shift - router.x_shift < 0.3  # side by side
    assert [each.name for each in series_of(sizes_figure(once))] == ["after 1 update"] * 2


def test_what_is_not_finite_is_left_out() -> None:
    lost = quantity("effective/router")
    values = {**lost.values, 128: (math.nan,) * 4}
    lost = Judged(lost.name, (None,) * 4, values, lost.predicted, None, None, False, "off", "is not finite")
    check = check_of(lost, loss=dict.fromkeys(SIZES, (4.6, math.inf, math.nan)))
    assert series_of(sizes_figure(check))[0].y == [2.0, None, 2.0]
    assert not series_of(exponents_figure(check))
    assert series_of(evaluation_figure(check))[0].y == [4.6, None, None]
    assert "loss at the end: not finite for 64" in evaluation_figure(check).summary


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize(
    "check", [DENSE, check_of(loss={}), check_of(quantity("effective/router", zero=True), loss={})]
)
def test_a_panel_without_data_says_so(draw: Any, check: Check) -> None:
    assert all(bool(panel.series) != bool(panel.why_empty) for panel in draw(check).panels)


def test_a_model_without_experts_has_its_layers_drawn() -> None:
    assert headings(sizes_figure(DENSE)) == ["effective/hidden"]
    assert headings(sizes_figure(check_of(quantity("gradient/norm")))) == ["gradient/norm"]
    assert [line.name for line in measured(exponents_figure(DENSE), "gradients")] == ["hidden", "norm"]


@pytest.mark.parametrize("draw", FIGURES)
def test_legends_name_every_line(draw: Any) -> None:
    figure = draw(WHOLE)
    assert {(line.legend, line.name) for line in measured(figure)} <= set(named(figure))
    assert {legend for legend, _ in named(figure)} <= set(figure.legends)


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_say_in_words_what_they_show(draw: Any) -> None:
    words = draw(WHOLE).description
    assert words.startswith("MSSP · Regime II · SGD: ")
    assert "effective/router" in words
    assert "−0.50 ± 0.10 (expected −0.5 … 0) ok" in words
    assert "3 seeds" in words
    assert "-0" not in words
    assert "<b>" not in words


@pytest.mark.parametrize("draw", FIGURES)
def test_equal_checks_give_equal_pages(draw: Any) -> None:
    assert page_of(draw(WHOLE)) == page_of(draw(WHOLE))
