"""The minimal linear MoE against the paper's columns for muP after none and one update."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

import mssp
from mssp import Plan, PlanWarning
from mssp._estimates import Estimate
from mssp.coordcheck import minimal_moe
from mssp.coordcheck.minimal_moe import for_open_questions, simulated
from mssp.ladders.mlp import family
from mssp.planning.setting import Setting
from mssp.theory.propagation import tabulated

WIDTHS = {"II": (64, 128, 256, 512), "III": (64, 128, 256)}
TOLERANCE = 0.25  # powers are multiples of a half: one of them too many is beyond it

# By regime: the printed exponents after 0 and 1 updates.
COLUMNS = {
    "II": {
        "activation/aggregate": "-1/2 0", "activation/embedding": "0 0", "activation/expert_in": "0 0",
        "activation/expert_out": "0 0",
        "effective/embedding": "zero -1/2", "effective/expert_in": "zero -1/2", "effective/expert_out": "zero 0",
        "propagating/embedding": "zero zero", "propagating/expert_in": "zero -1/2",
        "propagating/expert_out": "zero -1/2",
        "aggregate/init": "-1/2 -1/2", "aggregate/A21": "zero -1", "aggregate/A22": "zero -1",
        "aggregate/effective": "zero 0",
        "backward/propagating/readout": "-1 -1", "backward/effective/readout": "zero -3/2",
        "backward/A4.1": "-3/2 -3/2", "backward/A4.2": "zero -2", "backward/A5.1": "zero -1",
        "backward/A6.1": "zero -2",
        "backward/h2-init-init": "-3/2 -3/2", "backward/h2-init-update": "zero -2",
        "backward/h2-update-init": "zero -1", "backward/phi-init-init": "-3/2 -3/2",
        "backward/phi-update-init": "zero -1",
        "backward/router-init-update": "zero -1",
        "gradient/embedding": "-3/2 -1", "gradient/router": "-3/2 -1", "gradient/expert_in": "-3/2 -1",
        "gradient/expert_out": "-2 -2", "gradient/readout": "-1/2 0",
    },
    # Quantities that are sums of two orders at these widths are left out: h1 moves eight times as much as the experts.
    "III": {
        "activation/embedding": "0 0", "activation/expert_in": "0 0", "activation/expert_out": "0 0",
        "effective/embedding": "zero -1/2", "effective/expert_in": "zero 0", "effective/expert_out": "zero 0",
        "propagating/embedding": "zero zero", "propagating/expert_in": "zero -1/2",
        "aggregate/init": "-1/2 -1/2", "aggregate/A21": "zero -1", "aggregate/A22": "zero 0",
        "aggregate/effective": "zero 0",
        "backward/propagating/readout": "-1 -1", "backward/effective/readout": "zero -3/2",
        "backward/A4.1": "-3/2 -3/2", "backward/A4.2": "zero -2", "backward/A5.1": "zero -1",
        "backward/A6.1": "zero -1",
        "backward/h2-init-init": "-2 -2", "backward/h2-init-update": "zero -5/2", "backward/h2-update-init": "zero -2",
        "gradient/expert_in": "-2 -2", "gradient/expert_out": "-2 -2",
    },
}  # fmt: skip
MUP = {regime: Setting.of("mup", regime, "sgd", "mup") for regime in COLUMNS}


@cache
def simulation(regime: str) -> Mapping[str, list[Estimate | None]]:
    return simulated(MUP[regime], WIDTHS[regime], seeds=16)


def number(cell: str) -> float:
    above, _, below = cell.partition("/")
    return int(above) / int(below or 1)


@pytest.mark.parametrize(("regime", "name"), [(regime, name) for regime, names in COLUMNS.items() for name in names])
def test_the_columns_of_mup(regime: str, name: str) -> None:
    for estimate, cell in zip(simulation(regime)[name], COLUMNS[regime][name].split(), strict=False):
        if cell == "zero":
            assert estimate is None
        else:
            assert estimate is not None
            assert estimate.value == pytest.approx(number(cell), abs=TOLERANCE)
            assert estimate.ci < TOLERANCE


@pytest.mark.parametrize("regime", ["II", "III"])
def test_what_vanishes_vanishes_exactly_and_nothing_else_does(regime: str) -> None:
    """For all names and steps of the tables, a term is zero in the simulation if and only if it is in the tables."""
    compared = 0
    for name, estimates in simulation(regime).items():
        for step in (0, 1, 2):
            predicted = tabulated(name, step, MUP[regime])
            if predicted is not None:
                compared += 1
                assert (estimates[step] is None) == (predicted.power is None), (name, step)
    assert compared > 130


@pytest.mark.parametrize("regime", ["I", "II", "III"])
def test_from_a_zero_readout_the_first_update_moves_it_alone(regime: str) -> None:
    case = Setting.of("mssp", regime, "adam", "zero")
    estimates = simulated(case, (32, 64), seeds=2)
    assert [name for name, each in estimates.items() if name.startswith("effective/") and each[1]] == [
        "effective/readout"
    ]
    for name, each in estimates.items():
        for step in (0, 1, 2):
            predicted = tabulated(name, step, case)
            if predicted is not None:
                assert (each[step] is None) == (predicted.power is None), (name, step)


def test_mup_never_recovers_its_initial_aggregate_whatever_the_readout_and_optimizer() -> None:
    for optimizer in ("sgd", "adam"):
        estimates = simulated(Setting.of("mup", "II", optimizer, "zero"), (64, 128, 256, 512), seeds=8)
        for step in (0, 1, 2):
            estimate = estimates["aggregate/init"][step]
            assert estimate is not None
            assert estimate.value == pytest.approx(-0.5, abs=0.2)


def planned(regime: str | None, **options: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        return mssp.plan(family(regime or "II", 64, 8), regime=regime, lr=0.1, **options)


def test_only_open_questions_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def instead(case: Setting, widths: tuple[int, ...]) -> dict[str, list[Estimate | None]]:
        assert len(widths) > 2
        asked.append(case)
        return {}

    monkeypatch.setattr(minimal_moe, "simulated", instead)
    for regime in ("I", "II", "III"):
        for optimizer in ("sgd", "adam", "adamw"):
            assert for_open_questions(planned(regime, optimizer=optimizer)) is None
    assert for_open_questions(planned("I", scheme="mup", optimizer="adam")) is None
    assert for_open_questions(planned("III", scheme="mup", optimizer="sgd", readout="mup")) is None
    assert for_open_questions(planned(None, scheme="sp", optimizer="sgd")) is None  # no regime, no family
    assert not asked
    assert for_open_questions(planned("II", scheme="mup", optimizer="sgd")) == {}
    assert for_open_questions(planned("III", scheme="jiang", optimizer="adam")) == {}
    assert for_open_questions(planned("II", optimizer="sgd", readout="mup")) == {}
    assert asked == [
        Setting.of("mup", "II", "sgd"),
        Setting.of("jiang", "III", "adam"),
        Setting.of("mssp", "II", "sgd", "mup"),
    ]
