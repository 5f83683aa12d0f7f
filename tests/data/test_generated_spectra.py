"""Spectra: the same bits everywhere, the spectrum that they promise, and mistakes by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mssp.data import Dataset, Split
from mssp.data.generated import _walsh_hadamard, spectra


@pytest.fixture(scope="module")
def whole() -> Dataset:
    return spectra()


def test_the_default_by_its_checksum(whole: Dataset) -> None:
    # Every operation is exact, so this holds on every machine.
    assert whole.checksum == "f989d1bae8746778"
    assert (len(whole.train), len(whole.validation), whole.classes, whole.inputs) == (50_000, 5_000, 100, 64)
    assert whole.train.inputs.dtype == np.float32
    assert whole.source == "made by mssp: signal 0.4, seed 0"


def test_every_input_has_mean_zero_and_rms_one(whole: Dataset) -> None:
    """To a few percent: a hundred classes' means do not average out."""
    x = whole.train.inputs.astype(np.float64)
    assert np.abs(x.mean(0)).max() < 0.1
    assert np.square(x).mean(0) == pytest.approx(np.ones(64), abs=0.05)


def test_the_power_of_a_frequency_falls_as_in_images(whole: Dataset) -> None:
    """Of the noise and of the classes' means; the transform is its own inverse."""
    frequencies = _walsh_hadamard(whole.train.inputs.astype(np.float64))
    means = np.stack([frequencies[whole.train.targets == k].mean(0) for k in range(100)])
    noise = frequencies - means[whole.train.targets]
    log_f = np.log(np.arange(1, 65))
    for part, tolerance in ((noise, 0.01), (means, 0.1)):
        slope = np.polyfit(log_f, np.log(np.square(part).mean(0)), 1)[0]
        assert slope == pytest.approx(-1.5, abs=tolerance)
    assert np.square(means).sum() / np.square(noise).mean(0).sum() == pytest.approx(100 * 0.16, rel=0.15)


def test_the_transform_is_orthogonal_up_to_its_size() -> None:
    matrix = _walsh_hadamard(np.eye(16))
    assert (matrix @ matrix.T == 16 * np.eye(16)).all()
    assert (np.abs(matrix) == 1).all()


def test_an_example_does_not_depend_on_how_many_there_are(whole: Dataset) -> None:
    few = spectra(examples=300, validation=200)
    assert (few.train.inputs == whole.train.inputs[:300]).all()
    assert (few.validation.inputs == whole.validation.inputs[:200]).all()
    assert (whole.train.inputs[:200] != whole.validation.inputs[:200]).any()


def test_the_order_of_classes_and_seeds(whole: Dataset) -> None:
    assert (np.bincount(whole.train.targets) == 500).all()
    assert len({spectra(examples=100, validation=100, seed=seed).checksum for seed in range(4)}) == 4


def test_a_linear_model_learns_it_in_part(whole: Dataset) -> None:
    """Fewer than all classes are told apart, far more than by chance."""

    def design(split: Split) -> Any:
        return np.hstack([split.inputs, np.ones((len(split), 1), np.float32)])

    weights = np.linalg.lstsq(design(whole.train), np.eye(100, dtype=np.float32)[whole.train.targets], rcond=None)[0]
    right = (design(whole.validation) @ weights).argmax(1) == whole.validation.targets
    assert 0.3 < right.mean() < 0.7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": 48}, "inputs must be a power of two, got 48"),
        ({"classes": 1}, "classes must be a whole number of at least 2, got 1"),
        ({"signal": -1}, "signal must"),
        ({"examples": 0}, "examples must be"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spectra(**options)
