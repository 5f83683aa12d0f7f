"""What figures show: their traces, their words, and what they refuse."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from itertools import product

import pytest

from mssp.planning.setting import Setting
from mssp.report.colours import GROUND
from mssp.report.figure import Cells, Figure, Series
from mssp.report.figures.sweeps import heatmaps, scaling_figure, transfer_figure
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Contender, Score, Transfer
from tests.report.reading import headings, named, series_of

ACCURACY = Metric("accuracy", True, "training accuracy")
LOSS = Metric("loss", False, "training loss")
NOISE = (-0.004, 0.001, 0.003)  # by seed
RATES = range(-6, 1)


def transfer(drift: float = 0.0, gain: float = 0.1, metric: Metric = ACCURACY) -> Transfer:
    """Parabolas in log2 of the rate with their tops at −3 + drift per doubling; 3 widths, 7 rates, 3 seeds."""
    sign = 1 if metric.higher_is_better else -1
    return Transfer(
        metric,
        [
            Score(64 * 2**i, 2.0**k, seed, 0.5 + sign * (gain * i - 0.02 * (k + 3 - drift * i) ** 2 + NOISE[seed]))
            for i, k, seed in product(range(3), RATES, range(3))
        ],
    )


def of(scheme: str, regime: str | None = "II", active: int | None = None) -> Contender:
    return Contender(Setting.of(scheme, regime, "sgd"), active)


def with_loss_of(found: Transfer, width: int, k: int, seeds: tuple[int, ...]) -> Transfer:
    """The same, where some runs diverged."""
    lost = [(width, 2.0**k, seed) for seed in seeds]
    scores = [replace(s, value=math.nan) if (s.width, s.lr, s.seed) in lost else s for s in found.scores]
    return Transfer(found.metric, scores)


def stars(figure: Figure) -> list[Series]:
    return series_of(figure, part="best learning rate")


def lines(figure: Figure, heading: str = "") -> list[Series]:
    return series_of(figure, heading, mode="lines+markers")


TWO = {of("mup"): transfer(drift=0.5, gain=0.0), of("mssp"): transfer()}


def test_transfer_has_a_line_a_band_and_a_star_per_width_and_panel() -> None:
    figure = transfer_figure(TWO, "Transfer")
    assert headings(figure) == ["Regime II · μP · SGD", "Regime II · MSSP · SGD"]
    for heading in headings(figure):
        assert [line.name for line in lines(figure, heading)] == ["N = 64", "N = 128", "N = 256"]
    first = lines(figure)[0]
    assert list(first.x) == [2.0**k for k in RATES]
    assert list(first.at_x) == list(RATES)
    assert first.y[3] == pytest.approx(0.5)
    assert all(line.band for line in lines(figure))
    assert [round(star.at_x[0], 6) for star in stars(figure)] == [-3, -2.5, -2, -3, -3, -3]
    assert [star.x[0] for star in stars(figure)][:1] == pytest.approx([2**-3])
    assert [round(star.y[0] or 0, 3) for star in stars(figure)[3:]] == [0.5, 0.6, 0.7]


def test_the_legend_names_each_width_and_each_mark() -> None:
    figure = transfer_figure(TWO, "Transfer")
    assert [name for _, name in named(figure)] == [
        "N = 64", "N = 128", "N = 256", "best learning rate", "best for N = 64", "95 % CI over seeds",
    ]  # fmt: skip


def test_wide_is_dark() -> None:
    colours = [line.colour.split("|")[0] for line in lines(transfer_figure(TWO, "Transfer"))[:3]]
    lightness = [sum(map(int, re.findall(r"\d+", colour))) for colour in colours]
    assert lightness == sorted(lightness, reverse=True)


def test_intervals_are_those_of_95_percent() -> None:
    found = transfer()
    line = lines(transfer_figure({of("mssp"): found}, "Transfer"))[0]
    here = found.shown(64, 2.0**-6)
    assert (line.y[0], line.ci[0]) == (here.value, here.ci)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_runs_that_diverged_leave_a_gap(seeds: tuple[int, ...]) -> None:
    figure = transfer_figure({of("mssp"): with_loss_of(transfer(), 128, -1, seeds)}, "Transfer")
    line = lines(figure)[1]
    assert [y is None for y in line.y] == [math.isnan(ci) for ci in line.ci] == [False] * 5 + [True, False]
    lost = "1 run" if len(seeds) == 1 else "3 runs"
    assert f"; {lost} diverged." in figure.summary


def test_a_width_that_always_diverged_has_no_star() -> None:
    found = transfer()
    for k in RATES:
        found = with_loss_of(found, 256, k, (0, 1, 2))
    figure = transfer_figure({of("mssp"): found}, "Transfer")
    assert len(stars(figure)) == 2
    assert "none for N = 256" in figure.summary.replace("2^(none)", "none")


def test_verdicts_have_a_minus_sign_and_their_uncertainty() -> None:
    panels = transfer_figure(TWO | {of("mssp", "III"): transfer(drift=-0.02)}, "Transfer").panels
    assert [panel.subtitle for panel in panels] == [
        "best lr drifts up: 0.50 ± 0.00 per doubling · wider is better: stalls",
        "best lr stays: 0.00 ± 0.00 per doubling · wider is better: yes",
        "best lr stays: −0.02 ± 0.00 per doubling · wider is better: yes",
    ]


def test_a_dashed_line_marks_the_smallest_widths_best_rate() -> None:
    lines_at = [panel.vertical_line for panel in transfer_figure(TWO, "Transfer").panels]
    assert lines_at == pytest.approx([-3, -3])


def test_a_best_rate_at_the_grids_end_is_an_open_star() -> None:
    figure = transfer_figure({of("mssp"): transfer(drift=1.5)}, "Transfer")
    assert [star.marker is not None and star.marker["color"] == GROUND for star in stars(figure)] == [
        False, False, True,
    ]  # fmt: skip
    assert "best, at the grid’s end" in [series.name for series in figure.marks]


def test_schemes_are_columns_with_a_score_axis_per_row() -> None:
    contenders = [of(scheme, regime) for regime in ("I", "II", "III") for scheme in ("mup", "mssp")]
    figure = transfer_figure({each: transfer(gain=0.1 * i) for i, each in enumerate(contenders)}, "Transfer")
    assert [[panel and panel.heading for panel in row] for row in figure.rows] == [
        [f"Regime {regime} · {scheme} · SGD" for scheme in ("μP", "MSSP")] for regime in ("I", "II", "III")
    ]
    ranges = [panel.y.look["range"] for panel in figure.panels]
    assert ranges[0] == ranges[1] != ranges[2]
    axis = figure.panels[0].x
    assert (axis.title, axis.look["ticktext"][:2]) == ("learning rate", ["2<sup>−6</sup>", "2<sup>−5</sup>"])


def test_a_setting_without_a_scheme_leaves_its_place_free() -> None:
    figure = transfer_figure({each: transfer() for each in (*TWO, of("mssp", "III"))}, "Transfer")
    assert [[panel is None for panel in row] for row in figure.rows] == [[False, False], [True, False]]


def test_what_differs_in_more_than_the_scheme_fills_rows() -> None:
    for count, columns in ((1, 1), (2, 2), (4, 2), (5, 3), (12, 3)):
        figure = transfer_figure({of("mssp", active=i): transfer() for i in range(1, count + 1)}, "Transfer")
        assert {len(row) for row in figure.rows} == {columns}
        assert len(figure.panels) == count
    assert figure.panels[1].heading == "Regime II · MSSP · SGD · 2 of 8 active"


def test_panels_are_as_large_among_twelve_as_among_five() -> None:
    figures = [transfer_figure({of("mssp", active=i): transfer() for i in range(1, n)}, "Transfer") for n in (6, 13)]
    assert [figure.size[0] for figure in figures] == [460, 460]


def test_a_loss_that_explodes_does_not_flatten_the_others() -> None:
    found = transfer(metric=LOSS)
    exploded = Transfer(LOSS, [replace(s, value=1e4) if s.lr == 1 else s for s in found.scores])
    high = transfer_figure({of("mssp"): exploded}, "Transfer").panels[0].y.look["range"][1]
    assert 0.5 < high < 2


def test_scaling_has_two_lines_per_scheme_with_error_bars() -> None:
    figure = scaling_figure(TWO)
    assert [(line.name, line.dash, [round(y or 0, 3) for y in line.y]) for line in series_of(figure)] == [
        ("μP", "solid", [0.5, 0.495, 0.5]), ("μP", "dash", [0.5, 0.495, 0.48]),
        ("MSSP", "solid", [0.5, 0.6, 0.7]), ("MSSP", "dash", [0.5, 0.6, 0.7]),
    ]  # fmt: skip
    assert all(line.x == [64, 128, 256] and line.bars and min(line.ci) > 0 for line in series_of(figure))
    assert figure.panels[0].x.look["ticktext"] == ["64", "128", "256"]
    assert [name for _, name in named(figure)][:2] == ["μP", "MSSP"]
    assert "Regime II · SGD · MSSP: 0.500 ± 0.009 at N = 64" in figure.summary


def test_scaling_leaves_a_gap_where_the_smallest_widths_rate_diverges() -> None:
    figure = scaling_figure({of("mup"): with_loss_of(transfer(drift=1.0), 256, -3, (1,))})
    own, moved = series_of(figure)
    assert None not in own.y
    assert [y is None for y in moved.y] == [False, False, True]


NAMES = ["init", "embedding", "router", "expert_in", "expert_out", "readout"]
BEST = {name: 4.0 ** (i - 2) for i, name in enumerate(NAMES)}


def neighbours() -> tuple[list[dict[str, float]], list[float]]:
    """Every multiplier moved by itself and with the next, by a factor of four either way."""
    points, scores = [], []
    for i, (a, b) in product(range(6), product((-1, 0, 1), repeat=2)):
        moved = {NAMES[i]: a, NAMES[(i + 1) % 6]: b}
        points.append({name: BEST[name] * 4.0 ** moved.get(name, 0) for name in NAMES})
        scores.append(0.5 - 0.1 * abs(a) - 0.01 * abs(b))
    return points, scores


def cells(figure: Figure) -> list[Cells]:
    return [panel.cells for panel in figure.panels if panel.cells is not None]


def test_there_is_a_heatmap_for_every_pair_with_a_star_on_the_optimum() -> None:
    figure = heatmaps(*neighbours(), NAMES, BEST, "accuracy")
    optima = series_of(figure, part="optimum")
    assert len(cells(figure)) == len(optima) == 15
    # Points that two pairs share were run twice, with 0.40 and 0.49: cells hold their mean.
    rows = [[0.39, 0.445, 0.39], [0.445, 0.5, 0.445], [0.39, 0.445, 0.39]]
    assert [list(row) for row in cells(figure)[0].z] == [pytest.approx(row) for row in rows]
    assert {(star.at_x[0], star.at_y[0]) for star in optima} == {(1, 1)}
    assert figure.panels[0].x.look["ticktext"] == ["4<sup>−3</sup>", "4<sup>−2</sup>", "4<sup>−1</sup>"]
    assert [[panel is not None for panel in row].count(True) for row in figure.rows] == [1, 2, 3, 4, 5]


def test_cells_hold_their_scores_and_those_not_run_are_blank() -> None:
    points = [{"a": a, "b": b} for a, b in ((1, 1), (2, 1), (8, 1), (1, 2), (1, 2), (2, 2))]
    figure = heatmaps(points, [3.0, 2.0, 1.0, 0.5, 0.7, math.nan], ["a", "b"], {"a": 1, "b": 1}, "accuracy")
    assert [list(row) for row in cells(figure)[0].z] == [
        [3.0, 2.0, None, 1.0], [pytest.approx(0.6), None, None, None],
    ]  # fmt: skip
    (crosses,) = series_of(figure, part="diverged")
    assert (crosses.x, crosses.y, crosses.at_x, crosses.at_y) == ([2], [2], [1], [1])
    assert figure.panels[0].x.look["ticktext"] == [f"2<sup>{k}</sup>" for k in range(4)]


def test_points_away_from_the_optimum_in_other_multipliers_are_left_out() -> None:
    points = [dict.fromkeys("abc", 1.0), {"a": 4.0, "b": 1.0, "c": 1.0}, {"a": 4.0, "b": 4.0, "c": 4.0}]
    figure = heatmaps(points, [1.0, 2.0, 3.0], ["a", "b", "c"], points[0], "loss", higher_is_better=False)
    values = [[v for row in each.z for v in row if v is not None] for each in cells(figure)]
    assert values == [[1.0, 2.0], [1.0, 2.0], [1.0]]
    assert figure.scale is not None
    assert figure.scale.reversed  # the optimum is the lowest: low is bright
    assert figure.summary.endswith("(a 1, b 1, c 1): 1 there, from 1 to 2 around it.")


def test_figures_say_in_words_what_they_show() -> None:
    words = transfer_figure(TWO, "Transfer").description
    assert words.startswith(
        "Transfer. It shows training accuracy over the learning rate for 3 widths: means over 3 seeds"
    )
    assert "2^(−3.00 ± 0.00) for N = 64 (score 0.500 ± 0.009) and 2^(−2.00 ± 0.00) for N = 256" in words


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ({}, "a figure has 1 to 12 panels, got 0"),
        ({of("mssp", active=i): transfer() for i in range(1, 14)}, "a figure has 1 to 12 panels, got 13"),
        ({of("mssp"): transfer(), of("mup"): transfer(metric=LOSS)}, "have different metrics: accuracy, loss"),
        ({of("mup"): Transfer(ACCURACY, [])}, "there are no scores for 'Regime II · mup · sgd': nothing to draw"),
    ],
)
def test_mistakes_are_named(panels: dict[Contender, Transfer], message: str) -> None:
    for draw in (transfer_figure, scaling_figure):
        with pytest.raises(ValueError, match=message):
            draw(panels, "Title")


@pytest.mark.parametrize(
    ("points", "scores", "names", "message"),
    [
        ([{"a": 1.0}], [1.0], ["a"], "a heatmap needs two multipliers or more, got a"),
        ([{"a": 1.0, "b": 1.0}], [], ["a", "b"], "every point has one score: got 1 points and 0 scores"),
        ([{"a": 1.0}], [1.0], ["a", "b"], "a point has no multiplier 'b': it has a"),
        ([{"a": 1.0, "b": 0.0}], [1.0], ["a", "b"], "multipliers are positive numbers, got b = 0.0"),
        ([{"a": 1.0, "b": 1.0}], [math.nan], ["a", "b"], "nothing to draw"),
    ],
)
def test_mistaken_heatmaps_are_named(
    points: list[dict[str, float]], scores: list[float], names: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        heatmaps(points, scores, names, dict.fromkeys(names, 1.0), "accuracy")


def test_without_plotly_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.colors", None)
    with pytest.raises(ValueError, match=re.escape("plots need plotly: pip install 'mssp[report]'")):
        transfer_figure(TWO, "Title")
