from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mssp.apply.random_numbers import normals


@given(st.integers(0, 200_000), st.integers(0, 500))
def test_any_part_is_the_part_of_the_whole(start: int, count: int) -> None:
    whole = normals(3, "w", 0, 201_000)
    assert np.array_equal(normals(3, "w", start, start + count), whole[start : start + count])


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = normals(0, "w", 5, 2_500_000)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert np.array_equal(normals(0, "w", 5, 2_500_000), alone)
    assert np.array_equal(normals(0, "w", 1_048_580, 1_048_600), alone[1_048_575:1_048_595])


@pytest.mark.parametrize("setting", ["4,2", "0", "-1", "many", ""])
def test_odd_thread_settings_do_no_harm(monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert len(normals(0, "w", 0, 1_100_000)) == 1_100_000


def test_seed_and_name_tell_sequences_apart() -> None:
    first = normals(0, "a", 0, 1000)
    assert np.array_equal(first, normals(0, "a", 0, 1000))
    for other in (normals(1, "a", 0, 1000), normals(0, "b", 0, 1000)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15


def test_known_values_stay() -> None:
    """Checkpoints and records depend on these numbers: they are literal, not recomputed."""
    expected = np.array(
        [[-0.45542144775390625, 0.821554958820343, -1.270330548286438, 0.06943181902170181]], dtype=np.float32
    )
    np.testing.assert_allclose(normals(0, "router.weight", 0, 4), expected[0], rtol=1e-6)


def test_they_are_standard_normal() -> None:
    sample = normals(7, "big", 0, 2_000_000).astype(np.float64)
    # Standard errors at two million: 0.0007 for the mean, 0.0005 for the std, 0.0035 for the fourth moment.
    assert abs(sample.mean()) < 0.003
    assert abs(sample.std() - 1) < 0.002
    assert abs((sample**4).mean() - 3) < 0.02
    assert abs(np.corrcoef(sample[::2], sample[1::2])[0, 1]) < 0.004
    assert abs(np.corrcoef(sample[:-1] ** 2, sample[1:] ** 2)[0, 1]) < 0.004
    assert np.isfinite(sample).all()
