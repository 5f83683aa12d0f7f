"""Data to train on: images, clusters and spectra with classes, and text as tokens.

    load("clusters")  load("spectra")  load("tinyimagenet")  load("cifar10")  load("my.npz")  load("folder") -> Dataset
    prepare(["my.txt"], "tokens.bin")  token_file("tokens.bin")  python_tokens()                           -> TokenFile
    TokenOrder(file, "train", sequence=256, seed=0).rows(0, 8)                                      -> int64 [8, 257]

Arrays are numpy's, nothing here imports torch, and it imports only the private modules at the root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mssp._lazy import lazy_exports

if TYPE_CHECKING:
    from mssp.data.dataset import Dataset, Split, subset
    from mssp.data.images import from_folder, from_npz, save_npz
    from mssp.data.names import NAMES, load
    from mssp.data.preparing import prepare, python_tokens
    from mssp.data.token_order import TokenOrder
    from mssp.data.tokenizer import tokenizer_of
    from mssp.data.tokens import TokenFile, check_vocabulary, token_file

_HOMES = {
    "dataset": ("Dataset", "Split", "subset"),
    "images": ("from_folder", "from_npz", "save_npz"),
    "names": ("NAMES", "load"),
    "preparing": ("prepare", "python_tokens"),
    "token_order": ("TokenOrder",),
    "tokenizer": ("tokenizer_of",),
    "tokens": ("TokenFile", "check_vocabulary", "token_file"),
}
__all__ = [
    "NAMES", "Dataset", "Split", "TokenFile", "TokenOrder", "check_vocabulary", "from_folder", "from_npz", "load",
    "prepare", "python_tokens", "save_npz", "subset", "token_file", "tokenizer_of",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
