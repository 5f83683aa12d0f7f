"""Tables on the terminal: the same text everywhere, with some colour where a person looks."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def lines(text: Sequence[str], emphasised: Sequence[str] = ()) -> None:
    """Print lines, those named in bold. Nothing is cut to fit: better a wrapped line than a hidden number."""
    if not sys.stdout.isatty():
        print("\n".join(text))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in text:
        style = "bold" if line in emphasised else "dim" if line.startswith("─") else ""
        console.print(Text(line, style=style))
