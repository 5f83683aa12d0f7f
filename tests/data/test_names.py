from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssp.data
from mssp.data import NAMES, load, save_npz


def test_names() -> None:
    assert NAMES == ("clusters", "spectra", "tinyimagenet", "cifar10")


def test_by_name_and_by_path(tmp_path: Path) -> None:
    data = load("clusters", examples=50, validation=20, classes=5, superclasses=2)
    assert (data.name, len(data.train)) == ("clusters", 50)
    save_npz(data, tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").checksum == load(str(tmp_path / "a.npz")).checksum == data.checksum
    assert load(tmp_path / "a.npz", classes=2).classes == 2


def test_a_folder_is_read_as_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no images in train/<class>/"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "mnist",
            {},
            "one of clusters, spectra, tinyimagenet, cifar10, an .npz file or a folder of images, got 'mnist'",
        ),
        ("python", {}, r"python is text, which has no classes: use mssp\.data\.python_tokens\(\)"),
        ("a.txt", {}, r"a\.txt is text, which has no classes: use mssp\.data\.prepare\(\['a\.txt'\], 'tokens\.bin'\)"),
        ("none.npz", {}, "or a folder of images, got 'none.npz'"),
        ("no/where", {}, "or a folder of images, got 'no/where'"),
        (__file__, {}, r"or a folder of images, got '.*test_names\.py'"),
        (
            "clusters",
            {"noise": 1},
            "clusters has no option 'noise': it takes examples, validation, classes, inputs, super",
        ),
        ("cifar10", {"size": 8}, "cifar10 has no option 'size': it takes classes, folder, archive"),
        (".", {"path": 1}, "has no option 'path': it takes classes, size, mean, std"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_exports_are_lazy_and_never_import_torch() -> None:
    code = (
        "import sys, mssp.data; assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "mssp.data.load('clusters', examples=9, validation=9, classes=3, superclasses=1); mssp.data.python_tokens\n"
        "import mssp.data.downloads; assert not {'torch', 'PIL'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exports_are_not_shadowed_by_modules() -> None:
    folder = Path(mssp.data.__file__).parent
    for name in mssp.data.__all__:
        assert not (folder / f"{name}.py").exists()
        assert getattr(mssp.data, name) is not None
    assert set(mssp.data.__all__) <= set(dir(mssp.data))
    with pytest.raises(AttributeError, match=r"module 'mssp\.data' has no attribute 'nothing'"):
        _ = mssp.data.nothing


def test_global_random_state_is_left_alone() -> None:
    np.random.seed(0)
    before = np.random.get_state(legacy=False)
    load("clusters", examples=50, validation=20).batches(0, 10, 5)
    after = np.random.get_state(legacy=False)
    assert str(before) == str(after)
