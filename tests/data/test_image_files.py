from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mssp.data import Dataset, from_folder
from mssp.data.images import files_in_folder, labelled_images


def written(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def picture(value: int, height: int = 4, width: int = 4, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), value, dtype=np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


def folder(root: Path, part: str = "val") -> Path:
    files = {"train/cat/1.png": 1, "train/cat/0.PNG": 0, "train/ant/deep/er/2.png": 2, f"{part}/cat/3.png": 3}
    written(root, {name: picture(value) for name, value in files.items()})
    return written(root, {"train/cat/.hidden.png": b"", "train/cat/notes.txt": b"", "readme.txt": b""})


def values(data: Dataset, part: str) -> list[tuple[int, int]]:
    """The colour and the class of each image."""
    split = getattr(data, part)
    return [(int(x[0, 0, 0]), int(y)) for x, y in zip(split.inputs, split.targets, strict=True)]


@pytest.mark.parametrize("part", ["val", "validation", "test"])
def test_one_folder_per_class(tmp_path: Path, part: str) -> None:
    data = from_folder(folder(tmp_path / "pets", part))
    assert values(data, "train") == [(2, 0), (0, 1), (1, 1)]
    assert values(data, "validation") == [(3, 1)]
    assert (data.name, data.classes, data.inputs, data.source) == ("pets", 2, 48, "pets")
    assert tuple(data.mean) == (0.485, 0.456, 0.406)
    assert tuple(from_folder(tmp_path / "pets", mean=(0.5,), std=(0.5,)).mean) == (0.5,)


def test_the_first_classes_of_a_folder(tmp_path: Path) -> None:
    root = written(folder(tmp_path), {"val/ant/4.png": picture(4)})
    data = from_folder(root, classes=1)
    assert (values(data, "train"), values(data, "validation"), data.classes) == ([(2, 0)], [(4, 0)], 1)
    with pytest.raises(ValueError, match="has 2 classes, 3 were asked for"):
        from_folder(root, classes=3)


def test_tinyimagenet_as_published(tmp_path: Path, tiny_files: dict[str, bytes]) -> None:
    data = from_folder(written(tmp_path, tiny_files))
    assert values(data, "train") == [(10, 0), (11, 0), (20, 1), (21, 1), (0, 2), (1, 2)]
    assert values(data, "validation") == [(100, 1), (101, 0), (102, 2), (103, 0)]
    first = from_folder(tmp_path, classes=2)
    assert values(first, "validation") == [(100, 1), (101, 0), (103, 0)]


def test_grey_images_get_three_channels(tmp_path: Path) -> None:
    root = written(folder(tmp_path), {"val/ant/4.png": picture(9, mode="L")})
    assert from_folder(root).validation.inputs[0].tolist() == [[[9, 9, 9]] * 4] * 4


def test_images_of_another_size(tmp_path: Path) -> None:
    root = written(folder(tmp_path), {"val/cat/9.png": picture(9, height=6, width=5)})
    message = r"val/cat/9.png is 5 x 6 pixels, train/ant/deep/er/2.png is 4 x 4: images must be of one size"
    with pytest.raises(ValueError, match=message):
        from_folder(root)
    assert from_folder(root, size=3).train.inputs.shape == (3, 3, 3, 3)
    assert values(from_folder(root, size=(2, 3)), "validation") == [(3, 1), (9, 1)]
    assert from_folder(root, size=(2, 3)).train.inputs.shape == (3, 2, 3, 3)
    with pytest.raises(ValueError, match="size must be a positive whole number, or a height and a width, got 0"):
        from_folder(root, size=0)
    with pytest.raises(ValueError, match="size must be a positive whole number, or a height and a width, got '64'"):
        from_folder(root, size="64")  # type: ignore[arg-type]


def test_many_images_keep_their_order(tmp_path: Path) -> None:
    pictures = {f"train/a/{i:03}.png": picture(i) for i in range(200)}
    data = from_folder(written(tmp_path, {**pictures, "val/a/0.png": pictures["train/a/000.png"]}))
    assert values(data, "train") == [(i, 0) for i in range(200)]


@pytest.mark.parametrize("name", ["train/ant/0.png", "val/cat/9.png"])
@pytest.mark.parametrize("kind", ["half", "empty", "text"])
def test_broken_images_are_named(tmp_path: Path, name: str, kind: str) -> None:
    whole = picture(1)
    data = {"half": whole[: len(whole) // 2], "empty": b"", "text": b"not an image"}[kind]
    root = written(folder(tmp_path), {name: data})
    with pytest.raises(ValueError, match=rf"{name} is not a whole image \(.+\): replace or remove it"):
        from_folder(root)


def test_pillow_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"train/a/0.png": b"", "val/a/0.png": b""})
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(ValueError, match=r"images are read by Pillow, which is not installed: install mssp\[data\]"):
        from_folder(tmp_path)


ONE = {"train/a/0.png": b""}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/0.png": b""}, "has no images in train/<class>/: put one folder per class into train"),
        ({"train/0.png": b""}, "has no images in train/<class>/"),
        ({**ONE, "val/a/0.txt": b""}, "has no images for validation: put them into val/<class>/"),
        ({**ONE, "val/b/0.png": b""}, "val/b/0.png is of class 'b', which train does not have"),
        (
            {**ONE, "val/images/0.png": b"", "val/val_annotations.txt": b"0.png\ta\n1.png"},
            r"val/val_annotations.txt line 2 must be a file name, a tab and a class, got '1.png'",
        ),
        (
            {**ONE, "val/images/0.png": b"", "val/val_annotations.txt": b"../../train/a/0.png\ta\n"},
            r"line 1 names '../../train/a/0.png', which is not in val/images",
        ),
    ],
)
def test_other_arrangements_are_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        labelled_images(files_in_folder(written(tmp_path, files)))


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none does not exist: a folder of images is needed"):
        from_folder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"a\.png is a file: a folder of images is needed"):
        from_folder(written(tmp_path, {"a.png": b""}) / "a.png")


def test_images_that_take_too_much_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path / "pets")
    allowed = r"takes 11\.2 GiB of memory, and 4 are allowed: allow more \(--data-gib, or gib=\)"
    with pytest.raises(ValueError, match=allowed):
        from_folder(root, size=10**9 // 31623)
    with pytest.raises(ValueError, match=r"takes 0\.0 GiB of memory, and 1e-07 are allowed"):
        from_folder(root, gib=1e-7)
    for pixels in (15, 7):  # Pillow warns of images that are larger than its limit, and refuses those of twice its size
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
        with pytest.raises(
            ValueError, match=r"\.png is not a whole image \(Image size \(16 pixels\) exceeds limit of .+\)"
        ):
            from_folder(root)
