"""Image sets from files: one .npz, or a folder with one folder per class.

Nothing is ever unpickled: an .npz holds numbers, and one that holds Python objects is refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mssp._files import file_at, replacing
from mssp.data.dataset import PARTS, Dataset, Split
from mssp.data.image_files import Arrangement, Files, FolderFiles, arranged, decoded

# What is customary for colour photographs, of ImageNet's or of any other set.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

KEYS = ("train_inputs", "train_targets", "validation_inputs", "validation_targets")
KERAS_KEYS = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("mean", "std", "classes", "name", "source")


def from_npz(
    path: str | Path,
    /,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """A dataset from an .npz file, as :func:`save_npz` writes it or as Keras does.

    Args:
        path: the file. It holds ``train_inputs``, ``train_targets``, ``validation_inputs`` and ``validation_targets``
            (or ``x_train``, ``y_train``, ``x_test`` and ``y_test``), and may hold ``mean``, ``std`` and ``classes``.
        classes: keep the first so many classes.
        mean, std: instead of those in the file; without either, ImageNet's for images of three channels.
    """
    path = file_at(path)
    arrays = _arrays(path)
    given = next((keys for keys in (KEYS, KERAS_KEYS) if set(keys) <= set(arrays)), None)
    if given is None:
        raise ValueError(
            f"{path} needs the arrays {', '.join(KEYS)} (or {', '.join(KERAS_KEYS)}), "
            f"it has {', '.join(sorted(arrays)) or 'none'}"
        )
    inputs = [_as_inputs(arrays[key]) for key in given[0::2]]
    targets = [_as_targets(path, key, arrays[key]) for key in given[1::2]]
    try:
        mean, std = _statistics(inputs[0], mean, std, arrays.get("mean"), arrays.get("std"))
        dataset = Dataset(
            name=str(arrays.get("name", path.stem)),
            classes=_number_of_classes(arrays.get("classes"), targets),
            train=Split(inputs[0], targets[0]),
            validation=Split(inputs[1], targets[1]),
            mean=mean,
            std=std,
            source=str(arrays.get("source", path.name)),
        )
        return dataset if classes is None else dataset.first_classes(classes)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_npz(dataset: Dataset, path: str | Path) -> None:
    """Write a dataset so that :func:`from_npz` reads it back; the file is there whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"a dataset is saved as .npz, got the name {path.name}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for part in PARTS:
        split: Split = getattr(dataset, part)
        arrays |= {f"{part}_inputs": split.inputs, f"{part}_targets": split.targets}
    arrays |= {key: np.array(getattr(dataset, key)) for key in _OPTIONAL}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def from_folder(
    path: str | Path,
    /,
    classes: int | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """A dataset from a folder of images; reading them takes Pillow.

    Args:
        path: the folder. It holds ``train/<class>/`` and ``val/<class>/`` (or ``validation``, or ``test``) with images
            in them, or is TinyImageNet's as it was published. Classes are numbered in the order of their names.
        classes: keep the first so many classes.
        size: resize all images to this height and width; without it they must be of one size.
        mean, std: ImageNet's unless given.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} {'is a file' if path.exists() else 'does not exist'}: a folder of images is needed")
    files = FolderFiles(path)
    return of_images(files, arranged(files, classes), path.resolve().name, path.name, size=size, mean=mean, std=std)


def of_images(
    files: Files,
    arrangement: Arrangement,
    name: str,
    source: str,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """A dataset of images in files, wherever they lie."""
    train, validation = arrangement.train, arrangement.validation
    # Both parts at once, since both must be of one size.
    pixels = decoded(files, [image for image, _ in [*train, *validation]], size)
    targets = np.array([label for _, label in [*train, *validation]], dtype=np.int64)
    mean, std = _statistics(pixels, mean, std)
    return Dataset(
        name=name,
        classes=len(arrangement.classes),
        train=Split(pixels[: len(train)], targets[: len(train)]),
        validation=Split(pixels[len(train) :], targets[len(train) :]),
        mean=mean,
        std=std,
        source=source,
    )


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Every array of the file that means something to us; of the others, only the names."""
    found: dict[str, npt.NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                key = member.removesuffix(".npy")
                found[key] = np.empty(0)
                if key in (*KEYS, *KERAS_KEYS, *_OPTIONAL):
                    with archive.open(member) as file:
                        found[key] = np.lib.format.read_array(file, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        if "Object arrays" in str(error):  # numpy's words
            raise ValueError(f"{path}: {key} holds Python objects, which are never unpickled: save numbers") from None
        raise ValueError(f"{path} is not a whole .npz file ({error}): it may be truncated, get a whole copy") from None
    return found


def _as_inputs(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.astype(np.float32, copy=False) if np.issubdtype(array.dtype, np.floating) else array


def _as_targets(path: Path, key: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if not np.issubdtype(array.dtype, np.integer) or array.ndim == 0 or array.size != len(array):
        raise ValueError(f"{path}: {key} must be one whole number per example, got {array.dtype} {list(array.shape)}")
    return array.reshape(-1).astype(np.int64)


def _number_of_classes(stored: npt.NDArray[Any] | None, targets: Sequence[npt.NDArray[np.int64]]) -> int:
    if stored is None:
        return 1 + max(int(part.max(initial=0)) for part in targets)
    if stored.size != 1 or not np.issubdtype(stored.dtype, np.integer):
        raise ValueError(f"classes must be one whole number, got {stored.dtype} {list(stored.shape)}")
    return int(stored.item())


def _statistics(
    inputs: npt.NDArray[Any],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    stored_mean: npt.NDArray[Any] | None = None,
    stored_std: npt.NDArray[Any] | None = None,
) -> tuple[Sequence[float], Sequence[float]]:
    """The mean and the deviation given, else those stored, else ImageNet's for bytes in three channels."""
    if (mean is None) != (std is None):
        raise ValueError("mean and std belong together: give both or neither")
    if mean is not None and std is not None:
        return mean, std
    if stored_mean is not None and stored_std is not None:
        return _numbers("mean", stored_mean), _numbers("std", stored_std)
    if inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[-1] == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    return (0.0,), (1.0,)


def _numbers(name: str, stored: npt.NDArray[Any]) -> Sequence[float]:
    if not np.issubdtype(stored.dtype, np.floating) and not np.issubdtype(stored.dtype, np.integer):
        raise ValueError(f"{name} must be numbers, got {stored.dtype}")
    return tuple(float(number) for number in stored.reshape(-1))
