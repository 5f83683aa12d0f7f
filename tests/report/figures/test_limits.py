"""What the figure of a limit shows: curves over steps, networks beside them, distances over width, and words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
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
from mssp.report.drawing import drawn
from mssp.report.figure import Figure, Series
from mssp.report.figures.limits import dmft_figure, overlay_figure
from mssp.report.page.document import page_of
from tests.report.reading import headings, named, panel_of, series_of

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


def limits(figure: Figure, heading: str) -> list[Series]:
    return series_of(figure, heading, name="limit, N → ∞")


def compared_lines(figure: Figure) -> list[Series]:
    return series_of(figure, "Distance from the limit", mode="lines+markers")


def why_empty(figure: Figure) -> list[str]:
    return [panel.why_empty for panel in figure.panels if panel.why_empty]


def test_every_quantity_has_a_panel_and_a_comparison_one_more() -> None:
    assert headings(dmft_figure(LIMIT)) == HEADINGS
    assert headings(dmft_figure(LIMIT, COMPARISON)) == [*HEADINGS, "Distance from the limit"]


def test_the_distance_from_the_limit_ends_the_first_row() -> None:
    alone, beside = (
        [[panel and panel.heading for panel in row] for row in figure.rows]
        for figure in (dmft_figure(LIMIT), dmft_figure(LIMIT, COMPARISON))
    )
    assert alone[0] == ["Training loss", "Outputs"]
    assert beside[0] == ["Training loss", "Outputs", "Distance from the limit"]
    assert alone[1:] == beside[1:]
    assert [len(row) for row in alone[1:]] == [3, 3, 3]


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
    assert list(line.x) == [0, 1, 2, 3]
    assert line.y == pytest.approx(list(values))
    axis = panel_of(figure, heading).y
    assert axis.title == label
    assert "type" not in axis.look  # linear: some of it may be zero


def test_bands_are_one_standard_error_wide() -> None:
    (line,) = limits(dmft_figure(LIMIT), "Training loss")
    assert line.band
    assert line.ci == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_errors_of_traces_are_those_between_solutions() -> None:
    """The entries of one diagonal may err together, which their own errors do not tell."""
    (line,) = limits(dmft_figure(LIMIT), "Features")
    assert line.ci == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_every_input_has_its_output_and_the_unseen_are_dotted() -> None:
    figure = dmft_figure(LIMIT)
    lines = limits(figure, "Outputs")
    assert [line.y[-1] for line in lines] == pytest.approx([3, -3, 1.5])
    assert [line.part for line in lines] == ["input 1", "input 2", "input 3"]
    assert [line.dash for line in lines] == ["solid", "solid", "2px,3px"]
    assert panel_of(figure, "Outputs").subtitle == "one line for each of P = 3 inputs"
    (targets,) = series_of(figure, name="target")
    assert targets.y == pytest.approx(LIMIT.experiment.targets)
    assert min(x for x in targets.x if x is not None) > STEPS
    beside = series_of(dmft_figure(LIMIT, COMPARISON), "Outputs", name="N = 16")
    assert [line.dash for line in beside] == ["solid", "solid", "2px,3px"]


def test_without_unseen_inputs_the_legend_has_no_dots() -> None:
    assert ("main", "unseen inputs") in named(dmft_figure(LIMIT))
    seen = solve(example("II", "mssp", inputs=2, steps=2), samples=200, solves=2)
    assert ("main", "unseen inputs") not in named(dmft_figure(seen))


def test_networks_are_solid_and_the_limit_is_dashed_on_top() -> None:
    lines = series_of(dmft_figure(LIMIT, COMPARISON), "Training loss")
    assert [line.name for line in lines] == ["N = 16", "N = 32", "limit, N → ∞"]
    assert [line.dash for line in lines] == ["solid", "solid", "6px,4px"]
    assert lines[0].y == pytest.approx([6, 4.5, 3, 1.5])
    assert lines[2].width > lines[0].width


def test_wide_is_dark() -> None:
    lines = series_of(dmft_figure(LIMIT, with_networks(LIMIT, (8, 16, 32))), "Training loss")[:3]
    lightness = [sum(map(int, re.findall(r"\d+", line.colour.split("|")[0]))) for line in lines]
    assert lightness == sorted(lightness, reverse=True)


def test_distances_are_percentages_over_width_in_log_log() -> None:
    figure = dmft_figure(LIMIT, COMPARISON)
    lines = compared_lines(figure)
    assert [line.name.partition(":")[0] for line in lines] == ["f", "Φ¹", "Φ³", "G¹"]
    assert len({line.symbol for line in lines}) == 4
    for line in lines:
        assert line.x == [16, 32]
        assert line.y == pytest.approx([50, 25])
        assert line.ci == pytest.approx([1, 1])
        assert line.name.startswith(f"{line.name.partition(':')[0]}: −1.00 ± ")
    places = [line.at_x[0] for line in lines]
    assert places == sorted(set(places))  # side by side
    assert places == pytest.approx([16] * 4, rel=0.05)
    panel = panel_of(figure, "Distance from the limit")
    assert (panel.x.look["type"], panel.y.look["type"]) == ("log", "log")
    assert panel.x.look["ticktext"] == ["16", "32"]
    low, high = panel.y.look["range"]
    assert low < math.log10(25) < math.log10(51) < high
    (guide,) = series_of(figure, name="slope −1")
    assert guide.y == pytest.approx([1.6 * 50, 0.8 * 50])
    assert panel.subtitle == "means over networks ± their noise · converges"


def test_a_bar_larger_than_its_distance_leaves_the_panel() -> None:
    at = COMPARISON.widths[1]
    noisy = replace(COMPARISON, widths=[COMPARISON.widths[0], replace(at, error=dict.fromkeys(at.error, 2.0))])
    line = compared_lines(dmft_figure(LIMIT, noisy))[0]
    assert line.ci[1] == pytest.approx(200)
    assert line.ci_down[1] == pytest.approx(25, rel=0.01)
    assert line.ci_down[1] < 25


def test_exponents_that_noise_hides_say_so() -> None:
    lines = compared_lines(dmft_figure(LIMIT, with_networks(LIMIT, [16])))
    assert [line.name for line in lines] == [f"{name}: in the noise" for name in ("f", "Φ¹", "Φ³", "G¹")]
    assert lines[0].y == pytest.approx([50])


def test_a_limit_that_is_zero_has_no_distance_and_no_log_axis() -> None:
    figure = dmft_figure(TRIVIAL, with_networks(TRIVIAL))
    assert "the limit is zero" in why_empty(figure)
    assert not series_of(figure, mode="lines+markers")
    assert "log" not in {axis.look.get("type") for panel in figure.panels for axis in (panel.x, panel.y)}
    assert limits(figure, "Training loss")[0].y == [0, 0, 0, 0]
    assert "Exponents of N: none." in figure.summary


def test_a_quantity_that_is_zero_in_limit_and_networks_says_so() -> None:
    figure = dmft_figure(TRIVIAL)
    assert why_empty(figure) == ["zero throughout"] * (len(HEADINGS) - 1)
    assert limits(figure, "Outputs")  # beside targets, which are not zero


def test_rounding_counts_as_zero() -> None:
    figure = dmft_figure(limit_of([observed(1e-17), observed(-1e-17)]))
    assert why_empty(figure) == ["zero throughout"] * (len(HEADINGS) - 1)
    assert "e−1" not in figure.summary


def test_what_does_not_change_is_not_blown_up() -> None:
    still = {**observed(1.0), "loss": np.full(STEPS + 1, 0.6) + 1e-9 * TIMES}
    low, high = panel_of(dmft_figure(limit_of([still, still])), "Training loss").y.look["range"]
    assert high - low == pytest.approx(0.05 * 0.6)


def test_one_solution_has_no_band() -> None:
    figure = dmft_figure(limit_of([observed(1.0)]))
    assert not any(math.isfinite(ci) for line in series_of(figure) for ci in line.ci)
    assert ("main", "± 1 standard error") not in named(figure)
    assert "standard error" not in figure.summary
    assert "nan" not in figure.summary


def test_what_is_not_finite_is_left_out() -> None:
    lost = {**observed(1.0), "loss": np.array([4.0, 3.0, np.nan, np.inf]), "g3": np.full((4, 4), np.nan)}
    figure = dmft_figure(limit_of([lost]))
    assert limits(figure, "Training loss")[0].y == [4, 3, None, None]
    assert why_empty(figure) == ["not finite"]


def test_warnings_are_notes() -> None:
    figure = dmft_figure(limit_of([observed(1.0)], ["a < b", "heavy tail"]))
    assert figure.notes == ["Note: a < b", "Note: heavy tail"]
    assert "Note: a < b." in figure.summary


@pytest.mark.parametrize("comparison", [None, COMPARISON, with_networks(LIMIT, [2**k for k in range(1, 15)])])
def test_legends_name_every_line_in_order(comparison: Comparison | None) -> None:
    figure = dmft_figure(LIMIT, comparison)
    assert {(line.legend, line.name) for line in series_of(figure)} <= set(named(figure))
    ranks = {line.name: line.rank for line in (*series_of(figure), *figure.marks) if line.legend == "main"}
    widths = [] if comparison is None else [f"N = {at.width}" for at in comparison.widths]
    order = [name for name in sorted(ranks, key=lambda name: ranks[name]) if name != "target"]
    assert order == [*widths, "limit, N → ∞", "unseen inputs", "± 1 standard error"]


def test_the_figure_says_in_words_what_it_shows() -> None:
    words = dmft_figure(LIMIT, COMPARISON).description
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
    assert headings(figure) == [*HEADINGS, "Distance from the limit"]
    (variance,) = limits(figure, "Variance of router logits")
    assert any(variance.y) == (regime != "I")  # there all experts have one logit
    assert not why_empty(figure)


def test_a_picture_of_what_a_file_holds_is_the_same() -> None:
    for comparison in (None, COMPARISON):
        kept = json.dumps(Overlay.of(LIMIT, comparison).json(), allow_nan=False)
        again = Overlay.from_json(json.loads(kept))
        assert json.dumps(again.json()) == kept
        assert drawn(overlay_figure(again)) == drawn(dmft_figure(LIMIT, comparison))


@pytest.mark.parametrize("foreign", [{}, [], {"beside": [{}]}, {**Overlay.of(LIMIT).json(), "mean": None}])
def test_what_is_no_overlay_is_refused_in_one_line(foreign: Any) -> None:
    with pytest.raises(ValueError, match=r"^corrupt limit file: [^\n]+$"):
        Overlay.from_json(foreign)
