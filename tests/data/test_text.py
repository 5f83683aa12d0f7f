from __future__ import annotations

import lzma
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.data import Tokens, from_text_file, python_source
from mssp.data.text import source_tree


def tokens(text: bytes, validation: bytes = b"") -> Tokens:
    train, rest = (np.frombuffer(part, dtype=np.uint8) for part in (text, validation))
    return Tokens("letters", 256, train, rest)


def test_windows_do_not_overlap_and_share_one_token() -> None:
    starts = tokens(bytes(range(21))).window_starts("train", seed=0, batch=2, length=5, steps=2)
    assert starts.tolist() == [[15, 0], [10, 5]]
    assert sorted(starts.reshape(-1).tolist()) == [0, 5, 10, 15]
    for row, windows in zip(starts, tokens(bytes(range(21))).windows("train", 0, 2, 5, 2), strict=True):
        assert windows.dtype == np.uint8
        assert windows.tolist() == [list(range(start, start + 6)) for start in row]


def test_fewer_steps_take_the_same_first_windows() -> None:
    text = tokens(bytes(1001))
    whole = text.window_starts("train", seed=3, batch=10, length=10, steps=10)
    assert (text.window_starts("train", seed=3, batch=10, length=10, steps=4) == whole[:4]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("train", 0, 1, 5, 5),
            "5 steps of 1 need 5 windows of 5 tokens in a single pass, letters's train text has 4",
        ),
        (("validation", 0, 1, 5, 1), "letters's validation text has 0"),
        (("test", 0, 1, 5, 1), "unknown part 'test' of letters: use one of train, validation"),
        (("train", 0, 1, 0, 1), "length must be a positive whole number, got 0"),
    ],
)
def test_what_is_no_pass_is_refused_at_once(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokens(bytes(21)).windows(*arguments)


def test_tokens_are_checked() -> None:
    with pytest.raises(ValueError, match="letters's train tokens must lie below 100, got 200"):
        Tokens("letters", 100, np.array([200], dtype=np.uint8), np.array([], dtype=np.uint8))
    with pytest.raises(ValueError, match=r"train tokens must be uint8 \[n\], got int64 \[1\]"):
        Tokens("letters", 256, np.array([2]), np.array([], dtype=np.uint8))
    with pytest.raises(ValueError, match="vocabulary must be a whole number from 2 to 256, got 50257"):
        Tokens("letters", 50257, np.zeros(1, dtype=np.uint8), np.zeros(1, dtype=np.uint8))


def test_checksum_is_of_the_tokens() -> None:
    assert tokens(b"abc", b"d").checksum == "09e629bc4949df4a"
    assert tokens(b"ab", b"cd").checksum != tokens(b"abc", b"d").checksum


def test_python_source_is_the_standard_library() -> None:
    text = python_source()
    assert text.vocabulary == 256
    assert text.source.startswith("the standard library of Python 3.")
    both = text.train.tobytes() + text.validation.tobytes()
    assert len(both) > 5_000_000
    assert 0.001 < len(text.validation) / len(both) < 0.1
    documents = both.split(b"\0")
    root = Path(sysconfig.get_path("stdlib"))
    assert (root / "heapq.py").read_bytes().replace(b"\r\n", b"\n") in documents
    assert (root / "json" / "decoder.py").read_bytes().replace(b"\r\n", b"\n") in documents
    assert python_source().checksum == text.checksum
    assert not len(python_source(validation_share=0).validation)
    assert not len(python_source(validation_share=1).train)


def test_a_tree_is_read_by_the_order_of_names_and_split_by_them(tmp_path: Path) -> None:
    left_out = [
        "test/a.py",
        "b/tests/c.py",
        "site-packages/d.py",
        "idlelib/e.py",
        "_sysconfigdata_x.py",
        "config-3/f.py",
    ]
    for name in ["z.py", "b/y.py", "b/notes.txt", *left_out]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{name}\r\n".encode())
    assert source_tree(tmp_path, "", 0.0).train.tobytes() == b"b/y.py\n\0z.py\n\0"
    # By their hashes, b/y.py belongs to validation from a share of 0.539 on, z.py from 0.761.
    divided = source_tree(tmp_path, "", 0.6)
    assert (divided.train.tobytes(), divided.validation.tobytes()) == (b"z.py\n\0", b"b/y.py\n\0")


def test_a_python_without_source_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no \.py files: this Python has no source"):
        source_tree(tmp_path, "", 0.02)


TEXT = "".join(f"line {i} — ü\n" for i in range(5000)).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.xz"])
def test_a_text_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(lzma.compress(TEXT) if name.endswith("xz") else TEXT)
    text = from_text_file(path)
    assert text.train.tobytes() + text.validation.tobytes() == TEXT
    assert text.validation.tobytes().startswith(b"line 49")
    assert len(text.validation) == pytest.approx(0.02 * len(TEXT), abs=20)
    assert text.name == name
    both = from_text_file(path, validation=path)
    assert both.train.tobytes() == both.validation.tobytes() == TEXT


def test_text_without_lines_is_cut_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 100)
    text = from_text_file(tmp_path / "a.txt", validation_share=0.25)
    assert (len(text.train), len(text.validation)) == (75, 25)


def test_broken_text_files_are_named(tmp_path: Path) -> None:
    packed = lzma.compress(TEXT)
    broken = {
        "half.xz": (packed[: len(packed) // 2], "half.xz is truncated: it ends before its compressed data do"),
        "empty.xz": (b"", "empty.xz is truncated"),
        "other.xz": (TEXT, r"other.xz is not a whole \.xz file"),
        "latin.txt": ("grün".encode("latin-1"), r"latin.txt is not UTF-8 text \(invalid"),
        "half.txt": ("ü".encode()[:1], r"half.txt is not UTF-8 text \(unexpected end of data\)"),
    }
    for name, (data, message) in broken.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            from_text_file(tmp_path / name)
    with pytest.raises(ValueError, match=r"none.txt does not exist: a file is needed"):
        from_text_file(tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"is a folder: a file is needed"):
        from_text_file(tmp_path)
