"""Token files: what is in them, byte by byte, and every way in which a file may not be one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.data import check_vocabulary, prepare, token_file
from mssp.data.tokens import HEAD, MAGIC, TokenFile, head_of


def made(folder: Path, texts: list[str], name: str = "tokens.bin", **options: Any) -> TokenFile:
    """A token file of some documents."""
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return prepare([rows], folder / name, **options)


# By the hashes of their texts, "never" is for validation from a share of 0.31 on, the others from 0.61 on.
TEXTS = ["yes", "never", "maybe", ""]


def test_a_file_byte_by_byte(tmp_path: Path) -> None:
    file = made(tmp_path, TEXTS, validation_share=0.5)
    content = file.path.read_bytes()
    assert content[:8] == b"mssp\0tok"
    assert content[8:40] == hashlib.sha256(content[40:HEAD]).digest()
    tokens = "yes\0never\0maybe\0".encode("utf-16-le")
    ends = np.array([4, 10 | 1 << 63, 16], dtype="<u8").tobytes()
    assert content[HEAD:] == tokens + ends
    assert json.loads(content[40:HEAD]) == {
        "format": 1,
        "vocabulary": 256,
        "tokenizer": "bytes",
        "end": 0,
        "type": "uint16",
        "validation_share": 0.5,
        "source": "tokens.bin.jsonl",
        "tokens": 16,
        "documents": 3,
        "empty": 1,
        "tokenizer_bytes": 0,
        "tokens_sha256": hashlib.sha256(tokens).hexdigest(),
        "rest_sha256": hashlib.sha256(ends).hexdigest(),
    }


def test_what_an_open_file_says(tmp_path: Path) -> None:
    file = made(tmp_path, TEXTS, validation_share=0.5)
    assert (file.vocabulary, file.tokenizer, file.end, file.tokens, file.documents, file.empty) == (
        256, "bytes", 0, 16, 3, 1
    )  # fmt: skip
    assert file.checksum == "6c01cc415b9d208a"
    assert [bytes(file.document(i).astype(np.uint8)) for i in range(3)] == [b"yes", b"never", b"maybe"]
    assert file.stretches("train").tolist() == [[0, 4], [10, 16]]
    assert file.stretches("validation").tolist() == [[4, 10]]
    assert (file.first_part, file.validation_documents) == ("train", 1)
    assert not file.array.flags.writeable
    assert made(tmp_path, TEXTS[:3], "again.bin", validation_share=0.5).checksum == file.checksum
    assert made(tmp_path, TEXTS, "other.bin", validation_share=0.0).checksum != file.checksum


@pytest.mark.parametrize(("share", "train"), [(0.0, [[0, 16]]), (1.0, [])])
def test_a_file_of_one_part(tmp_path: Path, share: float, train: list[list[int]]) -> None:
    file = made(tmp_path, TEXTS, validation_share=share)
    assert file.stretches("train").tolist() == train
    assert file.stretches("validation").tolist() == [part for part in [[0, 16]] if part not in train]


def test_changes_of_the_part_are_found_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, [str(i) for i in range(100)], validation_share=0.5)
    at_once = token_file(tmp_path / "tokens.bin")
    assert 20 < len(at_once.changes) < 80
    for size in (1, 7, 99):
        monkeypatch.setattr("mssp.data.tokens._DOCUMENTS", size)
        in_chunks = token_file(tmp_path / "tokens.bin")
        assert in_chunks.changes.tolist() == at_once.changes.tolist()
        assert in_chunks.validation_documents == at_once.validation_documents


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def said(content: bytes, **entries: Any) -> bytes:
    """The file with other entries in its head, and the right checksum of that head."""
    document = json.loads(content[40:HEAD]) | entries
    return head_of({key: value for key, value in document.items() if value is not None}) + content[HEAD:]


NPY = b"\x93NUMPY\x01\0".ljust(HEAD, b" ")
REFUSED: dict[str, tuple[Any, str]] = {
    "empty": (lambda content: b"", "is an empty file and no token file: mssp data prepare makes a token file of text"),
    "npy": (lambda content: NPY, r"is a \.npy file and no token file"),
    "npz": (lambda content: b"PK\x03\x04".ljust(HEAD), r"is a zip archive or an \.npz file and no token file"),
    "text": (lambda content: "Zwölf\n".encode() * 1000, "is a text and no token file: mssp data prepare makes"),
    "raw tokens": (lambda content: content[HEAD:], "is a binary file and no token file"),
    "noise": (lambda content: bytes(range(128, 256)), "is a binary file and no token file"),
    "half a head": (lambda content: content[:100], "is truncated: it has 100 bytes, and its head alone 4,096; get"),
    "head alone": (lambda content: content[:HEAD], "is truncated: it has 4,096 of 4,152 bytes; get a whole copy"),
    "last byte": (lambda content: content[:-1], "is truncated: it has 4,151 of 4,152 bytes"),
    "longer": (lambda content: content + b"\0", "is damaged: it has 4,153 bytes instead of 4,152; get a whole copy"),
    "head": (lambda content: changed(content, 100), "is damaged: its head is not the one that was written"),
    "padding of the head": (lambda content: changed(content, HEAD - 1), "is damaged: its head is not the one that"),
    "its checksum": (lambda content: changed(content, 8), "is damaged: its head is not the one that was written"),
    "ends": (lambda content: changed(content, -1 % len(content)), "is damaged: its documents are not those that were"),
    "newer": (lambda content: said(content, format=2), "used: it has format 2, and this version of mssp reads 1"),
    "unknown": (lambda content: said(content, colour=1), "cannot be used: its head has other entries than those of a"),
    "missing": (lambda content: said(content, end=None), "cannot be used: its head has other entries than those of a"),
    "no number": (lambda content: said(content, tokens="16"), "tokens must be a positive whole number, got '16'"),
    "huge": (lambda content: said(content, tokens=2**52), "is truncated: it has 4,152 of 9,007,199,254,745,112 bytes"),
    "type": (lambda content: said(content, vocabulary=70000), "70000 tokens do not go with uint16 and the end 0"),
    "end": (lambda content: said(content, end=256), "256 tokens do not go with uint16 and the end 256"),
    "fewer tokens": (lambda content: said(content, tokens=15), "its documents end at token 16 of 15"),
    "order": (
        lambda content: said(content[:-24] + content[-8:] + content[-16:-8] + content[-24:-16],
                             rest_sha256=hashlib.sha256(content[-8:] + content[-16:-8] + content[-24:-16]).hexdigest()),
        "the ends of its documents are out of order",
    ),
}  # fmt: skip


def test_what_is_no_whole_token_file_is_refused_by_what_it_is(tmp_path: Path) -> None:
    content = made(tmp_path, TEXTS, validation_share=0.5).path.read_bytes()
    for name, (spoil, message) in REFUSED.items():
        (tmp_path / "spoilt.bin").write_bytes(spoil(content))
        with pytest.raises(ValueError, match=f"spoilt.bin .*{message}") as refused:
            token_file(tmp_path / "spoilt.bin")
        assert "\n" not in str(refused.value), name
    with pytest.raises(ValueError, match=r"none\.bin does not exist: a file is needed"):
        token_file(tmp_path / "none.bin")


def test_damaged_tokens_are_seen_when_they_are_checked(tmp_path: Path) -> None:
    file = made(tmp_path, TEXTS)
    read: list[int] = []
    file.check(read.append)
    assert sum(read) == 32
    for place in (HEAD, HEAD + 31):
        (tmp_path / "spoilt.bin").write_bytes(changed(file.path.read_bytes(), place))
        spoilt = token_file(tmp_path / "spoilt.bin")
        with pytest.raises(ValueError, match=r"spoilt.bin is damaged: its tokens are not those that were written"):
            spoilt.check()


def test_a_vocabulary_beyond_the_models_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path, TEXTS)
    check_vocabulary(file, 256)
    check_vocabulary(file, 50304)
    said = r"the model's vocabulary must be at least 256, got 255: .*tokens.bin has 256 different tokens \(bytes\)"
    with pytest.raises(ValueError, match=said):
        check_vocabulary(file, 255)


def test_magic_is_no_text_and_no_other_format() -> None:
    assert MAGIC == b"mssp\x00tok"
