"""Colours on both grounds: all can be seen, and what is told apart stays apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import pytest

from mssp.report.colours import BLANK, DARK, GROUND, INK, LIGHT, MUTED, RULE, painted, shades
from mssp.report.drawing import TEMPLATE, fixed, layout, traces
from mssp.report.figure import Figure
from mssp.report.figures import looks, run_lines, sweeps
from tests.report.samples import FIGURES

LINES, TEXT = 3.0, 4.5  # the least contrasts
QUIET = {GROUND, RULE, BLANK}  # grounds and grids need not stand out
_ON_CELLS = {"#1a1a1a|#1a1a1a"}  # whose colours are the same on both grounds
SHADES = {shade for count in range(1, 25) for shade in shades(count)}
LOOKS = [
    *(look for of_kind in (looks.LAYERS, looks.SUMMANDS, looks.RETURNS) for look in of_kind.values()),
    *looks.OTHERS, *sweeps.SCHEME_LOOKS.values(), *sweeps.SPARE_LOOKS,
    *((colour, "") for colour in run_lines.RUN_COLOURS),
]  # fmt: skip


def parts(colour: str) -> list[float]:
    """Red, green and blue, to 255."""
    if colour.startswith("#"):
        return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return [float(part) for part in re.findall(r"[\d.]+", colour)]


def luminance(colour: str) -> float:
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in (c / 255 for c in parts(colour))]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1, of equal colours, to 21, as WCAG defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def on_its_ground(colour: str, ground: int) -> float:
    return contrast(painted(colour, ground, "color"), painted(GROUND, ground, "color"))


def colours_of(part: Any, key: str = "", text: bool = False) -> Iterator[str]:
    """Every colour that a part of a figure names, or those of text; colour scales are none."""
    if isinstance(part, Mapping):
        for name, each in part.items():
            yield from colours_of(each, name if not text or not key.endswith("font") else f"font {name}", text)
    elif isinstance(part, list):
        for each in part:
            yield from colours_of(each, key, text)
    elif isinstance(part, str) and key.endswith("color") and (not text or key.startswith("font")):
        yield part


def all_of(figure: Figure) -> list[Any]:
    return [TEMPLATE, traces(figure), fixed(figure), layout(figure, titled=True)]


@pytest.mark.parametrize("name", FIGURES)
def test_every_colour_is_a_pair_that_is_seen_on_both_grounds(name: str) -> None:
    used = set(colours_of(all_of(FIGURES[name])))
    assert INK in used
    for colour in used - QUIET - _ON_CELLS:
        assert min(on_its_ground(colour, LIGHT), on_its_ground(colour, DARK)) >= LINES


@pytest.mark.parametrize("colour", [*(colour for colour, _ in LOOKS), *sorted(SHADES)])
def test_lines_are_seen_on_both_grounds(colour: str) -> None:
    assert min(on_its_ground(colour, LIGHT), on_its_ground(colour, DARK)) >= LINES


def test_text_is_read_on_both_grounds() -> None:
    used = {colour for figure in FIGURES.values() for colour in colours_of(all_of(figure), text=True)}
    assert used == {INK, MUTED}
    for colour in used:
        assert min(on_its_ground(colour, LIGHT), on_its_ground(colour, DARK)) >= TEXT


@pytest.mark.parametrize("ground", [LIGHT, DARK])
def test_crosses_are_seen_on_cells_that_were_not_run(ground: int) -> None:
    assert contrast(painted(MUTED, ground, "color"), painted(BLANK, ground, "color")) >= LINES


@pytest.mark.parametrize("ground", [LIGHT, DARK])
@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_the_widest_stands_out_most_on_both_grounds(count: int, ground: int) -> None:
    contrasts = [on_its_ground(shade, ground) for shade in shades(count)]
    assert contrasts == sorted(contrasts)
    assert len(set(contrasts)) == count


@pytest.mark.parametrize("ground", [LIGHT, DARK])
def test_colours_that_differ_do_so_on_both_grounds(ground: int) -> None:
    colours = {colour for colour, _ in LOOKS}
    assert len({painted(colour, ground, "color") for colour in colours}) == len(colours)


def test_grids_are_quiet() -> None:
    assert 1 < on_its_ground(RULE, DARK) < 1.5
    assert 1 < on_its_ground(RULE, LIGHT) < 1.5


def test_the_pages_grounds_are_those_of_the_figures() -> None:
    style = files("mssp.report.page").joinpath("page.css").read_text(encoding="utf-8")
    found = re.findall(r"--ground: (#\w+); --ink: (#\w+); --muted: (#\w+); --rule: (#\w+)", style)
    assert found == list(zip(*(colour.split("|") for colour in (GROUND, INK, MUTED, RULE)), strict=True))


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
