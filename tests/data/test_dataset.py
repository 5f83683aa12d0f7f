from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mssp.data import Dataset, Split, subset
from mssp.data.streams import single_pass


def split(inputs: Any, targets: list[int], dtype: Any = np.float32) -> Split:
    return Split(np.array(inputs, dtype=dtype), np.array(targets, dtype=np.int64))


VECTORS = split([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 2])
IMAGES = split(np.arange(24).reshape(2, 2, 2, 3), [0, 1], np.uint8)


def vectors(**changed: Any) -> Dataset:
    return Dataset(**{"name": "three", "classes": 3, "train": VECTORS, "validation": VECTORS, **changed})


def batches(seed: Any, examples: int, batch: Any, steps: Any) -> npt.NDArray[np.int64]:
    return single_pass(seed, examples, batch, steps, things="examples", name="the dataset")


def test_vectors_are_taken_as_they_are() -> None:
    data = vectors()
    assert data.inputs == 2
    assert len(data.train) == 3
    assert data.prepared(VECTORS.inputs).tolist() == VECTORS.inputs.tolist()
    assert [x.tolist() for x in data.scale_and_shift()] == [[1.0, 1.0], [0.0, 0.0]]


def test_vectors_are_normalised_where_asked() -> None:
    data = vectors(mean=(1.0, 2.0), std=(2.0, 4.0))
    assert data.prepared(VECTORS.inputs).tolist() == [[0.0, 0.0], [1.0, 0.5], [2.0, 1.0]]
    assert vectors(mean=(1.0,), std=(2.0,)).prepared(VECTORS.inputs[:1]).tolist() == [[0.0, 0.5]]


def test_images_are_normalised_by_channel() -> None:
    data = Dataset("bytes", 2, IMAGES, IMAGES, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    prepared = data.prepared(IMAGES.inputs)
    assert data.inputs == 12
    assert prepared.shape == (2, 12)
    assert prepared.dtype == np.float32
    expected = (np.arange(24).reshape(2, 2, 2, 3) / 255 - [0.1, 0.2, 0.3]) / [0.5, 1.0, 2.0]
    np.testing.assert_allclose(prepared, expected.reshape(2, 12), atol=1e-7)
    scale, shift = data.scale_and_shift()
    assert (IMAGES.inputs.reshape(2, 12).astype(np.float32) * scale + shift == prepared).all()
    assert IMAGES.inputs[0, 0, 0, 1] == 1  # the stored bytes stay


def test_grey_images_have_one_channel() -> None:
    grey = split([[[0, 255]]], [0], np.uint8)
    data = Dataset("grey", 1, grey, grey, mean=(0.5,), std=(0.5,))
    assert data.prepared(grey.inputs).tolist() == [[-1.0, 1.0]]


def test_checksum_is_of_every_number() -> None:
    data = vectors()
    assert data.checksum == "0598045e2d938432"
    assert vectors(name="other", source="elsewhere").checksum == data.checksum
    assert vectors(train=replace(VECTORS, inputs=np.asfortranarray(VECTORS.inputs))).checksum == data.checksum
    others = [
        vectors(mean=(1.0,)),
        vectors(std=(2.0,)),
        vectors(classes=4),
        vectors(train=replace(VECTORS, targets=np.array([0, 2, 1]))),
        vectors(validation=replace(VECTORS, inputs=VECTORS.inputs + 1)),
    ]
    assert len({data.checksum, *(other.checksum for other in others)}) == 6


def test_first_classes() -> None:
    data = vectors().first_classes(2)
    assert data.classes == 2
    assert data.train.inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert data.validation.targets.tolist() == [0, 1]
    with pytest.raises(ValueError, match="three has 3 classes, 4 were asked for"):
        vectors().first_classes(4)


def test_batches_by_their_numbers() -> None:
    assert batches(seed=0, examples=10, batch=3, steps=3).tolist() == [[3, 0, 2], [7, 4, 5], [1, 6, 9]]
    assert batches(seed=1, examples=10, batch=3, steps=3).tolist() == [[6, 1, 7], [8, 2, 5], [4, 9, 0]]
    assert batches(-1, 10, 3, 3).dtype == np.int64


def test_fewer_steps_take_the_same_first_batches() -> None:
    whole = batches(seed=4, examples=1000, batch=50, steps=20)
    assert (batches(seed=4, examples=1000, batch=50, steps=7) == whole[:7]).all()
    assert sorted(whole.reshape(-1).tolist()) == list(range(1000))
    # Another batch size takes the same examples in the same order.
    assert (batches(seed=4, examples=1000, batch=100, steps=3).reshape(-1) == whole[:6].reshape(-1)).all()


def test_a_dataset_gives_its_own_batches() -> None:
    assert vectors().batches(seed=2, batch=1, steps=3).tolist() == batches(2, 3, 1, 3).tolist()
    with pytest.raises(ValueError, match="4 steps of 1 need 4 examples in a single pass, three has 3"):
        vectors().batches(seed=2, batch=1, steps=4)


def test_subsets_are_drawn_by_the_seed() -> None:
    ten = split(np.arange(10).reshape(10, 1), list(range(10)))
    four = subset(ten, 4, seed=1)
    assert four.inputs.reshape(-1).tolist() == four.targets.tolist()
    assert subset(ten, 7, seed=1).targets[:4].tolist() == four.targets.tolist()
    assert subset(ten, 4, seed=2).targets.tolist() != four.targets.tolist()
    with pytest.raises(ValueError, match="a subset of 11 examples was asked for, there are 10"):
        subset(ten, 11)


FLOATS: Any = np.zeros(3)
NAN: npt.NDArray[np.float32] = np.array([[1, 2], [3, np.nan], [5, 6]], dtype=np.float32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": 2}, "three's train targets must lie in 0 to 1, got 0 to 2"),
        ({"classes": 0}, "classes must be a positive whole number, got 0"),
        ({"train": split([[1.0, 2.0]], [0, 1])}, "three's train has 1 inputs and 2 targets"),
        ({"validation": Split(VECTORS.inputs[:0], VECTORS.targets[:0])}, "three's validation is empty"),
        ({"train": split([[1.0]], [0])}, "train inputs are float32 of 1 and its validation inputs float32 of 2"),
        (
            {"train": split([[1, 2]], [0], np.uint8)},
            "train inputs are uint8 of 2 and its validation inputs float32 of 2",
        ),
        ({"train": split([[1.0, 2.0]], [0], np.float64)}, r"or float32 vectors \[n, size\], got float64 \[1, 2\]"),
        ({"train": split([1.0], [0])}, r"or float32 vectors \[n, size\], got float32 \[1\]"),
        ({"train": replace(VECTORS, targets=FLOATS)}, r"train targets must be int64 \[n\], got float64 \[3\]"),
        ({"validation": replace(VECTORS, inputs=NAN)}, "must be finite, example 1 holds NaN or infinity"),
        ({"validation": replace(VECTORS, inputs=NAN * np.inf)}, "must be finite, example 0 holds NaN or infinity"),
        ({"mean": (1.0, 2.0, 3.0)}, "three's mean must be 1 or 2 numbers, got 3"),
        ({"std": (0.0,)}, r"three's std must be positive and finite, got \(0.0,\)"),
        ({"mean": (np.inf,)}, r"three's mean must be finite, got \(inf,\)"),
    ],
)
def test_what_is_no_dataset_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vectors(**changed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 50_000, 50, 1200), "1200 steps of 50 need 60000 examples in a single pass, the dataset has 50000"),
        ((0, 10, 0, 1), "batch must be a positive whole number, got 0"),
        ((0, 10, 1, 1.5), "steps must be a positive whole number, got 1.5"),
        ((0.5, 10, 1, 1), "seed must be a whole number, got 0.5"),
        ((True, 10, 1, 1), "seed must be a whole number, got True"),
    ],
)
def test_what_is_no_pass_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches(*arguments)


def test_inputs_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="three's inputs are float32 of 2, got float32 of 3"):
        vectors().prepared(np.zeros((1, 3), dtype=np.float32))
