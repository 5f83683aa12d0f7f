"""Sweeps in files: the package's own agrees with the record, and JSON is read back unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mssp.planning.setting import Setting
from mssp.sweep import transfer_text
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Score, Transfer
from mssp.sweep.transfer_text import read, tinyimagenet

RECORD = Path(__file__).parents[2] / "records" / "2026-11-16-transfer-tinyimagenet.md"


def test_the_package_s_numbers_are_those_of_the_record() -> None:
    """Every table and every verdict of the record is in the package's file."""
    text = RECORD.read_text(encoding="utf-8").partition("## Regime III, MSSP, SGD with twelve")[0]
    kept = transfer_text.markdown(tinyimagenet().outcomes)
    shown = [line for line in text.partition("## Every setting")[2].splitlines() if line.startswith(("|", "-", "#"))]
    assert [line for line in kept if line] == shown
    assert len(tinyimagenet().outcomes) == 12
    assert tinyimagenet().made.partition(",")[0] == re.search(r"\d{4}-\d\d-\d\d", text)[0]  # type: ignore[index]


def outcome(lost: bool = False) -> Transfer:
    scores = [
        Score(width, 2.0**k, seed, float("nan") if lost and width == 128 and k == 0 else 0.5 - 0.1 * k**2 + 0.01 * seed)
        for width in (64, 128)
        for k in (-1, 0, 1)
        for seed in (0, 1)
    ]
    return Transfer(METRICS["train_top5"], scores)


@pytest.mark.parametrize("lost", [False, True])
def test_json_and_back(lost: bool) -> None:
    setting = Contender(Setting.of("mssp", "II", "sgd", "mup"), 2)
    settings = transfer_text.as_json({setting: outcome(lost)})
    recorded = read(json.loads(json.dumps({"experiment": "clusters, 10 steps of 5", "settings": settings})))
    assert list(recorded.outcomes) == [setting]
    assert transfer_text.as_json(recorded.outcomes) == settings
    assert transfer_text.lines(recorded.outcomes) == transfer_text.lines({setting: outcome(lost)})


@pytest.mark.parametrize("foreign", [{}, {"experiment": "", "settings": [{}]}, {"settings": 3, "experiment": ""}])
def test_what_is_no_sweep_is_refused_in_one_line(foreign: Any) -> None:
    with pytest.raises(ValueError, match=r"^corrupt sweep file: [^\n]+$"):
        read(foreign)
