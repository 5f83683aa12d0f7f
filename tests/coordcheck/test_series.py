"""What was measured, what follows from it, and where it was lost."""

from __future__ import annotations

import numpy as np
import pytest

from mssp.coordcheck.series import Numbers, Series
from mssp.planning.setting import SGD, optimizer_named
from tests.coordcheck.synthetic import law, series


def constant(value: float, steps: int = 1, seeds: int = 2) -> Numbers:
    return np.full((steps + 1, seeds), value)


MEASURED = {
    "update/router": constant(2.0),
    "weights/router": constant(0.5),
    "input/router": constant(3.0),
    "input-change/router": constant(4.0),
    "effective/router": constant(12.0),
    "propagating/router": constant(1.0),
    "backward/effective/router": constant(99.0),
    "gradient-sum/router": constant(8.0),
    "gradient/router": constant(5.0),
    "eps/router": constant(10.0),
    "update/norm": constant(7.0),
    "loss": constant(1.0),
}


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.25), ("adam", 2.0), ("adamw", 2.0)])
def test_what_follows_from_what_was_measured(optimizer: str, rate: float) -> None:
    measured = Series.of({128: MEASURED, 64: MEASURED}, optimizer_named(optimizer))
    assert measured.sizes == (64, 128)
    assert (measured.steps, measured.seeds) == (1, 2)
    expected = {
        "normalised/router": 4.0,  # 12 / 3
        "alignment/p/router": 2.0,  # 12 / (2 · 3)
        "alignment/q/router": 0.5,  # 1 / (0.5 · 4)
        "rate/router": rate,  # 2 / 8 of SGD, 2 of Adam
        "faithfulness/router": 2.0,  # 10 / 5
    }
    for name, value in expected.items():
        assert measured.values[name].shape == (2, 2, 2)
        assert (measured.values[name] == value).all(), name
    of_norms = {name for name in measured.values if name.endswith("/norm")}
    assert of_norms == {"update/norm", *(["rate/norm"] if optimizer != "sgd" else [])}


def test_sizes_are_in_order_and_what_one_of_them_lacks_is_left_out() -> None:
    by_size = {
        256: {"aggregate/init": constant(3.0), "router/load": constant(1.0)},
        64: {"aggregate/init": constant(1.0), "experts/distance": constant(0.0), "router/load": constant(1.0)},
    }
    measured = Series.of(by_size, SGD)
    assert set(measured.values) == {"aggregate/init", "router/load"}
    assert measured.values["aggregate/init"][:, 0, 0].tolist() == [1.0, 3.0]


def test_a_term_that_is_not_there_yet_divides_nothing() -> None:
    zero = dict.fromkeys(MEASURED, constant(0.0))
    measured = Series.of({64: zero, 128: zero}, SGD)
    assert not any(values.any() for values in measured.values.values())
    # A value that is not finite divides without a warning, and stays so.
    lost = MEASURED | {"gradient-sum/router": constant(np.nan)}
    assert np.isnan(Series.of({64: MEASURED, 128: lost}, SGD).values["rate/router"][1]).all()


def test_where_a_model_was_lost() -> None:
    fine = law(0.0)
    assert series({"effective/router": fine}).diverged() is None
    late, early = fine.copy(), fine.copy()
    late[0, 4, 1], early[2, 3, 0], early[1, 4:, 0] = np.inf, np.nan, np.nan
    measured = series({"effective/router": late, "aggregate/init": early, "gradient/router": fine})
    assert measured.diverged() == (256, 3)
    # If two sizes diverge at the same update, the smaller one is returned.
    late[1, 3, 2] = np.nan
    assert measured.diverged() == (128, 3)


def test_the_loss_after_the_last_update_is_not_known_and_no_divergence() -> None:
    loss = law(0.0)
    loss[:, -1] = np.nan
    assert series({"loss": loss}).diverged() is None
    loss[1, 2, 0] = np.inf
    assert series({"loss": loss}).diverged() == (128, 2)


def test_some_of_the_seeds() -> None:
    measured = series({"aggregate/init": law(0.0, spread=(0.1, 0.2, 0.3, 0.4))})
    some = measured.of_seeds(slice(1, 3))
    assert (measured.seeds, some.seeds, some.steps) == (4, 2, 4)
    np.testing.assert_array_equal(some.values["aggregate/init"], law(0.0, spread=(0.2, 0.3)))


def test_some_of_the_seeds_are_as_paired_as_all_of_them() -> None:
    for paired in (True, False):
        assert Series.of({64: MEASURED, 128: MEASURED}, SGD, paired=paired).of_seeds(slice(0, 1)).paired is paired
