"""Figures drawn for a width: where panels stand, what is written on them, and what is above them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Any

import pytest
from plotly.graph_objects import Figure as Plotly

from mssp.report.drawing import drawn, fixed, layout, traces
from mssp.report.figure import Axis, Figure, Panel, Series, in_rows, mark
from mssp.report.words import plain
from tests.report.samples import FIGURES

NAN = float("nan")
WIDTHS = (320, 390, 520, 700, 880, 1120, 2000)
REFLOWING = [name for name, figure in FIGURES.items() if figure.scale is None]
Box = tuple[float, float, float, float]  # left, right, lower and upper end, in pixels from the lower left


def figure_of(panels: list[Panel], columns: int, size: tuple[int, int] = (300, 100), **more: Any) -> Figure:
    return Figure(title="Title", summary="", rows=in_rows(panels, columns), size=size, gap=(20, 40), **more)


def boxes(layout: Mapping[str, Any]) -> dict[str, Box]:
    """Of panels, by number."""
    margin = layout["margin"]
    across = layout["width"] - margin["l"] - margin["r"]
    down = layout["height"] - margin["t"] - margin["b"]
    numbers = [key.removeprefix("xaxis") for key in layout if key.startswith("xaxis")]
    ends = {number: (layout[f"xaxis{number}"]["domain"], layout[f"yaxis{number}"]["domain"]) for number in numbers}
    return {n: (x[0] * across, x[1] * across, y[0] * down, y[1] * down) for n, (x, y) in ends.items()}


def columns(layout: Mapping[str, Any]) -> int:
    return len({round(left) for left, *_ in boxes(layout).values()})


def words_above(layout: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Headings and verdicts, with the number of their panel."""
    notes = [note for note in layout["annotations"] if note["xref"] != "paper" and note["y"] == 1]
    return [(note["xref"].removesuffix(" domain")[1:], note) for note in notes]


def legends(layout: Mapping[str, Any]) -> list[str]:
    """From the top."""
    names = [key for key in layout if re.fullmatch(r"legend\d*", key)]
    return sorted(names, key=lambda name: -float(layout[name]["y"]))


def from_top(layout: Mapping[str, Any], name: str) -> float:
    """Where a legend starts, in pixels."""
    return float((1 - layout[name]["y"]) * layout["height"])


def test_plotly_knows_every_word_of_every_figure() -> None:
    for figure in FIGURES.values():
        assert Plotly(drawn(figure)).layout.width == layout(figure)["width"]


def test_a_band_is_as_high_as_intervals_in_each_stretch() -> None:
    series = Series(name="a", x=range(4), y=[1.0, 2.0, None, 4.0], ci=[0.1, 0.2, NAN, 0.4], band=0.1)
    band, line = traces(figure_of([Panel(series=[series])], 1))
    assert band["x"] == [0, 1, 1, 0, None, 3, 3]
    assert band["y"] == [1.1, 2.2, 1.8, 0.9, None, 4.4, 3.6]
    assert (band["fillcolor"], band["legendgroup"]) == (line["line"]["color"], line["legendgroup"])
    assert not band["showlegend"]
    assert not traces(figure_of([Panel(series=[Series(name="a", x=[0], y=[1], ci=[NAN], band=0.1)])], 1))[0].get("fill")


def test_the_first_series_of_a_name_stands_in_the_legend() -> None:
    panels = [Panel(series=[Series(name=name, x=[0], y=[1]) for name in "aab"]) for _ in range(2)]
    shown = [trace["showlegend"] for trace in traces(figure_of(panels, 2, marks=[mark("c")]))]
    assert shown == [True, False, True, False, False, False, True]


def test_an_empty_panel_keeps_its_axes_and_says_why() -> None:
    empty = figure_of([Panel(heading="A", why_empty="zero"), Panel(series=[Series(name="a", x=[0], y=[1])])], 2)
    # Else plotly would drop the axis, and its heading would stand above another panel.
    assert [(trace["x"], trace["xaxis"]) for trace in traces(empty)] == [([None], "x"), ([0], "x2")]
    assert [note["text"] for note in layout(empty)["annotations"]] == ["<b>A</b>", "nothing to show:<br>zero"]
    assert not fixed(empty)["xaxis"]["showticklabels"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [  # of columns, by the widths above
        ("transfer", (1, 1, 1, 2, 2, 3, 3)),
        ("one setting", (1, 1, 1, 1, 1, 1, 1)),
        ("scaling", (1, 1, 1, 2, 2, 2, 2)),
        ("sizes", (1, 1, 1, 2, 2, 3, 4)),
        ("exponents", (1, 1, 1, 2, 2, 2, 2)),
        ("limit and networks", (1, 1, 1, 2, 2, 3, 3)),
    ],
)
def test_there_are_as_many_columns_as_fit(name: str, counts: tuple[int, ...]) -> None:
    assert tuple(columns(layout(FIGURES[name], width)) for width in WIDTHS) == counts


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFLOWING)
def test_panels_keep_their_heights_and_share_the_width(name: str, width: int) -> None:
    figure = FIGURES[name]
    placed = layout(figure, width)
    assert placed["width"] == min(width, layout(figure)["width"])
    for left, right, low, high in boxes(placed).values():
        assert high - low == pytest.approx(figure.size[1], abs=0.5)
        assert right - left >= 240
    assert min(left for left, *_ in boxes(placed).values()) == 0
    inner = placed["width"] - placed["margin"]["l"] - placed["margin"]["r"]
    assert max(right for _, right, _, _ in boxes(placed).values()) == pytest.approx(inner)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFLOWING)
def test_between_panels_there_is_room_for_labels_and_words(name: str, width: int) -> None:
    placed = layout(FIGURES[name], width)
    words = dict.fromkeys(boxes(placed), 0.0)  # pixels above a panel
    for number, note in words_above(placed):
        lines = note["text"].count("<br>") + 1
        words[number] = max(words[number], note["yshift"] + 1.3 * note["font"]["size"] * lines)
    for (one, a), (other, b) in combinations(boxes(placed).items(), 2):
        beside = a[1] < b[0] or b[1] < a[0]
        upper, lower, below = (a, b, other) if a[2] > b[2] else (b, a, one)
        if not beside:
            assert upper[2] - lower[3] >= words[below] + 36  # labels, and an axis' title or none
    assert placed["margin"]["t"] >= words[""]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFLOWING)
def test_words_above_panels_are_no_wider_than_these(name: str, width: int) -> None:
    placed = layout(FIGURES[name], width)
    for number, note in words_above(placed):
        left, right, _, _ = boxes(placed)[number]
        for line in note["text"].split("<br>"):
            assert 0.5 * note["font"]["size"] * len(plain(line)) <= right - left + 0.1


def test_words_break_at_dots_which_then_are_left_out() -> None:
    texts = [note["text"] for _, note in words_above(layout(FIGURES["transfer"], 700))]
    assert "best lr drifts up: 0.50 ± 0.00 per doubling<br>wider is better: yes" in texts


def test_headings_are_no_markup_and_break_at_spaces() -> None:
    placed = layout(figure_of([Panel(heading="One half-width, and <more> than that")], 1), 320)
    assert placed["annotations"][0]["text"] == "<b>One half-width, and &lt;more&gt;<br>than that</b>"


def test_panels_that_are_no_longer_beside_others_have_labels_of_their_own() -> None:
    wide, narrow = (layout(FIGURES["transfer"], width) for width in (2000, 360))
    numbers = list(boxes(wide))
    hidden = ["showticklabels" in wide[f"yaxis{number}"] for number in numbers]
    assert hidden == [False, True, True, False, True, True]
    assert ["title" in wide[f"xaxis{number}"] for number in numbers] == [False] * 3 + [True] * 3
    for number in numbers:
        assert "showticklabels" not in narrow[f"yaxis{number}"]
        assert narrow[f"yaxis{number}"]["title"]["text"] == "training accuracy"
        assert narrow[f"xaxis{number}"]["title"]["text"] == "learning rate"


def test_panels_that_stay_beside_others_still_share_labels() -> None:
    placed = layout(FIGURES["transfer"], 1120)
    assert columns(placed) == 3
    assert ["showticklabels" in placed[f"yaxis{n}"] for n in ("", 2, 3)] == [False, True, True]
    lefts = sorted({round(left) for left, *_ in boxes(placed).values()})
    width = boxes(placed)[""][1]
    assert [b - a - width for a, b in pairwise(lefts)] == pytest.approx([28, 28], abs=1)


def test_rows_of_other_lengths_fill_the_width() -> None:
    placed = layout(FIGURES["limit"], 1120)
    assert columns(placed) == 4  # two in the first row, three in the others
    assert boxes(placed)["2"][1] == pytest.approx(1120 - 84 - 28)


def test_panels_are_numbered_in_their_order_wherever_they_stand() -> None:
    figure = FIGURES["limit and networks"]
    assert figure.panels[-1].heading == "Distance from the limit"
    left, _, _, top = boxes(layout(figure))["12"]
    assert (left, top) == (boxes(layout(figure))["5"][0], boxes(layout(figure))[""][3])


def test_a_missing_panel_leaves_its_place_free() -> None:
    panels = [Panel(heading="A") for _ in range(3)]
    figure = Figure(title="", summary="", rows=[panels[:2], [None, panels[2]]], size=(300, 100), gap=(20, 40))
    places = boxes(layout(figure, 640))
    assert places["3"][:2] == places["2"][:2]
    assert places["3"][0] > 0


def test_labels_along_an_axis_are_as_many_as_fit() -> None:
    axis = Axis(look={"tickvals": list(range(12)), "ticktext": [f"2<sup>{k}</sup>" for k in range(12)]})
    figure = figure_of([Panel(x=axis)], 1, size=(600, 100))
    wide, narrow = (layout(figure, width)["xaxis"] for width in (600, 320))
    assert "ticktext" not in wide  # all of them
    assert narrow["ticktext"] == [f"2<sup>{k}</sup>" for k in (0, 2, 4, 6, 8, 10)]
    assert narrow["tickvals"] == [0, 2, 4, 6, 8, 10]


# -- above panels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_legends_stand_one_under_the_other_above_the_panels(name: str, width: int) -> None:
    placed = layout(FIGURES[name], width)
    starts = [from_top(placed, legend) for legend in legends(placed)]
    assert all(b - a >= 23.9 for a, b in pairwise(starts))
    assert starts[0] >= 3.9
    assert starts[-1] + 24 <= placed["margin"]["t"]


def test_legends_take_more_rows_where_there_is_less_room() -> None:
    starts = {width: from_top(layout(FIGURES["transfer"], width), "legend2") for width in (320, 700)}
    assert starts[700] == pytest.approx(4 + 24)
    assert starts[320] == pytest.approx(4 + 24 + 19)


def test_a_legends_title_stands_above_entries_that_do_not_fit_beside_it() -> None:
    wide, narrow = (layout(FIGURES["exponents"], width)["legend2"]["title"]["side"] for width in (2000, 360))
    assert (wide, narrow) == ("left", "top")


def test_a_legend_without_entries_takes_no_room() -> None:
    bare = figure_of([Panel()], 1)
    assert legends(layout(bare)) == []
    marked = figure_of([Panel()], 1, marks=[mark("a")])
    assert layout(marked)["height"] == layout(bare)["height"] + 24


@pytest.mark.parametrize("name", FIGURES)
def test_the_title_stands_above_all_of_a_figure_by_itself_and_not_in_a_page(name: str) -> None:
    figure = FIGURES[name]
    alone, placed = layout(figure, titled=True), layout(figure)
    assert [note["font"]["size"] for note in alone["annotations"]].count(18) == 1
    assert [note["font"]["size"] for note in placed["annotations"]].count(18) == 0
    assert len(placed["annotations"]) == len(alone["annotations"]) - 1
    assert placed["height"] < alone["height"]
    for number, box in boxes(alone).items():
        assert boxes(placed)[number] == pytest.approx(box, abs=0.1)


def test_notes_are_wrapped_and_legends_start_below_them() -> None:
    words = "the number of samples is small, and what is shown may be off by more than the bands tell"
    figure = figure_of([Panel(series=[Series(name="a", x=[0], y=[1])])], 1, size=(600, 100), notes=[words])
    wide, narrow = (layout(figure, width) for width in (700, 360))
    assert [placed["annotations"][0]["text"].count("<br>") for placed in (wide, narrow)] == [1, 2]
    assert from_top(narrow, "legend") == pytest.approx(4 + 3 * 19 + 5)
    assert narrow["annotations"][0]["yshift"] == narrow["margin"]["t"] - 4


@pytest.mark.parametrize("name", ["heatmaps", "one heatmap"])
def test_heatmaps_stay_as_wide_as_they_are(name: str) -> None:
    assert layout(FIGURES[name], 320) == layout(FIGURES[name])
