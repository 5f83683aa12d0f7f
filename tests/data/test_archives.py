"""Hostile .npz files: whatever they declare, they are refused in one line, before they take memory."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.data import from_npz

X, Y = np.arange(24, dtype=np.float32).reshape(4, 6), np.array([0, 1, 0, 2])
WHOLE = {"train_inputs": X, "train_targets": Y, "validation_inputs": X, "validation_targets": Y}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def headed(text: str, version: int = 1) -> bytes:
    """A .npy file that has this header and four bytes of data."""
    length = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + b"\n1234"


def declaring(shape: str, dtype: str = "<f4") -> bytes:
    return headed(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}")


def written(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, content in {**{key: npy(array) for key, array in WHOLE.items()}, **members}.items():
            archive.writestr(f"{key}.npy", content)
    return path


BROKEN = {
    "32 TB": (declaring("(1000000, 8000000)"), "train_inputs declares 32,000,000,000,000 bytes and has 4"),
    "more than 64 bits": (declaring(f"({2**62}, {2**62}, 4)"), r"train_inputs declares 3e\+38 bytes and has 4"),
    "negative": (declaring("(-1, 6)"), r"train_inputs declares the shape \(-1, 6\), which no array has"),
    "True": (declaring("(True, 1)"), r"train_inputs declares the shape \(True, 1\), which no array has"),
    "no bytes each": (declaring(f"({2**63 - 1}, 6)", "|V0"), ".+"),
    "braces": (headed("{" * 9000), "train_inputs does not begin as numpy writes arrays"),
    "parentheses": (headed("(" * 9000), "train_inputs does not begin as numpy writes arrays"),
    "minus": (headed("-" * 9900 + "1"), "train_inputs does not begin as numpy writes arrays"),
    "long": (headed("1" * 3_000_000, 2), "train_inputs does not begin as numpy writes arrays"),
    "list": (headed("[1]"), "train_inputs does not begin as numpy writes arrays"),
    "half a number": (declaring("(1.5,)"), "train_inputs does not begin as numpy writes arrays"),
    "no type": (declaring("(1,)", "<x9"), "train_inputs does not begin as numpy writes arrays"),
    "text": (b"hello", "train_inputs does not begin as numpy writes arrays"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_header_that_lies_is_refused(tmp_path: Path, kind: str) -> None:
    content, reason = BROKEN[kind]
    path = written(tmp_path / "a.npz", train_inputs=content)
    with pytest.raises(ValueError, match="is not a whole") as refused:
        from_npz(path)
    expected = rf"{re.escape(str(path))} is not a whole \.npz file \({reason}\): it may be truncated, get a whole copy"
    assert re.fullmatch(expected, str(refused.value))


UNFIT = {
    "records": ({"train_inputs": npy(np.zeros(4, [("a", "f4")]))}, "train inputs must be uint8 images"),
    "complex": ({"train_inputs": npy(X.astype(complex))}, "train inputs must be uint8 images .* got complex128"),
    "texts": ({"train_inputs": npy(X.astype(str))}, "train inputs must be uint8 images .* got <U32"),
    "dates": ({"train_inputs": npy(X.astype("M8[s]"))}, "train inputs must be uint8 images .* got datetime64"),
    "one number": ({"train_inputs": npy(np.float32(1))}, r"train inputs must be uint8 images .* got float32 \[\]"),
    "too large": ({"train_inputs": npy(X.astype(float) + 1e300)}, "train inputs must be finite"),
    "large class": ({"train_targets": npy(Y * 10**12)}, "train_targets must be from 0 to 999,999, got 2000000000000"),
    "unsigned": ({"train_targets": npy((Y - 1).astype(np.uint64))}, f"train_targets must be .*, got {2**64 - 1}"),
    "classes": ({"classes": npy(np.array(2**50))}, f"classes must be at most 1,000,000, got {2**50}"),
    "means": ({"mean": npy(np.zeros(9)), "std": npy(np.ones(9))}, "mean must be one number, or one per channel, got 9"),
    "statistics": ({"mean": npy(np.array(1.0)), "std": npy(np.array(1e-300))}, "must be numbers that float32 holds"),
    "name": ({"name": npy(np.array("two\nlines"))}, "name must be one line of at most 1000 characters"),
    "names": ({"name": npy(np.array(["a", "b"]))}, "name must be one line of at most 1000 characters"),
    "source": ({"source": npy(np.array("x" * 1001))}, "source must be one line of at most 1000 characters"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_arrays_that_are_no_dataset_are_refused(tmp_path: Path, kind: str) -> None:
    members, message = UNFIT[kind]
    with pytest.raises(ValueError, match=message) as refused:
        from_npz(written(tmp_path / "a.npz", **members))
    assert "\n" not in str(refused.value)


def test_other_byte_orders_and_orders_of_axes_are_read(tmp_path: Path) -> None:
    members = {"train_inputs": npy(np.asfortranarray(X.astype(">f4"))), "train_targets": npy(Y.astype(">i8"))}
    data = from_npz(written(tmp_path / "a.npz", **members))
    np.testing.assert_array_equal(data.train.inputs, X)
    assert [str(array.dtype) for array in (data.train.inputs, data.train.targets)] == ["float32", "int64"]
    assert data.train.targets.tolist() == [0, 1, 0, 2]


def test_more_than_is_allowed_is_not_unpacked(tmp_path: Path) -> None:
    zeros = npy(np.zeros((60, 2**20), np.uint8))
    path = written(tmp_path / "a.npz", train_inputs=zeros, validation_inputs=zeros)
    assert path.stat().st_size < 2**18
    tracemalloc.start()
    allowed = r"a\.npz takes 0\.1 GiB of memory, and 0\.1 are allowed: allow more \(--data-gib, or gib=\)"
    with pytest.raises(ValueError, match=allowed):
        from_npz(path, gib=0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_a_directory_that_lies_holds_no_more_than_the_header_says(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", train_inputs=npy(X) + bytes(2**20))
    content = bytearray(path.read_bytes())
    entry = content.find(b"PK\x01\x02")  # of train_inputs, which is the first
    struct.pack_into("<I", content, entry + 24, 0xFFFFFFF0)
    path.write_bytes(content)
    assert from_npz(path).train.inputs.nbytes == X.nbytes
    struct.pack_into("<I", content, entry + 24, 200)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file"):
        from_npz(path)


def test_what_a_decoder_says_is_cut_to_a_line(tmp_path: Path) -> None:
    """The message of a name that differs in the directory holds all that stands between."""
    path = written(tmp_path / "a.npz")
    content = bytearray(path.read_bytes())
    place = content.find(b"PK\x03\x04") + 26  # the length of the name in the header of the first member
    content[place : place + 2] = (600).to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file \(File name in directory") as refusal:
        from_npz(path)
    assert len(str(refusal.value)) < 600
    assert str(refusal.value).isprintable()


def test_members_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz")
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: train_inputs is encrypted: save it without a password"):
        from_npz(path)
    with zipfile.ZipFile(written(path), "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("train_inputs.npy", npy(X))
    with pytest.raises(ValueError, match=r"a\.npz has train_inputs twice"):
        from_npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_inputs.npy/", b"")
        for number in range(30):
            archive.writestr(f"k{number}", b"")
    with pytest.raises(ValueError, match=r"it has k0, .* k17 and 21 more$"):
        from_npz(path)
