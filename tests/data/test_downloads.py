"""Downloads of small archives, by file:// addresses: no test reaches for the network."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.error
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.data import from_folder, load
from mssp.data.downloads import CIFAR10, TINYIMAGENET, Archive, cache_folder, cifar10, fetch, tinyimagenet


def archive(path: Path) -> Archive:
    data = path.read_bytes()
    return Archive(path.as_uri(), len(data), hashlib.md5(data, usedforsecurity=False).hexdigest())


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def batch(labels: list[int]) -> bytes:
    """Records of CIFAR-10: image i is red i, green 100 + i, blue 200 + i, but for its first pixel of the second row."""
    records = np.empty((len(labels), 3073), dtype=np.uint8)
    for i, label in enumerate(labels):
        records[i, 0] = label
        records[i, 1:] = np.repeat([i, 100 + i, 200 + i], 1024)
        records[i, 1 + 32] = 99
    return records.tobytes()


BATCHES = {**{f"data_batch_{i}.bin": batch([i, 0, 1]) for i in range(1, 6)}, "test_batch.bin": batch([9, 1])}


def cifar_archive(folder: Path, files: dict[str, bytes]) -> Archive:
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive(path)


def tiny_archive(folder: Path, files: dict[str, bytes]) -> Archive:
    path = folder / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in files.items():
            packed.writestr(f"tiny-imagenet-200/{name}", data)
    return archive(path)


def test_what_is_downloaded() -> None:
    assert (TINYIMAGENET.name, TINYIMAGENET.md5) == ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
    assert (CIFAR10.name, CIFAR10.md5) == ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
    assert (TINYIMAGENET.size, CIFAR10.size) == (248_100_043, 170_052_171)


def test_the_cache_is_where_it_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MSSP_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MSSP_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mssp"


def test_cifar10_is_converted_once(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    data = cifar10(folder=cache, archive=source)
    assert data.train.targets.tolist() == [1, 0, 1, 2, 0, 1, 3, 0, 1, 4, 0, 1, 5, 0, 1]
    assert data.validation.targets.tolist() == [9, 1]
    assert data.train.inputs.shape == (15, 32, 32, 3)
    assert data.train.inputs[4, 7, 7].tolist() == [1, 101, 201]
    assert data.train.inputs[4, 1, 0].tolist() == [99, 101, 201]
    assert data.prepared(data.train.inputs)[0, 1] == pytest.approx((100 / 255 - 0.4822) / 0.2435)
    assert {path.name for path in cache.iterdir()} == {"cifar-10-binary.tar.gz", "cifar10.npz"}
    for path in (cache / source.name, published / source.name):
        path.unlink()
    assert cifar10(folder=cache, archive=source).checksum == data.checksum


def test_two_classes_of_cifar10(published: Path, cache: Path) -> None:
    data = cifar10(classes=2, folder=cache, archive=cifar_archive(published, BATCHES))
    assert data.train.targets.tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert (data.classes, len(data.validation)) == (2, 1)


def test_names_load_from_the_cache(published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSSP_DATA", str(cache))
    cifar10(archive=cifar_archive(published, BATCHES))
    assert load("cifar10", classes=2).classes == 2


def test_tinyimagenet_is_that_of_its_folder(published: Path, cache: Path, tiny_files: dict[str, bytes]) -> None:
    source = tiny_archive(published, tiny_files)
    data = tinyimagenet(classes=2, folder=cache, archive=source)
    assert data.train.targets.tolist() == [0, 0, 1, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [10, 11, 20, 21]
    assert data.validation.targets.tolist() == [1, 0, 0]
    assert (data.name, data.mean, data.std) == ("tinyimagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for name, content in tiny_files.items():
        path = published / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert from_folder(published / "unpacked", classes=2).checksum == data.checksum
    (cache / source.name).unlink()
    assert tinyimagenet(classes=2, folder=cache, archive=source).checksum == data.checksum
    assert len(tinyimagenet(classes=3, folder=cache, archive=source).train) == 6


def test_members_that_point_elsewhere_stay_where_they_are(
    published: Path, cache: Path, tiny_files: dict[str, bytes], tmp_path: Path
) -> None:
    outside = {"../../evil.txt": b"evil", "train/../../../evil.png": b"evil"}
    tinyimagenet(classes=3, folder=cache, archive=tiny_archive(published, {**tiny_files, **outside}))
    path = published / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {"../../evil.txt": b"evil", **BATCHES}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    cifar10(folder=cache, archive=archive(path))
    assert not list(tmp_path.rglob("evil*"))
    assert {path.name for path in tmp_path.iterdir()} == {"published", "cache"}


def test_a_truncated_download_is_told_and_not_kept(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    path = published / source.name
    path.write_bytes(path.read_bytes()[: source.size // 2])
    got = f"{source.name} is truncated: got {source.size // 2} of {source.size} bytes; try again"
    with pytest.raises(ValueError, match=got):
        cifar10(folder=cache, archive=source)
    assert not list(cache.iterdir())


def test_a_truncated_archive_in_the_cache_is_told(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    cache.mkdir()
    (cache / source.name).write_bytes((published / source.name).read_bytes()[:100])
    with pytest.raises(ValueError, match=f"truncated: got 100 of {source.size} bytes; delete it and try again"):
        cifar10(folder=cache, archive=source)


def test_another_file_is_told_by_its_md5(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    (published / source.name).write_bytes(bytes(source.size))
    with pytest.raises(ValueError, match=rf"is not the file its authors published: its md5 is \w+, not {source.md5}"):
        cifar10(folder=cache, archive=source)
    assert not list(cache.iterdir())


def test_no_network_is_one_line_that_says_what_else_would_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(url: str, timeout: float) -> Any:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(ValueError, match="Name or service not known") as raised:
        cifar10(folder=cache)
    assert str(raised.value) == (
        f"cannot download {CIFAR10.url} to {cache} (Name or service not known): put the archive there yourself, "
        "or give an .npz file or a folder of images instead of a name"
    )
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(TimeoutError("timed out")))
    with pytest.raises(ValueError, match=r"\(timed out\): put the archive there yourself"):
        cifar10(folder=cache)


def test_an_archive_put_into_the_cache_needs_no_network(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    cache.mkdir()
    (published / source.name).rename(cache / source.name)
    assert fetch(source, cache) == cache / source.name
    assert len(cifar10(folder=cache, archive=source).train) == 15


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {**BATCHES, "data_batch_3.bin": batch([1])[:-1]},
            "data_batch_3.bin must hold records of 3073 bytes, got 3072",
        ),
        ({"data_batch_1.bin": BATCHES["data_batch_1.bin"]}, "data_batch_2.bin' not found"),
        ({**BATCHES, "test_batch.bin": batch([10])}, "cifar10's validation targets must lie in 0 to 9, got 10 to 10"),
    ],
)
def test_other_contents_are_told(published: Path, cache: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=rf"cifar-10-binary.tar.gz cannot be converted: .*{message}"):
        cifar10(folder=cache, archive=cifar_archive(published, files))


def test_links_in_archives_are_not_followed(published: Path, cache: Path) -> None:
    path = published / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    with pytest.raises(ValueError, match=r"cannot be converted: data_batch_1\.bin is not a file"):
        cifar10(folder=cache, archive=archive(path))


@pytest.mark.parametrize("name", ["cifar-10-binary.tar.gz", "tiny-imagenet-200.zip"])
def test_broken_archives_are_named(published: Path, cache: Path, name: str) -> None:
    """As their authors published them, going by the md5, and broken all the same."""
    make, convert = (cifar_archive, cifar10) if name.startswith("cifar") else (tiny_archive, tinyimagenet)
    make(published, BATCHES)
    path = published / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"{name} cannot be converted: "):
        convert(folder=cache, archive=archive(path))
    assert [path.name for path in cache.iterdir()] == [name]


def test_broken_images_in_archives_are_named(published: Path, cache: Path, tiny_files: dict[str, bytes]) -> None:
    tiny_files["train/n02/images/n02_1.JPEG"] = tiny_files["train/n02/images/n02_1.JPEG"][:30]
    with pytest.raises(ValueError, match=r"train/n02/images/n02_1.JPEG is not a whole image"):
        tinyimagenet(classes=3, folder=cache, archive=tiny_archive(published, tiny_files))


def test_a_broken_conversion_is_told(published: Path, cache: Path) -> None:
    source = cifar_archive(published, BATCHES)
    cifar10(folder=cache, archive=source)
    path = cache / "cifar10.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cifar10.npz is not a whole \.npz file .*; delete it and try again"):
        cifar10(folder=cache, archive=source)


def test_pillow_is_asked_for_before_the_download(published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(ValueError, match="images are read by Pillow, which is not installed"):
        tinyimagenet(folder=cache, archive=tiny_archive(published, {}))
    assert not cache.exists()
