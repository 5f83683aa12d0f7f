"""Tables as lines of text: with aligned columns for terminals, and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float) -> str:
    """A number as text, with four significant digits.

    >>> number(0.0005), number(1 / 3), number(1e-13)
    ('0.0005', '0.3333', '1e-13')
    """
    return f"{value:.4g}"


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in body]


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines with aligned columns, and a line under the first, which is the header.

    A cell may have two parts with a tab between them: the second parts of a column are aligned too.
    """
    columns = [_aligned_cells(column) for column in zip(*table, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]


def _aligned_cells(column: Sequence[str]) -> list[str]:
    cells = [cell.partition("\t") for cell in column]
    width = max((len(first) for first, tab, _ in cells if tab), default=0)
    return [f"{first:<{width}} {second}" if tab else first for first, tab, second in cells]
