"""What a figure holds, as tests ask for it."""

from __future__ import annotations

import re
from typing import Any


def drawn(figure: Any, **wanted: Any) -> list[Any]:
    """Traces with data, by what is wanted of them."""
    with_data = [trace for trace in figure.data if tuple(trace.x) != (None,)]
    return [trace for trace in with_data if all(getattr(trace, name) == value for name, value in wanted.items())]


def texts(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def panel_axes(figure: Any) -> dict[str, str]:
    """The x axis of each panel by its heading."""
    found = [(re.fullmatch("<b>(.*)</b>", note.text), note.xref) for note in figure.layout.annotations]
    return {heading[1]: axis.removesuffix(" domain") for heading, axis in found if heading}
