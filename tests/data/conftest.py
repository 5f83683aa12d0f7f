"""Small image sets in files, for tests that read them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def tiny_files() -> dict[str, bytes]:
    """TinyImageNet as it was published, but of three classes, two training images each, and 4 x 4 pixels."""
    files = {}
    for label, wnid in enumerate(["n03", "n01", "n02"]):
        for i in (0, 1):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(10 * label + i)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"n03_0.JPEG\t0\t0\t1\t1\n"
    files |= {f"val/images/val_{i}.JPEG": picture(100 + i) for i in range(4)}
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t1\t1\n" for i, wnid in enumerate(["n02", "n01", "n03", "n01"])]
    files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = picture(200)
    return files


def picture(value: int) -> bytes:
    """An image of one colour; as PNG whatever its name, since that keeps every number."""
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()
