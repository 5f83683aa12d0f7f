"""The answers of a table of scores, for made-up scores whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mssp.planning.setting import Setting
from mssp.sweep.metrics import METRICS, Metric
from mssp.sweep.transfer import Contender, LearningRates, Score, Transfer, top_of_parabola
from mssp.sweep.transfer_text import as_json, lines

ACCURACY, LOSS = Metric("a", True, "accuracy"), Metric("l", False, "loss")
WIDTHS, RATES, SEEDS = (64, 128, 256, 512), [2.0**k for k in range(-6, 2)], range(4)
# Scatter that has no trend over widths or rates.
NOISE = [0.003, -0.002, 0.001, -0.002]


def of_parabolas(top: Callable[[int], float], best: Callable[[int], float], metric: Metric = ACCURACY) -> Transfer:
    """Scores on parabolas in log2 of the rate; ``top`` and ``best`` are the place and height of each top."""
    sign = 1 if metric.higher_is_better else -1
    scores = [
        Score(width, lr, seed, sign * (best(width) - 0.02 * (math.log2(lr) - top(width)) ** 2 + NOISE[seed]))
        for width in WIDTHS
        for lr in RATES
        for seed in SEEDS
    ]
    return Transfer(metric, scores)


def doublings(width: int) -> float:
    return math.log2(width / 64)


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_an_optimum_that_stays_and_improves(metric: Metric) -> None:
    transfer = of_parabolas(lambda width: -2.3, lambda width: 0.5 + 0.02 * doublings(width), metric)
    assert transfer.drift.value == pytest.approx(0.0, abs=1e-9)
    assert transfer.drift_verdict == "stays"
    assert transfer.wider_is_better == transfer.wider_is_better_transferred == "yes"
    for summary in transfer.summaries:
        assert summary.best_lr.value == pytest.approx(-2.3)
        assert summary.best_grid_lr == 0.25
        assert not summary.at_edge
        assert summary.regret.value == 0.0
        assert summary.largest_stable_lr == 2.0
    sign = 1 if metric.higher_is_better else -1
    assert transfer.summaries[-1].best.value == pytest.approx(sign * (0.56 - 0.02 * 0.3**2))


def test_an_optimum_that_drifts_up_and_stalls() -> None:
    transfer = of_parabolas(lambda width: -5.0 + doublings(width), lambda width: 0.5)
    assert transfer.drift.value == pytest.approx(1.0)
    assert transfer.drift_verdict == "drifts up"
    assert transfer.wider_is_better == "stalls"
    assert transfer.wider_is_better_transferred == "no"
    assert transfer.summaries[-1].regret.value == pytest.approx(0.02 * 3**2)  # three doublings off


def test_wider_that_is_worse() -> None:
    assert of_parabolas(lambda width: -2.0, lambda width: 0.5 - 0.02 * doublings(width)).wider_is_better == "no"


def test_an_optimum_at_the_end_of_the_grid_is_not_known_to_stay() -> None:
    transfer = of_parabolas(lambda width: 3.0, lambda width: 0.5)
    assert transfer.drift.value == 0.0
    assert transfer.drift_verdict == "unclear"
    assert all(summary.at_edge for summary in transfer.summaries)
    text = "\n".join(lines({Contender(Setting.of("mssp", "II", "sgd")): transfer}))
    assert "2 (edge)" in text
    assert "unclear: at N = 64, 128, 256, 512 the best lies at the end of the grid: more rates are needed" in text


def test_seeds_that_scatter_leave_it_unclear() -> None:
    scores = [
        Score(width, lr, seed, -((math.log2(lr) + 2 + (seed - 1.5) * doublings(width)) ** 2))
        for width in (64, 128, 256)
        for lr in RATES
        for seed in SEEDS
    ]
    assert Transfer(ACCURACY, scores).why_unclear == "the seeds scatter: more of them are needed"


def test_rates_where_a_seed_diverges_are_neither_best_nor_stable() -> None:
    base = of_parabolas(lambda width: -1.0, lambda width: 0.5)
    scores = [
        Score(s.width, s.lr, s.seed, math.nan if s.lr >= 0.5 and s.seed == 3 else s.value, s.lr > 1 / 64)
        for s in base.scores
    ]
    transfer = Transfer(ACCURACY, scores)
    for summary in transfer.summaries:
        assert summary.best_grid_lr == 0.25
        assert summary.largest_stable_lr is None  # at the smallest rate nothing learns
    learned = Transfer(ACCURACY, [Score(s.width, s.lr, s.seed, s.value) for s in scores])
    assert learned.summaries[0].largest_stable_lr == 0.25


def test_a_transferred_rate_that_diverges_is_infinite_regret() -> None:
    base = of_parabolas(lambda width: -2.0, lambda width: 0.5)
    scores = [
        Score(s.width, s.lr, s.seed, math.nan if s.width == 512 and s.lr >= 0.25 else s.value) for s in base.scores
    ]
    transfer = Transfer(ACCURACY, scores)
    assert transfer.summaries[-1].regret.value == math.inf
    assert transfer.wider_is_better_transferred == "no"
    assert "diverges" in "\n".join(lines({Contender(Setting.of("mup", "II", "sgd")): transfer}))
    assert as_json({Contender(Setting.of("mup", "II", "sgd")): transfer})[0]["widths"]["512"]["regret"] == {
        "value": None,
        "ci": None,
    }


def test_seeds_are_paired_by_number_not_by_place() -> None:
    base = of_parabolas(lambda width: -5.0 + doublings(width), lambda width: 0.5)
    expected = base.summaries[-1].regret
    assert expected.ci == pytest.approx(0.0, abs=1e-9)
    shuffled = Transfer(ACCURACY, sorted(base.scores, key=lambda score: (score.seed * 7 + int(score.lr * 64)) % 11))
    assert shuffled.summaries[-1].regret.value == pytest.approx(expected.value)
    assert shuffled.summaries[-1].regret.ci == pytest.approx(0.0, abs=1e-9)
    fewer = [score for score in base.scores if not (score.width == 512 and score.seed == 0 and score.lr == 1 / 32)]
    assert Transfer(ACCURACY, fewer).summaries[-1].regret.value == pytest.approx(expected.value)


def test_a_rate_that_a_width_was_not_trained_with_is_not_replaced_by_another() -> None:
    base = of_parabolas(lambda width: -2.0, lambda width: 0.5)
    transfer = Transfer(ACCURACY, [score for score in base.scores if score.width < 512 or score.lr > 0.3])
    assert math.isnan(transfer.summaries[-1].transferred.value)
    assert math.isnan(transfer.summaries[-1].regret.value)
    assert transfer.wider_is_better_transferred == "unclear"


def test_where_nothing_trains_nothing_is_said() -> None:
    base = of_parabolas(lambda width: -2.0, lambda width: 0.5)
    transfer = Transfer(ACCURACY, [Score(s.width, s.lr, s.seed, math.nan) for s in base.scores])
    assert transfer.drift_verdict == transfer.wider_is_better == "unclear"
    assert "none" in "\n".join(lines({Contender(Setting.of("mssp", "II", "sgd")): transfer}))


def test_one_seed_gives_numbers_without_intervals() -> None:
    base = of_parabolas(lambda width: -2.0, lambda width: 0.5)
    transfer = Transfer(ACCURACY, [score for score in base.scores if score.seed == 0])
    assert math.isnan(transfer.drift.ci)
    assert transfer.drift_verdict == transfer.wider_is_better == "unclear"
    assert transfer.why_unclear == "it takes two widths and two seeds"


def test_parabolas() -> None:
    assert top_of_parabola([0.0, 1.0, 3.0], [-1.0, 0.0, -4.0]) == pytest.approx(1.0)  # unequal steps
    assert top_of_parabola([0.0, 1.0, 2.0], [1.0, 0.5, 0.2]) == 0.0
    assert top_of_parabola([0.0, 1.0, 2.0], [0.5, 1.0, -math.inf]) == 1.0
    assert top_of_parabola([0.0, 1.0, 2.0], [1.0, 1.0, 1.0]) == 0.0


def test_rates_and_metrics() -> None:
    assert LearningRates().around(0.1) == pytest.approx([0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
    assert LearningRates(given=(3.0, 1.0)).around(0.1) == [1.0, 3.0]
    with pytest.raises(ValueError, match="ratio must be a number of more than 1"):
        LearningRates(ratio=0.5)
    assert METRICS["train_top5"].higher_is_better
    assert not METRICS["validation_loss"].higher_is_better
