"""Data to train on: images, clusters and spectra with classes, and text.

    load("clusters")  load("spectra")  load("tinyimagenet")  load("cifar10")  load("my.npz")  load("folder") -> Dataset
    python_source()   from_text_file("my.txt")                                                               -> Tokens

Arrays are numpy's, nothing here imports torch, and exports are lazy.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mssp.data.dataset import Dataset, Split, subset
    from mssp.data.images import from_folder, from_npz, save_npz
    from mssp.data.text import Tokens, from_text_file, python_source

_HOMES = {
    "dataset": ("Dataset", "Split", "subset"),
    "images": ("from_folder", "from_npz", "save_npz"),
    "text": ("Tokens", "from_text_file", "python_source"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

# Which function, of which module, makes the dataset of that name.
_MAKERS = {"clusters": "clusters", "spectra": "spectra", "tinyimagenet": "downloads", "cifar10": "downloads"}
NAMES = tuple(_MAKERS)

__all__ = [
    "NAMES", "Dataset", "Split", "Tokens", "from_folder", "from_npz", "from_text_file", "load",
    "python_source", "save_npz", "subset",
]  # fmt: skip


def load(name_or_path: str | Path, **options: Any) -> Dataset:
    """A dataset by name (one of :data:`NAMES`), or from an .npz file or a folder of images.

    >>> load("clusters", examples=300, validation=100, classes=5, superclasses=1).classes
    5

    Args:
        options: of the function that makes it: :func:`mssp.data.clusters.clusters`, :func:`mssp.data.spectra.spectra`,
            :func:`mssp.data.downloads.tinyimagenet`, :func:`mssp.data.downloads.cifar10`, :func:`from_npz` or
            :func:`from_folder`.
    """
    from mssp.data.arguments import check_options

    name = str(name_or_path)
    if name in _MAKERS:
        make: Callable[..., Dataset] = getattr(import_module(f"mssp.data.{_MAKERS[name]}"), name)
        check_options(name, make, options)
        return make(**options)
    read = _reader(name)
    check_options(name, read, options)
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'mssp.data' has no attribute {name!r}")
    return getattr(import_module(f"mssp.data.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
