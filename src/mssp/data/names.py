"""``load`` makes or reads a dataset by its name or its path."""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mssp._constraints import Constraint, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mssp.data.dataset import Dataset

# The module of ``mssp.data`` with the function that makes a dataset, by the name of both function and dataset.
_MODULES = {"clusters": "generated", "spectra": "generated", "tinyimagenet": "downloads", "cifar10": "downloads"}
NAMES = tuple(_MODULES)
# Tokenizers with a name; all others are files.
TOKENIZERS = ("bytes", "gpt2")


def load(name_or_path: str | Path, **options: Any) -> Dataset:
    """A dataset by name (one of :data:`NAMES`), or from an .npz file or a folder of images.

    >>> load("clusters", examples=300, validation=100, classes=5, superclasses=1).classes
    5

    Args:
        options: those of the function that makes the dataset: :func:`mssp.data.generated.clusters`,
            :func:`mssp.data.generated.spectra`, :func:`mssp.data.downloads.tinyimagenet`,
            :func:`mssp.data.downloads.cifar10`, :func:`from_npz` or :func:`from_folder`.
    """
    name, make = str(name_or_path), dataset_maker("data", name_or_path)
    allowed = inspect.signature(make).parameters
    for option in options:
        if option not in allowed:
            raise ValueError(f"{name} has no option {option!r}: it takes {', '.join(allowed)}")
    return make(**options)


def _maker_of(name_or_path: Any) -> Callable[..., Dataset]:
    """The function that makes the dataset of a name or a path from its options."""
    if not isinstance(name_or_path, str | Path) or not str(name_or_path):
        raise UnfitError
    name, path = str(name_or_path), Path(name_or_path)
    if name in _MODULES:
        make: Callable[..., Dataset] = getattr(import_module(f"mssp.data.{_MODULES[name]}"), name)
        return make
    if name == "python" or path.suffix in {".txt", ".xz"}:
        function = "python_tokens()" if name == "python" else f"prepare([{name!r}], 'tokens.bin')"
        raise ValueError(f"{name} is text, which has no classes: use mssp.data.{function}")
    if not path.is_dir() and not (path.suffix == ".npz" and path.is_file()):
        raise UnfitError
    from mssp.data.images import from_folder, from_npz

    return partial(from_folder if path.is_dir() else from_npz, path)


dataset_maker = Constraint(f"one of {', '.join(NAMES)}, an .npz file or a folder of images", _maker_of)
