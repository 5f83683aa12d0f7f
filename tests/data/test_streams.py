"""The same bits everywhere: literal numbers."""

from __future__ import annotations

import numpy as np
import pytest

from mssp.data.streams import exact_normals, order, single_pass, words


def test_words_are_philox_as_published() -> None:
    # The key is the first 128 bits of sha256("order\0" "0"), and a change of it would change every run.
    assert [hex(word) for word in words(2, "order", 0).tolist()] == ["0x1ff1dc95d777b54d", "0xbf1aa82dcab346b5"]


def test_normals_are_sums_of_twelve() -> None:
    raw = words(3, "noise", 0).astype("<u8").view("<u2").astype(np.int64)
    assert exact_normals(1, "noise", 0)[0] == (raw.sum() - 6 * 65535) / 65536
    assert exact_normals(4, "noise", 0).tolist() == [
        0.219024658203125,
        -0.310028076171875,
        0.16864013671875,
        -0.872222900390625,
    ]


def test_normals_are_normal() -> None:
    z = exact_normals(400_000, "a name", 7).astype(np.float64)
    # Four standard errors; a thirteenth summand, or one missing, changes the variance by 8%.
    assert z.mean() == pytest.approx(0, abs=0.0064)
    assert z.var() == pytest.approx(1, abs=0.009)
    assert (z**4).mean() == pytest.approx(2.9, abs=0.06)
    assert (np.abs(z) < 1).mean() == pytest.approx(0.6827, abs=0.005)


def test_normals_are_prefixes_of_each_other_across_chunks() -> None:
    assert (exact_normals(100_000, "x", 1)[:40_001] == exact_normals(40_001, "x", 1)).all()


def test_order_is_a_permutation_by_key() -> None:
    assert sorted(order(1000, "order", 5).tolist()) == list(range(1000))
    assert (order(1000, "order", 5) != order(1000, "order", 6)).any()
    assert (order(1000, "order", 5) != order(1000, "subset", 5)).any()


def test_single_pass_takes_nothing_twice() -> None:
    taken = single_pass(3, 100, 10, 10, "examples", "it")
    assert taken.shape == (10, 10)
    assert sorted(taken.reshape(-1).tolist()) == list(range(100))
