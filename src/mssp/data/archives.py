"""Reads the arrays of an .npz file. What it declares is counted before anything is unpacked, and nothing is unpickled.

An .npz file is a zip archive of .npy members: a header, which says type and shape, and the numbers. Zipped zeros take a
thousandth of their room, and a header may declare any size, so a small file may ask for more memory than there is.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mssp._documents import one_line

GIB = 4.0  # of unpacked arrays, where nothing else is said: twice the largest of the customary image sets
_MOST_SHOWN = 10  # names of arrays in a message
_LONGEST_HEADER = 12_000  # bytes, with what stands before it; numpy itself refuses more than 10,000
_HEADER_READERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


def read_arrays(path: Path, keys: Collection[str], gib: float = GIB) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file under these keys, as far as there are any; arrays under other keys are not read.

    Args:
        gib: the largest size of all these arrays together, unpacked.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive, keys)
            size = sum(_size(path, archive, key, member) for key, member in members.items())
            check_size(path, size, gib)
            return {key: _array(archive, member) for key, member in members.items()}
    except DataRefusedError:
        raise
    except Exception as error:  # a broken file can make decoders raise any kind of error
        reason = one_line(" ".join(str(error).split())) or type(error).__name__
        raise ValueError(f"{path} is not a whole .npz file ({reason}): it may be truncated, get a whole copy") from None


def names_in(path: Path) -> str:
    """The names of the arrays in an .npz file, in words: the first of them, if there are many."""
    with zipfile.ZipFile(path) as archive:
        names = sorted({name.removesuffix(".npy") for name in archive.namelist()})
    more = f" and {len(names) - _MOST_SHOWN:,} more" if len(names) > _MOST_SHOWN else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}" if names else "none"


class DataRefusedError(ValueError):
    """Data that can be read, and that are refused for what they say."""


def check_size(source: str | Path, size: int, gib: float) -> None:
    """Refuse data that are larger in memory than so many GiB."""
    if size > gib * 2**30:
        needed = f"{size / 2**30:,.1f} GiB of memory, and {gib:g} are allowed"
        raise DataRefusedError(f"{source} takes {needed}: allow more (--data-gib, or gib=)")


def _members(path: Path, archive: zipfile.ZipFile, keys: Collection[str]) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive under these keys. One that cannot be read, or that is there twice, is refused."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        key = member.filename.removesuffix(".npy")
        if key not in keys:
            continue
        if key in members:
            raise DataRefusedError(f"{path} has {key} twice: which of them is meant is not known, save it anew")
        if member.flag_bits & 1:
            raise DataRefusedError(f"{path}: {key} is encrypted: save it without a password")
        members[key] = member
    return members


def _size(path: Path, archive: zipfile.ZipFile, key: str, member: zipfile.ZipInfo) -> int:
    """The bytes of one array, as its header declares them. More than there are in the member are refused."""
    with archive.open(member) as file:
        head = io.BytesIO(file.read(_LONGEST_HEADER))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of odd literals, and numpy of the headers of Python 2
            version = np.lib.format.read_magic(head)
            shape, _, dtype = _HEADER_READERS.get(version[0], np.lib.format.read_array_header_2_0)(head)
    except Exception:  # numpy parses a header as Python does, which fails in any way for text that is none
        raise ValueError(f"{key} does not begin as numpy writes arrays") from None
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{key} declares the shape {shape}, which no array has")
    if dtype.hasobject:
        raise DataRefusedError(f"{path}: {key} holds Python objects, which are never unpickled: save numbers")
    size = math.prod(shape) * dtype.itemsize
    if size > (there := member.file_size - head.tell()):
        declared = f"{size:,}" if size < 10**18 else f"{size:.0e}"
        raise ValueError(f"{key} declares {declared} bytes and has {there:,}")
    return size


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """One array. numpy reads as many bytes as the header declares, whatever the archive says of the member."""
    with archive.open(member) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array
