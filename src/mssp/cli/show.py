"""Tables on the terminal: rich where a person looks, plain text where a program reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mssp.plan_text import align


def table(title: str, facts: Sequence[tuple[str, str]], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not sys.stdout.isatty():
        print("\n".join([title, *(f"  {name:<8} {content}" for name, content in facts), "", *align([columns, *rows])]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(title, style="bold"))
    for name, content in facts:
        console.print(Text.assemble(("  " + f"{name:<9}", "dim"), content))
    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(column, style="cyan" if column == "role" else None, no_wrap=True)
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    console.print()
    console.print(drawn)
