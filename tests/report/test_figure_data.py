"""Figures as tables: every point that is drawn is in them, as the number that it is."""

from __future__ import annotations

import csv
import math

import pytest

from mssp.report.drawing import drawn
from mssp.report.figure import Figure
from mssp.report.figure_data import csv_of
from mssp.report.figures.sweeps import heatmaps, transfer_figure
from tests.report.figures.test_sweeps import of, transfer, with_loss_of
from tests.report.reading import series_of
from tests.report.samples import FIGURES, SETTINGS


def rows_of(figure: Figure, **wanted: str) -> list[dict[str, str]]:
    rows = csv.DictReader(csv_of(figure).splitlines())
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def points(figure: Figure) -> int:
    """That are drawn: of lines, markers and cells."""
    count = 0
    for trace in drawn(figure)["data"]:
        if trace["type"] == "heatmap":
            count += sum(value is not None for row in trace["z"] for value in row)
        elif "fill" not in trace:
            count += sum(x is not None and y is not None for x, y in zip(trace["x"], trace["y"], strict=True))
    return count


@pytest.mark.parametrize("name", FIGURES)
def test_every_point_that_is_drawn_has_a_line(name: str) -> None:
    rows = rows_of(FIGURES[name])
    assert len(rows) == points(FIGURES[name])
    assert all(math.isfinite(float(row["x"])) and math.isfinite(float(row["y"])) for row in rows)


def test_a_transfer_is_over_learning_rates_not_over_their_logarithms() -> None:
    found = SETTINGS[of("mssp")]
    rows = rows_of(FIGURES["transfer"], panel="Regime II · MSSP · SGD", series="N = 128")
    assert [float(row["x"]) for row in rows] == [2.0**k for k in range(-6, 1)]
    assert {row["x axis"] for row in rows} == {"learning rate"}
    assert {row["y axis"] for row in rows} == {"training accuracy"}
    for row in rows:
        here = found.shown(128, float(row["x"]))
        assert float(row["y"]) == here.value  # at full precision
        assert [float(row["low"]), float(row["high"])] == [here.value - here.ci, here.value + here.ci]


def test_the_best_rate_is_a_line_of_its_own() -> None:
    (row,) = rows_of(FIGURES["transfer"], panel="Regime II · μP · SGD", series="N = 64 · best learning rate")
    assert float(row["x"]) == pytest.approx(2**-3)
    assert row["low"] == ""


def test_gaps_have_no_lines() -> None:
    figure = transfer_figure({of("mssp"): with_loss_of(transfer(), 128, -1, (0,))}, "Transfer")
    assert [float(row["x"]) for row in rows_of(figure, series="N = 128")] == [2.0**k for k in (-6, -5, -4, -3, -2, 0)]


def test_points_drawn_aside_are_where_they_belong_with_their_bars() -> None:
    series = "MSSP · best learning rate of the smallest width"
    rows = rows_of(FIGURES["scaling"], panel="Regime II · SGD", series=series)
    assert [row["x"] for row in rows] == ["64", "128", "256"]
    moved = series_of(FIGURES["scaling"], "Regime II · SGD", name="MSSP", dash="dash")[0]
    assert [float(row["high"]) - float(row["y"]) for row in rows] == pytest.approx(moved.ci)
    distances = rows_of(FIGURES["limit and networks"], panel="Distance from the limit")
    assert {row["x"] for row in distances} == {"16", "32"}
    assert [float(row["y"]) for row in distances[2:4]] == pytest.approx([50, 25])
    assert [float(distances[2][key]) for key in ("low", "high")] == pytest.approx([49, 51])


def test_lines_of_one_name_have_bands_of_their_own() -> None:
    rows = rows_of(FIGURES["limit"], panel="Outputs", x="3")
    limits = [row for row in rows if row["series"].startswith("limit")]
    assert [row["series"] for row in limits] == [f"limit, N → ∞ · input {i}" for i in (1, 2, 3)]
    ends = [[float(row[key]) for key in ("low", "y", "high")] for row in limits]
    assert ends == [pytest.approx(each) for each in ([2.7, 3, 3.3], [-3.3, -3, -2.7], [1.35, 1.5, 1.65])]


def test_cells_are_by_their_multipliers() -> None:
    points = [{"a": a, "b": b} for a, b in ((1, 1), (2, 1), (1, 4), (2, 4))]
    figure = heatmaps(points, [3.0, 2.0, 1.0, math.nan], ["a", "b"], {"a": 1, "b": 1}, "accuracy")
    assert [(r["series"], r["x axis"], float(r["x"]), r["y axis"], float(r["y"]), r["z"]) for r in rows_of(figure)] == [
        ("", "a", 1, "b", 1, "3.0"), ("", "a", 2, "b", 1, "2.0"), ("", "a", 1, "b", 4, "1.0"),
        ("diverged", "a", 2, "b", 4, ""), ("optimum", "a", 1, "b", 1, ""),
    ]  # fmt: skip


def test_inner_panels_of_a_triangle_have_their_axes_names() -> None:
    pairs = {(row["x axis"], row["y axis"]) for row in rows_of(FIGURES["heatmaps"])}
    assert ("expert_in", "expert_out") in pairs
    assert len(pairs) == 15


def test_columns_are_there_where_something_is_in_them() -> None:
    headers = {name: csv_of(FIGURES[name]).partition("\n")[0] for name in ("transfer", "sizes", "heatmaps")}
    assert headers == {
        "transfer": "panel,series,x axis,x,y axis,y,low,high",
        "sizes": "panel,series,x axis,x,y axis,y",
        "heatmaps": "panel,series,x axis,x,y axis,y,z",
    }
