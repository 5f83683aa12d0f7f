"""The check on the MLP MoE: right settings pass, planted mistakes are found and named, the paper's ablations fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from mssp.coordcheck.ladder_runs import LadderSizes, PlannedProgram, check_runs, measured, theory_of
from mssp.coordcheck.result import Check
from mssp.data import load
from mssp.ladders.mlp import MLPLadder
from mssp.ladders.tuned import Tuned
from mssp.nn import MLPConfig
from mssp.planning.setting import Setting
from mssp.replicas import Feed, MLPProgram, Schedule
from mssp.replicas.lockstep import Lockstep
from tests.coordcheck.tuned_runs import runs_of
from tests.planted.powers import Mistake, tie_or_untie

SMALL = (32, 64, 128)


@pytest.fixture(scope="module")
def feed() -> Feed:
    return Feed(load("clusters"), torch.device("cpu"))


def config_in(run: PlannedProgram) -> MLPConfig:
    assert isinstance(run.program, MLPProgram)
    return run.program.config


def checked(
    runs: Mapping[int, PlannedProgram],
    feed: Feed,
    *,
    right: Mapping[int, PlannedProgram] | None = None,
    prepare: Callable[[Lockstep], None] | None = None,
    steps: int = 6,
    seeds: int = 3,
) -> Check:
    """The check of these runs, judged by the rules of the right runs."""
    rules = {size: run.plan for size, run in (right or runs).items()}
    return check_runs(runs, feed, steps=steps, batch=100, seeds=range(seeds), rules=rules, prepare=prepare)


def exponent(check: Check, name: str) -> float:
    judged = check.quantities[name].judged
    assert judged is not None
    return judged.value


def off(check: Check) -> set[str]:
    return {each.name for each in check.off}


def test_the_right_setting_passes_and_is_stable(feed: Feed) -> None:
    check = checked(runs_of(Setting.of("mssp", "II", "adam"), (64, 128, 256), feed.data), feed, steps=12)
    assert (check.passed, check.stable, off(check), check.causes) == (True, True, set(), ())
    assert len([each for each in check.quantities.values() if each.verdict == "ok"]) > 50
    assert exponent(check, "weights/expert_out") == pytest.approx(0.5, abs=0.05)
    assert exponent(check, "rate/expert_in") == pytest.approx(-1.0, abs=0.05)
    assert exponent(check, "backward/propagating/expert_out") == pytest.approx(-1.0, abs=0.15)
    assert exponent(check, "gradient/expert_out") == pytest.approx(-2.0, abs=0.15)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("regime", ["I", "III"])
def test_other_right_settings_pass(regime: str, optimizer: str, feed: Feed) -> None:
    check = checked(runs_of(Setting.of("mssp", regime, optimizer), (32, 64, 128, 256), feed.data), feed)
    assert off(check) == set()
    assert check.stable


def test_mup_in_regime_ii_is_implemented_right_and_not_worth_scaling(feed: Feed) -> None:
    check = checked(runs_of(Setting.of("mup", "II", "adam"), (64, 128, 256, 512), feed.data), feed)
    assert off(check) == set()
    assert not check.stable
    assert not check.quantities["aggregate/init"].stable
    assert exponent(check, "aggregate/init") == pytest.approx(-0.5, abs=0.2)


PLANTED = [
    Mistake("rate", "router", -0.5, "I", "sgd"),
    Mistake("rate", "expert_in", 0.5, "II", "adam"),
    Mistake("rate", "embedding", -1.0, "III", "sgd"),
    Mistake("rate", "readout", 0.5, "II", "sgd"),
    Mistake("weights", "expert_out", -0.5, "II", "sgd"),
    Mistake("weights", "expert_in", 0.5, "I", "adam"),
    Mistake("aggregation", "", 0.5, "III", "adam"),
    Mistake("experts", "", 0.0, "III", "sgd"),
    Mistake("experts", "", 0.0, "I", "adam"),
    Mistake("eps", "expert_out", 2.0, "II", "adam"),
    Mistake("eps", "router", 0.5, "III", "adam"),
]
WORDS = {
    "rate of router × N^-0.5": "the learning rate of router is divided by √N too often",
    "rate of expert_in × N^0.5": "the learning rate of expert_in is multiplied by √N too often",
    "rate of embedding × N^-1": "the learning rate of embedding is divided by N once too often",
    "rate of readout × N^0.5": "the learning rate of readout is multiplied by √N too often",
    "experts": "experts ",
}


@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: f"{mistake} {mistake.regime} {mistake.optimizer}")
def test_a_planted_mistake_is_found_and_named_first(mistake: Mistake, feed: Feed) -> None:
    right = runs_of(Setting.of("mssp", mistake.regime, mistake.optimizer), SMALL, feed.data)
    check = checked(mistake.planted(right), feed, right=right, prepare=mistake.prepare)
    assert not check.passed
    first = check.causes[0]
    assert (first.setting, first.role) == (mistake.what, mistake.role)
    assert first.text.startswith(WORDS.get(str(mistake), ""))


def test_the_fix_of_regime_ii_is_wrong_in_iii(feed: Feed) -> None:
    """The fix boosts the experts' second layer; in III the backward gradient at h2 is then √N too large."""
    right = runs_of(Setting.of("mssp", "III", "adam"), SMALL, feed.data)
    boosted = Mistake("weights", "expert_out", 0.5, "III", "adam").planted(right)
    check = checked(boosted, feed, right=right)
    assert not check.passed
    assert exponent(checked(right, feed), "backward/propagating/expert_out") == pytest.approx(-2.0, abs=0.15)
    assert exponent(check, "backward/propagating/expert_out") == pytest.approx(-1.5, abs=0.15)
    assert {"backward/propagating/expert_out", "backward/h2-init-update", "aggregate/propagating"} <= off(check)


def tie(lockstep: Lockstep) -> None:
    for name, parameter in lockstep.parameters.items():
        if name.endswith(("w_in", "w_out")):
            tie_or_untie(parameter, tie=True)


def test_the_fix_of_regime_iii_is_not_enough_in_ii(feed: Feed) -> None:
    """Sharing experts instead of boosting them repairs the initial sum; A6 and the gradient at h2 stay too small."""
    widths = (64, 128, 256)
    right = LadderSizes(widths).programs(Setting.of("mssp", "II", "sgd", "mup"), Tuned(1.0), MLPLadder, feed.data)
    shared = Mistake("weights", "expert_out", -0.5, "II", "sgd").planted(right)
    check = checked(shared, feed, right=right, prepare=tie, steps=2, seeds=6)
    assert [cause.setting for cause in check.causes] == ["experts", "weights"]
    assert exponent(check, "aggregate/init") == pytest.approx(0.0, abs=0.15)
    # The exponents are those of muP, -3/2 and -2; both are -1 under MSSP.
    assert exponent(check, "backward/h2-init-init") == pytest.approx(-1.5, abs=0.15)
    assert exponent(check, "backward/A6.1") == pytest.approx(-2.0, abs=0.2)
    assert {"backward/h2-init-init", "backward/A6.1", "aggregate/A22"} <= off(check)


def test_from_a_zero_readout_shared_experts_send_too_much_back_in_ii(feed: Feed) -> None:
    """The readout's update is aligned with the W3 that experts share, so gradients through it add up over experts."""
    right = runs_of(Setting.of("mssp", "II", "adam"), SMALL, feed.data)
    shared = Mistake("weights", "expert_out", -0.5, "II", "adam").planted(right)
    check = checked(shared, feed, right=right, prepare=tie)
    assert [cause.setting for cause in check.causes] == ["experts", "weights"]
    assert exponent(check, "aggregate/init") == pytest.approx(0.0, abs=0.15)
    assert exponent(check, "backward/A4") == pytest.approx(-0.5, abs=0.25)  # N^-1 is right
    assert "backward/A4" in off(check)


@pytest.mark.parametrize(
    ("regime", "expected"),
    [("I", {"expert_in": 1.0, "expert_out": 1.0}), ("II", {"expert_in": 1.0, "expert_out": 2.0}),
     ("III", {"expert_in": 2.0, "expert_out": 2.0})],
)  # fmt: skip
def test_one_eps_for_all_is_no_longer_small_against_the_gradients_of_experts(
    regime: str, expected: dict[str, float], feed: Feed
) -> None:
    def one_eps(lockstep: Lockstep) -> None:
        for rates in lockstep.rates.values():
            rates.eps.fill_(1e-8)

    check = checked(runs_of(Setting.of("mssp", regime, "adam"), SMALL, feed.data), feed, prepare=one_eps)
    assert not check.passed
    assert not check.stable
    assert {cause.setting for cause in check.causes} == {"eps"}
    assert {*expected, "embedding"} <= {cause.role for cause in check.causes}
    for role, power in expected.items():
        assert check.quantities[f"faithfulness/{role}"].verdict == "off"
        assert exponent(check, f"faithfulness/{role}") == pytest.approx(power, abs=0.25)


def test_a_learning_rate_that_is_far_too_large(feed: Feed) -> None:
    runs = LadderSizes((32, 64)).programs(Setting.of("mssp", "II", "sgd"), Tuned(1e20), MLPLadder, feed.data)
    check = checked(runs, feed)
    assert not check.passed
    assert not check.stable
    assert [cause.setting for cause in check.causes] == ["divergence"]
    assert "lower the learning rate" in check.causes[0].text


def test_over_depth_gradients_fall_and_updates_do_not(feed: Feed) -> None:
    runs = LadderSizes((64,), (1, 2, 4)).programs(Setting.of("mssp", "II", "sgd"), Tuned(10.0), MLPLadder, feed.data)
    assert [(config_in(run).blocks, config_in(run).residual, run.plan.target.depth) for run in runs.values()] == [
        (1, True, 1), (2, True, 2), (4, True, 4),
    ]  # fmt: skip
    check = checked(runs, feed)
    assert (check.axis, check.sizes, off(check)) == ("depth", (1, 2, 4), set())
    assert exponent(check, "rate/expert_in") == pytest.approx(1.0, abs=0.05)
    assert exponent(check, "gradient/expert_out") == pytest.approx(-1.0, abs=0.2)


def test_more_seeds_are_checked_in_parts_of_one_measurement(feed: Feed) -> None:
    runs = runs_of(Setting.of("mssp", "II", "sgd"), (32, 64), feed.data)
    series = measured(runs, feed, Schedule(3, 100), range(4))
    alone = measured(runs, feed, Schedule(3, 100), range(2, 4))
    some = series.of_seeds(slice(2, 4))
    assert (series.seeds, some.seeds, some.steps) == (4, 2, 3)
    for name, values in alone.values.items():
        assert some.values[name] == pytest.approx(values, rel=1e-3, abs=1e-9, nan_ok=True), name
    plans = {size: run.plan for size, run in runs.items()}
    assert Check.of(some, theory_of(plans)).seeds == 2


def test_sizes_that_leave_no_exponent_to_fit() -> None:
    with pytest.raises(ValueError, match="an exponent needs at least 2 different widths, got 64"):
        LadderSizes((64,))
    with pytest.raises(ValueError, match="an exponent needs at least 2 different widths, got 64 64"):
        LadderSizes((64, 64))
    with pytest.raises(ValueError, match="an exponent needs at least 2 different depths, got 4"):
        LadderSizes((64,), (4,))
    with pytest.raises(ValueError, match="depths are checked at one width, got 64 128"):
        LadderSizes((64, 128), (1, 2))


def test_sizes_are_taken_in_order_whatever_the_order_they_are_given_in(feed: Feed) -> None:
    assert list(runs_of(Setting.of("mssp", "II", "sgd"), (128, 32, 64), feed.data)) == [32, 64, 128]
