"""Data sets by name or path."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mssp.data.dataset import Dataset

# The module of the function that makes a dataset; the function has the name of the dataset.
_MAKERS = {"clusters": "generated", "spectra": "generated", "tinyimagenet": "downloads", "cifar10": "downloads"}
NAMES = tuple(_MAKERS)


def load(name_or_path: str | Path, **options: Any) -> Dataset:
    """A dataset by name (one of :data:`NAMES`), or from an .npz file or a folder of images.

    >>> load("clusters", examples=300, validation=100, classes=5, superclasses=1).classes
    5

    Args:
        options: of the function that makes it: :func:`mssp.data.generated.clusters`,
            :func:`mssp.data.generated.spectra`, :func:`mssp.data.downloads.tinyimagenet`,
            :func:`mssp.data.downloads.cifar10`, :func:`from_npz` or :func:`from_folder`.
    """
    name = str(name_or_path)
    make: Callable[..., Dataset]
    if name in _MAKERS:
        make = getattr(import_module(f"mssp.data.{_MAKERS[name]}"), name)
    else:
        make = partial(_reader(name), Path(name))
    allowed = inspect.signature(make).parameters
    for option in options:
        if option not in allowed:
            raise ValueError(f"{name} has no option {option!r}: it takes {', '.join(allowed)}")
    return make(**options)


def _reader(name: str) -> Callable[..., Dataset]:
    """The function that reads what is at a path."""
    from mssp.data.images import from_folder, from_npz

    path = Path(name)
    if name == "python" or path.suffix in {".txt", ".xz"}:
        function = "python_source()" if name == "python" else f"from_text_file({name!r})"
        raise ValueError(f"{name} is text, which has no classes: use mssp.data.{function}")
    if path.is_dir():
        return from_folder
    if path.suffix == ".npz" and path.is_file():
        return from_npz
    if path.is_file():
        raise ValueError(f"{name} is neither an .npz file nor a folder of images")
    if path.suffix or len(path.parts) > 1:
        raise ValueError(f"{name} does not exist: give an .npz file, a folder of images or one of {', '.join(NAMES)}")
    raise ValueError(
        f"unknown dataset {name!r}: use one of {', '.join(NAMES)}, or the path of an .npz file or of a folder of images"
    )
