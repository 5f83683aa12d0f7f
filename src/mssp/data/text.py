"""Text as bytes: 256 tokens, no tokenizer, and a text that comes with every Python.

The tokens are one long uint8 array. A pass over it takes windows that do not overlap, in seeded order. Only the starts
of windows are computed, so a device can hold the text and cut its own windows.
"""

from __future__ import annotations

import codecs
import hashlib
import lzma
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mssp._constraints import an_array, at_least, between, optional, path, positive_int, takes, word
from mssp._files import file_at
from mssp.data.dataset import PARTS, update_with_array
from mssp.data.streams import single_pass

# Folders and beginnings of file names that are no part of the text: installed packages, tests, what a build wrote.
_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "__pycache__"})
_WRITTEN_BY_BUILDS = ("config-", "_sysconfigdata")
_CHUNK = 1 << 20


@takes(name=word, vocabulary=at_least(2, 256), train=an_array, validation=an_array, source=word)
@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as tokens, in a part for training and a part for validation.

    >>> text = np.frombuffer(b"all in one line", dtype=np.uint8)
    >>> tokens = Tokens("line", 256, train=text, validation=text)
    >>> [window.tobytes() for window in next(tokens.windows("train", seed=0, batch=2, length=4, steps=1))]
    [b'all i', b'ne li']

    Args:
        vocabulary: the number of different tokens, which are 0 to ``vocabulary`` - 1; 256 for bytes.
        train, validation: uint8 [n].
        source: where the text comes from, for people.
    """

    name: str
    vocabulary: int
    train: npt.NDArray[np.uint8]
    validation: npt.NDArray[np.uint8]
    source: str = ""

    def __post_init__(self) -> None:
        for part in PARTS:
            tokens: npt.NDArray[np.uint8] = getattr(self, part)
            if tokens.dtype != np.uint8 or tokens.ndim != 1:
                raise ValueError(
                    f"{self.name}'s {part} tokens must be uint8 [n], got {tokens.dtype} {list(tokens.shape)}"
                )
            if tokens.size and int(tokens.max()) >= self.vocabulary:
                raise ValueError(
                    f"{self.name}'s {part} tokens must lie below {self.vocabulary}, got {int(tokens.max())}"
                )

    @cached_property
    def checksum(self) -> str:
        """16 hexadecimal digits that stand for every token; the same on every machine."""
        digest = hashlib.sha256(str(self.vocabulary).encode())
        for part in PARTS:
            update_with_array(digest, getattr(self, part))
        return digest.hexdigest()[:16]

    def window_starts(self, part: str, seed: int, batch: int, length: int, steps: int) -> npt.NDArray[np.int64]:
        """Where the windows of each step start, [steps, batch]: a single pass, in an order that the seed decides.

        A window has ``length + 1`` tokens. All but the last are inputs, and the token after an input is its target. The
        last token is also the first input of the next window of the text.
        """
        if part not in PARTS:
            raise ValueError(f"unknown part {part!r} of {self.name}: use one of {', '.join(PARTS)}")
        tokens: npt.NDArray[np.uint8] = getattr(self, part)
        windows = max(len(tokens) - 1, 0) // positive_int("length", length)
        things, name = f"windows of {length} tokens", f"{self.name}'s {part} text"
        return length * single_pass(seed, windows, batch, steps, things=things, name=name)

    def windows(self, part: str, seed: int, batch: int, length: int, steps: int) -> Iterator[npt.NDArray[np.uint8]]:
        """The windows of each step, [batch, length + 1], one step at a time."""
        starts = self.window_starts(part, seed, batch, length, steps)  # outside the generator: errors come at once
        tokens: npt.NDArray[np.uint8] = getattr(self, part)
        return (tokens[row[:, None] + np.arange(length + 1)] for row in starts)


@takes(validation_share=between(0, 1))
def python_source(validation_share: float = 0.02) -> Tokens:
    """The source of the running Python's standard library, with a zero byte after every file.

    The name of a file decides whether it is for training or for validation, so it is in the same part in every version
    of Python. The text differs between versions, and so does its checksum.

    Args:
        validation_share: the approximate share of files for validation.
    """
    root = Path(sysconfig.get_path("stdlib"))
    version = ".".join(map(str, sys.version_info[:3]))
    return source_tree(root, f"the standard library of Python {version}", validation_share)


def source_tree(root: Path, source: str, validation_share: float) -> Tokens:
    """The text of all Python files of a folder, in the order of their names, without installed packages and tests."""
    names = sorted(_python_files(root))
    if not names:
        raise ValueError(f"{root} holds no .py files: this Python has no source of its standard library")
    documents: dict[str, list[bytes]] = {part: [] for part in PARTS}
    for name in names:
        # Some systems install Python with other line ends.
        text = (root / name).read_bytes().replace(b"\r\n", b"\n")
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")
        documents["validation" if digest < validation_share * 2**48 else "train"].append(text + b"\0")
    train, validation = (np.frombuffer(b"".join(documents[part]), dtype=np.uint8) for part in PARTS)
    return Tokens("python", 256, train, validation, source)


def _python_files(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        # Changed in place, so that the walk does not enter the folders of installed packages, which can be many.
        subfolders[:] = [name for name in subfolders if _is_included(name)]
        relative = Path(folder).relative_to(root)
        yield from ((relative / name).as_posix() for name in files if name.endswith(".py") and _is_included(name))


def _is_included(name: str) -> bool:
    return name not in _EXCLUDED and not name.startswith(_WRITTEN_BY_BUILDS)


@takes(path=path, validation=optional(path), validation_share=between(0, 1))
def from_text_file(path: str | Path, validation: str | Path | None = None, validation_share: float = 0.02) -> Tokens:
    """A UTF-8 text file as bytes; a file whose name ends in ``.xz`` is unpacked.

    Args:
        validation: another text file, for validation. Without it, the last lines of ``path`` are for validation.
        validation_share: the approximate share of the bytes in those lines.
    """
    path = Path(path)
    text = _text(path)
    if validation is not None:
        return Tokens(path.name, 256, text, _text(Path(validation)), source=f"{path.name} and {Path(validation).name}")
    cut = len(text) - round(len(text) * validation_share)
    cut = text[:cut].tobytes().rfind(b"\n") + 1 or cut
    return Tokens(path.name, 256, text[:cut], text[cut:], source=path.name)


def _text(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, which must be UTF-8 text."""
    path = file_at(path)
    decoder = codecs.getincrementaldecoder("utf-8")()
    chunks = []
    try:
        with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                decoder.decode(chunk)
                chunks.append(chunk)
        decoder.decode(b"", final=True)
    except EOFError:
        raise ValueError(f"{path} is truncated: it ends before its compressed data do; get a whole copy") from None
    except lzma.LZMAError as error:
        raise ValueError(f"{path} is not a whole .xz file ({error}): get a whole copy") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}): save it as UTF-8") from None
    return np.frombuffer(b"".join(chunks), dtype=np.uint8)
