"""Datasets from files: from one .npz, or from a folder with one folder of images per class.

Nothing is ever unpickled: an .npz that holds Python objects is refused.

The folder of an image says its class:

    train/<class>/*.png    val/<class>/*.png                             one folder per class
    train/<class>/*.png    val/images/*.png  val/val_annotations.txt     TinyImageNet: a table says the classes

The files are in a folder, or in a zip archive, which is read without unpacking it.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mssp._constraints import (
    Constraint,
    UnfitError,
    kind_of,
    optional,
    path,
    positive,
    positive_int,
    some_numbers,
    takes,
)
from mssp._files import file_at, replacing
from mssp.data.archives import GIB, check_size, names_in, read_arrays
from mssp.data.dataset import PARTS, Dataset, Split

# Means and standard deviations of ImageNet's channels, which are customary for photographs of any dataset.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

KEYS = ("train_inputs", "train_targets", "validation_inputs", "validation_targets")
KERAS_KEYS = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL_KEYS = ("mean", "std", "classes", "name", "source")
_MOST_CLASSES = 1_000_000  # a model has an output for each
_WHOLE = "iu"  # kinds of types: numpy counts durations among its integers too
_LONGEST_LINE = 1000  # characters of a name or a source


@takes(path=path, classes=optional(positive_int), mean=optional(some_numbers), std=optional(some_numbers), gib=positive)
def from_npz(
    path: str | Path,
    /,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    gib: float = GIB,
) -> Dataset:
    """A dataset from an .npz file that :func:`save_npz` has written, or that has Keras's names.

    Args:
        path: the file. It holds ``train_inputs``, ``train_targets``, ``validation_inputs`` and ``validation_targets``
            (or ``x_train``, ``y_train``, ``x_test`` and ``y_test``), and may hold ``mean``, ``std`` and ``classes``.
        classes: how many classes to keep, from the first.
        mean, std: they replace those in the file. If there are none in either place, images of three channels get
            ImageNet's.
        gib: the largest size of the arrays in memory, in GiB. It is counted before anything is unpacked.
    """
    path = file_at(path)
    arrays = read_arrays(path, (*KEYS, *KERAS_KEYS, *_OPTIONAL_KEYS), gib)
    keys = next((keys for keys in (KEYS, KERAS_KEYS) if set(keys) <= set(arrays)), None)
    if keys is None:
        needed = f"{', '.join(KEYS)} (or {', '.join(KERAS_KEYS)})"
        raise ValueError(f"{path} needs the arrays {needed}, it has {names_in(path)}")
    inputs = [_in_float32(arrays[key]) for key in keys[0::2]]
    targets = [_as_targets(path, key, arrays[key]) for key in keys[1::2]]
    try:
        mean, std = _statistics(inputs[0], mean, std, arrays)
        dataset = Dataset(
            name=_line(arrays, "name", path.stem),
            classes=_number_of_classes(arrays.get("classes"), targets),
            train=Split(inputs[0], targets[0]),
            validation=Split(inputs[1], targets[1]),
            mean=mean,
            std=std,
            source=_line(arrays, "source", path.name),
        )
        return dataset if classes is None else dataset.first_classes(classes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@takes(dataset=kind_of(Dataset), path=path)
def save_npz(dataset: Dataset, path: str | Path) -> None:
    """Write a dataset to a file that :func:`from_npz` reads. The file is written whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"a dataset is saved as .npz, got the name {path.name}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part in PARTS:
        split: Split = getattr(dataset, part)
        arrays |= {f"{part}_inputs": split.inputs, f"{part}_targets": split.targets}
    arrays |= {key: np.array(getattr(dataset, key)) for key in _OPTIONAL_KEYS}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _height_and_width(came: Any) -> tuple[int, int]:
    height_width = came if isinstance(came, tuple) else (came, came)
    if len(height_width) != 2:
        raise UnfitError
    return positive_int.take(height_width[0]), positive_int.take(height_width[1])


_SIZE = Constraint("a positive whole number, or a height and a width", _height_and_width)


@takes(
    path=path,
    classes=optional(positive_int),
    size=optional(_SIZE),
    mean=optional(some_numbers),
    std=optional(some_numbers),
    gib=positive,
)
def from_folder(
    path: str | Path,
    /,
    classes: int | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    gib: float = GIB,
) -> Dataset:
    """A dataset from a folder of images; reading them takes Pillow.

    Args:
        path: the folder. It holds ``train/<class>/`` and ``val/<class>/`` (or ``validation``, or ``test``) with images
            in them, or is TinyImageNet's as it was published. Classes are numbered in the order of their names.
        classes: how many classes to keep, from the first.
        size: resize all images to this height and width; without it they must be of one size.
        mean, std: ImageNet's by default.
        gib: the largest size of the images in memory, in GiB. It is counted before they are read.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} {'is a file' if path.exists() else 'does not exist'}: a folder of images is needed")
    return of_images(files_in_folder(path), path.resolve().name, path.name, classes, size, mean, std, gib)


def of_images(
    files: Files,
    name: str,
    source: str,
    classes: int | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    gib: float = GIB,
) -> Dataset:
    """A dataset of images in files; see :func:`from_folder` for the arguments."""
    classes, train, validation = labelled_images(files, classes)
    # Both parts together, since all images must be of one size.
    pixels = pixels_of(files, [image for image, _ in [*train, *validation]], size, gib)
    targets = np.array([label for _, label in [*train, *validation]], dtype=np.int64)
    mean, std = _statistics(pixels, mean, std, stored={})
    return Dataset(
        name=name,
        classes=classes,
        train=Split(pixels[: len(train)], targets[: len(train)]),
        validation=Split(pixels[len(train) :], targets[len(train) :]),
        mean=mean,
        std=std,
        source=source,
    )


def _in_float32(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floating-point numbers as float32; arrays of other types stay as they are."""
    with np.errstate(over="ignore"):  # what float32 does not hold becomes infinity, which is refused
        return array.astype(np.float32, copy=False) if np.issubdtype(array.dtype, np.floating) else array


def _as_targets(path: Path, key: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if array.dtype.kind not in _WHOLE or array.ndim == 0 or array.size != len(array):
        raise ValueError(f"{path}: {key} must be one whole number per example, got {array.dtype} {list(array.shape)}")
    if array.size and int(array.max()) >= _MOST_CLASSES:
        raise ValueError(f"{path}: {key} must be from 0 to {_MOST_CLASSES - 1:,}, got {int(array.max())}")
    return array.reshape(-1).astype(np.int64)


def _number_of_classes(stored: npt.NDArray[Any] | None, targets: Sequence[npt.NDArray[np.int64]]) -> int:
    if stored is None:
        return 1 + max(int(part.max(initial=0)) for part in targets)
    if stored.size != 1 or stored.dtype.kind not in _WHOLE:
        raise ValueError(f"classes must be one whole number, got {stored.dtype} {list(stored.shape)}")
    if int(stored.item()) > _MOST_CLASSES:
        raise ValueError(f"classes must be at most {_MOST_CLASSES:,}, got {int(stored.item())}")
    return int(stored.item())


def _line(arrays: Mapping[str, npt.NDArray[Any]], key: str, default: str) -> str:
    """A text that is stored under a key: it becomes a part of headings, and of the names of studies."""
    if key not in arrays:
        return default
    text = str(arrays[key]) if arrays[key].size == 1 and arrays[key].dtype.kind == "U" else ""
    if not 0 < len(text) <= _LONGEST_LINE or not text.isprintable():
        raise ValueError(f"{key} must be one line of at most {_LONGEST_LINE} characters")
    return text


def _statistics(
    inputs: npt.NDArray[Any],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    stored: Mapping[str, npt.NDArray[Any]],
) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation: the caller's, or those stored, or ImageNet's for bytes in three channels."""
    if (mean is None) != (std is None):
        raise ValueError("mean and std belong together: give both or neither")
    if mean is not None and std is not None:
        return mean, std
    if "mean" in stored and "std" in stored:
        return _numbers("mean", stored["mean"], inputs), _numbers("std", stored["std"], inputs)
    if inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[-1] == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    return (0.0,), (1.0,)


def _numbers(name: str, stored: npt.NDArray[Any], inputs: npt.NDArray[Any]) -> Sequence[float]:
    if stored.dtype.kind not in (*_WHOLE, "f"):
        raise ValueError(f"{name} must be numbers, got {stored.dtype}")
    if stored.size > max(inputs.shape[-1:], default=1):
        raise ValueError(f"{name} must be one number, or one per channel, got {stored.size}")
    return tuple(float(number) for number in stored.reshape(-1))


SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
VALIDATION_FOLDERS = ("val", "validation", "test")
ANNOTATIONS = "val_annotations.txt"
# Images per task of the thread pool: with fewer, handing out tasks would take most of the time.
_BLOCK = 64


@dataclass(frozen=True)
class Files:
    """The files of a folder and its subfolders.

    Args:
        place: the folder, for error messages.
        names: the files' paths inside the folder, with slashes.
        read: gives the content of a file by its name.
    """

    place: str
    names: Sequence[str]
    read: Callable[[str], bytes]


def files_in_folder(folder: Path) -> Files:
    """The files of a folder. Links are followed, since large datasets are often on another disk."""
    walk = os.walk(folder, followlinks=True)
    names = [Path(inner, name).relative_to(folder).as_posix() for inner, _, files in walk for name in files]
    return Files(str(folder), names, lambda name: (folder / name).read_bytes())


def files_in_zip(archive: zipfile.ZipFile, folder: str) -> Files:
    """The files in one folder of an open archive, without those whose names lead out of the folder."""
    prefix = f"{folder}/"
    inside = [name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)]
    names = [name for name in inside if ".." not in name.split("/")]
    return Files(f"{archive.filename}/{folder}", names, lambda name: archive.read(prefix + name))


LabelledImages = list[tuple[str, int]]  # names of images, each with the number of its class


def labelled_images(files: Files, classes: int | None = None) -> tuple[int, LabelledImages, LabelledImages]:
    """How many classes there are, and their images for training and for validation.

    ``classes`` is how many classes to keep, in the order of their names; None keeps all.
    """
    images = [name for name in sorted(files.names) if _is_image(name)]
    train_images = [name for name in images if name.startswith("train/") and name.count("/") >= 2]
    if not train_images:
        raise ValueError(f"{files.place} has no images in train/<class>/: put one folder per class into train")
    number_of = {name: i for i, name in enumerate(sorted({_class_of(name) for name in train_images}))}
    if classes is not None and positive_int("classes", classes) > len(number_of):
        raise ValueError(f"{files.place} has {len(number_of)} classes, {classes} were asked for")
    folder = next((part for part in VALIDATION_FOLDERS if any(name.startswith(f"{part}/") for name in images)), None)
    if folder is None:
        raise ValueError(f"{files.place} has no images for validation: put them into val/<class>/")
    if f"{folder}/{ANNOTATIONS}" in files.names:
        validation = _annotated_images(files, folder, images)
    else:
        validation = [(name, _class_of(name)) for name in images if name.startswith(f"{folder}/")]
    for name, label in validation:
        if label not in number_of:
            raise ValueError(f"{files.place}/{name} is of class {label!r}, which train does not have")
    count = len(number_of) if classes is None else classes
    train = [(name, number_of[_class_of(name)]) for name in train_images if number_of[_class_of(name)] < count]
    return count, train, [(name, number_of[label]) for name, label in validation if number_of[label] < count]


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.rsplit("/", 1)[-1].startswith(".")


def _class_of(name: str) -> str:
    """The name of the class's folder, which is the second in the name of an image."""
    return name.split("/")[1]


def _annotated_images(files: Files, folder: str, images: Sequence[str]) -> list[tuple[str, str]]:
    """Validation images with their classes, in the order of TinyImageNet's table.

    A line of the table is a file name, a class, and a box that is not needed here, separated by tabs.
    """
    annotated, names = [], set(images)
    table = f"{folder}/{ANNOTATIONS}"
    for number, line in enumerate(files.read(table).decode("utf-8", errors="replace").splitlines(), 1):
        columns = line.split("\t")
        place = f"{files.place}/{table} line {number}"
        if len(columns) < 2:
            raise ValueError(f"{place} must be a file name, a tab and a class, got {line!r}")
        name = f"{folder}/images/{columns[0]}"
        if name not in names:
            raise ValueError(f"{place} names {columns[0]!r}, which is not in {folder}/images")
        annotated.append((name, columns[1]))
    return annotated


def pixels_of(
    files: Files, names: Sequence[str], size: int | tuple[int, int] | None = None, gib: float = GIB
) -> npt.NDArray[np.uint8]:
    """The pixels of images of one size, [n, height, width, 3]; grey images get three equal channels.

    Args:
        size: resize all images to this height and width; without it they must be of one size.
        gib: the largest size of all pixels together.
    """
    with warnings.catch_warnings():
        pillow = pillow_image()
        # Of images that are suspiciously large, Pillow refuses the largest and warns of others: both are refused here.
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        return _pixels_of(pillow, files, names, None if size is None else _height_and_width(size), gib)


def _pixels_of(
    pillow: Any, files: Files, names: Sequence[str], height_width: tuple[int, int] | None, gib: float
) -> npt.NDArray[np.uint8]:
    check_size(files.place, len(names) * 3 * prod(height_width or (1, 1)), gib)
    first = _decoded_image(pillow, files, names[0], height_width)
    check_size(files.place, len(names) * first.nbytes, gib)
    out = np.empty((len(names), *first.shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for i in range(start, min(start + _BLOCK, len(names))):
            pixels = _decoded_image(pillow, files, names[i], height_width)
            if pixels.shape != first.shape:
                raise ValueError(
                    f"{files.place}/{names[i]} is {pixels.shape[1]} x {pixels.shape[0]} pixels, {names[0]} is "
                    f"{first.shape[1]} x {first.shape[0]}: images must be of one size, or give a size to resize them to"
                )
            out[i] = pixels

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow releases the interpreter's lock while it decodes
        list(pool.map(fill, range(0, len(names), _BLOCK)))  # raises what a task raised, and then starts no more tasks
    return out


def pillow_image() -> Any:
    """The module ``PIL.Image``, which is needed for images in files only."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise ValueError("images are read by Pillow, which is not installed: install mssp[data]") from None


def _decoded_image(pillow: Any, files: Files, name: str, height_width: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """The pixels of one image, [height, width, 3]."""
    try:
        data = files.read(name)
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{files.place}/{name} cannot be read ({error})") from None
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            rgb = picture.convert("RGB")
            if height_width is not None:
                rgb = rgb.resize(height_width[::-1], pillow.Resampling.BILINEAR)
            return np.asarray(rgb, dtype=np.uint8)
    except Exception as error:  # a broken file can make decoders raise any kind of error
        # For an unknown format, Pillow's message would name its buffer in memory, not the file.
        reason = "of no known format" if isinstance(error, pillow.UnidentifiedImageError) else error
        raise ValueError(f"{files.place}/{name} is not a whole image ({reason}): replace or remove it") from error
