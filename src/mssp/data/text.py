"""Documents of text: from text files, JSONL, parquet, a dataset of Hugging Face, and the standard library of Python.

A source gives its documents one after another, as bytes of UTF-8. It says where it is, in a form that JSON holds, and
goes on from there.
"""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import os
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from mssp._constraints import shown
from mssp._documents import one_line
from mssp._files import file_at

# Folders and beginnings of file names that are no part of the text: installed packages, tests, what a build wrote.
_EXCLUDED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "__pycache__"})
_WRITTEN_BY_BUILDS = ("config-", "_sysconfigdata")
_CHUNK = 1 << 20
_PACKED = (".gz", ".xz", ".zst")
_LINES = (".jsonl", ".ndjson")
# Files that hold text, and of which nobody means the file itself to be a document.
_NOT_TEXT = {
    ".json": "write one JSON object a line, in a .jsonl",
    ".csv": "write one JSON object a line, in a .jsonl",
    ".tar": "unpack it first",
    ".zip": "unpack it first",
}


class Source(Protocol):
    """What documents come from.

    Args:
        name: for people.
        settings: what decides which documents come, as JSON has it.
        size: of all that is to be read, in bytes; None where nobody knows.
        read: how many bytes of it have been read.
        position: where the source is, behind the last document that it gave, as JSON has it.
    """

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def size(self) -> int | None: ...
    @property
    def read(self) -> int: ...
    @property
    def position(self) -> Any: ...

    def documents(self, position: Any = None) -> Iterator[bytes]:
        """All documents behind a position, or all of them."""


class Files:
    """Text files, whole or cut into documents, .jsonl files and .parquet files; all but parquet may be packed."""

    def __init__(self, paths: Sequence[str | Path], text_field: str = "text", split_on: str | None = None) -> None:
        self._paths = [file_at(path) for path in paths]
        for path in self._paths:
            _check_suffix(path)
        self._field, self._split_on = text_field, (split_on or "").encode() or None
        self._sizes = [path.stat().st_size for path in self._paths]
        self.size: int | None = sum(self._sizes)
        self.name = ", ".join(path.name for path in self._paths)
        self.settings = {
            "files": [[str(path.absolute()), size] for path, size in zip(self._paths, self._sizes, strict=True)],
            "text_field": text_field,
            "split_on": split_on,
        }
        self.position: Any = None
        self.read = 0

    def documents(self, position: Any = None) -> Iterator[bytes]:
        first, skipped = position or (0, 0)
        for number, path in enumerate(self._paths):
            before = sum(self._sizes[:number])
            for count, document in enumerate(self._documents_of(path, before) if number >= first else (), start=1):
                if number > first or count > skipped:
                    self.position = [number, count]
                    yield document

    def _documents_of(self, path: Path, before: int) -> Iterator[bytes]:
        packed, plain = _suffixes(path)
        if plain == ".parquet":
            yield from self._rows_of_parquet(path, before)
            return
        with path.open("rb") as raw, _refusing_broken(path), _unpacked(raw, packed) as file:

            def counted() -> Iterator[bytes]:
                while chunk := file.read(_CHUNK):
                    self.read = before + raw.tell()
                    yield chunk

            if plain in _LINES:
                yield from _texts_of_lines(path, counted(), self._field)
            elif self._split_on is None:
                yield b"".join(_checked(counted()))
            else:
                yield from _cut(_checked(counted()), self._split_on)
        self.read = before + path.stat().st_size

    def _rows_of_parquet(self, path: Path, before: int) -> Iterator[bytes]:
        try:
            parquet: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise ValueError(f"{path} is read by pyarrow, which is missing: mssp[data]") from None
        with _refusing_broken(path), parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if self._field not in columns:
                raise ValueError(_without_text(str(path), self._field, columns))
            row, rows = 0, max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(columns=[self._field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    yield _encoded(text, f"{path}, row {row}", self._field)
                self.read = before + path.stat().st_size * row // rows


class HubDataset:
    """A dataset of Hugging Face, by its name. It is read over the network as it comes, and is not kept."""

    def __init__(self, name: str, text_field: str = "text") -> None:
        self.name, self._field = name, text_field
        self.settings = {"dataset": name, "text_field": text_field}
        self.size: int | None = None
        self.read = 0
        self._rows: Any = None
        self._row = 0

    @property
    def position(self) -> Any:
        return {"row": self._row, "state": self._rows.state_dict()}

    def documents(self, position: Any = None) -> Iterator[bytes]:
        try:
            datasets: Any = import_module("datasets")
        except ImportError:
            raise ValueError(
                f"the dataset {self.name} is read by the library datasets, which is missing: mssp[data]; or give files"
            ) from None
        with _told_of_the_network(self.name):
            self._rows = datasets.load_dataset(self.name, split="train", streaming=True)
            if position is not None:
                self._rows.load_state_dict(position["state"])
                self._row = position["row"]
            rows = iter(self._rows)
        while True:
            with _told_of_the_network(self.name):
                row = next(rows, None)
            if row is None:
                return
            self._row += 1
            place = f"row {self._row} of {self.name}"
            if self._field not in row:
                raise ValueError(_without_text(place, self._field, row))
            yield _encoded(row[self._field], place, self._field)


class PythonFiles:
    """All Python files of a folder, in the order of their names, without installed packages and tests."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self.name = root, name
        self._names = sorted(_python_files(root))
        if not self._names:
            raise ValueError(f"{root} holds no .py files: this Python has no source of its standard library")
        sizes = [[name, (root / name).stat().st_size] for name in self._names]
        self.settings: dict[str, Any] = {"files": sizes}
        self.size: int | None = None
        self.read, self.position = 0, None

    def documents(self, position: Any = None) -> Iterator[bytes]:
        for name in self._names:
            # Some systems install Python with other line ends.
            yield (self._root / name).read_bytes().replace(b"\r\n", b"\n")


def standard_library() -> PythonFiles:
    """The source of the running Python's standard library."""
    version = ".".join(map(str, sys.version_info[:3]))
    return PythonFiles(Path(sysconfig.get_path("stdlib")), f"the standard library of Python {version}")


def _python_files(root: Path) -> Iterator[str]:
    for folder, subfolders, files in os.walk(root):
        # Changed in place, so that the walk does not enter the folders of installed packages, which can be many.
        subfolders[:] = [name for name in subfolders if _is_included(name)]
        relative = Path(folder).relative_to(root)
        yield from ((relative / name).as_posix() for name in files if name.endswith(".py") and _is_included(name))


def _is_included(name: str) -> bool:
    return name not in _EXCLUDED and not name.startswith(_WRITTEN_BY_BUILDS)


# -- files -------------------------------------------------------------------------------------------------------------


def _suffixes(path: Path) -> tuple[str, str]:
    """How a file is packed, and what is inside."""
    last = path.suffix.lower()
    return (last, Path(path.stem).suffix.lower()) if last in _PACKED else ("", last)


def _check_suffix(path: Path) -> None:
    packed, plain = _suffixes(path)
    if plain in _NOT_TEXT:
        raise ValueError(f"{path} must be text, .jsonl or .parquet, got {plain}: {_NOT_TEXT[plain]}")
    if plain == ".parquet" and packed:
        raise ValueError(f"{path} must not be packed, since .parquet is packed itself: unpack it first")
    if packed == ".zst" and sys.version_info < (3, 14):
        raise ValueError(f"{path} is read by Python from version 3.14 on: unpack it first (zstd -d)")


def _unpacked(raw: BinaryIO, packed: str) -> Any:
    if packed == ".gz":
        return gzip.open(raw)
    if packed == ".xz":
        return lzma.open(raw)
    if packed == ".zst":
        return import_module("compression.zstd").open(raw)
    return raw


@contextmanager
def _refusing_broken(path: Path) -> Iterator[None]:
    """Names a file that cannot be unpacked or decoded."""
    try:
        yield
    except EOFError:
        raise ValueError(f"{path} is truncated: it ends before its compressed data do; get a whole copy") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}): save it as UTF-8") from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole {path.suffix} file ({error}): get a whole copy") from None
    except Exception as error:
        if type(error).__module__.startswith(("pyarrow", "compression")):
            raise ValueError(f"{path} cannot be read ({one_line(' '.join(str(error).split()))})") from None
        raise


def _checked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, which must be UTF-8 together."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for chunk in chunks:
        decoder.decode(chunk)
        yield chunk
    decoder.decode(b"", final=True)


def _cut(chunks: Iterator[bytes], separator: bytes) -> Iterator[bytes]:
    """The texts between separators. What stands behind the last one is a document, unless it is blank."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(separator)
        yield from whole
    if rest.strip():
        yield rest


def _texts_of_lines(path: Path, chunks: Iterator[bytes], field: str) -> Iterator[bytes]:
    """The texts in the lines of a .jsonl file. Blank lines are none."""
    for number, line in enumerate(_cut(chunks, b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: it is not JSON: {one_line(str(error))}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{place}: it must be a JSON object, got {shown(row)}")
        if field not in row:
            raise ValueError(_without_text(place, field, row))
        yield _encoded(row[field], place, field)


def _without_text(place: str, field: str, there: Any) -> str:
    names = ", ".join(map(str, there)) or "nothing"
    return f"{place} has no text under {field!r}, it has {names}: say where its text is by --text-field"


def _encoded(text: Any, place: str, field: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{place}: {field} must be a text, got {shown(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: {field} must be a text, got one with half of a character") from None


@contextmanager
def _told_of_the_network(name: str) -> Iterator[None]:
    """Errors of the library datasets, which are of many kinds, in one line."""
    try:
        yield
    except Exception as error:
        reason = one_line(" ".join(str(error).split()))
        raise ValueError(
            f"the dataset {name} cannot be read ({type(error).__name__}: {reason}): is the name right, and the network "
            "there? The same command goes on where this one stopped"
        ) from None
