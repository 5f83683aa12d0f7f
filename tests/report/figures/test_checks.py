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
from mssp.report.canvas import description_of
from mssp.report.figures.checks import evaluation_figure, exponents_figure, sizes_figure
from mssp.report.page.document import page_of
from mssp.theory.expected import Prediction
from mssp.theory.propagation import Exponent
from tests.report.reading import drawn, panel_axes, texts

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


def expected_lines(figure: Any, axis: str) -> list[tuple[Any, ...]]:
    """Each as its places, its exponent and its colour."""
    lines = drawn(figure, name="expected", xaxis=axis, mode="lines")
    return [(line.x, {y for y in line.y if y is not None}, line.line.color) for line in lines]


def test_sizes_have_a_panel_per_quantity_and_a_line_per_step() -> None:
    figure = sizes_figure(WHOLE)
    assert list(panel_axes(figure)) == [
        "effective/embedding", "effective/router", "effective/expert_in", "effective/expert_out", "effective/readout",
        "propagating/router", "propagating/expert_out",
        "aggregate/init", "aggregate/propagating", "aggregate/effective", "aggregate/cross",
    ]  # fmt: skip
    lines = drawn(figure, xaxis=panel_axes(figure)["effective/router"], mode="lines+markers")
    assert [line.name for line in lines] == ["after 1 update", "after 2 updates", "after 3 updates"]
    assert lines[2].x == SIZES
    assert lines[2].y == (0.5, pytest.approx(4 * 128**-0.5), 0.25)
    late = drawn(figure, xaxis=panel_axes(figure)["propagating/router"], mode="lines+markers")
    assert [line.name for line in late] == ["after 2 updates", "after 3 updates"]
    assert figure.layout.xaxis.title.text == "width N"


def test_later_steps_are_darker() -> None:
    lines = drawn(sizes_figure(WHOLE), xaxis="x", mode="lines+markers")
    lightness = [sum(map(int, re.findall(r"\d+", line.line.color))) for line in lines]
    assert lightness == sorted(lightness, reverse=True)


def test_steps_shown_are_few() -> None:
    figure = sizes_figure(check_of(quantity("effective/router", steps=40), steps=40))
    names = [line.name for line in drawn(figure, mode="lines+markers")]
    assert names == [f"after {step} update{'' if step == 1 else 's'}" for step in (1, 2, 5, 10, 40)]


def test_the_guide_has_the_expected_slope_and_meets_the_last_steps_middle() -> None:
    figure = sizes_figure(check_of(quantity("aggregate/init", -0.5, expected=exponent(1))))
    (guide,) = drawn(figure, name="expected")
    assert guide.x == (64, 256)
    middle = 4 * 128**-0.5  # of 4, for the third step, times N^-1/2
    assert guide.y == (pytest.approx(middle / 2), pytest.approx(middle * 2))


def test_the_guide_keeps_to_steps_that_are_predicted() -> None:
    early = quantity("effective/router", 0.0, expected=[None, exponent(-1), exponent(0.5), None])
    (guide,) = drawn(sizes_figure(check_of(early)), name="expected")
    assert guide.y == (pytest.approx(3 / math.sqrt(2)), pytest.approx(3 * math.sqrt(2)))
    assert not drawn(sizes_figure(check_of(quantity("effective/router"))), name="expected")


def test_headings_say_exponent_expectation_and_verdict() -> None:
    shown = texts(sizes_figure(WHOLE))
    assert "−0.50 ± 0.10 (expected −0.5 … 0) ok" in shown
    assert "−0.50 ± 0.10 (expected 0) <b>off</b>" in shown
    assert "0.00 ± 0.10 (expected 0) ok, not stable" in shown
    assert "0.00 ± 0.10 unpredicted" in shown
    assert shown[0] == "MSSP · Regime II · SGD: sizes over the width"


def test_a_zero_quantity_that_is_asked_for_says_so() -> None:
    figure = sizes_figure(WHOLE, ["propagating/embedding"])
    assert "nothing to show:<br>exactly zero" in texts(figure)
    assert not drawn(figure)


def test_exponents_have_a_line_and_a_band_per_layer_that_is_not_zero() -> None:
    figure = exponents_figure(WHOLE)
    axes = panel_axes(figure)
    assert list(axes) == ["propagating updates", "effective updates", "sum over experts", "gradients"]
    lines = drawn(figure, xaxis=axes["propagating updates"], mode="lines+markers")
    assert [line.name for line in lines] == ["router", "expert_out"]
    assert lines[1].x == (0, 1, 2, 3)
    assert lines[1].y == (None, None, 0.5, 0.5)
    assert not lines[1].connectgaps
    band = drawn(figure, xaxis=axes["propagating updates"], fill="toself")[1]
    assert band.x == (2, 3, 3, 2)
    assert band.y == (0.6, 0.6, 0.4, 0.4)


def test_expected_exponents_are_dashed_where_they_are_predicted() -> None:
    figure = exponents_figure(WHOLE)
    axes = panel_axes(figure)
    colour = {line.name: line.line.color for line in drawn(figure, mode="lines+markers")}
    gradients = expected_lines(figure, axes["gradients"])
    assert ((-0.5, 3.5), {-2.0}, colour["expert_out"]) in gradients
    shared = [line for line in gradients if line[1] == {-1.0}]
    assert len(shared) == 1
    assert shared[0][2] not in colour.values()  # two layers': grey
    effective = expected_lines(figure, axes["effective updates"])
    assert ((-0.5, 3.5), {-0.5}, colour["router"]) in effective  # the least that is expected


def test_expected_exponents_that_change_are_drawn_step_by_step() -> None:
    changing = quantity("effective/router", expected=[exponent(-1), exponent(0.5), exponent(-1), None])
    lines = expected_lines(exponents_figure(check_of(changing)), "x2")
    assert [line[:2] for line in lines] == [((-0.5, 0.5, None, 1.5, 2.5), {-1.0}), ((0.5, 1.5), {0.5})]


def test_a_layer_has_one_colour_in_all_panels_and_figures() -> None:
    styles: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for figure in (exponents_figure(WHOLE), evaluation_figure(WHOLE), exponents_figure(WHOLE, ["gradient/router"])):
        for line in drawn(figure, mode="lines+markers"):
            if not line.name.startswith("N = "):
                found = styles.setdefault((line.legend or "legend", line.name), set())
                found.add((line.line.color, line.marker.symbol))
    assert all(len(each) == 1 for each in styles.values())
    layers = [style for (legend, _), each in styles.items() if legend == "legend" for style in each]
    assert len(set(layers)) == len(layers) == len(LAYERS)


def test_names_choose_panels_by_kind() -> None:
    figure = exponents_figure(WHOLE, ["backward/A4", "effective/router", "backward/E"])
    assert list(panel_axes(figure)) == ["backward", "effective"]
    assert [line.name for line in drawn(figure, xaxis="x", mode="lines+markers")] == ["A4", "E"]


@pytest.mark.parametrize("draw", [sizes_figure, exponents_figure])
def test_a_name_that_is_not_there_is_named_with_some_that_are(draw: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^the check has no quantity 'effective/ruoter': it has effective/router, .*…$"
    ):
        draw(WHOLE, ["effective/embedding", "effective/ruoter"])


def test_an_evaluation_has_three_rows() -> None:
    figure = evaluation_figure(WHOLE)
    axes = panel_axes(figure)
    assert list(axes) == [
        "training loss", "features’ change ‖Δh‖", "router logits ‖ψ‖", "router scores, lowest dotted",
        "propagating updates", "effective updates", "effective updates, input normalised",
        "sum over experts", "backward terms", "gradients",
    ]  # fmt: skip
    losses = drawn(figure, xaxis="x")
    assert [(line.name, line.y) for line in losses] == [(f"N = {size}", (4.6, 4.5, 4.4)) for size in SIZES]
    scores = drawn(figure, xaxis=axes["router scores, lowest dotted"])
    assert [line.line.dash == "solid" for line in scores] == [True, False] * 3
    terms = drawn(figure, xaxis=axes["sum over experts"], mode="lines+markers")
    assert [line.name for line in terms] == ["init", "propagating", "effective", "cross", "A21", "A22"]
    ends = [figure.layout[axis.replace("x", "xaxis")].domain for axis in axes.values()]
    assert [end[1] for end in ends if end[1] > 0.99] == [pytest.approx(1.0)] * 3


def test_an_evaluation_draws_no_expectation_of_zero() -> None:
    figure = evaluation_figure(WHOLE)
    assert {y for line in drawn(figure, name="expected") for y in line.y} == {0.5, -0.5, -1, -2}


def test_panels_say_how_many_are_as_expected() -> None:
    shown = texts(evaluation_figure(WHOLE))
    assert "<b>off</b>: init" in shown
    assert "5 ok" in shown
    assert "nothing is expected" in shown


def test_depth_is_called_depth() -> None:
    deep = check_of(quantity("effective/router", -1.0, sizes=(3, 6)), axis="depth", sizes=(3, 6))
    figure = sizes_figure(deep)
    assert figure.layout.xaxis.title.text == "depth L"
    assert figure.layout.xaxis.ticktext == ("3", "6")
    assert "sizes over the depth" in texts(figure)[0]
    assert "exponent of L" in str(exponents_figure(deep).layout)
    assert drawn(evaluation_figure(deep), xaxis="x")[0].name == "L = 3"


def test_one_update_is_a_marker_with_its_uncertainty() -> None:
    once = check_of(*(quantity(f"effective/{layer}", steps=1, start=1) for layer in ("router", "readout")), steps=1)
    router, readout = drawn(exponents_figure(once), mode="lines+markers")
    assert router.y == (None, 0.0)
    assert router.error_y.array == (0.0, 0.1)
    assert 0.1 < readout.x[1] - router.x[1] < 0.3  # side by side
    assert [each.name for each in drawn(sizes_figure(once))] == ["after 1 update"] * 2


def test_what_is_not_finite_is_left_out() -> None:
    lost = quantity("effective/router")
    values = {**lost.values, 128: (math.nan,) * 4}
    lost = Judged(lost.name, (None,) * 4, values, lost.predicted, None, None, False, "off", "is not finite")
    check = check_of(lost, loss=dict.fromkeys(SIZES, (4.6, math.inf, math.nan)))
    assert drawn(sizes_figure(check))[0].y == (2.0, None, 2.0)
    assert not drawn(exponents_figure(check))
    assert drawn(evaluation_figure(check))[0].y == (4.6, None, None)
    assert "loss at the end: not finite for 64" in description_of(evaluation_figure(check))


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize(
    "check", [DENSE, check_of(loss={}), check_of(quantity("effective/router", zero=True), loss={})]
)
def test_a_panel_without_data_says_so(draw: Any, check: Check) -> None:
    figure = draw(check)
    axes = {name for name in figure.layout.to_plotly_json() if name.startswith("xaxis")}
    # Else plotly would drop the axis, and its heading would stand above another panel.
    assert axes == {trace.xaxis.replace("x", "xaxis") for trace in figure.data if trace.xaxis}
    with_data = {trace.xaxis.replace("x", "xaxis") for trace in drawn(figure)}
    says = {note.xref for note in figure.layout.annotations if note.text.startswith("nothing to show:<br>")}
    assert axes == with_data | {each.removesuffix(" domain").replace("x", "xaxis") for each in says}


def test_a_model_without_experts_has_its_layers_drawn() -> None:
    assert list(panel_axes(sizes_figure(DENSE))) == ["effective/hidden"]
    assert list(panel_axes(sizes_figure(check_of(quantity("gradient/norm"))))) == ["gradient/norm"]
    figure = exponents_figure(DENSE)
    assert [line.name for line in drawn(figure, xaxis="x4", mode="lines+markers")] == ["hidden", "norm"]


@pytest.mark.parametrize("draw", FIGURES)
def test_legends_name_every_line_once_and_stand_clear_of_the_panels(draw: Any) -> None:
    figure = draw(WHOLE)
    named = [(trace.legend, trace.name) for trace in figure.data if trace.showlegend]
    assert len(named) == len(set(named))
    used = {legend or "legend" for legend, _ in named}
    tops = [1 - figure.layout[legend].y for legend in used]
    assert len(set(tops)) == len(tops)  # one under the other
    assert max(tops) * figure.layout.height + 24 < figure.layout.margin.t


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_say_in_words_what_they_show(draw: Any) -> None:
    words = description_of(draw(WHOLE))
    assert words.startswith("MSSP · Regime II · SGD: ")
    assert "effective/router" in words
    assert "−0.50 ± 0.10 (expected −0.5 … 0) ok" in words
    assert "3 seeds" in words
    assert "-0" not in words
    assert "<b>" not in words


@pytest.mark.parametrize("draw", FIGURES)
def test_equal_checks_give_equal_pages(draw: Any) -> None:
    assert page_of(draw(WHOLE)) == page_of(draw(WHOLE))
