"""What figures of training runs show: lines of all runs, gaps, means of long runs, a panel for every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mssp.report.figure import DASHED
from mssp.report.figure_data import csv_of
from mssp.report.figures.run_layers import loads_figures, rates_figure, sizes_figures, updates_figure
from mssp.report.figures.run_lines import MOST_POINTS, Runs, thinned
from mssp.report.figures.runs import loss_figure, norms_figure, routers_figure, single_sizes_figure, speed_figure
from mssp.report.page.document import page_of
from mssp.train.logged_run import LoggedRun, logged_run
from tests.report.reading import headings, named, panel_of, series_of, there
from tests.report.training_logs import LINES, START, kept, step


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> LoggedRun:
    return logged_run(kept(tmp_path_factory.mktemp("one") / "run"))


@pytest.fixture(scope="module")
def two(one: LoggedRun, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    lines = [START, *(step(number, 6.0 - number) for number in range(1, 4))]
    return {"first": one, "second": logged_run(kept(tmp_path_factory.mktemp("two") / "run", lines, ()))}


def test_losses_of_all_runs_share_a_panel(two: Runs) -> None:
    figure = there(loss_figure(two))
    (panel,) = figure.panels
    assert [(line.name, line.part, [*line.x], [*line.y]) for line in panel.series] == [
        ("first", "training", [1, 2, 3, 4], [5.5, None, 4.0, 3.5]),  # a gap
        ("first", "validation", [2, 4], [4.5, 3.25]),
        ("second", "training", [1, 2, 3], [5.0, 4.0, 3.0]),
    ]
    assert named(figure) == [("runs", "first"), ("runs", "second"), ("marks", "training"), ("marks", "validation")]
    assert panel.series[0].colour == panel.series[1].colour != panel.series[2].colour
    assert "first at the end: training loss 3.5, validation loss 3.25." in figure.description
    assert ",first · training,step,2," not in csv_of(figure)


def test_norms_and_the_share_of_clipped_steps(two: Runs) -> None:
    figure = there(norms_figure(two))
    assert headings(figure) == ["norm of the gradients", "share of clipped steps, so far"]
    (limit,) = series_of(figure, dash=DASHED)
    assert ([*limit.x], [*limit.y]) == ([0, 4], [1.0, 1.0])
    assert [[*line.y] for line in series_of(figure, "norm of the gradients", legend="runs")] == [
        [2.0, 1.0, 2 / 3, 0.5], [2.0, 1.0, 2 / 3]
    ]  # fmt: skip


def test_groups_with_the_same_rates_share_a_line(two: Runs) -> None:
    figure = there(rates_figure(two))
    assert headings(figure) == ["first", "second"]
    lines = series_of(figure, "first")
    assert [(line.name, [*line.y]) for line in lines] == [
        ("norm", [0.008] * 4), ("expert_in, expert_out", [0.004] * 4), ("router", [0.0005, 0.001, 0.0015, 0.002])
    ]  # fmt: skip
    first, second = figure.panels
    assert first.y.look["range"] == second.y.look["range"]
    assert first.x.look["range"] == second.x.look["range"]


def test_routers_with_their_worst_layer(two: Runs) -> None:
    figure = there(routers_figure(two))
    assert headings(figure) == ["load of the fullest, over a fair one", "share of starved experts"]
    mean, worst = series_of(figure, "load of the fullest, over a fair one")
    assert ([*mean.y], [*worst.y], worst.part) == ([3.0, 2.0], [4.0, 4.0], "worst layer")
    assert panel_of(figure, "share of starved experts").subtitle == "alarm above 0"
    assert panel_of(figure, "share of starved experts").y.look["range"] == [-0.05, 1]


def test_runs_that_are_far_apart_are_on_a_logarithmic_axis(one: LoggedRun) -> None:
    def run(logits: float) -> LoggedRun:
        return LoggedRun(Path("run.jsonl"), numbers={"routers/logits": {1: logits}})

    near, far = (there(routers_figure({"a": run(0.5), "b": run(of_b)})) for of_b in (5.0, 50.0))
    assert [figure.panels[0].y.look.get("type") for figure in (near, far)] == [None, "log"]


def test_updates_and_measured_sizes_by_layer(two: Runs) -> None:
    updates = there(updates_figure(two))
    assert [(each.name, [*each.x], [*each.y]) for each in series_of(updates)] == [("router", [1, 3], [1.0, 0.25])]
    figures = sizes_figures(two)
    assert list(figures) == ["updates, layer by layer", "backward"]
    layers = figures["updates, layer by layer"]
    assert headings(layers) == ["first · effective updates"]
    assert [(each.name, each.legend, [*each.y]) for each in series_of(layers)] == [
        ("router", "layer", [None, 0.2]), ("norm", "other", [None, 0.4])  # zero has no place on a logarithmic axis
    ]  # fmt: skip
    assert [(each.name, [*each.y]) for each in series_of(figures["backward"])] == [("A4", [0.25])]
    assert headings(figures["backward"]) == ["first · backward"]  # several kinds are called backward terms
    single = there(single_sizes_figure(two))
    assert {panel.heading: [[*line.y] for line in panel.series] for panel in single.panels} == {
        "features/delta": [[0.0, 1.0]], "router/load": [[2.5]]
    }  # fmt: skip


def test_loads_from_the_fullest_expert_to_the_emptiest(two: Runs) -> None:
    figures = loads_figures(two)
    assert list(figures) == ["first"]
    (panel,) = figures["first"].panels
    assert {line.name: [*line.y] for line in panel.series} == {  # of five experts a fair load is a fifth
        "fullest": [2.5], "upper quarter": [1.25], "median": [0.625], "lower quarter": [0.625], "emptiest": [0.0]
    }  # fmt: skip
    deep = LoggedRun(Path("run.jsonl"), loads={f"blocks.{layer}": {1: [0.5, 0.5]} for layer in range(25)})
    (figure,) = loads_figures({"deep": deep}).values()
    assert headings(figure) == [f"blocks.{layer}" for layer in range(0, 25, 3)]
    assert "One of 3 of the 25 layers is shown." in figure.description


def test_speed_of_what_was_measured(two: Runs) -> None:
    figure = there(speed_figure(two))
    assert {panel.heading: [*panel.series[0].y] for panel in figure.panels} == {
        "tokens per second": [100.0, 200.0, 900.0],
        "share of the peak operations (MFU)": [None, None, 0.5],
        "largest memory, GiB": [None, None, 2.0],
    }
    assert "first: 200 tokens per second in the median." in figure.description


def test_long_runs_are_means_and_say_so() -> None:
    curve: dict[int, float | None] = dict.fromkeys(range(1, 2 * MOST_POINTS + 2), 1.0)
    curve |= {1: None, 2: 3.0, 3: None, 4: None, 5: None, 6: None}
    points = thinned(curve)
    assert len(points) == 334
    assert list(points.items())[:3] == [(3, 3.0), (6, None), (9, 1.0)]
    figure = there(loss_figure({"long": LoggedRun(Path("run.jsonl"), numbers={"loss": curve})}))
    assert figure.notes == ["Points are means over up to 3 steps."]


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    runs = {"empty": logged_run(kept(tmp_path / "run", LINES[:1], ()))}
    for draw in (loss_figure, norms_figure, routers_figure, rates_figure, updates_figure, speed_figure):
        assert draw(runs) is None
    assert single_sizes_figure(runs) is None
    assert sizes_figures(runs) == {}


def test_names_of_runs_are_text(one: LoggedRun) -> None:
    figure = there(loss_figure({"<b>a</b>": one}))
    assert {line.name for line in series_of(figure)} == {"&lt;b&gt;a&lt;/b&gt;"}
    assert "<b>a</b>" not in page_of(figure).partition('<script type="text/plain"')[0]
