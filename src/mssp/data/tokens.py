"""Token files: text as one long array of tokens, with the ends of its documents. They are mapped, and not read.

A file has five parts, each right behind the one before it:

    head        4,096 bytes: the letters that say what it is, the SHA-256 of the rest of the head, and a JSON object
    tokens      uint16, or uint32 where the vocabulary needs it, and zeros up to the next multiple of 8 bytes
    documents   uint64: for each document the number of the token behind its last one; the highest bit of it says that
                the document is for validation
    vocabulary  the tokenizer as a file of the library tokenizers; nothing where tokens are bytes
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mssp._constraints import (
    Constraint,
    UnfitError,
    at_least,
    between,
    kind_of,
    one_of,
    path,
    positive_int,
    takes,
    word,
)
from mssp._documents import one_line, parsed
from mssp._files import file_at

HEAD = 4096
MAGIC = b"mssp\x00tok"
FORMAT = 1
LARGEST_VOCABULARY = 2**32
FOR_VALIDATION = np.uint64(1 << 63)
# The first bytes of files that people have beside token files, and what they are.
_FOREIGN = {b"\x93NUMPY": "a .npy file", b"PK\x03\x04": "a zip archive or an .npz file", b"PAR1": "a parquet file",
            b"\xfd7zXZ": "an .xz file", b"\x1f\x8b": "a .gz file", b"SQLite": "a database"}  # fmt: skip
_CHUNK = 1 << 24  # bytes
_DOCUMENTS = 1 << 20  # whose ends are read at a time
_MAKE_ONE = "mssp data prepare makes a token file of text"


def _hexadecimal(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise UnfitError
    return value


_sha256 = Constraint("64 hexadecimal digits", _hexadecimal)
# What the JSON object in the head says, and what that must be.
_SAID: dict[str, Constraint[Any]] = {
    "format": positive_int,
    "vocabulary": at_least(2, LARGEST_VOCABULARY),
    "tokenizer": word,
    "end": at_least(0),
    "type": one_of(("uint16", "uint32")),
    "tokens": positive_int,
    "documents": positive_int,
    "empty": at_least(0),
    "validation_share": between(0, 1),
    "source": word,
    "tokenizer_bytes": at_least(0),
    "tokens_sha256": _sha256,
    "rest_sha256": _sha256,
}


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A token file that is open. :func:`token_file` makes it.

    Args:
        vocabulary: the number of different tokens, which are 0 to ``vocabulary`` - 1.
        tokenizer: what made them: bytes, gpt2, or the name of a file of ``tokenizers`` with a part of its checksum.
        end: the token behind every document.
        tokens: how many there are, in all documents together, with the ends.
        empty: how many documents had no text, and were left out.
        checksum: 16 hexadecimal digits that stand for every token, the documents and the vocabulary.
        validation_share: the share of documents that were meant for validation. A hash of its text decides for each.
        source: where the text comes from, for people.
        array: the tokens of all documents, one after another, uint16 or uint32 [tokens].
        ends: as in the file, uint64 [documents].
        changes: where the text for training and the text for validation change places, int64: the first part begins at
            the first of these numbers, which is 0, the other part at the second, and so on; the last is ``tokens``.
        first_part: the part of the first document.
        validation_documents: how many documents are for validation.
        tokenizer_json: the tokenizer as a file of ``tokenizers``; empty for bytes.
    """

    path: Path
    vocabulary: int
    tokenizer: str
    end: int
    tokens: int
    documents: int
    empty: int
    checksum: str
    validation_share: float
    source: str
    array: npt.NDArray[Any] = field(repr=False)
    ends: npt.NDArray[np.uint64] = field(repr=False)
    changes: npt.NDArray[np.int64] = field(repr=False)
    first_part: str
    validation_documents: int
    tokenizer_json: bytes = field(repr=False)
    tokens_sha256: str = field(repr=False)

    def stretches(self, part: str) -> npt.NDArray[np.int64]:
        """Where the text of a part lies: the first and behind the last token of each stretch, [n, 2], in order."""
        bounds = np.stack([self.changes[:-1], self.changes[1:]], axis=1)
        return bounds[0 if part == self.first_part else 1 :: 2]

    def document(self, number: int) -> npt.NDArray[Any]:
        """The tokens of one document, without the one that ends it."""
        bounds = self.ends[max(number - 1, 0) : number + 1] & ~FOR_VALIDATION
        return self.array[int(bounds[0]) if number else 0 : int(bounds[-1]) - 1]

    def check(self, advance: Callable[[int], object] | None = None) -> None:
        """Read all tokens, and refuse the file if they are not those that were written.

        Args:
            advance: called with the number of bytes that were read, again and again.
        """
        with self.path.open("rb") as file:
            file.seek(HEAD)
            found = sha256_of(file, self.tokens * self.array.itemsize, advance)
        if found != self.tokens_sha256:
            raise ValueError(
                f"{self.path} is damaged: its tokens are not those that were written (their SHA-256 begins with "
                f"{found[:8]}, not {self.tokens_sha256[:8]}); {_GET_ANOTHER}"
            )


_GET_ANOTHER = "get a whole copy, or prepare it again"


@takes(path=path)
def token_file(path: str | Path) -> TokenFile:
    """Opens a token file. It is mapped into memory: only the head and the ends of documents are read.

    >>> from mssp.data import python_tokens
    >>> file = token_file(python_tokens().path)
    >>> file.vocabulary, file.tokenizer, file.end, file.array.dtype.name
    (256, 'bytes', 0, 'uint16')
    """
    path = file_at(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        said = _said_in(path, file.read(HEAD), size)
        dtype = np.dtype(said["type"]).newbyteorder("<")
        start = HEAD + padded(said["tokens"] * dtype.itemsize)
        rest = 8 * said["documents"] + said["tokenizer_bytes"]
        if size < start + rest:
            raise ValueError(f"{path} is truncated: it has {size:,} of {start + rest:,} bytes; {_GET_ANOTHER}")
        if size > start + rest:
            raise ValueError(f"{path} is damaged: it has {size:,} bytes instead of {start + rest:,}; {_GET_ANOTHER}")
        file.seek(start)
        if sha256_of(file, rest) != said["rest_sha256"]:
            raise ValueError(f"{path} is damaged: its documents are not those that were written; {_GET_ANOTHER}")
        file.seek(start + 8 * said["documents"])
        tokenizer_json = file.read(said["tokenizer_bytes"])
    ends = np.asarray(np.memmap(path, dtype="<u8", mode="r", offset=start, shape=(said["documents"],)))
    changes, first_part, validation_documents = _changes(path, ends, said["tokens"])
    return TokenFile(
        path=path,
        vocabulary=said["vocabulary"],
        tokenizer=said["tokenizer"],
        end=said["end"],
        tokens=said["tokens"],
        documents=said["documents"],
        empty=said["empty"],
        checksum=checksum_of(said),
        validation_share=said["validation_share"],
        source=said["source"],
        array=np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=HEAD, shape=(said["tokens"],))),
        ends=ends,
        changes=changes,
        first_part=first_part,
        validation_documents=validation_documents,
        tokenizer_json=tokenizer_json,
        tokens_sha256=said["tokens_sha256"],
    )


@takes(file=kind_of(TokenFile), model_vocabulary=positive_int)
def check_vocabulary(file: TokenFile, model_vocabulary: int) -> None:
    """Refuses a token file with tokens that a model does not have. A model may have more of them than the file.

    >>> from mssp.data import python_tokens
    >>> check_vocabulary(python_tokens(), 50304)
    >>> check_vocabulary(python_tokens(), 128)
    Traceback (most recent call last):
        ...
    ValueError: the model's vocabulary must be at least 256, got 128: ... has 256 different tokens (bytes)
    """
    if file.vocabulary > model_vocabulary:
        raise ValueError(
            f"the model's vocabulary must be at least {file.vocabulary}, got {model_vocabulary}: {file.path} has "
            f"{file.vocabulary} different tokens ({file.tokenizer})"
        )


def type_for(vocabulary: int) -> str:
    """The type of the tokens of a vocabulary.

    >>> type_for(65536), type_for(65537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocabulary <= 2**16 else "uint32"


def padded(size: int) -> int:
    """A number of bytes, rounded up to a multiple of 8: numbers of 8 bytes begin there."""
    return -(-size // 8) * 8


def head_of(said: dict[str, Any]) -> bytes:
    """The head of a token file that says this."""
    text = json.dumps({"format": FORMAT, **said}).encode().ljust(HEAD - len(MAGIC) - 32)
    head = MAGIC + hashlib.sha256(text).digest() + text
    assert len(head) == HEAD, said
    return head


def checksum_of(said: dict[str, Any]) -> str:
    """What stands for all tokens, the documents and the vocabulary, and not for how the file came about."""
    words = [str(said[key]) for key in ("vocabulary", "tokens_sha256", "rest_sha256")]
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def sha256_of(file: BinaryIO, size: int, advance: Callable[[int], object] | None = None) -> str:
    """The SHA-256 of the next so many bytes of a file. ``advance`` is told of every chunk that was read."""
    digest = hashlib.sha256()
    while size and (chunk := file.read(min(size, _CHUNK))):
        digest.update(chunk)
        size -= len(chunk)
        if advance is not None:
            advance(len(chunk))
    return digest.hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


def _said_in(path: Path, head: bytes, size: int) -> dict[str, Any]:
    """What the head of a token file says. A file that is none is refused by what it is."""
    if not head.startswith(MAGIC):
        raise ValueError(f"{path} is {_kind_of(head)} and no token file: {_MAKE_ONE}")
    if len(head) < HEAD:
        raise ValueError(f"{path} is truncated: it has {size:,} bytes, and its head alone {HEAD:,}; {_GET_ANOTHER}")
    digest, text = head[len(MAGIC) : len(MAGIC) + 32], head[len(MAGIC) + 32 :]
    if hashlib.sha256(text).digest() != digest:
        raise ValueError(f"{path} is damaged: its head is not the one that was written; {_GET_ANOTHER}")
    try:
        document = parsed(text)
        if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
            raise ValueError(f"it has format {document['format']}, and this version of mssp reads {FORMAT}")
        if not isinstance(document, dict) or set(document) != set(_SAID):
            raise ValueError("its head has other entries than those of a token file")
        said = {name: constraint(name, document[name]) for name, constraint in _SAID.items()}
        if said["end"] >= said["vocabulary"] or type_for(said["vocabulary"]) != said["type"]:
            raise ValueError(f"{said['vocabulary']} tokens do not go with {said['type']} and the end {said['end']}")
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {one_line(str(error))}; {_MAKE_ONE}") from None
    return said


def _kind_of(head: bytes) -> str:
    """What a file seems to be, by its first bytes."""
    if not head:
        return "an empty file"
    for letters, kind in _FOREIGN.items():
        if head.startswith(letters):
            return kind
    try:
        # The last character may be cut.
        head[: max(len(head) - 3, 1)].decode()
    except UnicodeDecodeError as error:
        return "a binary file" if error.start < len(head) - 6 else "a text"
    return "a binary file" if b"\0" in head else "a text"


def _changes(path: Path, ends: npt.NDArray[np.uint64], tokens: int) -> tuple[npt.NDArray[np.int64], str, int]:
    """Where the parts change places, the part of the first document, and how many documents are for validation.

    Neighbours of the same part are one stretch, so that a few numbers stand for the documents of a large file.
    """
    first = before = bool(ends[0] & FOR_VALIDATION)
    bounds, last, count = [np.zeros(1, dtype=np.int64)], 0, 0
    for start in range(0, len(ends), _DOCUMENTS):
        marked = np.asarray(ends[start : start + _DOCUMENTS])
        chunk = np.concatenate([[last], (marked & ~FOR_VALIDATION).astype(np.int64)])
        if (np.diff(chunk) <= 0).any():
            raise ValueError(f"{path} cannot be used: the ends of its documents are out of order; {_MAKE_ONE}")
        is_marked = np.concatenate([[before], (marked & FOR_VALIDATION) != 0])
        bounds.append(chunk[:-1][is_marked[1:] != is_marked[:-1]])
        last, before, count = int(chunk[-1]), bool(is_marked[-1]), count + int(is_marked[1:].sum())
    if last != tokens:
        raise ValueError(f"{path} cannot be used: its documents end at token {last:,} of {tokens:,}; {_MAKE_ONE}")
    return np.concatenate([*bounds, [tokens]]), "validation" if first else "train", count
