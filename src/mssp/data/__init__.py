"""Data to train on: images, clusters and spectra with classes, and text.

    load("clusters")  load("spectra")  load("tinyimagenet")  load("cifar10")  load("my.npz")  load("folder") -> Dataset
    python_source()   from_text_file("my.txt")                                                               -> Tokens

Arrays are numpy's, nothing here imports torch, and it imports only the private modules at the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.data.dataset import Dataset, Split, subset
    from mssp.data.images import from_folder, from_npz, save_npz
    from mssp.data.names import NAMES, load
    from mssp.data.text import Tokens, from_text_file, python_source

_HOMES = {
    "dataset": ("Dataset", "Split", "subset"),
    "images": ("from_folder", "from_npz", "save_npz"),
    "names": ("NAMES", "load"),
    "text": ("Tokens", "from_text_file", "python_source"),
}
__all__ = [
    "NAMES", "Dataset", "Split", "Tokens", "from_folder", "from_npz", "from_text_file", "load", "python_source",
    "save_npz", "subset",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
