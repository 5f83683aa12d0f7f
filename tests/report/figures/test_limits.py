"""What the figure of a limit shows: curves over steps, networks beside them, distances over width, and words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mssp.dmft import Comparison, Solution, compare, example, solve
from mssp.dmft.comparison import compared
from mssp.dmft.constants import constants
from mssp.dmft.document import Overlay
from mssp.dmft.observables import Observables, averaged
from mssp.dmft.run import Samples
from mssp.report.canvas import description_of
from mssp.report.figures.limits import dmft_figure, overlay_figure
from mssp.report.page.document import page_of
from tests.report.reading import drawn, panel_axes, texts

STEPS, TRAINED, UNSEEN = 3, 2, 1
INPUTS = TRAINED + UNSEEN
TIMES = np.arange(STEPS + 1.0)
HEADINGS = [
    "Training loss", "Outputs",
    "Features", "Expert units behind their gates", "Sum over experts",
    "Gradient at features", "Gradient at expert units", "Readout weights",
    "Mean of router logits", "Variance of router logits", "Gradient at router logits",
]  # fmt: skip


def observed(scale: float) -> Observables:
    """All in proportion to ``scale``; a kernel's diagonal is 1, 2, 3, … over steps, the rest does not matter."""
    rows = np.full((INPUTS * (STEPS + 1), INPUTS * (STEPS + 1)), 7.0)
    np.fill_diagonal(rows, np.repeat(TIMES + 1, INPUTS))
    blocks = np.stack([np.full((INPUTS, INPUTS), 7.0) for _ in TIMES])
    for block, time in zip(blocks, TIMES, strict=True):
        np.fill_diagonal(block, 10 * (time + 1))
    found = {
        "f": np.outer(TIMES, [1.0, -1.0, 0.5]),
        "loss": 4 - TIMES,
        **dict.fromkeys(("phi1", "phi3", "g1"), rows),
        **dict.fromkeys(("phi2", "g2", "router_gradient"), blocks),
        "g3": np.outer(TIMES, TIMES),
        "router_mean": np.outer(TIMES, [1.0, 2.0, 6.0]),
        "router_variance": np.outer(TIMES + 1, [0.1, 0.2, 0.3]),
    }
    return {name: scale * each for name, each in found.items()}


def limit_of(draws: Sequence[Observables], warnings: Sequence[str] = ()) -> Solution:
    experiment = example("II", "mssp", inputs=TRAINED, test_inputs=UNSEEN, steps=STEPS)
    found, nothing = averaged(draws), averaged([{}])
    return Solution(experiment, constants(experiment), Samples(1, 1, 1), found, tuple(draws), nothing, tuple(warnings))


def with_networks(solution: Solution, widths: Sequence[int] = (16, 32)) -> Comparison:
    """Their mean deviates by 8/N, with a noise of 0.01; so does the mean of every other one."""
    noise = np.array([-1, -1, 1, 1]) * 0.01 * 3**0.5
    return compared(solution, {width: [observed(1 + 8 / width + each) for each in noise] for width in widths})


LIMIT = limit_of([observed(0.9), observed(1.1)])  # 1 ± 0.1
COMPARISON = with_networks(LIMIT)
TRIVIAL = limit_of([observed(0.0), observed(0.0)], ["the limit is trivial"])


def limits(figure: Any, heading: str) -> list[Any]:
    return drawn(figure, xaxis=panel_axes(figure)[heading], name="limit, N → ∞", mode="lines")


def y_axis(figure: Any, heading: str) -> Any:
    return figure.layout[panel_axes(figure)[heading].replace("x", "yaxis")]


def domains(figure: Any) -> Mapping[str, tuple[float, float]]:
    return {heading: figure.layout[axis.replace("x", "xaxis")].domain for heading, axis in panel_axes(figure).items()}


def test_every_quantity_has_a_panel_and_a_comparison_one_more() -> None:
    assert list(panel_axes(dmft_figure(LIMIT))) == HEADINGS
    assert list(panel_axes(dmft_figure(LIMIT, COMPARISON))) == [*HEADINGS, "Distance from the limit"]


def test_the_panels_fill_the_first_row_with_and_without_a_comparison() -> None:
    alone, beside = domains(dmft_figure(LIMIT)), domains(dmft_figure(LIMIT, COMPARISON))
    assert alone["Training loss"][0] == 0
    assert alone["Outputs"][1] == pytest.approx(1)
    assert alone["Training loss"][1] < alone["Outputs"][0]
    assert beside["Outputs"][1] < beside["Distance from the limit"][0]
    assert beside["Distance from the limit"] == beside["Sum over experts"]


@pytest.mark.parametrize(
    ("heading", "label", "values"),
    [
        ("Training loss", "loss", (4, 3, 2, 1)),
        ("Features", "tr Φ¹(t,t) / P", (1, 2, 3, 4)),
        ("Expert units behind their gates", "tr Φ²(t,t) / P", (10, 20, 30, 40)),
        ("Sum over experts", "tr Φ³(t,t) / P", (1, 2, 3, 4)),
        ("Gradient at features", "tr G¹(t,t) / P", (1, 2, 3, 4)),
        ("Gradient at expert units", "tr G²(t,t) / P", (10, 20, 30, 40)),
        ("Readout weights", "G³(t,t)", (0, 1, 4, 9)),
        ("Mean of router logits", "mean ψ", (0, 3, 6, 9)),
        ("Variance of router logits", "var ψ", (0.2, 0.4, 0.6, 0.8)),
        ("Gradient at router logits", "tr G<sup>ψ</sup>(t,t) / P", (10, 20, 30, 40)),
    ],
)
def test_the_limit_is_a_line_over_steps(heading: str, label: str, values: Sequence[float]) -> None:
    figure = dmft_figure(LIMIT)
    (line,) = limits(figure, heading)
    assert line.x == (0, 1, 2, 3)
    assert line.y == pytest.approx(values)
    assert y_axis(figure, heading).title.text == label
    assert y_axis(figure, heading).type is None  # linear: some of it may be zero


def test_bands_are_one_standard_error_wide() -> None:
    figure = dmft_figure(LIMIT)
    (band,) = drawn(figure, xaxis=panel_axes(figure)["Training loss"], fill="toself")
    assert band.x == (0, 1, 2, 3, 3, 2, 1, 0)
    assert band.y == pytest.approx((4.4, 3.3, 2.2, 1.1, 0.9, 1.8, 2.7, 3.6))


def test_errors_of_traces_are_those_between_solutions() -> None:
    """The entries of one diagonal may err together, which their own errors do not tell."""
    figure = dmft_figure(LIMIT)
    (band,) = drawn(figure, xaxis=panel_axes(figure)["Features"], fill="toself")
    assert band.y[:4] == pytest.approx((1.1, 2.2, 3.3, 4.4))


def test_every_input_has_its_output_and_the_unseen_are_dotted() -> None:
    figure = dmft_figure(LIMIT)
    lines = limits(figure, "Outputs")
    assert [line.y[-1] for line in lines] == pytest.approx([3, -3, 1.5])
    assert [line.line.dash for line in lines] == ["solid", "solid", "2px,3px"]
    assert "one line for each of P = 3 inputs" in texts(figure)
    (targets,) = drawn(figure, name="target")
    assert targets.y == pytest.approx(LIMIT.experiment.targets)
    assert min(targets.x) > STEPS
    beside = drawn(dmft_figure(LIMIT, COMPARISON), xaxis="x2", name="N = 16")
    assert [line.line.dash for line in beside] == ["solid", "solid", "2px,3px"]


def test_without_unseen_inputs_the_legend_has_no_dots() -> None:
    assert "unseen inputs" in {trace.name for trace in dmft_figure(LIMIT).data}
    seen = solve(example("II", "mssp", inputs=2, steps=2), samples=200, solves=2)
    assert "unseen inputs" not in {trace.name for trace in dmft_figure(seen).data}


def test_networks_are_solid_and_the_limit_is_dashed_on_top() -> None:
    figure = dmft_figure(LIMIT, COMPARISON)
    lines = drawn(figure, xaxis="x", mode="lines")
    assert [line.name for line in lines] == ["N = 16", "N = 32", "limit, N → ∞"]
    assert [line.line.dash for line in lines] == ["solid", "solid", "6px,4px"]
    assert lines[0].y == pytest.approx((6, 4.5, 3, 1.5))
    assert lines[2].line.width > lines[0].line.width


def test_wide_is_dark() -> None:
    lines = drawn(dmft_figure(LIMIT, with_networks(LIMIT, (8, 16, 32))), xaxis="x", mode="lines")[:3]
    lightness = [sum(map(int, re.findall(r"\d+", line.line.color))) for line in lines]
    assert lightness == sorted(lightness, reverse=True)


def test_distances_are_percentages_over_width_in_log_log() -> None:
    figure = dmft_figure(LIMIT, COMPARISON)
    axis = panel_axes(figure)["Distance from the limit"]
    lines = drawn(figure, xaxis=axis, mode="lines+markers")
    assert [line.name.partition(":")[0] for line in lines] == ["f", "Φ¹", "Φ³", "G¹"]
    assert len({line.marker.symbol for line in lines}) == 4
    for line in lines:
        assert line.y == pytest.approx((50, 25))
        assert line.error_y.array == pytest.approx((1, 1))
        assert line.name.startswith(f"{line.name.partition(':')[0]}: −1.00 ± ")
    places = [line.x[0] for line in lines]
    assert places == sorted(set(places))  # side by side
    assert places == pytest.approx([16] * 4, rel=0.05)
    across, up = figure.layout[axis.replace("x", "xaxis")], y_axis(figure, "Distance from the limit")
    assert (across.type, up.type) == ("log", "log")
    assert across.ticktext == ("16", "32")
    assert up.range[0] < math.log10(25) < math.log10(51) < up.range[1]
    (guide,) = drawn(figure, name="slope −1")
    assert guide.y[0] / guide.y[1] == pytest.approx(2)
    assert guide.y[0] > 50
    assert "means over networks ± their noise · converges" in texts(figure)


def test_a_bar_larger_than_its_distance_leaves_the_panel() -> None:
    at = COMPARISON.widths[1]
    noisy = replace(COMPARISON, widths=[COMPARISON.widths[0], replace(at, error=dict.fromkeys(at.error, 2.0))])
    line = drawn(dmft_figure(LIMIT, noisy), mode="lines+markers")[0]
    assert line.error_y.array[1] == pytest.approx(200)
    assert 0 < line.y[1] - line.error_y.arrayminus[1] < 1


def test_exponents_that_noise_hides_say_so() -> None:
    one = dmft_figure(LIMIT, with_networks(LIMIT, [16]))
    lines = drawn(one, mode="lines+markers")
    assert [line.name for line in lines] == [f"{name}: in the noise" for name in ("f", "Φ¹", "Φ³", "G¹")]
    assert lines[0].y == pytest.approx((50,))


def test_a_limit_that_is_zero_has_no_distance_and_no_log_axis() -> None:
    figure = dmft_figure(TRIVIAL, with_networks(TRIVIAL))
    assert "nothing to show:<br>the limit is zero" in texts(figure)
    assert not drawn(figure, mode="lines+markers")
    assert "log" not in {figure.layout[name].type for name in figure.layout if re.match("[xy]axis", name)}
    assert limits(figure, "Training loss")[0].y == (0, 0, 0, 0)
    assert "Exponents of N: none." in description_of(figure)


def test_a_quantity_that_is_zero_in_limit_and_networks_says_so() -> None:
    figure = dmft_figure(TRIVIAL)
    assert texts(figure).count("nothing to show:<br>zero throughout") == len(HEADINGS) - 1
    assert limits(figure, "Outputs")  # beside targets, which are not zero


def test_rounding_counts_as_zero() -> None:
    figure = dmft_figure(limit_of([observed(1e-17), observed(-1e-17)]))
    assert texts(figure).count("nothing to show:<br>zero throughout") == len(HEADINGS) - 1
    assert "e−1" not in description_of(figure)


def test_what_does_not_change_is_not_blown_up() -> None:
    still = {**observed(1.0), "loss": np.full(STEPS + 1, 0.6) + 1e-9 * TIMES}
    low, high = y_axis(dmft_figure(limit_of([still, still])), "Training loss").range
    assert high - low == pytest.approx(0.05 * 0.6)


def test_one_solution_has_no_band() -> None:
    figure = dmft_figure(limit_of([observed(1.0)]))
    assert not drawn(figure, fill="toself")
    assert "± 1 standard error" not in {trace.name for trace in figure.data}
    assert "standard error" not in description_of(figure)
    assert "nan" not in description_of(figure)


def test_what_is_not_finite_is_left_out() -> None:
    lost = {**observed(1.0), "loss": np.array([4.0, 3.0, np.nan, np.inf]), "g3": np.full((4, 4), np.nan)}
    figure = dmft_figure(limit_of([lost]))
    assert limits(figure, "Training loss")[0].y == (4, 3, None, None)
    assert "nothing to show:<br>not finite" in texts(figure)


def test_warnings_stand_under_the_title() -> None:
    long = "heavy tail " * 30
    figure = dmft_figure(limit_of([observed(1.0)], ["a < b", long]))
    assert texts(figure)[1].startswith("Note: a &lt; b<br>Note: heavy tail ")
    assert texts(figure)[1].count("<br>") > 1
    assert "Note: a < b." in description_of(figure)
    assert figure.layout.margin.t > dmft_figure(limit_of([observed(1.0)])).layout.margin.t + 24


@pytest.mark.parametrize("comparison", [None, COMPARISON, with_networks(LIMIT, [2**k for k in range(1, 15)])])
def test_legends_name_every_line_once_and_stand_clear_of_the_panels(comparison: Comparison | None) -> None:
    figure = dmft_figure(LIMIT, comparison)
    named = [(trace.legend or "legend", trace.name) for trace in figure.data if trace.showlegend]
    assert len(named) == len(set(named))
    lines = {(trace.legend or "legend", trace.name) for trace in drawn(figure) if trace.mode != "none"}
    assert lines <= set(named)
    ranked = sorted((trace for trace in figure.data if trace.showlegend), key=lambda trace: trace.legendrank)
    order = [trace.name for trace in ranked if trace.legend != "legend2"]
    widths = [] if comparison is None else [f"N = {at.width}" for at in comparison.widths]
    assert order == [*widths, "limit, N → ∞", "target", "unseen inputs", "± 1 standard error"]
    tops = [(1 - figure.layout[legend].y) * figure.layout.height for legend in {legend for legend, _ in named}]
    assert len(set(tops)) == len(tops)  # one under the other
    assert max(tops) + 24 < figure.layout.margin.t


@pytest.mark.parametrize("solution", [LIMIT, TRIVIAL])
def test_a_panel_without_data_keeps_its_axes(solution: Solution) -> None:
    for figure in (dmft_figure(solution), dmft_figure(solution, with_networks(solution))):
        axes = {name for name in figure.layout.to_plotly_json() if name.startswith("xaxis")}
        # Else plotly would drop the axis, and its heading would stand above another panel.
        assert axes == {trace.xaxis.replace("x", "xaxis") for trace in figure.data if trace.xaxis}


def test_the_figure_says_in_words_what_it_shows() -> None:
    words = description_of(dmft_figure(LIMIT, COMPARISON))
    assert words.startswith("The limit of mssp in regime II: M/N = 0.5, Nₑ = 2, ")
    assert "the mean of 2 solutions with bands of one standard error" in words
    assert "finite networks of width N = 16 (4 seeds), 32 (4 seeds)." in words
    assert "Training loss: from 4 to 1 ± 0.1; N = 32 comes to 1.25." in words
    assert "Outputs: from 0, 0, 0 to 3 ± 0.3, −3 ± 0.3, 1.5 ± 0.15; N = 32 comes to 3.75, −3.75, 1.875." in words
    assert "Distance from the limit over width: converges" in words
    assert "Exponents of N: f: −1.00 ± " in words
    assert not re.search(r"-\d|nan|<", words)


def test_equal_limits_give_equal_pages() -> None:
    assert page_of(dmft_figure(LIMIT, COMPARISON)) == page_of(dmft_figure(LIMIT, COMPARISON))


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_limits_of_all_regimes_are_drawn_beside_networks(regime: str) -> None:
    limit = solve(example(regime, "mssp", inputs=2, steps=2), samples=200, solves=2)
    figure = dmft_figure(limit, compare(limit, [16, 32], seeds=2))
    assert list(panel_axes(figure)) == [*HEADINGS, "Distance from the limit"]
    (variance,) = limits(figure, "Variance of router logits")
    assert any(variance.y) == (regime != "I")  # there all experts have one logit
    says = any(text.startswith("nothing to show") for text in texts(figure))
    assert not says


def test_a_picture_of_what_a_file_holds_is_the_same() -> None:
    for comparison in (None, COMPARISON):
        kept = json.dumps(Overlay.of(LIMIT, comparison).json(), allow_nan=False)
        again = Overlay.from_json(json.loads(kept))
        assert json.dumps(again.json()) == kept
        assert overlay_figure(again) == dmft_figure(LIMIT, comparison)


@pytest.mark.parametrize("foreign", [{}, [], {"beside": [{}]}, {**Overlay.of(LIMIT).json(), "mean": None}])
def test_what_is_no_overlay_is_refused_in_one_line(foreign: Any) -> None:
    with pytest.raises(ValueError, match=r"^it is no result of mssp dmft --json: [^\n]+$"):
        Overlay.from_json(foreign)
