"""Figures at other widths: where panels stand, what is written on them, and what is above them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Any

import pytest
from plotly import graph_objects

from mssp.report.canvas import Canvas
from mssp.report.panels import panels_of, plain
from mssp.report.reflow import reflowed, reflows
from tests.report.samples import FIGURES

WIDTHS = (320, 390, 520, 700, 880, 1120, 2000)
REFLOWING = [name for name, figure in FIGURES.items() if reflows(figure)]
Box = tuple[float, float, float, float]  # left, right, lower and upper end, in pixels from the lower left


def boxes(layout: Mapping[str, Any]) -> dict[str, Box]:
    """Of panels, by number."""
    margin = layout["margin"]
    across = layout["width"] - margin["l"] - margin["r"]
    down = layout["height"] - margin["t"] - margin["b"]
    return {
        panel.number: (panel.x[0] * across, panel.x[1] * across, panel.y[0] * down, panel.y[1] * down)
        for panel in panels_of(layout)
    }


def columns(layout: Mapping[str, Any]) -> int:
    return len({round(left) for left, *_ in boxes(layout).values()})


def notes(layout: Mapping[str, Any], name: str) -> list[Any]:
    return [note for note in layout["annotations"] if note.get("name") == name]


def legends(layout: Mapping[str, Any]) -> list[str]:
    """From the top."""
    names = [key for key in layout if re.fullmatch(r"legend\d*", key)]
    return sorted(names, key=lambda name: -float(layout[name]["y"]))


def from_top(layout: Mapping[str, Any], name: str) -> float:
    """Where a legend starts, in pixels."""
    return float((1 - layout[name]["y"]) * layout["height"])


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
    assert tuple(columns(reflowed(FIGURES[name], width)) for width in WIDTHS) == counts


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFLOWING)
def test_panels_keep_their_heights_and_share_the_width(name: str, width: int) -> None:
    figure = FIGURES[name]
    layout = reflowed(figure, width)
    assert layout["width"] == min(width, figure.layout.width)
    before, after = boxes(figure.layout.to_plotly_json()), boxes(layout)
    for number, (left, right, low, high) in after.items():
        assert high - low == pytest.approx(before[number][3] - before[number][2], abs=0.5)
        assert right - left >= 240
    assert min(left for left, *_ in after.values()) == 0
    inner = layout["width"] - layout["margin"]["l"] - layout["margin"]["r"]
    assert max(right for _, right, _, _ in after.values()) == pytest.approx(inner)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", REFLOWING)
def test_between_panels_there_is_room_for_labels_and_words(name: str, width: int) -> None:
    layout = reflowed(FIGURES[name], width)
    words = dict.fromkeys(boxes(layout), 0.0)  # pixels above a panel
    for note in (*notes(layout, "heading"), *notes(layout, "verdict")):
        number = note["xref"].removesuffix(" domain")[1:]
        lines = note["text"].count("<br>") + 1
        words[number] = max(words[number], note["yshift"] + 1.3 * note["font"]["size"] * lines)
    for (one, a), (other, b) in combinations(boxes(layout).items(), 2):
        beside = a[1] < b[0] or b[1] < a[0]
        upper, lower, below = (a, b, other) if a[2] > b[2] else (b, a, one)
        if not beside:
            assert upper[2] - lower[3] >= words[below] + 36  # labels, and an axis' title or none
    top = min(panel.number for panel in panels_of(layout) if panel.row == 0)
    assert layout["margin"]["t"] >= words[top]


@pytest.mark.parametrize("width", WIDTHS[:-1])
@pytest.mark.parametrize("name", REFLOWING)
def test_words_above_panels_are_no_wider_than_these(name: str, width: int) -> None:
    layout = reflowed(FIGURES[name], width)
    for note in (*notes(layout, "heading"), *notes(layout, "verdict")):
        left, right, _, _ = boxes(layout)[note["xref"].removesuffix(" domain")[1:]]
        for line in note["text"].split("<br>"):
            assert 0.5 * note["font"]["size"] * len(plain(line)) <= right - left + 0.1


def test_words_break_at_dots_which_then_are_left_out() -> None:
    texts = [note["text"] for note in notes(reflowed(FIGURES["transfer"], 700), "verdict")]
    assert texts[1] == "best lr drifts up: 0.50 ± 0.00 per doubling<br>wider is better: yes"


def test_words_that_were_broken_are_joined_where_there_is_room() -> None:
    canvas = Canvas("Title", (2, 1), (200, 100), (20, 20), 40, 0)
    for column in range(2):
        canvas.axes(0, column)
        canvas.heading(["One half-", "width, and", "<more>"])
    (first, _) = notes(reflowed(canvas.figure("Two."), 420), "heading")
    assert first["text"] == "<b>One half-width, and &lt;more&gt;</b>"


def test_panels_that_are_no_longer_beside_others_have_labels_of_their_own() -> None:
    wide, narrow = (reflowed(FIGURES["transfer"], width) for width in (2000, 360))
    numbers = list(boxes(wide))
    shown = [wide[f"yaxis{number}"]["showticklabels"] for number in numbers]
    assert shown == [True, False, False, True, False, False]
    for number in numbers:
        assert narrow[f"yaxis{number}"]["showticklabels"]
        assert narrow[f"yaxis{number}"]["title"]["text"] == "training accuracy"
        assert narrow[f"xaxis{number}"]["title"]["text"] == "learning rate"


def test_panels_that_stay_beside_others_still_share_labels() -> None:
    figure = FIGURES["transfer"]
    layout = reflowed(figure, 1120)
    assert columns(layout) == 3
    assert [layout[f"yaxis{n}"]["showticklabels"] for n in ("", 2, 3)] == [True, False, False]
    lefts = sorted({round(left) for left, *_ in boxes(layout).values()})
    width = boxes(layout)[""][1]
    assert [b - a - width for a, b in pairwise(lefts)] == pytest.approx([28, 28], abs=1)


def test_empty_panels_stay_without_labels() -> None:
    layout = reflowed(FIGURES["evaluation of a dense model"], 360)
    empty = [key for key, axis in layout.items() if key.startswith("yaxis") and axis.get("ticks") == ""]
    assert empty
    assert not any(layout[key]["showticklabels"] or "title" in layout[key] for key in empty)


def test_rows_of_other_lengths_fill_the_width() -> None:
    layout = reflowed(FIGURES["limit"], 1120)
    assert columns(layout) == 4  # two in the first row, three in the others
    assert boxes(layout)["2"][1] == pytest.approx(1120 - 84 - 28)


def test_a_missing_panel_leaves_its_place_free() -> None:
    canvas = Canvas("Title", (2, 2), (300, 100), (20, 40), 40, 0)
    for row, column in ((0, 0), (0, 1), (1, 1)):
        canvas.axes(row, column)
        canvas.heading(["A"])
    layout = reflowed(canvas.figure("Three."), 640)
    assert boxes(layout)["3"][:2] == boxes(layout)["2"][:2]
    assert boxes(layout)["3"][0] > 0


def test_labels_along_an_axis_are_as_many_as_fit() -> None:
    canvas = Canvas("Title", (1, 1), (600, 100), (20, 20), 40, 0)
    x, _, _ = canvas.axes(0, 0)
    x |= {"tickvals": list(range(12)), "ticktext": [f"2<sup>{k}</sup>" for k in range(12)]}
    wide, narrow = (reflowed(canvas.figure("One."), width)["xaxis"] for width in (600, 320))
    assert len(wide["ticktext"]) == 12
    assert narrow["ticktext"] == [f"2<sup>{k}</sup>" for k in (0, 2, 4, 6, 8, 10)]
    assert narrow["tickvals"] == [0, 2, 4, 6, 8, 10]


# -- above panels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_legends_stand_one_under_the_other_above_the_panels(name: str, width: int) -> None:
    layout = reflowed(FIGURES[name], width)
    starts = [from_top(layout, legend) for legend in legends(layout)]
    assert all(b - a >= 23.9 for a, b in pairwise(starts))
    assert starts[0] >= 3.9
    assert starts[-1] + 24 <= layout["margin"]["t"]


def test_legends_take_more_rows_where_there_is_less_room() -> None:
    starts = {width: from_top(reflowed(FIGURES["transfer"], width), "legend2") for width in (320, 700)}
    assert starts[700] == pytest.approx(4 + 24)
    assert starts[320] == pytest.approx(4 + 24 + 19)


def test_a_legends_title_stands_above_entries_that_do_not_fit_beside_it() -> None:
    wide, narrow = (reflowed(FIGURES["exponents"], width)["legend3"]["title"]["side"] for width in (2000, 360))
    assert (wide, narrow) == ("left", "top")


@pytest.mark.parametrize("name", FIGURES)
def test_the_title_is_left_out_and_its_room_too(name: str) -> None:
    figure = FIGURES[name]
    layout = reflowed(figure, 10**6)
    assert not notes(layout, "title")
    assert len(layout["annotations"]) == len(figure.layout.annotations) - 1
    assert layout["height"] < figure.layout.height
    for number, box in boxes(figure.layout.to_plotly_json()).items():
        assert boxes(layout)[number] == pytest.approx(box, abs=0.1)


def test_notes_under_the_title_are_wrapped_anew() -> None:
    words = "the number of samples is small, and what is shown may be off by more than the bands tell"
    canvas = Canvas("Title", (1, 1), (600, 100), (20, 20), 40, 3)
    canvas.axes(0, 0)
    below_title = canvas.layout["margin"]["t"] - canvas.under_title
    canvas.note(words, size=13, x=0, y=1, yshift=below_title, yanchor="top")
    canvas.legend("legend", 1)
    wide, narrow = (reflowed(canvas.figure("One."), width) for width in (700, 360))
    assert [layout["annotations"][0]["text"].count("<br>") for layout in (wide, narrow)] == [1, 2]
    # The legend starts below the last line.
    assert from_top(narrow, "legend") == pytest.approx(4 + 3 * 19 + 6)
    assert narrow["annotations"][0]["yshift"] == narrow["margin"]["t"] - 4


# -- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heatmaps", "one heatmap"])
def test_heatmaps_stay_as_wide_as_they_are(name: str) -> None:
    figure = FIGURES[name]
    assert not reflows(figure)
    layout = reflowed(figure, 320)
    assert layout["width"] == figure.layout.width
    assert tuple(layout["xaxis"]["domain"]) == figure.layout.xaxis.domain


def test_figures_themselves_are_not_changed() -> None:
    for figure in FIGURES.values():
        before = figure.to_json()
        reflowed(figure, 360)
        assert figure.to_json() == before


def test_figures_made_elsewhere_stay_as_they_are() -> None:
    figure = graph_objects.Figure(data=[{"y": [1, 2]}], layout={"title": {"text": "Mine"}})
    layout = reflowed(figure, 360)
    assert layout == {"title": {"text": "Mine"}, "template": layout["template"], "width": 1000, "height": 600}
    assert not reflows(figure)
