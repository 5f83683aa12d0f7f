from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mssp.data import Dataset, Split
from mssp.data.generated import clusters


@pytest.fixture(scope="module")
def whole() -> Dataset:
    return clusters()


def test_the_default_by_its_checksum(whole: Dataset) -> None:
    # Every operation is exact, so this holds on every machine.
    assert whole.checksum == "2df53421ab5b254b"
    assert (len(whole.train), len(whole.validation), whole.classes, whole.inputs) == (50_000, 5_000, 100, 64)
    assert whole.train.inputs.dtype == np.float32
    assert whole.source == "made by mssp: 10 superclasses, difficulty 0.5, seed 0"


def test_a_small_one_by_its_numbers() -> None:
    data = clusters(examples=4, validation=2, classes=3, inputs=2, superclasses=2, difficulty=0.25, seed=1)
    assert data.train.targets.tolist() == [0, 1, 2, 0]
    assert data.train.inputs.tolist() == [
        [0.8680402636528015, -1.4213765859603882],
        [-0.45512765645980835, -1.03787362575531],
        [1.3971126079559326, -0.3714245557785034],
        [0.03761753439903259, -1.700014591217041],
    ]
    assert data.checksum == "3f5692edab942653"


def test_every_coordinate_has_mean_zero_and_rms_one(whole: Dataset) -> None:
    x = whole.train.inputs.astype(np.float64)
    # Five standard errors.
    assert np.abs(x.mean(0)).max() < 5 / np.sqrt(50_000)
    assert np.abs(np.square(x).mean(0) - 1).max() < 5 * np.sqrt(2 / 50_000)


def test_classes_take_turns(whole: Dataset) -> None:
    assert (np.bincount(whole.train.targets) == 500).all()
    assert (np.bincount(whole.validation.targets[:1000]) == 10).all()


def test_an_example_does_not_depend_on_how_many_there_are(whole: Dataset) -> None:
    few = clusters(examples=300, validation=200)
    assert (few.train.inputs == whole.train.inputs[:300]).all()
    assert (few.validation.inputs == whole.validation.inputs[:200]).all()
    assert (whole.train.inputs[:200] != whole.validation.inputs[:200]).any()


def test_seeds_make_other_problems() -> None:
    checksums = {clusters(examples=100, validation=100, seed=seed).checksum for seed in range(4)}
    assert len(checksums) == 4


def hit_rate(train: Split, validation: Split, per_class: int) -> float:
    """Of the nearest centre, where a class has one centre (a linear classifier), or one for every mode."""
    centres = {}
    for label in np.unique(train.targets):
        mine = train.inputs[train.targets == label].astype(np.float64)
        groups = two_ended(mine) if per_class > 1 else [mine]
        centres[int(label)] = np.stack([group.mean(0) for group in groups])
    distances = np.stack([
        np.square(validation.inputs[:, None] - centres[label]).sum(-1).min(-1) for label in sorted(centres)
    ])  # fmt: skip
    return float((distances.argmin(0) == validation.targets).mean())


def two_ended(points: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    """A class's modes, told apart by the signs of its two largest principal components."""
    centred = points - points.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    along = centred @ axes.T
    kind = 4 * (np.abs(along[:, 0]) > np.abs(along[:, 1])) + 2 * (along[:, 0] > 0) + (along[:, 1] > 0)
    return [points[kind == value] for value in range(8) if (kind == value).any()]


def test_modes_tell_classes_apart_where_means_do_not() -> None:
    data = clusters(examples=2_000, validation=400, classes=10, superclasses=1, difficulty=0.0)
    assert hit_rate(data.train, data.validation, per_class=1) < 0.5
    assert hit_rate(data.train, data.validation, per_class=4) > 0.95


def test_difficulty_is_noise() -> None:
    rates = []
    for difficulty in (0.0, 0.5, 1.0):
        data = clusters(examples=2_000, validation=400, classes=10, superclasses=1, difficulty=difficulty)
        rates.append(hit_rate(data.train, data.validation, per_class=4))
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0.95
    assert rates[2] < 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"difficulty": 1.5}, "difficulty must be a number from 0 to 1, got 1.5"),
        ({"difficulty": float("nan")}, "difficulty must be a number from 0 to 1, got nan"),
        ({"classes": 1}, "classes must be a whole number of at least 2, got 1"),
        ({"superclasses": 101}, "101 superclasses cannot be made of 100 classes: use at most 100"),
        ({"examples": 0}, "examples must be a positive whole number, got 0"),
        ({"inputs": 2.5}, "inputs must be a positive whole number, got 2.5"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clusters(**arguments)


@pytest.mark.parametrize(("classes", "superclasses"), [(7, 3), (4, 3), (5, 5), (2, 1)])
def test_superclasses_need_not_be_of_one_size(classes: int, superclasses: int) -> None:
    data = clusters(examples=70, validation=70, classes=classes, inputs=3, superclasses=superclasses)
    assert set(data.train.targets.tolist()) == set(range(classes))
