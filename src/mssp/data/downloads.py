"""Public image sets by name: downloaded once, checked, and converted to one .npz in the cache folder.

The cache folder is $MSSP_DATA, or ``~/.cache/mssp``. Archives are read in place: no member of one is ever written under
its own name, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mssp._constraints import positive_int
from mssp._files import replacing
from mssp.data.dataset import Dataset, Split
from mssp.data.images import IMAGENET_MEAN, IMAGENET_STD, files_in_zip, from_npz, of_images, pillow_image, save_npz

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
_CIFAR10_RECORD = 1 + 3 * 32 * 32  # bytes: the class, and the pixels channel by channel
_CHUNK = 1 << 20
_TIMEOUT_S = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Archive:
    """A file that its authors publish, with the size and the checksum that a copy must have."""

    url: str
    size: int
    md5: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


TINYIMAGENET = Archive(
    url="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
    size=248_100_043,
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)
# The version in binary files. The version for Python is pickled, and nothing is unpickled here.
CIFAR10 = Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    size=170_052_171,
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)


def cache_folder() -> Path:
    """Where downloads are kept."""
    folder = os.environ.get("MSSP_DATA")
    return Path(folder) if folder else Path.home() / ".cache" / "mssp"


def tinyimagenet(classes: int = 100, folder: str | Path | None = None, archive: Archive = TINYIMAGENET) -> Dataset:
    """TinyImageNet: 64 x 64 pixels, 500 training and 50 validation images of each class.

    Args:
        classes: how many of its 200 classes, from the first in the order of their WordNet numbers. The paper takes 100.
        folder: where downloads are kept; :func:`cache_folder` unless given.
    """
    positive_int("classes", classes)

    def convert(path: Path) -> Dataset:
        with zipfile.ZipFile(path) as zip_file:
            files = files_in_zip(zip_file, archive.name.removesuffix(".zip"))
            return of_images(files, "tinyimagenet", archive.url, classes, mean=IMAGENET_MEAN, std=IMAGENET_STD)

    return _cached_dataset(f"tinyimagenet-{classes}", archive, folder, convert, check_packages=pillow_image)


def cifar10(classes: int = 10, folder: str | Path | None = None, archive: Archive = CIFAR10) -> Dataset:
    """CIFAR-10: 32 x 32 pixels, 5000 training and 1000 test images of each class; the latter are for validation.

    Args:
        classes: how many of its 10 classes, from the first; the first two are airplanes and automobiles.
        folder: where downloads are kept; :func:`cache_folder` unless given.
    """

    def convert(path: Path) -> Dataset:
        with tarfile.open(path, "r:gz") as tar_file:
            batches = [_cifar10_batch(tar_file, f"data_batch_{i}.bin") for i in range(1, 6)]
            validation = _cifar10_batch(tar_file, "test_batch.bin")
        return Dataset(
            name="cifar10",
            classes=10,
            train=Split(
                np.concatenate([batch.inputs for batch in batches]),
                np.concatenate([batch.targets for batch in batches]),
            ),
            validation=validation,
            mean=CIFAR10_MEAN,
            std=CIFAR10_STD,
            source=archive.url,
        )

    return _cached_dataset("cifar10", archive, folder, convert).first_classes(classes)


def _cifar10_batch(archive: tarfile.TarFile, name: str) -> Split:
    """The examples in one file of the archive, which consists of records of ``_CIFAR10_RECORD`` bytes."""
    member = archive.getmember(f"cifar-10-batches-bin/{name}")
    file = archive.extractfile(member) if member.isfile() else None
    if file is None:
        raise ValueError(f"{name} is not a file")
    with file:
        data: npt.NDArray[np.uint8] = np.frombuffer(file.read(), dtype=np.uint8)
    if not len(data) or len(data) % _CIFAR10_RECORD:
        raise ValueError(f"{name} must hold records of {_CIFAR10_RECORD} bytes, got {len(data)} bytes")
    records = data.reshape(-1, _CIFAR10_RECORD)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(pixels), records[:, 0].astype(np.int64))


def _cached_dataset(
    name: str,
    archive: Archive,
    folder: str | Path | None,
    convert: Callable[[Path], Dataset],
    check_packages: Callable[[], object] | None = None,
) -> Dataset:
    """A dataset from its .npz in the folder, which the first call makes from the archive by ``convert``.

    ``check_packages`` raises if a package for the conversion is missing. It is called before a download.
    """
    folder = cache_folder() if folder is None else Path(folder)
    path = folder / f"{name}.npz"
    if path.exists():
        try:
            return from_npz(path)
        except ValueError as error:
            raise ValueError(f"{error}; delete it and try again") from None
    if check_packages is not None:
        check_packages()
    archive_path = fetch(archive, folder)
    try:
        dataset = convert(archive_path)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, KeyError, OSError, ValueError) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise ValueError(f"{archive_path} cannot be converted: {reason}") from None
    save_npz(dataset, path)
    return dataset


def fetch(archive: Archive, folder: Path) -> Path:
    """The path of the archive in a folder. It is downloaded unless it is there, and always checked."""
    path = folder / archive.name
    if path.exists():
        _check_archive(archive, path, path, "delete it and try again")
        return path
    _log.info("downloading %s (%.0f MB) to %s", archive.url, archive.size / 1e6, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            with urllib.request.urlopen(archive.url, timeout=_TIMEOUT_S) as response, temporary.open("wb") as file:
                shutil.copyfileobj(response, file, _CHUNK)
            _check_archive(archive, path, temporary, "try again")
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ValueError(
            f"cannot download {archive.url} to {folder} ({reason}): put the archive there yourself, "
            f"or give an .npz file or a folder of images instead of a name"
        ) from None
    return path


def _check_archive(archive: Archive, path: Path, file_path: Path, remedy: str) -> None:
    """Refuse a file that is not what the authors published. Messages name it ``path``, where it is or will be."""
    size = file_path.stat().st_size
    if size < archive.size:
        raise ValueError(f"{path} is truncated: got {size} of {archive.size} bytes; {remedy}")
    with file_path.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != archive.md5:
        raise ValueError(f"{path} is not the file its authors published: its md5 is {md5}, not {archive.md5}; {remedy}")
