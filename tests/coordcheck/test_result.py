"""The outcome of a check: its two answers, and its JSON by the contract and the schema."""

from __future__ import annotations

import json
import math
from importlib import resources
from typing import Any

import jsonschema
import numpy as np
import pytest

from mssp.coordcheck.causes import Cause
from mssp.coordcheck.result import Check
from mssp.coordcheck.series import Numbers
from mssp.coordcheck.text import lines, verdict_lines
from mssp.planning.setting import Setting
from tests.coordcheck.synthetic import SIZES, law, series, theory

SCHEMA = json.loads(resources.files("mssp.coordcheck").joinpath("check.schema.json").read_text(encoding="utf-8"))


def losses() -> Numbers:
    """Losses of three seeds with means 4, 3, 2, 1 before four updates; the loss after the last update is unknown."""
    loss = np.array([4.0, 3.0, 2.0, 1.0, np.nan])[None, :, None] + np.array([-0.5, 0.0, 0.5])
    return np.broadcast_to(loss, (3, 5, 3)).copy()


RIGHT = {
    "weights/expert_out": law(0.5),
    "update/expert_out": law(0.0, start=2),
    "rate/expert_out": law(2.0, start=1),
    "aggregate/init": law(0.0, factor=2.0),
    "effective/expert_in": law(0.0, start=2),
    "propagating/readout": law(0.0) * 0,
    "router/load": law(0.0),
}


def checked(values: dict[str, Numbers] | None = None, **options: Any) -> Check:
    return Check.of(series({**RIGHT, **(values or {}), "loss": losses()}), theory(**options))


def test_a_check_that_passes_and_is_stable() -> None:
    check = checked()
    assert check.setting == Setting.of("mssp", "II", "sgd", "zero")
    assert (check.axis, check.sizes, check.steps, check.seeds) == ("width", (64, 128, 256), 4, 3)
    assert (check.passed, check.stable, check.off, check.causes) == (True, True, [], ())
    assert check.loss == dict.fromkeys(SIZES, (4.0, 3.0, 2.0, 1.0))
    assert "loss" not in check.quantities
    assert check.quantities["aggregate/init"].reason == "stays, as expected"


def test_two_questions_two_answers() -> None:
    right_and_unstable = Check.of(series({"aggregate/init": law(-0.5)}), theory(scheme="mup"))
    assert (right_and_unstable.passed, right_and_unstable.stable) == (True, False)
    wrong_and_stable = Check.of(series({"aggregate/init": law(0.0)}), theory(scheme="mup"))
    assert (wrong_and_stable.passed, wrong_and_stable.stable) == (False, True)
    both = checked({"aggregate/init": law(-0.5)})
    assert (both.passed, both.stable) == (False, False)


def test_a_miss_and_its_cause() -> None:
    check = checked({"weights/expert_out": law(-0.25), "aggregate/init": law(-0.5)})
    assert [each.name for each in check.off] == ["weights/expert_out", "aggregate/init"]  # the farthest off first
    text = "the initial weights of expert_out scale as N^−0.25, the rule says N^0.5"
    assert check.causes == (Cause("weights", "expert_out", text),)
    assert check.quantities["aggregate/init"].reason == f"falls as N^−0.5, expected N^0: {text}"


def test_a_divergence_is_the_one_cause() -> None:
    lost = law(0.0, start=2)
    lost[1, 3:] = np.nan
    check = checked({"effective/expert_in": lost, "weights/expert_out": law(0.0)})
    assert not check.passed
    assert not check.stable
    assert [cause.text for cause in check.causes] == [
        "training diverged at width 128 after 3 updates: lower the learning rate"
    ]
    data = check.json()
    assert data["quantities"]["effective/expert_in"]["values"]["128"] == [0.0, 0.0, pytest.approx(1.0), None, None]
    assert data["quantities"]["effective/expert_in"]["exponents"][3] is None
    jsonschema.validate(data, SCHEMA)


@pytest.mark.parametrize("scheme", ["sp", "ntp"])
def test_schemes_that_know_no_regime(scheme: str) -> None:
    check = checked(regime=None, scheme=scheme)
    assert check.setting.regime is None
    assert check.json()["regime"] is None


def test_without_losses_there_are_none() -> None:
    assert Check.of(series(RIGHT), theory()).loss == {}


def test_the_keys_of_the_contract() -> None:
    data = checked().json()
    assert list(data) == [
        "scheme", "optimizer", "regime", "readout", "axis", "widths", "steps", "seeds", "quantities", "causes", "loss",
        "verdict", "stable",
    ]  # fmt: skip
    assert (data["scheme"], data["optimizer"], data["regime"], data["widths"]) == ("mssp", "sgd", "II", [64, 128, 256])
    assert (data["steps"], data["verdict"], data["stable"], data["causes"]) == (4, "pass", True, [])
    assert data["loss"] == {"64": [4.0, 3.0, 2.0, 1.0], "128": [4.0, 3.0, 2.0, 1.0], "256": [4.0, 3.0, 2.0, 1.0]}
    assert set(data["quantities"]) == set(RIGHT)
    for quantity in data["quantities"].values():
        assert list(quantity) == [
            "exponents", "ci", "values", "predicted", "slack", "source", "judged", "stable", "verdict", "reason",
        ]  # fmt: skip
        assert [len(quantity[name]) for name in ("exponents", "ci", "predicted", "slack")] == [5, 5, 5, 5]
        assert {size: len(values) for size, values in quantity["values"].items()} == {"64": 5, "128": 5, "256": 5}


def test_a_quantity_in_json() -> None:
    data = checked({"effective/expert_in": law(0.5, start=2, factor=2.0)}).json()["quantities"]
    entry = data["effective/expert_in"]
    half = pytest.approx(0.5)
    assert entry["exponents"] == [None, None, half, half, half]
    assert entry["ci"] == [None, None, *[pytest.approx(0.0248, abs=1e-4)] * 3]
    assert entry["values"]["64"] == [0.0, 0.0, *[pytest.approx(16.0)] * 3]
    assert entry["predicted"] == [None, None, 0.0, 0.0, 0.0]
    interval = pytest.approx(0.0248, abs=1e-4)
    assert entry["judged"] == {"exponent": half, "ci": interval, "expected": 0.0, "slack": 0.0}
    assert (entry["source"], entry["stable"], entry["verdict"]) == ("paper", False, "off")
    assert data["propagating/readout"]["verdict"] == "zero"
    assert data["router/load"]["verdict"] == "unpredicted"
    assert (data["router/load"]["judged"], data["router/load"]["source"]) == (None, None)
    assert data["weights/expert_out"]["source"] == "rules"


def test_over_depth_there_are_depths() -> None:
    depths = (2, 4, 8)
    check = Check.of(
        series({"backward/A4": law(-1.0, start=1, sizes=depths)}, depths), theory(sizes=depths, depth=True)
    )
    data = check.json()
    assert (check.axis, check.sizes, data["axis"], data["depths"]) == ("depth", depths, "depth", [2, 4, 8])
    assert "widths" not in data
    jsonschema.validate(data, SCHEMA)


def test_without_an_interval_there_is_null_and_never_nan() -> None:
    values = {"effective/expert_in": law(0.0, start=2, sizes=(64, 128), spread=(0.0,))}
    check = Check.of(series(values, (64, 128)), theory(sizes=(64, 128)))
    text = json.dumps(check.json(), allow_nan=False)
    assert json.loads(text)["quantities"]["effective/expert_in"]["ci"] == [None] * 5
    jsonschema.validate(json.loads(text), SCHEMA)
    judged = check.quantities["effective/expert_in"].judged
    assert judged is not None
    assert math.isnan(judged.ci)


def test_the_schema_is_a_schema_and_bites() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = checked({"weights/expert_out": law(0.0)}).json()
    jsonschema.validate(json.loads(json.dumps(data, allow_nan=False)), SCHEMA)
    jsonschema.validate({**data, "regime": None}, SCHEMA)
    quantity = data["quantities"]["aggregate/init"]
    broken: list[dict[str, Any]] = [
        {**data, "verdict": "maybe"},
        {**data, "depths": [1, 2]},
        {**data, "axis": "depth"},
        {**data, "more": 1},
        {**data, "widths": [64]},
        {**data, "causes": [{"setting": "weather", "role": "", "text": "rain"}]},
        {**data, "quantities": {"aggregate/init": {**quantity, "verdict": "fine"}}},
        {**data, "quantities": {"aggregate/init": {**quantity, "exponents": "none"}}},
        {**data, "quantities": {"aggregate/init": {**quantity, "values": {"wide": [1.0]}}}},
        *({name: value for name, value in data.items() if name != left_out} for left_out in data),
        *(
            {**data, "quantities": {"x": {name: value for name, value in quantity.items() if name != left_out}}}
            for left_out in quantity
        ),
    ]
    for each in broken:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(each, SCHEMA)


def test_json_and_back() -> None:
    """JSON keeps all but how certain predictions are and which of them are binding."""
    for check in (checked(), checked({"aggregate/init": law(-0.5)}), checked({"weights/expert_out": law(0.0)})):
        text = json.dumps(check.json())
        again = Check.from_json(json.loads(text))
        assert json.dumps(again.json()) == text
        assert (again.passed, again.stable, again.causes) == (check.passed, check.stable, check.causes)
        assert verdict_lines(again) == verdict_lines(check)
        assert lines(again) == lines(check)


def test_numbers_that_contradict_each_other_are_refused() -> None:
    right = checked().json()
    for wrong, message in (
        ({"scheme": "magic"}, "scheme must be one of mssp, mup, .*, got 'magic'"),
        ({"optimizer": "luck"}, "optimizer must be one of sgd, adam, adamw, got 'luck'"),
        ({"widths": []}, "widths must be a list of 2 different parts or more, got nothing"),
        ({"steps": "many"}, "steps must be a whole number from 1 to .*, got 'many'"),
        ({"widths": [64, 128]}, r"values must have 5 numbers at each of \[64, 128\]"),
        ({"steps": 7}, "exponents must be 8 numbers, got 5"),
    ):
        with pytest.raises(ValueError, match=f"^corrupt check file: .*{message}"):
            Check.from_json(right | wrong)


@pytest.mark.parametrize("foreign", [{}, {"axis": "width"}, {**checked().json(), "quantities": {"loss": {}}}, []])
def test_what_is_no_check_is_refused_in_one_line(foreign: Any) -> None:
    with pytest.raises(ValueError, match=r"^corrupt check file: [^\n]+$"):
        Check.from_json(foreign)
