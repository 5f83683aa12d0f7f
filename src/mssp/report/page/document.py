"""The page that a report is: words, tables and figures in one file that needs nothing else.

What is on it is built of blocks, in sections. Figures are drawn by the page's script (``page.js``) when one comes near
them, for the width there is and the ground they stand on. The rest works without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from mssp.report.colours import NEED_PLOTLY
from mssp.report.drawing import TEMPLATE, fixed, layout, traces
from mssp.report.figure import Figure
from mssp.report.figure_data import csv_of

# Buttons that a page for readers has no use for. The first two upload the figure's data to plotly's servers.
_NO_BUTTONS = ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"]
_WIDTHS = (320, 360, 520, 700, 880, 1120, 10**6)  # pixels across layouts; none is wider than its figure
_MARKS = {"good": "✓", "bad": "✗", "unsure": "?"}
_NUMBER = re.compile(r"[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*\d[\d\s.,±+\-−–×·^()/%…∞≈~<>e]*|none|—|")
_SHORT = 28  # characters
_LONG = 200  # rows
_NOTHING_LEFT = "Nothing here passes the filters."

# The policy holds a page to what it claims, that nothing is fetched.
_DOCUMENT = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body class="{kind}">
{body}
<script type="text/plain" id="page.plotly">{plotly}</script>
<script type="application/json" id="page.settings">{settings}</script>
<script>
{script}</script>
</body>
</html>
"""


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


@dataclass(frozen=True)
class Cell:
    """Of a table; the verdict is ``good``, ``bad``, ``unsure`` or none."""

    text: str
    verdict: str = ""


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
    body = "\n".join(
        (
            '<a class="skip" href="#content">Skip to the content</a>',
            f'<div class="side">\n{_contents(parts)}\n{_filters(blocks)}</div>',
            '<main id="content" tabindex="-1">',
            f"<h1>{_inline(title)}</h1>",
            *map(_section, parts),
            "</main>",
            f"<footer>{_inline(footer)}</footer>" if footer else "",
        )
    )
    return _document(title, body, "report")


def page_of(figure: Figure) -> str:
    """The page of one figure, with what it shows in words below it."""
    chart = _chart(Chart(figure, "figure"), alone=True)
    body = f'<main id="content">\n<h1>{escape(figure.title)}</h1>\n{chart}\n</main>'
    return _document(figure.title, body, "single")


def _document(title: str, body: str, kind: str) -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ValueError(NEED_PLOTLY) from None
    return _DOCUMENT.format(
        title=escape(title),
        kind=kind,
        style=files(__package__).joinpath("page.css").read_text(encoding="utf-8"),
        body=body,
        plotly=get_plotlyjs(),
        settings=_json({"template": TEMPLATE, "noButtons": _NO_BUTTONS}),
        script=files(__package__).joinpath("page.js").read_text(encoding="utf-8"),
    )


# -- beside the content ------------------------------------------------------------------------------------------------


def _contents(sections: Iterable[Section]) -> str:
    items = "\n".join(f'<li><a href="#{each.name}">{_inline(each.title)}</a></li>' for each in sections)
    inner = f"<summary>Contents</summary>\n<ol>\n{items}\n</ol>"
    return f'<nav aria-label="Contents">\n<details open>{inner}</details>\n</nav>'


def _filters(blocks: Iterable[Block]) -> str:
    """One set of checkboxes for each tag that has two values or more, its values in order."""
    values: dict[str, dict[str, None]] = {}
    for block in blocks:
        tagged = [block, *block.rows] if isinstance(block, Table) else [block]
        for key, value in (pair for each in tagged for pair in getattr(each, "tags", {}).items()):
            values.setdefault(key, {})[value] = None
    sets = "\n".join(_fieldset(key, sorted(found)) for key, found in values.items() if len(found) > 1)
    if not sets:
        return ""
    return f"""\
<form class="filters needs-script" aria-label="Filters" autocomplete="off">
<details open><summary>Filters</summary>
<div class="sets">
{sets}
<p class="count" role="status"></p>
<button type="reset">Show all</button>
</div></details>
</form>
"""


def _fieldset(key: str, values: Iterable[str]) -> str:
    boxes = "\n".join(
        f'<label><input type="checkbox" name="{escape(key)}" value="{escape(value)}" checked> {escape(value)}</label>'
        for value in values
    )
    return f"<fieldset><legend>{escape(key)}</legend>\n{boxes}\n</fieldset>"


# -- blocks ------------------------------------------------------------------------------------------------------------


def _all_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Those in folded parts too."""
    for block in blocks:
        yield block
        if isinstance(block, Folded):
            yield from _all_blocks(block.blocks)


def _section(section: Section) -> str:
    inner = "\n".join(map(_block, section.blocks))
    nothing = f'<p class="nothing" hidden>{_NOTHING_LEFT}</p>'
    heading = f'<h2 id="{section.name}.title">{_inline(section.title)}</h2>'
    start = f'<section id="{section.name}" aria-labelledby="{section.name}.title">'
    return "\n".join((start, heading, inner, nothing, "</section>"))


def _block(block: Block) -> str:
    match block:
        case Chart():
            return _chart(block)
        case Table():
            return _table(block)
        case Words(text, tags):
            return f"<p{_tags(tags)}>{_inline(text)}</p>"
        case Bullets(items, tags):
            return f"<ul{_tags(tags)}>\n" + "\n".join(f"<li>{_inline(item)}</li>" for item in items) + "\n</ul>"
        case Command(text):
            button = '<button type="button" class="copy needs-script">Copy</button>'
            return f'<div class="command"><pre tabindex="0"><code>{escape(text)}</code></pre>{button}</div>'
        case Folded(summary, blocks, tags):
            inner = "\n".join(map(_block, blocks))
            return f'<details class="folded"{_tags(tags)}><summary>{_inline(summary)}</summary>\n{inner}\n</details>'


def _chart(chart: Chart, alone: bool = False) -> str:
    """Its heading, its place, its files, and what it shows in words; alone in a page, the page's heading is its own."""
    figure, name, title = chart.figure, chart.name, escape(chart.figure.title)
    layouts = {each["width"]: each for each in (layout(figure, width) for width in _WIDTHS)}
    sizes = [[each["width"], each["height"]] for each in layouts.values()]
    whole = layout(figure, titled=True)
    content = {"data": traces(figure), "fixed": fixed(figure), "layouts": [*layouts.values()], "whole": whole}
    link = f'<a class="anchor" href="#{name}" aria-label="Link to {title}">#</a>'
    heading = "" if alone else f'<h3 id="{name}.title">{title} {link}</h3>\n'
    words = f'<p id="{name}.words">{escape(figure.description)}</p>'
    folded, below = ("", words) if alone else (f"<details><summary>In words</summary>{words}</details>", "")
    table = f"data:text/csv;charset=utf-8,{quote(csv_of(figure), safe=',:;=()+/*!')}"
    return f"""\
<article class="chart" id="{name}"{_tags(chart.tags)}{"" if alone else f' aria-labelledby="{name}.title"'}>
{heading}<p class="hint" hidden>It is wider than the screen, and scrolls sideways.</p>
<div class="box">
<div class="plot" data-sizes="{_json(sizes)}" style="height: {sizes[-1][1]}px" role="img" aria-label="{title}" \
aria-describedby="{name}.words">
<noscript>Figures are drawn by a script, which is switched off here.</noscript>
</div>
</div>
<div class="tools">
<button type="button" class="svg needs-script" aria-label="SVG of {title}">SVG</button>
<a class="csv" download="{name}.csv" href="{table}" aria-label="CSV of {title}">CSV</a>
{folded}
</div>
{below}
<script type="application/json">{_json(content)}</script>
</article>"""


def _table(table: Table) -> str:
    count = len(table.header)
    assert all(len(row.cells) == count for row in table.rows), f"rows of {table.name} have {count} cells"
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row.cells] for row in table.rows]
    kinds = [f' class="{_kind([row[i] for row in texts])}"' for i in range(count)]
    header = zip(table.header, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{_inline(text)}</th>' for text, kind in header)
    body = "\n".join(_row(row, kinds) for row in table.rows)
    words = f'<span id="{table.name}.title">{_inline(table.caption)}</span>'
    caption = f"<caption>{words}</caption>\n" if table.caption else ""
    label = f'aria-labelledby="{table.name}.title"' if caption else f'aria-label="{escape(table.name)}"'
    long = f' style="--rows: {len(table.rows)}"' if len(table.rows) > _LONG else ""
    return f"""\
<div class="table" id="{table.name}" role="region" tabindex="0" {label}{long}>
<table>
{caption}<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""


def _kind(column: Sequence[str]) -> str:
    """How it is set: numbers at the right, short words on one line."""
    if column and all(map(_NUMBER.fullmatch, column)):
        return "number"
    return "short" if max(map(len, column), default=0) <= _SHORT else "long"


def _row(row: Row, kinds: Sequence[str]) -> str:
    first, *others = (f"{kind}>{_cell(cell)}" for cell, kind in zip(row.cells, kinds, strict=True))
    return f'<tr{_tags(row.tags)}><th scope="row"{first}</th>{"".join(f"<td{each}</td>" for each in others)}</tr>'


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, str) or not cell.verdict:
        return _inline(cell if isinstance(cell, str) else cell.text)
    assert cell.verdict in _MARKS, f"a verdict is one of {', '.join(_MARKS)}, got {cell.verdict!r}"
    mark = f'<span class="mark" role="img" aria-label="{cell.verdict}:">{_MARKS[cell.verdict]}</span>'
    return f'<span class="verdict {cell.verdict}">{mark} {_inline(cell.text or cell.verdict)}</span>'


# -- parts of them -----------------------------------------------------------------------------------------------------


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _tags(tags: Mapping[str, str]) -> str:
    return f' data-tags="{escape(json.dumps(dict(tags), ensure_ascii=False))}"' if tags else ""


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"


def _json(content: Any) -> str:
    """For a script element, which nothing in it can end."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
