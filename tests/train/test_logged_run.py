"""Logs that are read back: what they hold, last lines that are cut short, and what no run writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mssp.planning.shape import Shape
from mssp.train.logged_run import logged_run
from mssp.train.run_log import RunLog
from tests.report.training_logs import LINES, LOGITS, MACHINE, START, kept, sizes, step, text


def test_what_a_log_holds(tmp_path: Path) -> None:
    run = logged_run(kept(tmp_path / "run"))
    assert (run.plan, run.parameters, run.data) == ("c01bfda47bfc3634", 725760, "python.bin")
    assert run.model == Shape(width=128, expert_width=64, experts=16, active=2, depth=2, inputs=1)
    assert (run.step, run.steps, run.clip) == (4, 4, 1.0)
    assert run.numbers["loss"] == {1: 5.5, 2: None, 3: 4.0, 4: 3.5}  # null is a gap
    assert run.numbers["lr/router"] == {1: 0.0005, 2: 0.001, 3: 0.0015, 4: 0.002}
    assert run.numbers["routers/load"] == {1: 3.0, 3: 2.0}
    assert run.numbers["probe/loss"] == {0: 5.0, 2: 5.0}
    assert run.loads == {"blocks.0": {1: [0.5, 0.25, 0.125, 0.125, 0.0]}}
    assert run.validation == {2: 4.5, 4: 3.25}
    assert {name: curve for name, curve in run.sizes.items() if name.of == "router"} == {
        "effective/router": {0: 0.0, 2: 0.2}
    }
    assert [(alarm.step, alarm.kind, alarm.value, alarm.layers) for alarm in run.alarms] == [(3, "logits", 12.31, 2)]
    assert run.speed["tokens_per_second"] == {1: 100.0, 2: 200.0, 3: 900.0}  # the step that was repeated counts once
    assert [start["device"] for start in run.starts] == ["cpu", "cuda"]
    assert run.notes == []


def test_a_log_alone_and_one_of_a_monitor(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(text(LINES))
    assert logged_run(tmp_path / "run.jsonl").speed == {}
    alarm = {
        **{key: LOGITS[key] for key in ("step", "layer", "value", "limit", "layers", "cause", "remedy")},
        "kind": "z",
    }
    monitored = [
        {"step": 0, "plan": "c01b", "loss": 5.0, "sizes": {"gradient/router": None, "routers/load": 2.0}},
        {"step": 10, "sizes": {"gradient/router": 0.5, "step/router": 0.25}, "alarms": [alarm]},
    ]
    (tmp_path / "sizes.jsonl").write_text(text(monitored))
    run = logged_run(tmp_path / "sizes.jsonl")
    assert (run.plan, run.model, run.steps, run.step) == ("c01b", None, None, 10)
    assert run.sizes == {"gradient/router": {0: None, 10: 0.5}}
    assert run.numbers == {"probe/loss": {0: 5.0}, "routers/load": {0: 2.0}, "step/router": {10: 0.25}}
    assert [each.kind for each in run.alarms] == ["z"]


def test_a_written_log_is_read(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write(**START)
    log.write("step", 1, loss=float("inf"), norm=1.0, clipped=0.0, lr={"router": 0.1})
    assert logged_run(tmp_path).numbers["loss"] == {1: None}


@pytest.mark.parametrize("length", [1, 40, -1])
def test_a_last_line_that_is_cut_short_is_left_out(length: int, tmp_path: Path) -> None:
    """A whole last line without its end is taken."""
    whole = text([*LINES, step(5, 3.0)])
    last = whole.splitlines()[-1]
    (tmp_path / "run.jsonl").write_text(whole[: len(whole) - len(last) - 1] + last[:length])
    run = logged_run(tmp_path)
    assert (run.step, run.notes) == (4, ["The last line of run.jsonl is cut short, and is left out."])
    (tmp_path / "run.jsonl").write_text(whole[:-1])
    run = logged_run(tmp_path)
    assert (run.step, run.notes) == (5, [])


def changed(number: int, **entries: Any) -> str:
    lines = [dict(line) for line in LINES]
    lines[number - 1].update(entries)
    return text(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no log of a run: it has no whole line"),
        ('{"kind": "st', "is no log of a run: it has no whole line"),
        ('{"a": 1}\n', "line 1: it must be the start of a run, as mssp train writes it to run.jsonl"),
        (text(MACHINE), "line 1: it must be the start of a run, as mssp train writes it to run.jsonl"),
        ("[1, 2]\n", "line 1: it must be an object, got [1, 2]"),
        (text([START]) + "loss 2.3\n" + text([step(2, 1.0)]), "line 2: it is not JSON: Expecting value"),
        (text([START]) + '{"kind": "step", "step": 1, "loss": NaN}\n', "line 2: it is not JSON: NaN is not a number"),
        (changed(1, shape={"width": 0}), "line 1: shape is not that of a model: width must be"),
        (changed(1, parameters="many"), "line 1: parameters must be a whole number from 0 on, got 'many'"),
        (changed(2, kind="epoch"), "line 2: kind must be one of step, validation, monitor, alarm, got 'epoch'"),
        (changed(2, kind="start"), "line 2: kind must be one of step, validation, monitor, alarm, got 'start'"),
        (changed(2, loss="5.5"), "line 2: loss must be a number or null, got '5.5'"),
        (changed(2, loss=True), "line 2: loss must be a number or null, got True"),
        (changed(2, lr=[0.1]), "line 2: lr must be an object, got"),
        (changed(2, lr={"a/b": 0.1}), "line 2: 'effective/a/b' is not the name of a quantity"),
        (changed(2, routers={"loads": 1.0}), "line 2: 'loads' is no number about routers or updates"),
        (changed(2, loads={"a": 0.5}), "line 2: loads of 'a' must be a list of numbers, got 0.5"),
        (changed(2, loads={"a": [0.5, "b"]}), "line 2: loads of 'a' must be a list of numbers, got [0.5, 'b']"),
        (changed(7, loads={"blocks.0": [1.0]}), "line 7: loads of 'blocks.0' must be of as many experts"),
        (changed(7, step=2), "line 7: step must be more than 2, which the line before has, got 2"),
        (changed(7, step=-1), "line 7: step must be a whole number from 0 on, got -1"),
        (changed(3, sizes={"effects/router": 1.0}), "line 3: 'effects/router' is not the name of a quantity"),
        (changed(8, limit=None), "line 8: limit must be a number, got null"),
        (text([START, {key: LOGITS[key] for key in ("kind", "step")}]), "line 2: alarm is missing"),
        (text([sizes(0)]).replace('"kind": "monitor", ', "") + text([START]), "line 2: step is missing"),
    ],
)  # fmt: skip
def test_what_no_run_writes_is_refused_by_its_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(f'{path}')}:? {re.escape(message)}[^\n]*$"):
        logged_run(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"kind": "speed", "step": 1, "seconds": "1"}, "line 2: seconds must be a number or null, got '1'"),
        ({"kind": "stop", "step": 1}, "line 2: kind must be one of start, speed, checkpoint, got 'stop'"),
    ],
)
def test_what_no_machine_writes_is_refused_by_its_line(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = kept(tmp_path / "run", machine=[MACHINE[0], line])
    with pytest.raises(ValueError, match=re.escape(f"{folder / 'machine.jsonl'}: {message}")):
        logged_run(folder)
    assert json.loads((folder / "run.jsonl").read_text().splitlines()[0]) == START
