from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mssp.data import Dataset, Split, from_npz, save_npz
from mssp.data.images import IMAGENET_MEAN, IMAGENET_STD

X: npt.NDArray[np.uint8] = np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)
Y = np.array([0, 1, 2, 1])
ARRAYS = {"train_inputs": X, "train_targets": Y, "validation_inputs": X[:2], "validation_targets": Y[:2]}


class Dangerous:
    """Would write a file if anything unpickled it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_by_our_names(tmp_path: Path) -> None:
    data = from_npz(npz(tmp_path / "mine.npz", **ARRAYS))
    assert (data.name, data.classes, data.inputs, data.source) == ("mine", 3, 12, "mine.npz")
    assert (data.train.inputs == X).all()
    assert data.validation.targets.tolist() == [0, 1]
    assert (tuple(data.mean), tuple(data.std)) == (IMAGENET_MEAN, IMAGENET_STD)


def test_npz_by_keras_names(tmp_path: Path) -> None:
    grey = X[..., 0]
    path = npz(tmp_path / "k.npz", x_train=grey, y_train=Y[:, None].astype(np.uint8), x_test=grey, y_test=Y)
    data = from_npz(path)
    assert data.train.targets.tolist() == [0, 1, 2, 1]
    assert data.train.targets.dtype == np.int64
    # One channel: nothing is known of it, bytes become numbers from 0 to 1.
    assert (data.inputs, tuple(data.mean), tuple(data.std)) == (4, (0.0,), (1.0,))


def test_npz_says_more_than_it_must(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", **ARRAYS, mean=np.float32(0.5), std=np.array([0.5, 0.25, 1]), classes=5)
    data = from_npz(path)
    assert (data.classes, tuple(data.mean), tuple(data.std)) == (5, (0.5,), (0.5, 0.25, 1.0))
    given = from_npz(path, mean=(0, 0, 0), std=(1, 1, 1))
    assert (tuple(given.mean), tuple(given.std)) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def test_npz_keeps_the_first_classes(tmp_path: Path) -> None:
    data = from_npz(npz(tmp_path / "a.npz", **ARRAYS), classes=2)
    assert data.train.targets.tolist() == [0, 1, 1]
    assert (data.train.inputs == X[[0, 1, 3]]).all()


def test_wide_vectors_become_float32(tmp_path: Path) -> None:
    vectors = {key: array.reshape(len(array), -1) / 2 if "inputs" in key else array for key, array in ARRAYS.items()}
    data = from_npz(npz(tmp_path / "a.npz", **vectors))
    assert data.train.inputs.dtype == np.float32
    assert data.prepared(data.train.inputs)[0].tolist() == [i / 2 for i in range(12)]


@pytest.mark.parametrize("inputs", [X, X.reshape(4, 12).astype(np.float32)])
def test_saved_datasets_come_back(tmp_path: Path, inputs: npt.NDArray[Any]) -> None:
    split = Split(inputs, Y)
    data = Dataset("a name", 7, split, split, mean=(0.1,), std=(0.3,), source="a source")
    save_npz(data, tmp_path / "new" / "a.npz")
    again = from_npz(tmp_path / "new" / "a.npz")
    assert again.checksum == data.checksum
    assert (again.name, again.source, again.classes, again.mean, again.std) == (
        "a name", "a source", 7, (0.1,), (0.3,),
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.npz"]


def test_nothing_is_left_where_saving_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = from_npz(npz(tmp_path / "a.npz", **ARRAYS))
    before = (tmp_path / "a.npz").read_bytes()

    def fail(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        save_npz(data, tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    with pytest.raises(ValueError, match=r"a dataset is saved as \.npz, got the name a\.pt"):
        save_npz(data, tmp_path / "a.pt")


def test_foreign_npz_names_what_is_needed_and_what_is_there(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", images=X, labels=Y)
    needed = "needs the arrays train_inputs, train_targets, validation_inputs, validation_targets "
    with pytest.raises(ValueError, match=needed + r"\(or x_train, y_train, x_test, y_test\), it has images, labels"):
        from_npz(path)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    objects = np.array([Dangerous(trace)] * 4, dtype=object)
    path = npz(tmp_path / "a.npz", **{**ARRAYS, "train_targets": objects})
    with pytest.raises(ValueError, match=r"a\.npz: train_targets holds Python objects, which are never unpickled"):
        from_npz(path)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Dangerous(trace)))
    with pytest.raises(ValueError, match=r"b\.npz is not a whole \.npz file"):
        from_npz(tmp_path / "b.npz")
    assert not trace.exists()


def broken_copies(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[200] ^= 255  # a pixel: the archive's own checksum tells
    npy = io.BytesIO()
    np.save(npy, X)
    return {"half": whole[: len(whole) // 2], "empty": b"", "flipped": bytes(flipped), "npy": npy.getvalue()}


@pytest.mark.parametrize("kind", ["half", "empty", "flipped", "npy", "member"])
def test_broken_npz_is_named(tmp_path: Path, kind: str) -> None:
    path = npz(tmp_path / "a.npz", **ARRAYS)
    if kind == "member":
        with zipfile.ZipFile(path, "w") as archive:
            for key in ARRAYS:
                archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00")
    else:
        path.write_bytes(broken_copies(path.read_bytes())[kind])
    with pytest.raises(ValueError, match=r"a\.npz is not a whole \.npz file \(.+\): it may be truncated"):
        from_npz(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_targets": Y / 2}, r"a\.npz: train_targets must be one whole number per example, got float64 \[4\]"),
        ({"train_targets": Y.astype("m8[D]")}, r"must be one whole number per example, got timedelta64\[D\] \[4\]"),
        ({"mean": np.zeros(1, "m8[s]"), "std": np.ones(1)}, r"a\.npz: mean must be numbers, got timedelta64\[s\]"),
        ({"classes": np.array(2, "m8[s]")}, r"a\.npz: classes must be one whole number, got timedelta64\[s\] \[\]"),
        ({"train_targets": np.eye(4, dtype=int)}, r"must be one whole number per example, got int64 \[4, 4\]"),
        ({"train_targets": Y[:3]}, r"a\.npz: a's train has 4 inputs and 3 targets"),
        ({"train_targets": -Y}, r"a\.npz: a's train targets must lie in 0 to 1, got -2 to 0"),
        ({"train_inputs": X.astype(np.int32)}, r"a\.npz: a's train inputs must be uint8 images .* got int32"),
        ({"classes": np.array(["cat", "dog"])}, r"a\.npz: classes must be one whole number, got <U3 \[2\]"),
        ({"mean": np.array("high"), "std": 1.0}, r"a\.npz: mean must be numbers, got <U4"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_npz(npz(tmp_path / "a.npz", **{**ARRAYS, **changed}))


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", **ARRAYS)
    with pytest.raises(ValueError, match="mean and std belong together: give both or neither"):
        from_npz(path, mean=(0.5,))
    with pytest.raises(ValueError, match=r"a\.npz: a has 3 classes, 4 were asked for"):
        from_npz(path, classes=4)
    with pytest.raises(ValueError, match=r"b\.npz does not exist: a file is needed"):
        from_npz(tmp_path / "b.npz")
