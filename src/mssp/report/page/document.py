"""The page that a report is: words, tables and figures in one file that needs nothing else.

What is on it is built of blocks, in sections, and ``page.html`` lays it out. Figures are drawn by the page's script
(``page.js``) when one comes near them, for the width there is and the ground they stand on. The rest works without it.
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

# Buttons that a page for readers has no use for. The first two upload the figure's data to plotly's servers.
_NO_BUTTONS = ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"]
_WIDTHS = (320, 360, 520, 700, 880, 1120, 10**6)  # pixels across layouts; none is wider than its figure
_MARKS = {"good": "✓", "bad": "✗", "unsure": "?"}
_NUMBER = re.compile(r"[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*\d[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*|none|—|")
_SHORT = 28  # characters
_LONG = 200  # rows


@dataclass(frozen=True)
class Chart:
    """A figure in a page.

    Args:
        name: where it is in the page (``page.html#name``), and what its files are called.
        tags: what filters go by, as ``{"optimizer": "SGD"}``.
    """

    figure: Figure
    name: str
    tags: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def layouts(self) -> list[Json]:
        """For several widths, the widest last."""
        return list({each["width"]: each for each in (layout(self.figure, width) for width in _WIDTHS)}.values())

    @property
    def sizes(self) -> list[list[int]]:
        return [[each["width"], each["height"]] for each in self.layouts]

    @property
    def csv(self) -> str:
        """The address of its numbers."""
        return f"data:text/csv;charset=utf-8,{quote(csv_of(self.figure), safe=',:;=()+/*!')}"

    @property
    def drawing(self) -> Json:
        """What the script draws it from."""
        whole = layout(self.figure, titled=True)
        return {"data": traces(self.figure), "fixed": fixed(self.figure), "layouts": self.layouts, "whole": whole}


@dataclass(frozen=True)
class Cell:
    """Of a table; the verdict is ``good``, ``bad``, ``unsure`` or none."""

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
    """The first cell of a row says what it is about. Columns of numbers stand at the right."""

    header: Sequence[str]
    rows: Sequence[Row]
    name: str
    caption: str = ""

    @property
    def kinds(self) -> list[str]:
        """How columns are set: numbers at the right, short words on one line."""
        count = len(self.header)
        assert all(len(row.cells) == count for row in self.rows), f"rows of {self.name} have {count} cells"
        texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row.cells] for row in self.rows]
        return [_kind([row[column] for row in texts]) for column in range(count)]

    @property
    def is_long(self) -> bool:
        return len(self.rows) > _LONG


@dataclass(frozen=True)
class Words:
    """A paragraph. What stands in `backticks` is code, here and in all other texts."""

    text: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """For a shell, to be copied."""

    text: str


@dataclass(frozen=True)
class Folded:
    """What only some readers want to see."""

    summary: str
    blocks: Sequence[Block]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """``name`` is where it is in the page; by default it is made of the title."""

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
    """The page of one figure, with what it shows in words below it."""
    chart = Chart(figure, "figure")
    return _rendered(figure.title, [chart], sections=(), alone=chart)


def charts(blocks: Iterable[Block]) -> list[Chart]:
    """Those among blocks, folded ones too."""
    return [block for block in _all_blocks(blocks) if isinstance(block, Chart)]


def _all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Folded):
            yield from _all_blocks(block.blocks)


def _choices(blocks: Iterable[Block]) -> list[tuple[str, list[str]]]:
    """What to filter by: each tag that has two values or more, with its values in order."""
    values: dict[str, set[str]] = {}
    for block in blocks:
        for each in [block, *block.rows] if isinstance(block, Table) else [block]:
            for key, value in getattr(each, "tags", {}).items():
                values.setdefault(key, set()).add(value)
    return [(key, sorted(found)) for key, found in values.items() if len(found) > 1]


def _rendered(title: str, charts: Sequence[Chart], **parts: Any) -> str:
    figures = {
        "template": TEMPLATE,
        "noButtons": _NO_BUTTONS,
        "charts": {chart.name: chart.drawing for chart in charts},
    }
    licence, plotly = _plotly()
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            style=Markup(_file("page.css")),
            script=Markup(_file("page.js")),
            licence=licence,
            plotly=plotly,
            figures=_deflated(json.dumps(figures, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
            **parts,
        )
    )


@cache
def _environment() -> Environment:
    loader = PackageLoader("mssp.report", "page")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    environment.filters["inline"] = _inline
    environment.tests["a"] = lambda block, name: type(block).__name__ == name
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    return environment


@cache
def _plotly() -> tuple[str, str]:
    """The notice of its licence, and plotly.js itself."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ValueError(NEED_PLOTLY) from None
    script = get_plotlyjs()
    notice = re.match(r"\W*(.*?)\*/", script, re.DOTALL)
    return notice[1].strip() if notice else "", _deflated(script)


def _deflated(text: str) -> str:
    """A third of it, as text that browsers inflate: figures are one part words, and plotly.js is long."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _kind(column: Sequence[str]) -> str:
    if column and all(map(_NUMBER.fullmatch, column)):
        return "number"
    return "short" if max(map(len, column), default=0) <= _SHORT else "long"


def _inline(text: str) -> Markup:
    """Text in which what stands in backticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
