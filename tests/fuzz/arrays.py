"""Files of arrays, as `mssp sweep --data FILE.npz` and `mssp.data.from_npz` read them."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from mssp.data import Dataset, from_npz
from mssp.data.images import KERAS_KEYS, KEYS
from tests.fuzz.cases import Case, Kind
from tests.fuzz.mutations import OF_BYTES, Step, after, drawn

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
_MORE = {
    "mean": np.zeros(1), "std": np.ones(1), "classes": np.array(8), "name": np.array("mine"),
    "source": np.array("made by hand"),
}  # fmt: skip
_SWEEP = ["--widths", "16", "--steps", "2", "--batch", "10", "--seeds", "1", "--lrs", "0.5", "--scheme", "mssp"]


@cache
def _sound() -> Mapping[str, Arrays]:
    """Vectors of floats, images of bytes, and images under the names of Keras."""
    random = np.random.default_rng(0)
    targets = [random.integers(0, 8, count) for count in (60, 20)]
    vectors = [random.normal(size=(len(part), 8)).astype(np.float32) for part in targets]
    images = [random.integers(0, 256, (len(part), 2, 2, 3)).astype(np.uint8) for part in targets]

    def named(keys: Sequence[str], inputs: Sequence[Array]) -> Arrays:
        return dict(zip(keys, (inputs[0], targets[0], inputs[1], targets[1]), strict=True))

    return {
        "vectors": named(KEYS, vectors), "images": named(KEYS, images) | _MORE, "keras": named(KERAS_KEYS, images),
    }  # fmt: skip


def write_sound(path: Path) -> None:
    """A file of sound arrays: 60 examples of 8 classes, and 20 held out."""
    np.savez(path, allow_pickle=False, **_sound()["vectors"])


# -- mutations of the arrays, before they are written ------------------------------------------------------------------

_TYPES = (
    "f2", "f8", ">f4", "f16", "i1", "u1", "i4", ">i8", "u8", "?", "c8", "U3", "S3", "M8[s]", "m8[D]", "O", "V4",
    "f4,i4",
)  # fmt: skip
_NUMBERS = (0, 1, -1, 7, 8, 255, 1000, 999_999, 1_000_000, 2**31, 2**53, 2**63 - 1, -(2**63), 1e30, np.nan, np.inf)


def _of_one(change: Callable[[Random, Array], Any]) -> Callable[[Random, Arrays], Arrays]:
    """A mutation that changes one of the arrays, if numpy can."""

    def mutate(random: Random, arrays: Arrays) -> Arrays:
        if not arrays:
            return arrays
        name = random.choice(sorted(arrays))
        try:
            with np.errstate(all="ignore"):
                return {**arrays, name: np.asarray(change(random, arrays[name].copy()))}
        except (TypeError, ValueError, OverflowError, IndexError):
            return arrays

    return mutate


def _type(random: Random, array: Array) -> Array:
    return array.astype(random.choice(_TYPES))


def _number(random: Random, array: Array) -> Array:
    array.reshape(-1)[random.randrange(array.size)] = random.choice(_NUMBERS)
    return array


def _shape(random: Random, array: Array) -> Array:
    change: Callable[[Array], Array] = random.choice((
        np.ravel, np.transpose, lambda array: array[None], lambda array: array[..., None], lambda array: array[:0],
        lambda array: array[:-1], lambda array: array[..., :0], np.asfortranarray,
        lambda array: array[0], lambda array: np.concatenate([array, array]), lambda array: array[::2],
    ))  # fmt: skip
    return change(array)


def _text(random: Random, _: Array) -> Array:
    return np.array(random.choice(("", "a\nb", "x" * 5000, "\x00", "\ud800", "é", "sweep", " ")))


def _whole(random: Random, _: Array) -> Array:
    return np.array(random.choice(_NUMBERS))


def _drop(random: Random, arrays: Arrays) -> Arrays:
    left_out = random.choice(sorted(arrays)) if arrays else None
    return {name: array for name, array in arrays.items() if name != left_out}


def _rename(random: Random, arrays: Arrays) -> Arrays:
    name = random.choice(sorted(arrays))
    other = random.choice((*KEYS, *KERAS_KEYS, *_MORE, f"folder/{name}", f"{name}.npy", "ä", "x" * 300))
    return {other if key == name else key: array for key, array in arrays.items()}


def _add(random: Random, arrays: Arrays) -> Arrays:
    name = random.choice(sorted(_MORE))
    values: tuple[Any, ...] = (*_NUMBERS, [1.0, 2.0], [0.0] * 8, [[1.0] * 3], "a\nb", "x" * 2000, None, [], [-1.0])
    return {**arrays, name: np.asarray(random.choice(values))}


_OF_ARRAYS = {
    "type": _of_one(_type), "number": _of_one(_number), "shape": _of_one(_shape), "text": _of_one(_text),
    "whole": _of_one(_whole), "drop": _drop, "rename": _rename, "add": _add,
}  # fmt: skip

# -- mutations of the members of the archive: a header as numpy writes it, and numbers ---------------------------------

Members = list[tuple[str, bytes]]


def _of_one_member(change: Callable[[Random, bytes], bytes]) -> Callable[[Random, Members], Members]:
    def mutate(random: Random, members: Members) -> Members:
        if not members:
            return members
        place = random.randrange(len(members))
        name, content = members[place]
        return [*members[:place], (name, change(random, content)), *members[place + 1 :]]

    return mutate


_SHAPES = (
    "()", "(1,)", "(60,)", "(60, 8)", "(480,)", "(60, -8)", "(-1, 8)", "(60, 8.0)", "(10**10, 8)", "(99999999999, 8)",
    "(2305843009213693952, 8)", "(60, True)", "(0, 8)", "(60, 0)", "60", "None", "[60, 8]", "(60L, 8)",
    f"({'1, ' * 40})", "(" * 300, "__import__('os')",
)  # fmt: skip
_DESCRIPTIONS = (
    "'<f4'", "'|O'", "'<f8'", "'|u1'", "'|V8'", "'<U9999999'", "'<f3'", "'nonsense'", "None", "[('a', '<f4')]",
    "'<M8[s]'", "('<f4', (2,))", "'|b1'", "'>f4'", "''", "'|S0'", "[]", "'<U0'",
)  # fmt: skip


def _header(random: Random, content: bytes) -> bytes:
    """Another header, as long as it says, before the same numbers."""
    entries = {
        "descr": random.choice(_DESCRIPTIONS) if random.random() < 0.5 else "'<f4'",
        "fortran_order": random.choice(("False", "False", "True", "None", "2")),
        "shape": random.choice(_SHAPES) if random.random() < 0.7 else "(60, 8)",
    }
    if random.random() < 0.1:
        entries[random.choice(("descr", "more", "shape "))] = "1"
    text = "{" + ", ".join(f"'{key}': {value}" for key, value in entries.items()) + ", }\n"
    text = random.choice((text, text, text, text[:20], "", "\n", "[" * 9000, text + " " * 60_000))
    version = random.choice((1, 1, 1, 2, 3, 0, 9, 255))
    length = len(text).to_bytes(2 if version == 1 else 4, "little") if len(text) < 2**16 else b"\xff\xff"
    return b"\x93NUMPY" + bytes((version, 0)) + length + text.encode() + content[128:]


def _bytes(random: Random, content: bytes) -> bytes:
    name = random.choice(sorted(OF_BYTES))
    return bytes(OF_BYTES[name](random, content))


def _zeros(_: Random, content: bytes) -> bytes:
    """Very many zeros, which the archive makes small."""
    return content + bytes(20_000_000)


def _twice(random: Random, members: Members) -> Members:
    return [*members, random.choice(members)] if members else members


_OF_MEMBERS: dict[str, Callable[[Random, Members], Members]] = {
    "header": _of_one_member(_header), "member": _of_one_member(_bytes), "zeros": _of_one_member(_zeros),
    "twice": _twice,
}  # fmt: skip

# -- mutations of the archive ------------------------------------------------------------------------------------------

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def _directory(random: Random, content: bytes) -> bytes:
    """A number in a record of the archive becomes another: flags, method, sizes, checksums, places, counts."""
    signature = random.choice((_LOCAL, _CENTRAL, _CENTRAL, _END))
    places = [place for place in range(len(content) - 4) if content[place : place + 4] == signature]
    if not places:
        return content
    place = random.choice(places) + random.randrange(4, 46 if signature == _CENTRAL else 26)
    number = random.choice((b"\x00", b"\x01", b"\xff", b"\xff\xff", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x0c"))
    return content[:place] + number + content[place + len(number) :]


def _before(random: Random, content: bytes) -> bytes:
    return random.choice((b"#!/bin/sh\n", b"PK\x03\x04", bytes(100))) + content


_OF_FILES = {**OF_BYTES, "directory": _directory, "before": _before}
_LEVELS = (_OF_ARRAYS, _OF_MEMBERS, _OF_FILES)


def _draw(random: Random) -> list[Step]:
    chosen = random.choices(_LEVELS, (5, 4, 4), k=random.choice((1, 1, 2, 3)))
    steps = [step for level in _LEVELS for step in drawn(random, level, [sum(level is other for other in chosen)])]
    return [step for step in steps if step.name != "zeros" or step.seed % 8 == 0] or drawn(random, ["directory"], [1])


def _make(random: Random, steps: Sequence[Step], folder: Path) -> Case:
    path = folder / "mine.npz"
    kind = random.choice(sorted(_sound()))
    arrays = after(dict(_sound()[kind]), steps, _OF_ARRAYS)
    members = after([(f"{name}.npy", _as_numpy_writes(array)) for name, array in arrays.items()], steps, _OF_MEMBERS)
    path.write_bytes(
        after(_zipped(members, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))), steps, _OF_FILES)
    )
    words = [
        "sweep",
        "--data",
        path.name,
        "--metric",
        "train_loss",
        "--multipliers",
        "ones",
        "--device",
        "cpu",
        *_SWEEP,
    ]
    return Case(words, partial(_read, path), writes=["runs.sqlite*"])


def _as_numpy_writes(array: Array) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def _zipped(members: Members, method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.compress_type = method
            archive.writestr(info, content)
    return file.getvalue()


def _read(path: Path) -> None:
    """What is accepted has the arrays that numpy itself reads."""
    dataset = from_npz(path)
    with np.load(path, allow_pickle=False) as archive:
        keys = next(keys for keys in (KEYS, KERAS_KEYS) if set(keys) <= set(archive.files))
        arrays = [archive[key] for key in keys]
    _agrees(dataset, arrays)


def _agrees(dataset: Dataset, arrays: Sequence[Array]) -> None:
    for split, inputs, targets in zip((dataset.train, dataset.validation), arrays[0::2], arrays[1::2], strict=True):
        assert split.inputs.shape == inputs.shape
        with np.errstate(all="ignore"):
            assert np.array_equal(split.inputs, inputs.astype(split.inputs.dtype))
        assert np.array_equal(split.targets, targets.reshape(-1))
        assert 0 <= split.targets.min() <= split.targets.max() < dataset.classes
        assert np.isfinite(split.inputs).all()


KIND = Kind("arrays", _draw, _make)
