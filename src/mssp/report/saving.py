"""Saves figures to files: as an HTML page that needs no other file, or as an image."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from pathlib import Path

from mssp._files import replacing
from mssp.report.colours import NEED_PLOTLY
from mssp.report.drawing import drawn
from mssp.report.figure import Figure, Json
from mssp.report.page.document import page_of

_IMAGES_NEED = "images need kaleido (pip install kaleido) and a Chrome or Chromium"
_SCALE = 2  # pixels of a .png per pixel of the figure; one would look coarse on paper
_BROWSER = {"mathjax": False}  # otherwise kaleido fetches MathJax from the network
_DATE = b"D:20000101000000+00'00'"


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuses, before hours of work, a path that :func:`save` could not write to."""
    path = Path(path)
    if path.suffix.lower() not in _RENDERERS:
        raise ValueError(f"cannot write {path}: use one of the suffixes {', '.join(_RENDERERS)}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if path.suffix.lower() != ".html" and find_spec("kaleido") is None:
        raise ValueError(f"cannot write {path}: {_IMAGES_NEED}, and kaleido is not installed; .html needs neither")
    if find_spec("plotly") is None:
        raise ValueError(NEED_PLOTLY)


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure to a file of the kind that its suffix names: .html, .svg, .pdf or .png.

    >>> import tempfile
    >>> from mssp.report.figure import Panel
    >>> figure = Figure(title="Empty", summary="", rows=[[Panel(why_empty="an example")]], size=(300, 200), gap=(0, 0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(figure, f"{folder}/empty.html").name
    'empty.html'

    A page needs no other file, and has the description in words. Equal figures give equal files. The file appears when
    it is complete, and replaces an older one.
    """
    check_target(path)
    path = Path(path)
    try:
        content = _RENDERERS[path.suffix.lower()](figure)
    except ValueError as error:
        raise ValueError(f"cannot write {path}: {error}") from error
    try:
        with replacing(path) as unfinished:
            unfinished.write_bytes(content)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error
    return path


@contextmanager
def one_browser() -> Iterator[None]:
    """A context in which all images share a browser, since starting one takes longer than drawing."""
    import kaleido

    # This raises an error if no browser runs; the server would wait for one for ever.
    _image({"data": [], "layout": {"width": 10, "height": 10}}, "svg")
    kaleido.start_sync_server(**_BROWSER, silence_warnings=True)
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def _svg(figure: Figure) -> bytes:
    """The image with its title and description, and without the random word in plotly's ids."""
    text = _image(drawn(figure), "svg").decode()
    random_word = re.search(r'id="defs-(\w+)"', text)
    text = text.replace(random_word[1], "figure") if random_word else text
    description = f"<title>{escape(figure.title)}</title><desc>{escape(figure.description)}</desc>"
    return re.sub(r"<svg\b([^>]*)>", lambda start: f'<svg role="img"{start[1]}>{description}', text, count=1).encode()


def _pdf(figure: Figure) -> bytes:
    """The image with a fixed date, which has as many bytes as the real one, since a .pdf refers to bytes by number."""
    return re.sub(rb"D:\d{14}\+00'00'", _DATE, _image(drawn(figure), "pdf"))


def _image(figure: Json, kind: str, scale: float = 1) -> bytes:
    import kaleido

    options = {"format": kind, "scale": scale, **{name: figure["layout"][name] for name in ("width", "height")}}
    # Otherwise plotly draws random uids, which are part of an .svg.
    figure = figure | {"data": [trace | {"uid": str(number)} for number, trace in enumerate(figure["data"])]}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")  # a shared browser already has them
            content: bytes = kaleido.calc_fig_sync(figure, opts=options, kopts=_BROWSER)
    except (RuntimeError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{_IMAGES_NEED}, and the browser does not run ({reason}); .html needs neither") from error
    return content


_RENDERERS: dict[str, Callable[[Figure], bytes]] = {
    ".html": lambda figure: page_of(figure).encode(),
    ".svg": _svg,
    ".pdf": _pdf,
    ".png": lambda figure: _image(drawn(figure), "png", scale=_SCALE),
}
