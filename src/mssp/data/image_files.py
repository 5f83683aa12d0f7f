"""Images in files, sorted into classes by their folders: which there are, and their pixels.

    train/<class>/*.png    val/<class>/*.png                             one folder per class
    train/<class>/*.png    val/images/*.png  val/val_annotations.txt     TinyImageNet: a table says the classes

The files may lie in a folder or in a zip archive, which is read in place: nothing is unpacked.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mssp._numbers import whole

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
VALIDATION_FOLDERS = ("val", "validation", "test")
ANNOTATIONS = "val_annotations.txt"
# Images per task: enough to make a task worth its handling.
_BLOCK = 64


class Files(Protocol):
    """Files by their names, with slashes."""

    place: str

    def names(self) -> Sequence[str]: ...

    def read(self, name: str) -> bytes: ...


class FolderFiles:
    """The files of a folder and of those in it."""

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self._folder = folder

    def names(self) -> Sequence[str]:
        found = []
        # Links are followed: large sets often lie elsewhere.
        for folder, _, files in os.walk(self._folder, followlinks=True):
            relative = Path(folder).relative_to(self._folder)
            found += [(relative / file).as_posix() for file in files]
        return found

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()


class ZippedFiles:
    """The files below one folder of an open zip archive."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        self.place = f"{archive.filename}/{folder}"
        self._archive, self._prefix = archive, f"{folder}/"

    def names(self) -> Sequence[str]:
        names = self._archive.namelist()
        inside = [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
        return [name for name in inside if ".." not in name.split("/")]

    def read(self, name: str) -> bytes:
        return self._archive.read(self._prefix + name)


@dataclass(frozen=True)
class Arrangement:
    """Which image belongs to which class: names of files, each with the number of its class."""

    classes: Sequence[str]
    train: Sequence[tuple[str, int]]
    validation: Sequence[tuple[str, int]]


def arranged(files: Files, classes: int | None = None) -> Arrangement:
    """The images of all classes, or of the first so many in the order of their names."""
    names = sorted(files.names())
    images = [name for name in names if _is_image(name)]
    in_train = [name for name in images if name.startswith("train/") and name.count("/") >= 2]
    if not in_train:
        raise ValueError(f"{files.place} has no images in train/<class>/: put one folder per class into train")
    known = sorted({_class_of(name) for name in in_train})
    if classes is not None and whole("classes", classes) > len(known):
        raise ValueError(f"{files.place} has {len(known)} classes, {classes} were asked for")
    number = {name: i for i, name in enumerate(known)}
    folder = next((part for part in VALIDATION_FOLDERS if any(name.startswith(f"{part}/") for name in images)), None)
    if folder is None:
        raise ValueError(f"{files.place} has no images for validation: put them into val/<class>/")
    if f"{folder}/{ANNOTATIONS}" in names:
        labelled = _annotated(files, folder, images)
    else:
        labelled = [(name, _class_of(name)) for name in images if name.startswith(f"{folder}/")]
    for name, label in labelled:
        if label not in number:
            raise ValueError(f"{files.place}/{name} is of class {label!r}, which train does not have")
    kept = known[:classes]
    return Arrangement(
        kept,
        [(name, number[_class_of(name)]) for name in in_train if number[_class_of(name)] < len(kept)],
        [(name, number[label]) for name, label in labelled if number[label] < len(kept)],
    )


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.rsplit("/", 1)[-1].startswith(".")


def _class_of(name: str) -> str:
    return name.split("/")[1]


def _annotated(files: Files, folder: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """Validation images in the order of TinyImageNet's table: file name, class, and a box that is not needed."""
    labelled = []
    table = f"{folder}/{ANNOTATIONS}"
    present = set(names)
    for number, line in enumerate(files.read(table).decode("utf-8", errors="replace").splitlines(), 1):
        columns = line.split("\t")
        place = f"{files.place}/{table} line {number}"
        if len(columns) < 2:
            raise ValueError(f"{place} must be a file name, a tab and a class, got {line!r}")
        name = f"{folder}/images/{columns[0]}"
        if name not in present:
            raise ValueError(f"{place} names {columns[0]!r}, which is not in {folder}/images")
        labelled.append((name, columns[1]))
    return labelled


def decoded(files: Files, names: Sequence[str], size: int | tuple[int, int] | None = None) -> npt.NDArray[np.uint8]:
    """The pixels of images of one size, [n, height, width, 3]; grey ones get three equal channels.

    Args:
        size: resize all to this height and width; without it they must be of one size.
    """
    height_width = None if size is None else _height_and_width(size)
    image = pillow_image()
    first = _pixels(image, files, names[0], height_width)
    out = np.empty((len(names), *first.shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + _BLOCK, len(names))):
            pixels = _pixels(image, files, names[i], height_width)
            if pixels.shape != first.shape:
                raise ValueError(
                    f"{files.place}/{names[i]} is {pixels.shape[1]} x {pixels.shape[0]} pixels, {names[0]} is "
                    f"{first.shape[1]} x {first.shape[0]}: images must be of one size, or give a size to resize them to"
                )
            out[i] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow lets go of the interpreter while it decodes
        _all_done(pool.map(fill, range(0, len(names), _BLOCK)))
    return out


def _all_done(results: Iterable[None]) -> None:
    """Wait for all, and raise what one raised; the others are then not begun."""
    for _ in results:
        pass


def pillow_image() -> Any:
    """The module ``PIL.Image``, which is not needed for anything but images in files."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ValueError("images are read by Pillow, which is not installed: install mssp[data]") from None


def _pixels(image: Any, files: Files, name: str, height_width: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    try:
        data = files.read(name)
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{files.place}/{name} cannot be read ({error})") from None
    try:
        with image.open(io.BytesIO(data)) as picture:
            rgb = picture.convert("RGB")
            if height_width is not None:
                rgb = rgb.resize(height_width[::-1], image.Resampling.BILINEAR)
            return np.asarray(rgb, dtype=np.uint8)
    except Exception as error:  # decoders raise whatever a broken file makes them trip over
        # Pillow would name its buffer in memory.
        reason = "of no known format" if isinstance(error, image.UnidentifiedImageError) else error
        raise ValueError(f"{files.place}/{name} is not a whole image ({reason}): replace or remove it") from error


def _height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, tuple) and len(size) == 2:
        return whole("size", size[0]), whole("size", size[1])
    if isinstance(size, int):
        return whole("size", size), whole("size", size)
    raise ValueError(f"size must be a whole number, or a height and a width, got {size!r}")
