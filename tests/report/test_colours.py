"""Colours on both grounds: all are known, all can be seen, and what is told apart stays apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest

from mssp.report.canvas import INK, MUTED, shades
from mssp.report.colours import (
    DARK_GROUND,
    LIGHT_GROUND,
    LINES,
    LOUD,
    ON_CELLS,
    QUIET,
    TEXT,
    colours_of,
    contrast,
    on_dark,
    on_light,
    palettes,
)
from mssp.report.figures import checks, sweeps
from tests.report.samples import FIGURES

SHADES = {shade for count in range(1, 25) for shade in shades(count)}


def text_colours(part: Any) -> Iterator[str]:
    """Those of fonts."""
    if isinstance(part, Mapping):
        for key, each in part.items():
            yield from colours_of(each) if key.endswith("font") else text_colours(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from text_colours(each)


@pytest.mark.parametrize("name", FIGURES)
def test_every_colour_is_known(name: str) -> None:
    used = set(colours_of(FIGURES[name].to_plotly_json()))
    assert INK in used
    assert used <= {*QUIET, *LOUD, *ON_CELLS} | SHADES


def test_all_that_figures_may_use_is_known() -> None:
    styles = (checks._LAYERS, checks._SUMMANDS, checks._BACKWARD, sweeps._SCHEMES)
    looks = [look for style in styles for look in style.values()] + [*checks._OTHERS, *sweeps._OTHERS]
    assert {colour for colour, _ in looks} <= set(LOUD)


@pytest.mark.parametrize("colour", [*LOUD, *sorted(SHADES)])
def test_lines_are_seen_on_both_grounds(colour: str) -> None:
    assert contrast(on_light(colour), LIGHT_GROUND) >= LINES
    assert contrast(on_dark(colour), DARK_GROUND) >= LINES


def test_text_is_read_on_both_grounds() -> None:
    used = {colour for figure in FIGURES.values() for colour in text_colours(figure.to_plotly_json())}
    assert used == {INK, MUTED}
    for colour in used:
        assert contrast(on_light(colour), LIGHT_GROUND) >= TEXT
        assert contrast(on_dark(colour), DARK_GROUND) >= TEXT


def test_crosses_are_seen_on_cells_that_were_not_run() -> None:
    assert contrast(MUTED, "#efefef") >= LINES
    assert contrast(on_dark(MUTED), on_dark("#efefef")) >= LINES


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_the_widest_stands_out_most_on_both_grounds(count: int) -> None:
    for ground, there in ((LIGHT_GROUND, on_light), (DARK_GROUND, on_dark)):
        contrasts = [contrast(there(shade), ground) for shade in shades(count)]
        assert contrasts == sorted(contrasts)
        assert len(set(contrasts)) == count


@pytest.mark.parametrize("there", [on_light, on_dark])
def test_colours_that_differ_still_do(there: Any) -> None:
    assert len({there(colour) for colour in LOUD}) == len(LOUD)


def test_grounds_and_grids_are_dark_where_the_page_is() -> None:
    assert on_dark("white") == DARK_GROUND
    assert 1 < contrast(on_dark("#e4e4e4"), DARK_GROUND) < 1.5
    assert on_light("white") == "white"


def test_a_star_on_a_bright_cell_stays_dark() -> None:
    star = next(trace for trace in FIGURES["heatmaps"].data if trace.type == "scatter")
    assert on_dark(star.marker.color) == star.marker.color != INK
    assert star.marker.color.lower() == INK


def test_unknown_colours_are_changed_as_little_as_it_takes() -> None:
    assert contrast(on_dark("#200020"), DARK_GROUND) == pytest.approx(3, abs=0.2)
    assert contrast(on_light("rgb(255, 255, 0)"), LIGHT_GROUND) == pytest.approx(3, abs=0.2)
    assert on_dark("#ff8800") == "#ff8800"
    assert on_dark("rebeccapurple") == "rebeccapurple"


def test_a_page_is_told_only_what_changes() -> None:
    changes = palettes(["white", "#1a1a1a", "#e8940c", "#009e73"])
    assert changes == {"light": {"#e8940c": "#cc820b"}, "dark": {"#1a1a1a": "#ececee", "white": "#15171c"}}


def test_the_pages_grounds_are_those_of_the_figures() -> None:
    style = files("mssp.report.page").joinpath("page.css").read_text(encoding="utf-8")
    assert re.findall(r"--ground: (#\w+); --ink: (#\w+); --muted: (#\w+); --rule: (#\w+)", style) == [
        (LIGHT_GROUND, INK, MUTED, "#e4e4e4"),
        (DARK_GROUND, on_dark(INK), on_dark(MUTED), on_dark("#e4e4e4")),
    ]


def test_words_of_the_page_are_read_on_both_grounds() -> None:
    style = files("mssp.report.page").joinpath("page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    for block in blocks:
        colour = dict(re.findall(r"--([\w-]+): (#\w+)", block))
        for text, ground in (("ink", "ground"), ("muted", "ground"), ("link", "ground"), ("ink", "quiet")):
            assert contrast(colour[text], colour[ground]) >= TEXT
        for verdict in ("good", "bad", "unsure"):
            assert contrast(colour[verdict], colour[f"{verdict}-ground"]) >= TEXT
    assert len(blocks) == 2
