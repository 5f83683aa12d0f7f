"""Builds the HTML page of a report: paragraphs, tables and figures in one file that needs no other.

A page has sections, and a section has blocks; ``page.html`` is their template. The page's script (``page.js``) draws a
figure when the reader scrolls near it, for the width and the ground (light or dark) of the screen. Everything else on
the page works without the script.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mssp.report.colours import NEED_PLOTLY
from mssp.report.drawing import TEMPLATE, fixed, layout, traces
from mssp.report.figure import Figure, Json
from mssp.report.figure_data import csv_of

# Buttons of plotly that a page leaves out. The first two would upload the figure's data to plotly's servers.
_NO_BUTTONS = ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"]
_WIDTHS = (320, 360, 520, 700, 880, 1120, 10**6)  # in pixels, for which a page has layouts of each figure
_MARKS = {"good": "✓", "bad": "✗", "unsure": "?"}
_NUMBER = re.compile(r"[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*\d[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*|none|—|")
_SHORT = 28  # most characters of a cell that stays on one line
_LONG = 200  # most rows of a table that is laid out at once


@dataclass(frozen=True)
class Chart:
    """A figure in a page.

    Args:
        name: the id of the chart in the page (``page.html#name``), and the name of its files.
        tags: the tags by which a reader filters the page, as ``{"optimizer": "SGD"}``.
    """

    figure: Figure
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def layouts(self) -> list[Json]:
        """Layouts for several widths, the widest last."""
        return list({each["width"]: each for each in (layout(self.figure, width) for width in _WIDTHS)}.values())

    @property
    def sizes(self) -> list[list[int]]:
        return [[each["width"], each["height"]] for each in self.layouts]

    @property
    def csv(self) -> str:
        """A data URL with the numbers of the figure."""
        return f"data:text/csv;charset=utf-8,{quote(csv_of(self.figure), safe=',:;=()+/*!')}"

    @property
    def drawing(self) -> Json:
        """The data that the script draws the figure from; ``whole`` is the layout of downloaded images."""
        whole = layout(self.figure, titled=True)
        return {"data": traces(self.figure), "fixed": fixed(self.figure), "layouts": self.layouts, "whole": whole}


@dataclass(frozen=True)
class Cell:
    """A cell of a table, with a verdict: ``good``, ``bad``, ``unsure`` or empty."""

    text: str
    verdict: str = ""

    @property
    def mark(self) -> str:
        assert self.verdict in _MARKS, f"a verdict is one of {', '.join(_MARKS)}, got {self.verdict!r}"
        return _MARKS[self.verdict]


@dataclass(frozen=True)
class Row:
    cells: Sequence[str | Cell]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table, in which the first cell of a row is its heading. Columns of numbers are aligned at the right."""

    header: Sequence[str]
    rows: Sequence[Row]
    name: str
    caption: str = ""

    @property
    def kinds(self) -> list[str]:
        """The CSS class of each column: ``number``, ``short`` (on one line) or ``long``."""
        count = len(self.header)
        assert all(len(row.cells) == count for row in self.rows), f"rows of {self.name} have {count} cells"
        texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row.cells] for row in self.rows]
        return [_kind([row[column] for row in texts]) for column in range(count)]

    @property
    def is_long(self) -> bool:
        return len(self.rows) > _LONG


@dataclass(frozen=True)
class Words:
    """A paragraph. In this and all other text of a page, `backticks` enclose code."""

    text: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A shell command with a button that copies it."""

    text: str


@dataclass(frozen=True)
class Folded:
    """Blocks that are hidden until a reader unfolds them."""

    summary: str
    blocks: Sequence[Block]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """Blocks under a title; ``name`` is the id in the page, which is made from the title by default."""

    title: str
    blocks: Sequence[Block]
    name: str = ""


Block = Chart | Table | Words | Bullets | Command | Folded


def page(title: str, summary: Sequence[Block], sections: Sequence[Section], footer: str = "") -> str:
    """The HTML of a report.

    >>> html = page("Report", [Words("It went `well`.")], [Section("Why?", [Bullets(["Luck", "Work"])])])
    >>> "<p>It went <code>well</code>.</p>" in html, '<section id="why"' in html
    (True, True)

    Equal blocks give equal bytes. Names of charts, tables and sections are different from each other.
    """
    parts = [*([Section("Summary", summary)] if summary else []), *sections]
    parts = [replace(part, name=part.name or _slug(part.title)) for part in parts]
    blocks = [block for part in parts for block in _all_blocks(part.blocks)]
    names = [each.name for each in (*parts, *blocks) if isinstance(each, Section | Chart | Table)]
    assert len(set(names)) == len(names), f"names are unique, got {sorted(names)}"
    assert all(re.fullmatch(r"[\w-]+", name) for name in names), f"names are words and hyphens, got {sorted(names)}"
    return _rendered(title, charts(blocks), sections=parts, choices=_choices(blocks), footer=footer)


def page_of(figure: Figure) -> str:
    """The HTML page of one figure, with its description below."""
    chart = Chart(figure, "figure")
    return _rendered(figure.title, [chart], sections=(), alone=chart)


def charts(blocks: Iterable[Block]) -> list[Chart]:
    """The charts among blocks, including folded ones."""
    return [block for block in _all_blocks(blocks) if isinstance(block, Chart)]


def _all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Folded):
            yield from _all_blocks(block.blocks)


def _choices(blocks: Iterable[Block]) -> list[tuple[str, list[str]]]:
    """The filters of a page: every tag that has two or more values, with these values in order."""
    values: dict[str, set[str]] = {}
    for block in blocks:
        for tagged in [block, *block.rows] if isinstance(block, Table) else [block]:
            for key, value in getattr(tagged, "tags", {}).items():
                values.setdefault(key, set()).add(value)
    return [(key, sorted(choices)) for key, choices in values.items() if len(choices) > 1]


def _rendered(title: str, drawn: Sequence[Chart], **parts: Any) -> str:
    drawings = {chart.name: chart.drawing for chart in drawn}
    figures = {"template": TEMPLATE, "noButtons": _NO_BUTTONS, "charts": drawings}
    licence, plotly = _plotly()
    template = _environment().get_template("page.html")
    return template.render(
        title=title,
        style=Markup(_file("page.css")),
        script=Markup(_file("page.js")),
        licence=licence,
        plotly=plotly,
        figures=_deflated(json.dumps(figures, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        **parts,
    )


@cache
def _environment() -> Environment:
    loader = PackageLoader("mssp.report", "page")
    # A package does not change while it runs, so files are not looked at again.
    environment = Environment(
        loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined, auto_reload=False
    )
    environment.filters["inline"] = _inline
    environment.tests["a"] = lambda block, name: type(block).__name__ == name
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


@cache
def _plotly() -> tuple[str, str]:
    """The notice of plotly.js's licence, and plotly.js itself, compressed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ValueError(NEED_PLOTLY) from None
    script = get_plotlyjs()
    notice = re.match(r"\W*(.*?)\*/", script, re.DOTALL)
    return notice[1].strip() if notice else "", _deflated(script)


def _deflated(text: str) -> str:
    """Compressed text, in Base64, which a page's script unpacks; it is a third as long."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _kind(column: Sequence[str]) -> str:
    if column and all(map(_NUMBER.fullmatch, column)):
        return "number"
    return "short" if max(map(len, column), default=0) <= _SHORT else "long"


def _inline(text: str) -> Markup:
    """HTML of a text in which backticks enclose code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
