"""What figures show: their traces, their words, and what they refuse."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from mssp.report.canvas import description_of
from mssp.report.figures.sweeps import heatmaps, scaling_figure, transfer_figure
from mssp.sweep.metrics import Metric
from mssp.sweep.transfer import Score, Transfer

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


def with_loss_of(found: Transfer, width: int, k: int, seeds: tuple[int, ...]) -> Transfer:
    """The same, where some runs diverged."""
    lost = [(width, 2.0**k, seed) for seed in seeds]
    scores = [replace(s, value=math.nan) if (s.width, s.lr, s.seed) in lost else s for s in found.scores]
    return Transfer(found.metric, scores)


def traces(figure: Any, **wanted: Any) -> list[Any]:
    """Those with data, by what is wanted of them."""
    with_data = [trace for trace in figure.data if trace.type == "heatmap" or tuple(trace.x) != (None,)]
    return [trace for trace in with_data if all(getattr(trace, n, None) == value for n, value in wanted.items())]


def stars(figure: Any) -> list[Any]:
    return [trace for trace in traces(figure, mode="markers") if trace.marker.symbol == "star"]


def texts(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


TWO = {"Regime II · mup · sgd": transfer(drift=0.5, gain=0.0), "Regime II · mssp · sgd": transfer()}


def test_transfer_has_a_line_a_band_and_a_star_per_width_and_panel() -> None:
    figure = transfer_figure(TWO, "Transfer")
    lines = traces(figure, mode="lines+markers")
    assert [(line.xaxis, line.name) for line in lines] == [
        (x, f"N = {width}") for x in ("x", "x2") for width in (64, 128, 256)
    ]
    assert lines[0].x == tuple(RATES)
    assert lines[0].y[3] == pytest.approx(0.5)
    assert len(traces(figure, fill="toself")) == 6
    assert [round(star.x[0], 6) for star in stars(figure)] == [-3, -2.5, -2, -3, -3, -3]
    assert [round(star.y[0], 3) for star in stars(figure)[3:]] == [0.5, 0.6, 0.7]


def test_the_legend_names_each_width_and_each_mark_once() -> None:
    figure = transfer_figure(TWO, "Transfer")
    assert [trace.name for trace in figure.data if trace.showlegend] == [
        "N = 64", "N = 128", "N = 256", "best learning rate", "best for N = 64", "95 % CI over seeds",
    ]  # fmt: skip


def test_wide_is_dark() -> None:
    lines = traces(transfer_figure(TWO, "Transfer"), mode="lines+markers", xaxis="x")
    lightness = [sum(map(int, re.findall(r"\d+", line.line.color))) for line in lines]
    assert lightness == sorted(lightness, reverse=True)


def test_a_band_is_the_confidence_interval() -> None:
    found = transfer()
    band = traces(transfer_figure({"mssp": found}, "Transfer"), fill="toself")[0]
    here = found.shown(64, 2.0**-6)
    assert band.y[0] == pytest.approx(here.value + here.ci)
    assert band.y[-1] == pytest.approx(here.value - here.ci)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_runs_that_diverged_leave_a_gap(seeds: tuple[int, ...]) -> None:
    figure = transfer_figure({"mssp": with_loss_of(transfer(), 128, -1, seeds)}, "Transfer")
    line = traces(figure, mode="lines+markers")[1]
    assert [y is None for y in line.y] == [False] * 5 + [True, False]
    assert not line.connectgaps
    band = traces(figure, fill="toself")[1]
    assert band.x == (-6, -5, -4, -3, -2, -2, -3, -4, -5, -6, None, 0, 0)
    lost = "1 run" if len(seeds) == 1 else "3 runs"
    assert f"; {lost} diverged." in description_of(figure)


def test_a_width_that_always_diverged_has_no_star() -> None:
    found = transfer()
    for k in RATES:
        found = with_loss_of(found, 256, k, (0, 1, 2))
    figure = transfer_figure({"mssp": found}, "Transfer")
    assert len(stars(figure)) == 2
    assert "none for N = 256" in description_of(figure).replace("2^(none)", "none")


def test_verdicts_stand_above_panels_with_a_minus_sign_and_their_uncertainty() -> None:
    shown = texts(transfer_figure(TWO | {"Regime III · mssp · sgd": transfer(drift=-0.02)}, "Transfer"))
    assert "best lr drifts up: 0.50 ± 0.00 per doubling · wider is better: stalls" in shown
    assert "<b>Regime II · μP · SGD</b>" in shown
    assert "best lr stays: −0.02 ± 0.00 per doubling · wider is better: yes" in shown


def test_a_dashed_line_marks_the_smallest_widths_best_rate() -> None:
    shapes = transfer_figure(TWO, "Transfer").layout.shapes
    assert [(round(shape.x0, 6), shape.x1 == shape.x0, shape.line.dash, shape.xref) for shape in shapes] == [
        (-3, True, "dash", "x"), (-3, True, "dash", "x2"),
    ]  # fmt: skip


def test_a_best_rate_at_the_grids_end_is_an_open_star() -> None:
    figure = transfer_figure({"mssp": transfer(drift=1.5)}, "Transfer")
    assert [star.marker.color == "white" for star in stars(figure)] == [False, False, True]
    assert "best, at the grid’s end" in [trace.name for trace in figure.data]


def test_schemes_are_columns_with_a_score_axis_per_row() -> None:
    keys = [f"Regime {r} · {s} · sgd" for r in ("I", "II", "III") for s in ("mup", "mssp")]
    layout = transfer_figure({key: transfer(gain=0.1 * i) for i, key in enumerate(keys)}, "Transfer").layout
    places = [(layout[f"xaxis{n}"].domain[0], layout[f"yaxis{n}"].domain[0]) for n in ("", *range(2, 7))]
    assert [x > 0 for x, _ in places] == [False, True] * 3
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    assert layout.yaxis.range == layout.yaxis2.range != layout.yaxis3.range
    assert (layout.yaxis.showticklabels, layout.yaxis2.showticklabels) == (True, False)
    assert (layout.xaxis.title.text, layout.xaxis5.title.text) == (None, "learning rate")
    assert layout.xaxis.ticktext[:2] == ("2<sup>−6</sup>", "2<sup>−5</sup>")


def test_panels_are_as_large_among_twelve_as_among_five() -> None:
    sizes = []
    for count in (5, 12):
        layout = transfer_figure({f"setting {i}": transfer() for i in range(count)}, "Transfer").layout
        across = layout.width - layout.margin.l - layout.margin.r
        sizes.append(round(across * (layout.xaxis.domain[1] - layout.xaxis.domain[0])))
    assert sizes == [460, 460]


def test_a_loss_that_explodes_does_not_flatten_the_others() -> None:
    found = transfer(metric=LOSS)
    exploded = Transfer(LOSS, [replace(s, value=1e4) if s.lr == 1 else s for s in found.scores])
    high = transfer_figure({"mssp": exploded}, "Transfer").layout.yaxis.range[1]
    assert 0.5 < high < 2


def test_scaling_has_two_lines_per_scheme_with_error_bars() -> None:
    figure = scaling_figure(TWO)
    lines = [(t.name, t.line.dash, [round(y, 3) for y in t.y]) for t in traces(figure)]
    assert lines == [
        ("μP", "solid", [0.5, 0.495, 0.5]), ("μP", "dash", [0.5, 0.495, 0.48]),
        ("MSSP", "solid", [0.5, 0.6, 0.7]), ("MSSP", "dash", [0.5, 0.6, 0.7]),
    ]  # fmt: skip
    assert all(bar > 0 for trace in traces(figure) for bar in trace.error_y.array)
    assert figure.layout.xaxis.ticktext == ("64", "128", "256")
    assert [trace.name for trace in figure.data if trace.showlegend][:2] == ["μP", "MSSP"]
    assert "Regime II · SGD · MSSP: 0.500 ± 0.009 at N = 64" in description_of(figure)


def test_scaling_leaves_a_gap_where_the_smallest_widths_rate_diverges() -> None:
    figure = scaling_figure({"mup": with_loss_of(transfer(drift=1.0), 256, -3, (1,))})
    own, moved = traces(figure)
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


def test_there_is_a_heatmap_for_every_pair_with_a_star_on_the_optimum() -> None:
    figure = heatmaps(*neighbours(), NAMES, BEST, "accuracy")
    maps = traces(figure, type="heatmap")
    assert len(maps) == len(stars(figure)) == 15
    # Points that two pairs share were run twice, with 0.40 and 0.49: cells hold their mean.
    rows = [[0.39, 0.445, 0.39], [0.445, 0.5, 0.445], [0.39, 0.445, 0.39]]
    assert [list(row) for row in maps[0].z] == [pytest.approx(row) for row in rows]
    assert {(star.x[0], star.y[0]) for star in stars(figure)} == {(1, 1)}
    assert figure.layout.xaxis.ticktext == ("4<sup>−3</sup>", "4<sup>−2</sup>", "4<sup>−1</sup>")


def test_cells_hold_their_scores_and_those_not_run_are_blank() -> None:
    points = [{"a": a, "b": b} for a, b in ((1, 1), (2, 1), (8, 1), (1, 2), (1, 2), (2, 2))]
    figure = heatmaps(points, [3.0, 2.0, 1.0, 0.5, 0.7, math.nan], ["a", "b"], {"a": 1, "b": 1}, "accuracy")
    (cells,) = traces(figure, type="heatmap")
    assert [list(row) for row in cells.z] == [[3.0, 2.0, None, 1.0], [pytest.approx(0.6), None, None, None]]
    (crosses,) = [trace for trace in traces(figure, mode="markers") if trace.marker.symbol == "x-thin"]
    assert (crosses.x, crosses.y) == ((1,), (1,))
    assert figure.layout.xaxis.ticktext == tuple(f"2<sup>{k}</sup>" for k in range(4))


def test_points_away_from_the_optimum_in_other_multipliers_are_left_out() -> None:
    points = [dict.fromkeys("abc", 1.0), {"a": 4.0, "b": 1.0, "c": 1.0}, {"a": 4.0, "b": 4.0, "c": 4.0}]
    figure = heatmaps(points, [1.0, 2.0, 3.0], ["a", "b", "c"], points[0], "loss", higher_is_better=False)
    values = [[v for row in m.z for v in row if v is not None] for m in traces(figure, type="heatmap")]
    assert values == [[1.0, 2.0], [1.0, 2.0], [1.0]]
    assert figure.layout.coloraxis.reversescale  # the optimum is the lowest: low is bright
    assert description_of(figure).endswith("(a 1, b 1, c 1): 1 there, from 1 to 2 around it.")


def test_figures_say_in_words_what_they_show() -> None:
    words = description_of(transfer_figure(TWO, "Transfer"))
    assert words.startswith(
        "Transfer. It shows training accuracy over the learning rate for 3 widths: means over 3 seeds"
    )
    assert "2^(−3.00 ± 0.00) for N = 64 (score 0.500 ± 0.009) and 2^(−2.00 ± 0.00) for N = 256" in words


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ({}, "a figure has 1 to 12 panels, got 0"),
        ({str(i): transfer() for i in range(13)}, "a figure has 1 to 12 panels, got 13"),
        ({"a": transfer(), "b": transfer(metric=LOSS)}, "have different metrics: accuracy, loss"),
        ({"a": Transfer(ACCURACY, [])}, "there are no scores for 'a': nothing to draw"),
    ],
)
def test_mistakes_are_named(panels: dict[str, Transfer], message: str) -> None:
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
    for module in ("plotly", "plotly.colors", "plotly.graph_objects"):
        monkeypatch.setitem(sys.modules, module, None)
    for draw in (transfer_figure, scaling_figure):
        with pytest.raises(ValueError, match=re.escape("plots need plotly: pip install 'mssp[report]'")):
            draw(TWO, "Title")
