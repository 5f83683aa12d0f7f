"""Tokenizers: bytes, the byte-pair encoding of GPT-2, or any file of the library ``tokenizers``.

Documents come as bytes of UTF-8 and leave as tokens, with the token that ends a document behind each of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mssp._constraints import kind_of, takes
from mssp._documents import parsed
from mssp._files import file_at
from mssp.data.tokens import LARGEST_VOCABULARY, TokenFile, type_for

_GPT2_END, _GPT2_VOCABULARY = "<|endoftext|>", 50257
_GPT2_SAMPLE = ("Hello world, hello.\n\nIt's 2024", (15496, 995, 11, 23748, 13, 198, 198, 1026, 338, 48609))
# Names that files of tokenizers commonly give to the token that ends a document.
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|end|>")
_PIECE = 1 << 16  # characters of a long document that are encoded at a time
# GPT-2's rule for words never joins one of these characters with a line end behind it.
_CUT = re.compile(r"(?<=[A-Za-z0-9.,;:!?])(?=\n)")


class Tokenizer(Protocol):
    """What turns text into tokens and back.

    Args:
        name: of the tokenizer, for people.
        vocabulary: how many tokens there are.
        end: the token that ends a document.
        json: the tokenizer as a file of ``tokenizers``, or nothing.
    """

    name: str
    vocabulary: int
    end: int
    json: bytes

    def encode(self, documents: Sequence[bytes]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The tokens of all documents in one array, each with its end, and how many each document has."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens. Bytes that are no UTF-8 become question marks."""


class Bytes:
    """Bytes as tokens. A zero ends a document.

    >>> Bytes().encode([b"to", b"be"])[0].tolist(), Bytes().decode([116, 111])
    ([116, 111, 0, 98, 101, 0], 'to')
    """

    name, vocabulary, end, json = "bytes", 256, 0, b""

    def encode(self, documents: Sequence[bytes]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        joined = np.frombuffer(b"\0".join([*documents, b""]), dtype=np.uint8)
        return joined.astype(type_for(self.vocabulary)), np.array([len(document) + 1 for document in documents])

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class Vocabulary:
    """A tokenizer of the library ``tokenizers``."""

    def __init__(self, tokenizer: Any, name: str, end: int) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # a document may speak of such a token, and does not mean it
        self._tokenizer, self.name, self.end = tokenizer, name, end
        self.vocabulary = max(tokenizer.get_vocab().values()) + 1
        if not 2 <= self.vocabulary <= LARGEST_VOCABULARY:
            raise ValueError(f"{name} must have 2 tokens or more, got {self.vocabulary}")
        self._type = type_for(self.vocabulary)
        text = tokenizer.to_str()
        self.json: bytes = text.encode()
        self._can_be_cut = _splits_words_as_gpt2_does(json.loads(text))

    def encode(self, documents: Sequence[bytes]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        pieces = [list(self._pieces(document.decode())) for document in documents]
        encoded = iter(self._tokenizer.encode_batch_fast(list(chain(*pieces)), add_special_tokens=False))
        arrays, lengths = [], []
        for of_document in pieces:
            own = [np.array(next(encoded).ids, dtype=self._type) for _ in of_document]
            arrays += [*own, np.array([self.end], dtype=self._type)]
            lengths.append(sum(map(len, own)) + 1)
        return np.concatenate(arrays), np.array(lengths)

    def _pieces(self, text: str) -> Iterator[str]:
        """The text in pieces whose tokens, one after another, are those of the text: several cores share long ones."""
        start = 0
        while self._can_be_cut and len(text) - start > _PIECE and (cut := _CUT.search(text, start + _PIECE)):
            yield text[start : cut.start()]
            start = cut.start()
        yield text[start:]

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def _splits_words_as_gpt2_does(document: Any) -> bool:
    splitter = document.get("pre_tokenizer") or {}
    wanted = {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}
    return not document.get("normalizer") and all(splitter.get(key) == value for key, value in wanted.items())


def named_tokenizer(name: str, files: Sequence[Path] = (), end: str | None = None) -> Tokenizer:
    """A tokenizer by its name, or from its file.

    Args:
        name: bytes, gpt2, or the path of a tokenizer.json.
        files: GPT-2's own: its vocabulary and its merges (vocab.json, merges.txt), or its tokenizer.json.
        end: the token that ends a document, where the tokenizer's files do not say it.
    """
    if name == "bytes":
        if files or end is not None:
            raise ValueError(f"the tokenizer bytes has no {'files' if files else 'other end than the zero byte'}")
        return Bytes()
    if name != "gpt2" and files:
        raise ValueError(f"vocabulary files are GPT-2's: give {name} alone, or the tokenizer gpt2")
    if name != "gpt2":
        return _from_file(file_at(name), end)
    if end not in (None, _GPT2_END):
        raise ValueError(f"the end of a document must be {_GPT2_END} for gpt2, got {end!r}")
    return _gpt2([file_at(file) for file in files])


@takes(file=kind_of(TokenFile))
def tokenizer_of(file: TokenFile) -> Tokenizer:
    """The tokenizer that a token file was made with, which the file itself holds.

    >>> from mssp.data import python_tokens
    >>> tokenizer_of(python_tokens()).decode([105, 102])
    'if'
    """
    if not file.tokenizer_json:
        return Bytes()
    return Vocabulary(_library().Tokenizer.from_str(file.tokenizer_json.decode()), file.tokenizer, file.end)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError(
            "the library tokenizers is missing, which knows all tokenizers but bytes: mssp[data]"
        ) from None
    return tokenizers


def _gpt2(files: Sequence[Path]) -> Tokenizer:
    library = _library()
    if len(files) > 2:
        raise ValueError(f"vocabulary files must be vocab.json and merges.txt, or a tokenizer.json, got {len(files)}")
    names = ", ".join(map(str, files))
    try:
        if not files:
            tokenizer = library.Tokenizer.from_pretrained("gpt2")
        elif len(files) == 1:
            tokenizer = library.Tokenizer.from_file(str(files[0]))
        else:
            # The vocabulary is JSON, whatever the two are called.
            vocabulary, merges = sorted(files, key=lambda file: file.suffix != ".json")
            tokenizer = library.Tokenizer(library.models.BPE.from_file(str(vocabulary), str(merges)))
            tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = library.decoders.ByteLevel()
        made = Vocabulary(tokenizer, "gpt2", _GPT2_VOCABULARY - 1)
        found = tuple(tokenizer.encode(_GPT2_SAMPLE[0], add_special_tokens=False).ids)
        is_gpt2 = found == _GPT2_SAMPLE[1] and made.vocabulary == _GPT2_VOCABULARY
    except Exception as error:  # the library raises plain exceptions
        if not files:
            raise ValueError(
                f"GPT-2's vocabulary cannot be downloaded ({error}): give its files, as --vocabulary-files vocab.json "
                "merges.txt"
            ) from None
        raise ValueError(f"{names} cannot be read as GPT-2's vocabulary and merges: {error}") from None
    if not is_gpt2 or tokenizer.token_to_id(_GPT2_END) != made.end:
        raise ValueError(f"{names or 'what was downloaded'} must be GPT-2's vocabulary, got another's")
    return made


def _from_file(path: Path, end: str | None) -> Tokenizer:
    library, content = _library(), path.read_bytes()
    try:
        tokenizer = library.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises plain exceptions
        raise ValueError(f"{path} must be a tokenizer.json, as the library tokenizers writes it: {error}") from None
    name = f"{path.name}, {hashlib.sha256(content).hexdigest()[:8]}"
    return Vocabulary(tokenizer, name, _end_of(tokenizer, path, end))


def _end_of(tokenizer: Any, path: Path, said: str | None) -> int:
    """The token that ends a document: as said, or as the config beside the tokenizer says, or by its usual names."""
    config = path.with_name("tokenizer_config.json")
    if said is None and config.is_file():
        try:
            said = parsed(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{config} must be a JSON object, got: {error}") from None
        said = said["content"] if isinstance(said, dict) and "content" in said else said
    usual = [name for name in _ENDS if tokenizer.token_to_id(name) is not None]
    if said is None and len(usual) == 1:
        said = usual[0]
    if said is None:
        several = f"it has {' and '.join(usual)}" if usual else "it has none of the usual names"
        raise ValueError(f"{path} does not say which token ends a document, and {several}: say it by --end-token")
    if not isinstance(said, str) or tokenizer.token_to_id(said) is None:
        raise ValueError(f"the end of a document must be a token of {path}, got {said!r}")
    return int(tokenizer.token_to_id(said))
