"""The order of windows: literal numbers, a permutation that shows no pattern, and parts that never mix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mssp.data import TokenFile, TokenOrder
from mssp.data.streams import shuffled
from tests.data.test_tokens import made


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    """Documents of many lengths, a third of them for validation. Those for training are of small letters alone."""
    texts = [chr(97 + i % 26) * (1 + i * 7 % 40) for i in range(300)]
    return made(tmp_path, texts, validation_share=0.33)


def test_the_same_order_everywhere() -> None:
    # A change of these numbers would change every run.
    assert shuffled(np.arange(5), 5, "windows", 0).tolist() == [1, 2, 0, 4, 3]
    assert shuffled(np.array([0, 1, 10**11 - 1]), 10**11, "windows", 0, 0).tolist() == [
        35783296820,
        37147510202,
        25030055684,
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 100, 12_345])
def test_it_is_a_permutation(count: int) -> None:
    whole = shuffled(np.arange(count), count, "windows", 3)
    assert sorted(whole.tolist()) == list(range(count))
    some = np.arange(count)[::-3]
    assert shuffled(some, count, "windows", 3).tolist() == whole[some].tolist()


def test_all_permutations_of_few_things_come_up() -> None:
    found = [tuple(shuffled(np.arange(4), 4, "windows", seed).tolist()) for seed in range(1200)]
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 50) ** 2 / 50).sum() < 49.7  # chi squared with 23 degrees of freedom, one in a thousand


def test_it_shows_no_pattern() -> None:
    count, cells = 100_003, 32
    places = np.arange(count)
    first, second = (shuffled(places, count, "windows", seed) for seed in (0, 1))
    pairs = {
        "place and number": (places, first),
        "one number and the next": (first[:-1], first[1:]),
        "two seeds": (first, second),
        "last digits": (places % cells * count / cells, first % cells * count / cells),
    }
    for name, (left, right) in pairs.items():
        correlation = np.corrcoef(left, right)[0, 1]
        assert abs(correlation) < 4 / np.sqrt(count), (name, correlation)
        table, _, _ = np.histogram2d(left, right, bins=cells, range=[[0, count], [0, count]])
        expected = len(left) / cells**2
        # Chi squared has 961 degrees of freedom here: mean 961, standard deviation 44.
        assert ((table - expected) ** 2 / expected).sum() < 961 + 4 * 44, name


def test_windows_are_those_of_a_plain_loop(file: TokenFile) -> None:
    for part in ("train", "validation"):
        text = np.concatenate([file.array[start:stop] for start, stop in file.stretches(part)]).astype(np.int64)
        for sequence in (1, 5, 64):
            order = TokenOrder(file, part, sequence, seed=2)
            assert order.windows == (len(text) - 1) // sequence
            numbers = shuffled(np.arange(order.windows), order.windows, "windows", 2, 0)
            expected = [text[sequence * n : sequence * (n + 1) + 1].tolist() for n in numbers]
            rows = order.rows(0, order.windows)
            assert rows.dtype == np.int64
            assert rows.tolist() == expected
            assert order.rows(3, 4).tolist() == expected[3:7]


def test_no_window_has_a_token_of_the_other_part(file: TokenFile) -> None:
    """Every place of the file is read by one part alone, and both together read nearly all of it."""
    numbered = TokenFile(**{**vars(file), "array": np.arange(file.tokens)})
    read = {part: TokenOrder(numbered, part, 16) for part in ("train", "validation")}
    places = {part: set(order.rows(0, order.windows).reshape(-1).tolist()) for part, order in read.items()}
    assert not places["train"] & places["validation"]
    for part, order in read.items():
        inside = {place for start, stop in file.stretches(part) for place in range(start, stop)}
        assert places[part] <= inside
        assert len(inside - places[part]) < order.sequence
    assert len(file.stretches("validation")) > 50  # the windows of validation are put together from many places


def test_another_seed_and_another_pass_are_other_orders(file: TokenFile) -> None:
    once, twice = TokenOrder(file, sequence=8), TokenOrder(file, sequence=8, passes=2)
    count = once.windows
    assert twice.windows == 2 * count
    first, second = twice.rows(0, count), twice.rows(count, count)
    assert first.tolist() == once.rows(0, count).tolist()
    assert first.tolist() != second.tolist()
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert twice.rows(count - 2, 4).tolist() == [*first[-2:].tolist(), *second[:2].tolist()]
    assert TokenOrder(file, sequence=8, seed=1).rows(0, count).tolist() != first.tolist()


def test_more_windows_than_there_are_are_refused(file: TokenFile) -> None:
    order = TokenOrder(file, sequence=8)
    count = order.windows
    order.check_steps(count // 10, 10)
    said = (
        rf"steps must be at most {count // 10}, got 1000: the train part of .*tokens\.bin has {count} windows of 8 "
        rf"tokens in a single pass, and a step takes 10; take more text, or passes={-(-10_000 // count)}"
    )
    with pytest.raises(ValueError, match=said):
        order.check_steps(1000, 10)
    TokenOrder(file, sequence=8, passes=-(-10_000 // count)).check_steps(1000, 10)
    with pytest.raises(ValueError, match=f"steps must be at most {count}, got {count + 1}: .* and a step takes 1"):
        order.rows(count - 1, 2)
    with pytest.raises(ValueError, match=f"at most {2 * count}, got {2 * count + 1}: .* in 2 passes"):
        TokenOrder(file, sequence=8, passes=2).rows(2 * count, 1)


def test_a_part_without_a_window_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path, ["a text"], validation_share=0.0)
    said = r"the validation part of .*tokens\.bin has 0 tokens, and a window of 256 needs 257: take shorter windows, or"
    with pytest.raises(ValueError, match=said):
        TokenOrder(file, "validation")
    assert TokenOrder(file, "train", sequence=6).windows == 1
    with pytest.raises(ValueError, match="has 7 tokens, and a window of 7 needs 8"):
        TokenOrder(file, "train", sequence=7)
