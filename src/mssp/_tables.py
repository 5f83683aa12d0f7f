"""Columns of text, aligned for terminals and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def number(value: float) -> str:
    """Four significant digits, without noise.

    >>> number(0.0005), number(1 / 3), number(1e-13)
    ('0.0005', '0.3333', '1e-13')
    """
    return f"{value:.4g}"


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in body]


def align(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, with a line under the header. In a column, the parts of cells after a tab line up too."""
    columns = [_aligned_cells(column) for column in zip(*table, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]


def _aligned_cells(column: Sequence[str]) -> list[str]:
    parts = [cell.partition("\t") for cell in column]
    width = max((len(head) for head, tab, _ in parts if tab), default=0)
    return [f"{head:<{width}} {tail}" if tab else head for head, tab, tail in parts]
