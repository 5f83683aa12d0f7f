"""Data sets by name or path."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mssp.data.dataset import Dataset

# Which function, of which module, makes the dataset of that name.
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
    if name in _MAKERS:
        make: Callable[..., Dataset] = getattr(import_module(f"mssp.data.{_MAKERS[name]}"), name)
        _check_options(name, make, options)
        return make(**options)
    read = _reader(name)
    _check_options(name, read, options)
    return read(Path(name), **options)


def _reader(name: str) -> Callable[..., Dataset]:
    path = Path(name)
    if name == "python" or path.suffix in {".txt", ".xz"}:
        function = "python_source()" if name == "python" else f"from_text_file({name!r})"
        raise ValueError(f"{name} is text, which has no classes: use mssp.data.{function}")
    if path.is_dir():
        from mssp.data.images import from_folder

        return from_folder
    if path.suffix == ".npz" and path.is_file():
        from mssp.data.images import from_npz

        return from_npz
    if path.is_file():
        raise ValueError(f"{name} is neither an .npz file nor a folder of images")
    if path.suffix or len(path.parts) > 1:
        raise ValueError(f"{name} does not exist: give an .npz file, a folder of images or one of {', '.join(NAMES)}")
    raise ValueError(
        f"unknown dataset {name!r}: use one of {', '.join(NAMES)}, or the path of an .npz file or of a folder of images"
    )


def _check_options(name: str, function: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Whether a function takes these options; its positional-only arguments are not options."""
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}: it takes {', '.join(known)}")
