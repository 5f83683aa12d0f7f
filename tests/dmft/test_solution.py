"""Errors, warnings, refusals: a solution says what it is worth."""

from __future__ import annotations

import numpy as np
import pytest

from mssp import Shape
from mssp.dmft import Experiment, example, solve
from mssp.dmft.observables import equal_times


def few(regime: str = "II", scheme: str = "mssp", **other: object) -> Experiment:
    return example(regime, scheme, **{"inputs": 2, "steps": 5, **other})  # type: ignore[arg-type]


def test_one_input_is_enough() -> None:
    limit = solve(few(inputs=1), samples=2_000, solves=2)
    assert limit.mean["f"].shape == (6, 1)
    assert limit.mean["loss"][-1] < limit.mean["loss"][0]


def test_the_first_step_is_known_exactly() -> None:
    """From a zero readout, f after one update is the kernel of the initial sum over experts times the errors."""
    of = few()
    limit = solve(of, samples=20_000, solves=4)
    first = equal_times(limit.mean["phi3"], 2)[0]
    step = limit.constants.rate["readout"] * first @ of.targets / 2
    overlap = limit.mean["phi3"][2:4, :2] @ of.targets / 2 * limit.constants.rate["readout"]
    assert limit.mean["f"][1] == pytest.approx(overlap, rel=1e-9)
    assert limit.mean["f"][1] == pytest.approx(step, rel=0.2)  # features have moved a little since


def test_errors_shrink_with_the_root_of_the_samples() -> None:
    errors = [solve(few(), samples=samples, solves=8).relative_error("f") for samples in (1_000, 16_000)]
    assert 2.0 < errors[0] / errors[1] < 8.0


def test_error_bars_cover_what_many_samples_find() -> None:
    exact = solve(few(), samples=60_000, solves=4).mean["loss"]
    rough = [solve(few(), samples=1_000, solves=4, seed=seed) for seed in range(12)]
    off = [np.abs(each.mean["loss"][3] - exact[3]) / each.found.error["loss"][3] for each in rough]
    assert 0.2 < np.median(off) < 1.6  # of a standard error: 0.75 for means of four


def test_a_seed_gives_the_same_solution_and_similar_experiments_differ_smoothly() -> None:
    first, again = (solve(few(lr=0.4), samples=1_000, solves=2) for _ in range(2))
    assert np.array_equal(first.mean["f"], again.mean["f"])
    other = solve(few(lr=0.4), samples=1_000, solves=2, seed=1)
    assert not np.array_equal(first.mean["f"], other.mean["f"])
    near = solve(few(lr=0.400004), samples=1_000, solves=2)
    shared = np.abs(near.mean["f"] - first.mean["f"]).max()
    assert shared < 0.1 * np.abs(other.mean["f"] - first.mean["f"]).max()


def test_inputs_that_are_not_trained_on_change_nothing_for_the_others() -> None:
    alone, beside = solve(few(), samples=20_000, solves=4), solve(few(test_inputs=1), samples=20_000, solves=4)
    assert beside.mean["f"].shape == (6, 3)
    assert beside.mean["f"][:, :2] == pytest.approx(alone.mean["f"], rel=0.05, abs=0.01)
    assert beside.mean["f"][:, 2].any()
    trained_as_well = solve(
        Experiment(
            few().plan, np.concatenate([few().inputs, few(test_inputs=1).all_inputs[2:]]), np.array([1.0, -1.0, 3.0]), 5
        ),
        samples=20_000,
        solves=2,
    )
    assert np.abs(trained_as_well.mean["f"][-1, 2] - beside.mean["f"][-1, 2]) > 0.02


def test_less_memory_means_more_solutions_of_fewer_samples() -> None:
    whole = solve(few(), samples=8_000, solves=2)
    parts = solve(few(), samples=8_000, solves=2, memory=2_000_000)
    assert (whole.found.count, whole.samples.features) == (2, 8_000)
    assert parts.found.count == 2 * -(-8_000 // parts.samples.features)
    assert parts.samples.features < 4_000
    assert parts.mean["loss"] == pytest.approx(whole.mean["loss"], rel=0.05, abs=0.01)


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_a_learning_rate_that_diverges_is_said(regime: str) -> None:
    with pytest.raises(ValueError, match=r"diverges at step \d+: .*use a learning rate below 300"):
        solve(few(regime, steps=12, lr=300.0, activation="identity"), samples=2_000, solves=2)


def test_too_few_samples_are_refused_or_said() -> None:
    with pytest.raises(ValueError, match="50 samples are too few for 2 inputs at 6 times: use at least 120"):
        solve(few(), samples=50)
    limit = solve(few("III", steps=12), samples=300, solves=3)
    assert any(warning.startswith("too few samples") for warning in limit.warnings)
    assert solve(few(), samples=20_000, solves=3).warnings == ()


def test_one_solution_has_no_error_and_says_so() -> None:
    limit = solve(few(), samples=1_000, solves=1)
    assert limit.warnings[0] == "one solution says nothing of its error: use two or more"
    assert np.isnan(limit.found.error["f"]).all()


def test_softmax_gates_with_heavy_tails_are_said() -> None:
    of = example("II", "mssp", gate="softmax", steps=20, lr=0.3, stds={"router": 0.5})
    with pytest.raises(ValueError, match=r"there is no limit here: from step .* softmax gates have heavy tails"):
        solve(of, samples=8_000, solves=2)


def test_softmax_gates_have_a_limit_as_long_as_no_tail_is_seen() -> None:
    of = few("III", "mssp", gate="softmax", lr=0.1, stds={"router": 0.3}, readout="mup")
    limit = solve(of, samples=8_000, solves=3)
    assert [warning for warning in limit.warnings if "heavy" in warning] == []
    assert any("strictly there is no limit" in warning for warning in limit.warnings)


@pytest.mark.parametrize("regime", ["I", "II", "III"])
@pytest.mark.parametrize("scheme", ["mssp", "mup"])
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_what_passes_through_weights_is_the_same_on_both_sides(regime: str, scheme: str, activation: str) -> None:
    limit = solve(few(regime, scheme, activation=activation, steps=8, readout="mup"), samples=8_000, solves=4)
    for name, difference in limit.contradictions.mean.items():
        assert np.linalg.norm(difference) < 2.5 * np.linalg.norm(limit.contradictions.error[name]) + 1e-9


def test_top_k_in_regime_three_has_a_whole_number_of_experts_active() -> None:
    one_of_16 = Shape(width=32, expert_width=16, experts=16, active=1, depth=1)
    limit = solve(few("III", smallest=one_of_16, steps=3, readout="mup"), samples=4_000, solves=2)
    assert limit.samples.experts == 32
    assert solve(few("III"), samples=1_000, solves=2).samples.experts == 24
