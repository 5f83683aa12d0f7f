"""Figures without a browser: what would be drawn is noted instead, trace by trace."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

_SHOWN = ("x", "y", "z", "text")


@contextmanager
def drawn_figures() -> Iterator[list[Any]]:
    """Images come from kaleido, which needs a browser; here every image is empty, and its figure is in the list."""
    found: list[Any] = []

    def draw(figure: dict[str, Any], opts: dict[str, Any] | None = None, **_: Any) -> bytes:
        if figure["data"] and (opts or {}).get("format") == "svg":
            size = [(opts or {}).get("width"), (opts or {}).get("height")]
            found.append({"size": size, "traces": [_trace(trace) for trace in figure["data"]]})
        return b"<svg></svg>"

    with mock.patch.multiple(
        "kaleido", calc_fig_sync=draw, start_sync_server=mock.DEFAULT, stop_sync_server=mock.DEFAULT
    ):
        yield found


def _trace(trace: dict[str, Any]) -> dict[str, Any]:
    """The name, the numbers and the bars of error of one trace."""
    about = {name: trace[name] for name in ("type", "name", "mode") if trace.get(name)}
    numbers = {name: _plain(trace[name]) for name in _SHOWN if trace.get(name) is not None}
    bars = (trace.get("error_y") or {}).get("array")
    return {**about, **numbers, **({"error": _plain(bars)} if bars is not None else {})}


def _plain(values: Any) -> Any:
    """Lists, where plotly packs arrays into bytes."""
    if isinstance(values, dict) and "bdata" in values:
        array = np.frombuffer(base64.b64decode(values["bdata"]), np.dtype(values["dtype"]))
        shape = [int(size) for size in str(values["shape"]).split(",")] if "shape" in values else [-1]
        return array.reshape(shape).tolist()
    if isinstance(values, np.ndarray):
        return values.tolist()
    return [_plain(each) for each in values] if isinstance(values, list | tuple) else values
