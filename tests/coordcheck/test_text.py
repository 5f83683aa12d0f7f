"""A check as text for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mssp._estimates import Estimate
from mssp.coordcheck.result import Check
from mssp.coordcheck.series import Numbers
from mssp.coordcheck.text import heading, headings, lines, verdict_lines
from mssp.planning.setting import SGD, SP, Setting
from mssp.theory.expected import Theory
from tests.coordcheck.synthetic import law, plans, series, theory

FLAT = (0.0, 0.0, 0.0)
RIGHT = {
    "activation/embedding": law(0.0, spread=FLAT),
    "backward/A4": law(-1.0, start=1, spread=FLAT),
    "backward/A4.2": law(-1.0, start=1, spread=FLAT),
    "gradient/expert_out": law(-2.0, start=1, spread=FLAT),
    "effective/router": law(-0.25, start=2, spread=FLAT),
    "effective/expert_in": law(0.0, start=2, factor=0.125, spread=FLAT),
    "propagating/embedding": law(0.0) * 0,
    "aggregate/init": law(0.0, spread=(-0.01, 0.0, 0.01)),
    "router/load": law(0.0, spread=FLAT),
    "weights/expert_out": law(0.5, spread=FLAT),
    "experts/distance": law(0.5, spread=FLAT),
    "normalised/router": law(-0.5, spread=FLAT),
}


def checked(values: dict[str, Numbers] | None = None, **options: Any) -> Check:
    return Check.of(series({**RIGHT, **(values or {})}), theory(**options))


def rows(check: Check, **options: Any) -> dict[str, list[str]]:
    """The cells of the table by the name of the quantity."""
    return {line.split()[0]: line.split()[1:] for line in lines(check, **options) if "/" in line.partition(" ")[0]}


def test_the_heading() -> None:
    first, second, *_ = lines(checked())
    assert first == heading(checked()) == "MSSP · Regime II · SGD"
    assert second == (
        "widths 64 128 256, 4 updates, 3 seeds; sizes after the last update, exponents over width averaged over the "
        "updates they are predicted for"
    )
    assert heading(checked(scheme="mup", readout="mup", optimizer="adamw")) == "μP · Regime II · AdamW · readout mup"
    assert heading(replace(checked(scheme="sp"), setting=Setting(scheme=SP, optimizer=SGD))) == "SP · SGD"


def test_the_table_reads_from_what_was_told_to_what_came_of_it() -> None:
    text = lines(checked())
    titles = [
        "what the layers were told", "updates, layer by layer", "the sum over experts", "gradients", "backward",
        "activations",
    ]  # fmt: skip
    assert [line for line in text if line in titles] == titles
    assert text[3].split() == ["64", "128", "256", "exponent", "expected", "verdict"]
    assert list(rows(checked())) == [
        "weights/expert_out", "experts/distance", "effective/router", "effective/expert_in", "aggregate/init",
        "router/load", "gradient/expert_out", "backward/A4", "activation/embedding",
    ]  # fmt: skip


def test_a_row_has_sizes_exponent_expectation_and_verdict() -> None:
    table_rows = rows(checked())
    assert table_rows["weights/expert_out"] == ["8", "11.31", "16", "0.50", "±", "0.00", "0.5", "ok"]
    assert table_rows["effective/expert_in"] == ["0.125", "0.125", "0.125", "0.00", "±", "0.00", "0", "ok"]
    assert table_rows["effective/router"][3:] == ["−0.25", "±", "0.00", "−0.5", "…", "0", "ok"]
    assert table_rows["aggregate/init"][3:] == ["0.00", "±", "0.02", "0", "ok"]
    assert table_rows["gradient/expert_out"][2:] == ["1.526e-05", "−2.00", "±", "0.00", "−2", "ok"]
    assert table_rows["router/load"] == ["1", "1", "1", "0.00", "±", "0.00", "unpredicted"]


def test_everything_is_shown_where_it_is_asked_for() -> None:
    shown = rows(checked(), everything=True)
    assert set(shown) - set(rows(checked())) == {"propagating/embedding", "normalised/router", "backward/A4.2"}
    assert shown["propagating/embedding"] == ["0", "0", "0", "zero"]
    assert "details" in lines(checked(), everything=True)


def test_both_parts_of_a_term_are_shown_where_there_are_two() -> None:
    two = checked({"backward/A4.1": law(-1.5)}, scheme="mup", readout="mup")
    assert {"backward/A4.1", "backward/A4.2"} <= set(rows(two))


def test_a_simulated_expectation_says_so() -> None:
    simulated = {"effective/expert_out": [None, Estimate(0.02, 0.01)]}
    check = Check.of(
        series({"effective/expert_out": law(0.0, start=1, spread=FLAT)}),
        Theory(plans(scheme="mup", optimizer="adam"), simulated),
    )
    assert rows(check)["effective/expert_out"][3:] == ["0.00", "±", "0.00", "0.02", "(simulated)", "ok"]


def test_the_verdict_of_a_check_that_passes() -> None:
    assert verdict_lines(checked()) == [
        "pass: all 8 predicted quantities scale as the theory says of this scheme",
        "stable: the desiderata of maximal scale stability hold",
    ]
    assert lines(checked())[-2:] == verdict_lines(checked())
    assert headings(checked())[0] == "MSSP · Regime II · SGD"
    assert headings(checked())[-1].startswith("pass: ")


def test_passing_and_not_stable() -> None:
    check = Check.of(series({"aggregate/init": law(-0.5)}), theory(scheme="mup"))
    assert verdict_lines(check) == [
        "pass: all 1 predicted quantities scale as the theory says of this scheme",
        "not stable: what changes with scale where nothing should: aggregate/init",
    ]
    assert rows(check)["aggregate/init"][-3:] == ["ok,", "not", "stable"]


def test_the_verdict_of_a_check_that_fails_names_causes_and_the_worst() -> None:
    verdict = verdict_lines(checked({"weights/expert_out": law(-0.25), "aggregate/init": law(-0.5)}))
    cause = "the initial weights of expert_out scale as N^−0.25, the rule says N^0.5"
    assert verdict == [
        "FAIL: 2 of 8 predicted quantities are off",
        f"  likely cause: {cause}",
        "  weights/expert_out falls as N^−0.25, expected N^0.5",
        f"  aggregate/init falls as N^−0.5, expected N^0: {cause}",
        "not stable: what changes with scale where nothing should: aggregate/init",
    ]
    assert headings(checked({"weights/expert_out": law(0.0)}))[-1].startswith("FAIL: 1 of 8")


def test_of_many_misses_the_worst_are_shown() -> None:
    names = ["expert_in", "expert_out", "embedding"]
    wrong = {f"effective/{role}": law(0.5 + index, start=2) for index, role in enumerate(names)}
    wrong |= {f"activation/{role}": law(3.5 + index) for index, role in enumerate(names)}
    wrong |= {"features/delta": law(0.3, start=2), "aggregate/cross": law(1.0, start=3)}
    verdict = verdict_lines(checked(wrong))
    assert verdict[0] == "FAIL: 8 of 14 predicted quantities are off"
    assert [line.split()[0] for line in verdict[1:7]] == [
        "aggregate/cross", "activation/embedding", "activation/expert_out", "activation/expert_in",
        "effective/embedding", "effective/expert_out",
    ]  # fmt: skip
    assert verdict[7] == "  and 2 more"
    assert verdict[-1] == (
        "not stable: what changes with scale where nothing should: "
        "activation/embedding, effective/expert_in, effective/expert_out, effective/embedding, …"
    )


def test_a_divergence_is_named_and_nothing_else() -> None:
    lost = law(0.0, start=2)
    lost[2, 3:] = np.nan
    verdict = verdict_lines(checked({"effective/expert_in": lost, "aggregate/init": law(-0.5)}))
    assert verdict[:2] == [
        "FAIL: 2 of 8 predicted quantities are off",
        "  likely cause: training diverged at width 256 after 3 updates: lower the learning rate",
    ]
    assert verdict[2].startswith("not stable: ")


def test_intervals_that_say_nothing_are_owned_up_to() -> None:
    verdict = verdict_lines(checked({"aggregate/init": law(0.0, spread=(-0.3, 0.0, 0.3))}))
    assert (
        verdict[1] == "unclear: 1 exponents are known to no better than ±0.35 (aggregate/init): more seeds would tell"
    )
