"""Makes token files of text. What has been done is kept in a folder beside, from which a stopped preparation goes on.

A hash of a document's text decides whether it is for training or for validation. The same document is therefore in the
same part wherever it stands, and whatever else there is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, BinaryIO

import numpy as np

from mssp._constraints import between, function, optional, path, positive_int, several, takes, word
from mssp._documents import parsed
from mssp._files import naming, why_not_writable, write_whole
from mssp.data.downloads import cache_folder
from mssp.data.text import Files, HubDataset, Source, standard_library
from mssp.data.tokenizer import Bytes, Tokenizer, named_tokenizer
from mssp.data.tokens import FOR_VALIDATION, HEAD, TokenFile, head_of, padded, sha256_of, token_file, type_for

DOLMA = "allenai/dolma3_mix-150B-1025"
VALIDATION_SHARE = 0.02
_BATCH = 1 << 22  # bytes of text that are encoded at a time
_MOST_DOCUMENTS = 10_000  # in such a batch
_COMMIT_SECONDS = 5.0
# Called with the bytes or tokens that have been done since the last call.
Advance = Callable[[int], object]


@takes(
    files=several(path),
    output=path,
    dataset=optional(word),
    tokenizer=word,
    vocabulary_files=several(path),
    end_token=optional(word),
    text_field=word,
    split_on=optional(word),
    validation_share=between(0, 1),
    tokens=optional(positive_int),
    advance=optional(function),
)
def prepare(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    dataset: str | None = None,
    tokenizer: str = "bytes",
    vocabulary_files: Sequence[str | Path] = (),
    end_token: str | None = None,
    text_field: str = "text",
    split_on: str | None = None,
    validation_share: float = VALIDATION_SHARE,
    tokens: int | None = None,
    advance: Advance | None = None,
) -> TokenFile:
    """Makes a token file of files of text, or of a dataset of Hugging Face.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     text = Path(folder) / "rows.jsonl"
    ...     written = text.write_text('{"text": "Two roads"}' + chr(10) + '{"text": "diverged"}', encoding="utf-8")
    ...     file = prepare([text], Path(folder) / "tokens.bin")
    ...     file.documents, file.tokens, bytes(file.document(1).astype("uint8"))
    (2, 19, b'diverged')

    Args:
        files: text files, .jsonl or .parquet; all but parquet also packed as .gz, .xz or .zst. Without files
            a dataset is read.
        output: the token file. It is written aside, in a folder ``output.part``, and renamed when it is whole.
        dataset: the name of a dataset of Hugging Face; :data:`DOLMA` unless given.
        tokenizer: bytes, gpt2, or the path of a tokenizer.json.
        vocabulary_files: GPT-2's vocabulary and merges; downloaded by the library ``tokenizers`` unless given.
        end_token: the token that ends a document, where a tokenizer.json does not say which that is.
        text_field: where rows of .jsonl, of .parquet and of datasets have their text.
        split_on: cuts text files into documents where this text stands. Without it each is one document.
        validation_share: the approximate share of documents for validation.
        tokens: stops behind the document that makes it so many. All of the text unless given.
        advance: told of progress: of bytes of files, or of tokens where their number is given or text is no file's.
    """
    output = Path(output)
    if files and dataset is not None:
        raise ValueError("files must be left out where a dataset is named, got both")
    if not files and split_on is not None:
        raise ValueError("split_on must be left out for a dataset, whose rows are documents")
    source: Source = Files(files, text_field, split_on) if files else HubDataset(dataset or DOLMA, text_field)
    encoder = named_tokenizer(tokenizer, [Path(file) for file in vocabulary_files], end_token)
    if os.path.lexists(output):
        raise ValueError(f"{output} is there already: remove it, or choose another name")
    if reason := why_not_writable(output):
        raise ValueError(f"{output} {reason}")
    part = output.with_name(f"{output.name}.part")
    if part.exists() and not part.is_dir():
        raise ValueError(f"{part} must be the folder of an unfinished token file, got a file: remove it")
    part.mkdir(exist_ok=True)
    _write(part, output, source, encoder, validation_share, tokens, advance or _quiet)
    return token_file(output)


def python_tokens() -> TokenFile:
    """The source of the running Python's standard library as bytes, in a token file that is made once.

    It is in the cache folder, ``~/.cache/mssp`` or ``$MSSP_DATA``. The text differs between versions of Python, and so
    does its checksum.

    >>> python_tokens().vocabulary
    256
    """
    source = standard_library()
    settings = hashlib.sha256(json.dumps(source.settings).encode()).hexdigest()[:8]
    name = source.name.rpartition(" ")[2]
    output = cache_folder() / f"python-{name}-{settings}.bin"
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        # In a folder of its own: several processes may make the same file at the same time.
        with TemporaryDirectory(prefix=".python-", dir=output.parent) as part:
            _write(Path(part), output, source, Bytes(), VALIDATION_SHARE, None, _quiet)
    try:
        return token_file(output)
    except ValueError as error:
        raise ValueError(f"{error}; delete it and try again") from None


def _quiet(amount: int) -> None:
    """Tells nobody of progress."""


def _write(
    part: Path, output: Path, source: Source, tokenizer: Tokenizer, share: float, limit: int | None, advance: Advance
) -> None:
    """Makes a token file from where the folder says that it stopped. The folder is removed at the end."""
    settings = {
        "source": source.settings,
        "tokenizer": [tokenizer.name, hashlib.sha256(tokenizer.json).hexdigest(), tokenizer.end],
        "validation_share": share,
        "limit": limit,
    }
    with naming(output, part / "tokens"), _alone(part, output), _Unfinished(part, settings) as unfinished:
        try:
            unfinished.fill(source, tokenizer, share, limit, advance)
        except BaseException:
            if not unfinished.documents:  # nothing that is worth keeping
                shutil.rmtree(part, ignore_errors=True)
            raise
        said = {
            "vocabulary": tokenizer.vocabulary,
            "tokenizer": tokenizer.name,
            "end": tokenizer.end,
            "type": type_for(tokenizer.vocabulary),
            "validation_share": share,
            "source": source.name if len(source.name) <= _LONGEST_NAME else f"{source.name[:_LONGEST_NAME]}…",
        }
        unfinished.finish(output, said, tokenizer.json)
    shutil.rmtree(part, ignore_errors=True)


_LONGEST_NAME = 500  # characters of a source in the head, where it has to fit


@contextmanager
def _alone(part: Path, output: Path) -> Iterator[None]:
    """Refuses a second process that prepares the same file. The system takes the lock back from a process that ends."""
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    with (part / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{output} is being prepared by another process: wait for it, or stop it") from None
        yield


class _Unfinished:
    """A token file that is being written: its tokens, the ends of its documents, and how far it is.

    What is in the two files beyond what ``state.json`` says was written by a process that was killed, and is cut off.
    """

    def __init__(self, part: Path, settings: dict[str, Any]) -> None:
        self._part = part
        self._state: dict[str, Any] = {
            "settings": settings, "position": None, "tokens": 0, "documents": 0, "empty": 0, "is_whole": False
        }  # fmt: skip
        kept = part / "state.json"
        if kept.exists():
            self._go_on(kept)
        self._tokens, self._ends = (_opened(part / name) for name in ("tokens", "ends"))

    def _go_on(self, kept: Path) -> None:
        try:
            state = parsed(kept.read_bytes())
        except ValueError as error:
            raise ValueError(f"{kept} is damaged ({error}): remove {self._part}, and prepare again") from None
        if not isinstance(state, dict) or state.get("settings") != json.loads(json.dumps(self._state["settings"])):
            raise ValueError(
                f"{self._part} must be of a preparation with the same settings, got other ones: "
                "give the same files and flags again, or remove it"
            )
        self._state = state

    @property
    def documents(self) -> int:
        """How many are written."""
        return int(self._state["documents"])

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *_: object) -> None:
        self._tokens.close()
        self._ends.close()

    def fill(self, source: Source, tokenizer: Tokenizer, share: float, limit: int | None, advance: Advance) -> None:
        """Adds documents until there are no more, or until the limit."""
        size = np.dtype(type_for(tokenizer.vocabulary)).itemsize
        self._cut(size)
        before, committed = 0, monotonic()
        by_tokens = limit is not None or source.size is None
        advance(self._state["tokens"] if by_tokens else 0)
        try:
            for batch, position in () if self._state["is_whole"] else _batches(source, self._state["position"]):
                state = self._with(batch, tokenizer, share, limit)
                added = state["tokens"] - self._state["tokens"]
                self._state = {**state, "position": position}  # at once: Ctrl-C may come between any two lines
                advance(added if by_tokens else source.read - before)
                before = source.read
                if limit is not None and self._state["tokens"] >= limit:
                    break
                if monotonic() - committed > _COMMIT_SECONDS:
                    self._commit()
                    committed = monotonic()
            self._state["is_whole"] = True
        finally:
            self._commit()
        if not self._state["documents"]:
            raise ValueError(f"{source.name} has no text: at least one document with text is needed")

    def _with(self, batch: list[bytes], tokenizer: Tokenizer, share: float, limit: int | None) -> dict[str, Any]:
        """Appends documents, and returns the state after that. Documents without text are left out."""
        documents = [document for document in batch if document]
        state = {**self._state, "empty": self._state["empty"] + len(batch) - len(documents)}
        if not documents:
            return state
        tokens, lengths = tokenizer.encode(documents)
        ends = self._state["tokens"] + np.cumsum(lengths)
        if limit is not None:
            ends = ends[: np.searchsorted(ends, limit) + 1]
        added = int(ends[-1]) - self._state["tokens"]
        marks = [_is_for_validation(document, share) for document in documents[: len(ends)]]
        self._tokens.write(tokens[:added].astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes())
        self._ends.write((ends.astype("<u8") | np.where(marks, FOR_VALIDATION, np.uint64(0))).tobytes())
        return {**state, "tokens": int(ends[-1]), "documents": state["documents"] + len(ends)}

    def _cut(self, size: int) -> None:
        """Brings the two files to the lengths that the state says."""
        for file, length in (
            (self._tokens, HEAD + size * self._state["tokens"]), (self._ends, 8 * self._state["documents"])
        ):  # fmt: skip
            if self._state["tokens"] and file.seek(0, os.SEEK_END) < length:
                raise ValueError(f"{self._part} is damaged: {file.name} is too short; remove it, and prepare again")
            file.truncate(length)
            file.seek(length)

    def _commit(self) -> None:
        """Writes down how far it is, behind what it has written."""
        for file in (self._tokens, self._ends):
            file.flush()
            os.fsync(file.fileno())
        write_whole(self._part / "state.json", json.dumps(self._state))

    def finish(self, output: Path, said: dict[str, Any], tokenizer_json: bytes) -> None:
        """Puts the parts together, and renames the file."""
        size = np.dtype(said["type"]).itemsize * self._state["tokens"]
        self._tokens.write(bytes(padded(size) - size))
        self._ends.seek(0)
        shutil.copyfileobj(self._ends, self._tokens)
        self._tokens.write(tokenizer_json)
        said |= {key: self._state[key] for key in ("tokens", "documents", "empty")}
        said |= {"tokenizer_bytes": len(tokenizer_json)}
        self._tokens.seek(HEAD)
        said["tokens_sha256"] = sha256_of(self._tokens, size)
        self._tokens.seek(HEAD + padded(size))
        said["rest_sha256"] = sha256_of(self._tokens, 8 * said["documents"] + len(tokenizer_json))
        self._tokens.seek(0)
        self._tokens.write(head_of(said))
        self._tokens.flush()
        os.fsync(self._tokens.fileno())
        os.replace(self._part / "tokens", output)


def _opened(path: Path) -> BinaryIO:
    return path.open("r+b" if path.exists() else "w+b")


def _batches(source: Source, position: Any) -> Iterator[tuple[list[bytes], Any]]:
    """Documents by the batch, each with the source's position behind it."""
    batch: list[bytes] = []
    size = 0
    for document in source.documents(position):
        batch.append(document)
        size += len(document)
        if size >= _BATCH or len(batch) >= _MOST_DOCUMENTS:
            yield batch, source.position
            batch, size = [], 0
    if batch:
        yield batch, source.position


def _is_for_validation(document: bytes, share: float) -> bool:
    digest = int.from_bytes(hashlib.blake2b(document, digest_size=6).digest(), "little")
    return digest < share * 2**48
