from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mssp
from mssp import Plan, PlanWarning, Recipe, Shape
from mssp.planning.plan_file import schema
from mssp.planning.rules import ROLES
from tests.words import REGIMES

BASE = Shape(width=256, expert_width=128, experts=8, active=4, depth=8)
TARGET = Shape(width=2048, expert_width=1024, experts=64, active=32, depth=16)
GOLDEN = Path(__file__).parents[1] / "golden"
GOLDEN_PLANS: dict[str, dict[str, Any]] = {
    "III-mssp-adamw": {"target": TARGET, "base": BASE, "lr": 4e-3, "weight_decay": 0.1},
    "II-mup-sgd": {"target": TARGET, "regime": "II", "scheme": "mup", "optimizer": "sgd", "lr": 0.04, "readout": "mup"},
    "I-mssp-adam": {
        "target": Shape(width=100, expert_width=30, experts=7, active=7, depth=3, inputs=12288),
        "regime": "I", "optimizer": "adam", "lr": 1e-3, "grad_scale": True, "lr_mult": {"expert_out": 0.015625},
        "init_mult": 0.25, "recipe": Recipe(betas=(0.9, 0.95), batch=50),
    },
}  # fmt: skip


def make(**options: Any) -> Plan:
    return mssp.plan(**{"target": TARGET, "base": BASE, "lr": 4e-3, **options})


@given(
    st.sampled_from([("mssp", "sgd"), ("mup", "adamw"), ("sp", "adam"), ("jiang", "adamw"), ("mup-heuristic", "sgd")]),
    st.sampled_from(REGIMES), st.floats(1e-8, 1e3), st.integers(1, 10**5), st.booleans(),
    st.dictionaries(st.sampled_from(ROLES), st.floats(1e-6, 1e6)),
)  # fmt: skip
def test_round_trip_and_schema(
    scheme: tuple[str, str], regime: str, lr: float, width: int, based: bool, lr_mult: dict[str, float]
) -> None:
    name, optimizer = scheme
    target = Shape(width=width, expert_width=7, experts=6, active=3, depth=5, inputs=11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)
        plan = mssp.plan(
            target, BASE if based else None, scheme=name, optimizer=optimizer,
            regime="III" if name == "jiang" else regime, lr=lr, lr_mult=lr_mult,
        )  # fmt: skip
    text = plan.json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).json() == text
    jsonschema.validate(json.loads(text), schema())


def test_the_schema_is_a_schema_and_bites() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    broken = json.loads(make().json())
    broken["roles"]["router"]["lr"] = "fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema())


def test_contract_keys() -> None:
    data = json.loads(make().json())
    top = ["scheme", "optimizer", "regime", "base", "target", "lr", "eps", "weight_decay", "aggregation", "residual"]
    assert list(data)[: len(top)] == top
    assert {"roles", "version", "hash", "warnings", "readout", "as_printed"} <= set(data)
    expert_out = data["roles"]["expert_out"]
    assert expert_out["power"] == {
        "init_std": {"N_e": "-1/2"}, "lr": {"N_e": "-1"}, "eps": {"M": "-1", "N": "-1", "L": "-1"},
    }  # fmt: skip
    assert data["roles"]["readout"]["power"]["init_std"] is None
    assert data["roles"]["norm"]["power"]["lr"] == {}
    assert data["roles"]["hidden"]["power"] == {
        "init_std": {"N": "-1/2"}, "lr": {"N": "-1"}, "eps": {"N": "-1", "L": "-1"},
    }  # fmt: skip
    assert (data["aggregation"], data["residual"]) == (1 / 32, 1 / 16)


def test_sgd_has_no_eps() -> None:
    data = json.loads(make(optimizer="sgd").json())
    assert data["eps"] is None
    assert data["roles"]["router"]["eps"] is None
    assert data["roles"]["hidden"]["power"] == {"init_std": {"N": "-1/2"}, "lr": {"L": "1"}, "eps": None}


@pytest.mark.parametrize("name", GOLDEN_PLANS)
def test_golden_plans_stay_as_they_are(name: str) -> None:
    """To the letter, but for the last digits of what another machine's pow() gives."""
    made = json.loads(mssp.plan(**GOLDEN_PLANS[name]).json())
    kept = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert _rounded(made) == _rounded(kept)
    assert list(made) == list(kept)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"version": 5}, "the plan file has version 5, this mssp reads up to 4: upgrade mssp"),
        ({"version": 2}, "version is 2, its settings are of version 1"),
        ({"version": "one"}, "version must be a positive whole number, got 'one'"),
        ({"lr": 5e-3}, "its hash is"),
        ({"lr": -1.0}, "lr must be a positive number"),
        ({"lr": None}, "lr must be a positive number"),
        ({"scheme": "musp"}, "scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'musp'"),
        ({"target": {"width": 3}}, "corrupt plan file"),
        ({"target": [1, 2]}, "corrupt plan file"),
        ({"recipe": {"betas": 3}}, "corrupt plan file"),
        ({"lr_mult": {"nobody": 1.0}}, "unknown role 'nobody'"),
        ({"version": True}, "version must be a positive whole number, got True"),
        ({"aggregation": 123.0}, "aggregation is not what its settings give"),
        ({"residual": 0.5}, "residual is not what its settings give"),
        ({"remark": "mine"}, "the plan file has 'remark', which this mssp does not know"),
        ({"lr": 10**400}, "lr must be a positive number"),
        ({"base": {**BASE.json(), "width": 10**400}}, "width must be a positive whole number"),
    ],
)
def test_corrupt_and_newer_files_are_refused(edit: dict[str, Any], message: str) -> None:
    data = {**json.loads(make().json()), **edit}
    with pytest.raises(ValueError, match=message):
        Plan.from_json(json.dumps(data))


def test_a_key_that_stands_twice_is_refused() -> None:
    """Which of the two is meant is not known: json.loads would take the last one."""
    text = make().json()
    with pytest.raises(ValueError, match=r"^not a plan file: 'version' is there twice: 1 and 1$"):
        Plan.from_json(text.replace('"version"', '"version": 1, "version"'))
    with pytest.raises(ValueError, match=r"^not a plan file: 'width' is there twice: .*$"):
        Plan.from_json(text.replace('"width"', '"width": 1, "width"'))


@pytest.mark.parametrize("place", [(), ("target",), ("roles",), ("roles", "router"), ("lr_mult",), ("recipe",)])
@pytest.mark.parametrize("key", ["a\nb", "\u2028", "long " * 400])
def test_no_key_breaks_a_message(place: tuple[str, ...], key: str) -> None:
    data = json.loads(make().json())
    inside = data
    for part in place:
        inside = inside[part]
    inside[key] = 1
    with pytest.raises(ValueError, match="plan") as refused:
        Plan.from_json(json.dumps(data))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) <= 300


def test_edited_numbers_are_noticed() -> None:
    for role, key, number in (
        ("router", "lr", 0.1),
        ("norm", "lr", 10**400),
        ("expert_in", "tied", 1),
        ("x", "lr", 1.0),
    ):
        data = json.loads(make().json())
        data["roles"].setdefault(role, {})[key] = number
        where = "x" if role == "x" else rf"{role}\.{key}"
        with pytest.raises(ValueError, match=rf"roles\.{where} is not what its settings give"):
            Plan.from_json(json.dumps(data))
    with pytest.raises(ValueError, match="not a plan file"):
        Plan.from_json(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"a": 1}', '{"version": NaN}', b"\xff\xfe", "[" * 100_000])
def test_other_files_are_not_plans(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="not a plan file"):
        Plan.from_json(text)


def test_missing_entries_are_named() -> None:
    data = json.loads(make().json())
    del data["readout"]
    with pytest.raises(ValueError, match="corrupt plan file: no 'readout'"):
        Plan.from_json(json.dumps(data))


def test_hash_names_the_settings() -> None:
    assert make().hash == make().hash
    assert make().hash != make(lr=4.1e-3).hash


def _rounded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {key: _rounded(value) for key, value in entry.items()}
    return f"{entry:.14g}" if isinstance(entry, float) else entry
