"""Tables on the terminal: the same text everywhere, with some colour where a person looks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


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


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[], None]]:
    """A line on the error stream that counts while something runs, if a person is there to see it."""
    done = 0
    shown = sys.stderr.isatty()

    def one_more() -> None:
        nonlocal done
        done += 1
        if shown:
            print(f"\r{done} of {total} {what}", end="", file=sys.stderr, flush=True)

    try:
        yield one_more
    finally:
        if shown and done:
            print("\r" + " " * len(f"{total} of {total} {what}") + "\r", end="", file=sys.stderr, flush=True)
