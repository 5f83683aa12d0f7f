"""Result files are held against schemas and against themselves: what is broken or contradicts itself is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mssp
from mssp._documents import DEEPEST
from mssp.cli import demo
from mssp.coordcheck import numerics
from mssp.dmft import compare, document, example, solve
from mssp.dmft.document import Overlay
from mssp.planning.setting import Setting
from mssp.report.contents import read
from mssp.report.sections import report
from mssp.sweep import transfer_text
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Score, Transfer
from tests.coordcheck.synthetic import law
from tests.coordcheck.test_result import checked
from tests.golden.cases import kept

MADE_WITH = {"python": "3.11", "torch": None, "device": "a test"}


@cache
def _check() -> dict[str, Any]:
    """One that fails: its experts' initial weights are wrong, and the sum over experts with them."""
    values = {"weights/expert_out": law(-0.25), "aggregate/init": law(-0.5), "gradient/router": law(-1.0)}
    check = checked(values)
    more = {"data": "spectra", "active": None, "base_width": 64, "made_with": MADE_WITH}
    return check.json() | more | {"numerics": numerics.as_json(check)}


@cache
def _limit() -> dict[str, Any]:
    solution = solve(example("II", "mssp", inputs=2, test_inputs=1, steps=2), samples=400, solves=2)
    comparison = compare(solution, [8, 16], seeds=4)
    overlay = {"overlay": Overlay.of(solution, comparison).json()}
    return document.as_json(solution, comparison) | overlay | {"made_with": MADE_WITH}


@cache
def _sweep() -> dict[str, Any]:
    """MSSP's best rate stays and wider is better; muP's doubles with the width."""

    def outcome(doublings: int) -> Transfer:
        return Transfer(METRICS["train_top5"], [
            Score(width, 2.0**k, seed, 0.5 + 0.1 * n * (1 - doublings) - 0.05 * (k - doublings * n) ** 2 + 0.01 * seed)
            for n, width in enumerate((64, 128, 256)) for k in range(-1, 4) for seed in range(3)
        ])  # fmt: skip

    outcomes = {Contender(Setting.of(scheme, "II", "sgd")): outcome(scheme == "mup") for scheme in ("mssp", "mup")}
    return {"experiment": "spectra, 10 steps of 5", "settings": transfer_text.as_json(outcomes)}


@cache
def _by_name() -> dict[str, Any]:
    found: dict[str, Any] = kept("documents/plan --by-name: configs")["json"]
    return found | {"made_with": MADE_WITH}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "check": _check, "sweep": _sweep, "limit": _limit, "by name": _by_name,
}  # fmt: skip


def of_kind(kind: str) -> dict[str, Any]:
    """A document of a kind as a file has it."""
    document_: dict[str, Any] = json.loads(json.dumps(KINDS[kind]()))
    return document_


def edited(kind: str, **values: Any) -> dict[str, Any]:
    """A document with other values, by place: ``settings__0__seeds`` is the seeds of the first setting."""
    found = of_kind(kind)
    for place, value in values.items():
        *parents, last = place.split("__")
        inside: Any = found
        for key in parents:
            inside = inside[_key(inside, key)]
        key = _key(inside, last)
        inside[key] = value(inside[key]) if callable(value) else value
    return found


def _key(inside: Any, word: str) -> Any:
    return int(word) if isinstance(inside, list) else word


def refusal(folder: Path, content: dict[str, Any] | bytes | str) -> str:
    """What is said of a file, after its path."""
    path = folder / "x.json"
    content = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        read([path])
    message = str(caught.value).removeprefix(f"{path}: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 600
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_program_writes_is_read_and_drawn(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(of_kind(kind)), encoding="utf-8")
    assert "a test" in report(read([path]), "Result") or kind == "sweep"


def test_goldens_are_read(tmp_path: Path) -> None:
    """Those that are kept whole. Their numbers are rounded to ten digits."""
    names = [f"dmft/{name}" for name in ("I", "II", "III", "mup", "top-k", "trivial", "compared", "converging")]
    names += [f"sweep/{name}" for name in ("two schemes", "plain, four schemes", "regimes, adam", "top-k", "diverging")]
    names += [f"documents/plan --by-name: {name}" for name in ("configs", "a config alone")]
    path = tmp_path / "x.json"
    for name in ("check/II, mssp, sgd", *names):
        found = kept(name)["json"] | {"made_with": MADE_WITH}
        path.write_text(json.dumps(found).replace('"masked"', "null"), encoding="utf-8")
        read([path])
    assert len(transfer_text.tinyimagenet().outcomes) == 12


# -- texts that are no JSON --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, '{"overlay": ' * 50_000, '{"quantities": ' + "[" * 40 + "]" * 40 + "}"],
    ids=["lists", "objects", "closed"],
)
def test_a_file_that_is_nested_too_deeply_is_refused_with_the_bound(tmp_path: Path, content: str) -> None:
    assert refusal(tmp_path, content) == f"it is nested more than {DEEPEST} deep"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("NaN", "NaN is not a number that JSON has"),
        ("-Infinity", "-Infinity is not a number that JSON has"),
        ("1e999", "'1e999' is beyond the numbers that a float can hold"),
        ("9" * 400, "a number of 400 digits is beyond those that a float can hold"),
        ("9" * 9_000, "a number of 9000 digits is beyond those that a float can hold"),
    ],
    ids=["NaN", "infinity", "1e999", "400 digits", "9000 digits"],
)
def test_a_number_that_no_float_holds_is_refused(tmp_path: Path, number: str, message: str) -> None:
    assert refusal(tmp_path, f'{{"quantities": {number}}}') == f"it is not JSON: {message}"


@pytest.mark.parametrize("content", ["5", '"text"', "null", "true", "[]", "1e3"])
def test_a_document_of_one_value_is_none_of_ours(tmp_path: Path, content: str) -> None:
    assert "it is no result that a report shows" in refusal(tmp_path, content)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, '{"settings": [], "settings": []}')
        == "it is not JSON: 'settings' is there twice: nothing and nothing"
    )
    plan = mssp.plan(mssp.Shape(64, 16, 4, 4, 1), regime="II", lr=1.0).json()
    message = refusal(tmp_path, plan.replace('"lr": 1.0,', '"lr": 1.0, "lr": 2.0,', 1))
    assert message == "it is not JSON: 'lr' is there twice: 1.0 and 2.0"


@pytest.mark.parametrize("content", [b"{\xff\xfe}", b'{"quantities": "\x80"}', b'{"overlay": "\\ud800"}'])
def test_a_text_that_cannot_be_decoded_is_refused(tmp_path: Path, content: bytes) -> None:
    assert refusal(tmp_path, content).startswith("it is not JSON: 'utf-")


# -- documents against their schemas -----------------------------------------------------------------------------------

QUANTITY = "quantities__aggregate/init"
OVERLAY = "overlay__"


@pytest.mark.parametrize(
    ("kind", "edit", "message"),
    [
        ("check", {f"{QUANTITY}__verdict": "maybe"},
         "corrupt check file: quantities.aggregate/init.verdict must be one of ok, off, zero, unpredicted, "
         "got 'maybe'"),
        ("check", {f"{QUANTITY}__values__64": "big"},
         "corrupt check file: quantities.aggregate/init.values.64 must be a list, got 'big'"),
        ("check", {"steps": 4.0}, "corrupt check file: steps must be a whole number from 1 to 9.0072e+15, got 4.0"),
        ("check", {"made_with": {"device": {}}},
         "corrupt check file: made_with.device must be a text of 0 to 1000 characters or null, got an object"),
        ("check", {"active": 9}, "corrupt check file: active must be a whole number from 1 to 8 or null, got 9"),
        ("check", {"data": 10**200}, "corrupt check file: data must be a text of 0 to 5000 characters, got a number of "
         "201 digits"),
        ("check", {f"{QUANTITY}__more": 1},
         "corrupt check file: it has 'quantities.aggregate/init.more', which this mssp does not know"),
        ("sweep", {"song": 1}, "corrupt sweep file: it has 'song', which this mssp does not know"),
        ("sweep", {"settings__0__wider_is_better": "perhaps"},
         "corrupt sweep file: settings.0.wider_is_better must be one of yes, no, stalls, unclear, got 'perhaps'"),
        ("sweep", {"settings__0__seeds": 0}, "corrupt sweep file: settings.0.seeds must be a whole number from 1"),
        ("sweep", {"settings__1__widths__64__best_grid_lr": -1},
         "corrupt sweep file: settings.1.widths.64.best_grid_lr must be a number above 0 or null, got -1"),
        ("limit", {f"{OVERLAY}regime": "IV"},
         "corrupt limit file: overlay.regime must be one of I, II, III, got 'IV'"),
        ("limit", {f"{OVERLAY}mean__f": None}, "corrupt limit file: overlay.mean.f must be a list, got null"),
        ("by name", {"parameters__header__0": "colour"},
         "corrupt plan file by name: parameters.header.0 must be one of parameter, shape"),
        ("by name", {"factors": ["× 2", 3]},
         "corrupt plan file by name: factors.1 must be a text of 1 to 1000 characters, got 3"),
    ],
)  # fmt: skip
def test_what_a_schema_does_not_allow_is_refused_by_its_place(
    tmp_path: Path, kind: str, edit: dict[str, Any], message: str
) -> None:
    assert refusal(tmp_path, edited(kind, **edit)).startswith(message)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_is_missing_is_named(tmp_path: Path, kind: str) -> None:
    required = {"check": "scheme", "sweep": "experiment", "limit": "kernels", "by name": "factors"}[kind]
    found = of_kind(kind)
    del found[required]
    assert refusal(tmp_path, found).endswith(f": no '{required}'")


def test_no_huge_value_is_printed(tmp_path: Path) -> None:
    for kind, place in (("check", f"{QUANTITY}__reason"), ("sweep", "experiment"), ("by name", "plan__scheme")):
        assert "…" in refusal(tmp_path, edited(kind, **{place: "long " * 5_000}))


# -- documents against themselves --------------------------------------------------------------------------------------


def other(value: float) -> float:
    return value + 1


def shorter(values: list[Any]) -> list[Any]:
    return values[:-1]


def backwards(entries: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(entries.items()))


CONTRADICTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("check", {"verdict": "pass"}, "verdict is 'pass', and from the rest of the file follows 'fail'"),
    ("check", {"stable": True}, "stable is true, and from the rest of the file follows false"),
    ("check", {f"{QUANTITY}__verdict": "unpredicted"}, "judged must be null beside the verdict unpredicted"),
    ("check", {f"{QUANTITY}__verdict": "zero"}, "verdict is zero, and not all of its values are"),
    ("check", {f"{QUANTITY}__judged": None, f"{QUANTITY}__verdict": "ok"}, "verdict is ok, and nothing was judged"),
    ("check", {f"{QUANTITY}__judged": None, f"{QUANTITY}__reason": ""}, "verdict is off, and there is no reason"),
    ("check", {f"{QUANTITY}__judged__exponent": other}, "judged belongs to none of its exponents and predictions"),
    ("check", {f"{QUANTITY}__judged__expected": other}, "judged belongs to none of its exponents and predictions"),
    ("check", {f"{QUANTITY}__verdict": "ok"}, "verdict is ok, and −0.500 ± "),
    ("check", {f"{QUANTITY}__exponents": shorter}, "exponents must be 5 numbers, got 4"),
    ("check", {f"{QUANTITY}__values__64": shorter}, "values must have 5 numbers at each of [64, 128, 256]"),
    ("check", {f"{QUANTITY}__values__64__2": other}, "exponents.2 must be -2.08496, as its values grow, got -0.5"),
    ("check", {f"{QUANTITY}__exponents__2": None}, "ci.2 belongs to no exponent"),
    ("check", {f"{QUANTITY}__slack__2": None}, "slack.2 belongs to no prediction, or is missing"),
    ("check", {f"{QUANTITY}__source": None}, "has predictions, and no source of them"),
    ("check", {f"{QUANTITY}__predicted__2": 9e5}, "predicted.2 leads beyond all numbers, got 900000"),
    ("check", {"widths": [128, 64, 256]}, "widths must be in growing order, got [128, 64, 256]"),
    ("check", {"steps": 5}, "must be 6 numbers, got 5"),
    ("check", {"loss__64": shorter}, "loss must have 4 numbers at each of [64, 128, 256]"),
    ("check", {"causes": []}, "causes do not name 'weights of expert_out', whose quantity is off"),
    ("check", {"causes__0__role": "router"}, "causes do not name 'weights of expert_out', whose quantity is off"),
    ("check", {"causes__0__setting": "divergence", "causes__0__role": ""}, "causes name a divergence"),
    ("check", {"scheme": "ntp", "optimizer": "adam"}, "scheme 'ntp' is defined for sgd only, not adam"),
    ("check", {"numerics": lambda roles: {"readout": roles["router"]}}, "numerics.readout is of a gradient"),
    ("sweep", {"settings__0__drift_verdict": "drifts up"},
     "settings.0.drift_verdict is 'drifts up', and from the rest of the file follows 'stays'"),
    ("sweep", {"settings__1__drift_verdict": "stays"},
     "settings.1.drift_verdict is 'stays', and from the rest of the file follows 'drifts up'"),
    ("sweep", {"settings__0__why_unclear": "the moon"}, "settings.0.why_unclear is 'the moon', and from the rest"),
    ("sweep", {"settings__0__widths__128__at_edge": True}, "settings.0.drift_verdict is 'stays', and from the rest"),
    ("sweep", {"settings__0__drift__value": other}, "settings.0.drift.value is 1.0, and its best rates drift by 0"),
    ("sweep", {"settings__0__drift__ci": None}, "settings.0.drift_verdict is 'stays', and from the rest"),
    ("sweep", {"settings__0__seeds": 1}, "ci must be null: an interval takes a number and two seeds"),
    ("sweep", {"settings__1__wider_is_better": "yes"}, "settings.1.wider_is_better is yes, and the scores"),
    ("sweep", {"settings__0__wider_is_better_transferred": "no"}, "wider_is_better_transferred is no, and the scores"),
    ("sweep", {"settings__0__widths": backwards}, "settings.0.widths must be in growing order, got [256, 128, 64]"),
    ("sweep", {"settings__0__widths__128__diverged": 4}, "settings.0.widths.128.diverged is 4, of 3 seeds"),
    ("sweep", {"settings__0__widths__128__best_grid_lr": None}, "settings.0.widths must have their best_grid_lr"),
    ("sweep", {"settings__0__widths__128__best__value": None}, "best must be a score where a seed trained"),
    ("sweep", {"settings__0__widths__128__best__value": 1.5,
               "settings__0__widths__128__transferred__value": 1.5}, "best.value must be a share from 0 to 1, got 1.5"),
    ("sweep", {"settings__0__widths__64__transferred__ci": 0.4}, "transferred must be best, at the narrowest's own"),
    ("sweep", {"settings__1__widths__256__regret__value": other}, "settings.1.widths.256.regret.value is 1.2"),
    ("sweep", {"settings__1__widths__256__log2_best_lr__value": 1e4}, "log2_best_lr is 10000.0, which is the rate of"),
    ("sweep", {"settings__1__scheme": "mssp"}, "settings.1 is Regime II · mssp · sgd a second time"),
    ("sweep", {"settings__1__metric": "train_accuracy"}, "settings must have one metric, got train_accuracy, train"),
    ("sweep", {"settings__1__scheme": "jiang"}, "settings.1: scheme 'jiang' is defined for adam and adamw"),
    ("limit", {f"{OVERLAY}mean__phi1": shorter}, "overlay.mean.phi1 must be 3 × 1 numbers"),
    ("limit", {f"{OVERLAY}mean__f__1": shorter}, "overlay.mean.f must be 3 × 3 numbers"),
    ("limit", {f"{OVERLAY}steps": 3}, "must be 4 × 3 numbers"),
    ("limit", {f"{OVERLAY}targets": [1.0] * 4}, "overlay.targets must be at most 3 numbers, got 4"),
    ("limit", {f"{OVERLAY}beside": lambda networks: networks[::-1]}, "widths in growing order, got [16, 8]"),
    ("limit", {f"{OVERLAY}beside__0__deviation__f": other}, "overlay.beside of width 8 deviates in f by"),
    ("limit", {f"{OVERLAY}verdict": "grows: all is well"}, "overlay.verdict is 'grows', and from the rest"),
    ("limit", {f"{OVERLAY}exponents__f": [None, 0.5]}, "overlay.exponents.f must be two numbers, or null twice"),
    ("limit", {f"{OVERLAY}solutions": 1}, "must be at least 0 everywhere, and null for a single solution"),
    ("limit", {"regime": "III"}, "regime is not that of the overlay"),
    ("limit", {"test_inputs": 2}, "test_inputs is not that of the overlay"),
    ("limit", {"loss__1": other}, "loss is not that of the overlay"),
    ("limit", {"warnings": ["beware"]}, "warnings is not that of the overlay"),
    ("limit", {"finite__8__seeds": other}, "finite is not that of the overlay"),
    ("limit", {"finite": lambda networks: {"8": networks["8"]}}, "finite must have the widths that are beside"),
    ("limit", {"exponent": lambda exponents: {"loss": exponents["loss"]}}, "exponent and exponent_ci must have the"),
    ("limit", {"verdict": "slow"}, "verdict is not that of the overlay"),
    ("limit", {"kernels__phi2__1__0__0": other}, "kernels give another curve of phi2 than that of the overlay"),
    ("limit", {"kernels__router__mean": shorter}, "kernels.router.mean must be 3 × 3 numbers"),
    ("by name", {"parameters__rows__2": shorter}, "parameters.rows.2 must be 8 texts, got 7"),
    ("by name", {"parameters__rows__2__2": "cook"}, "parameters.rows.2 is of 'cook', which is no role of the plan"),
    ("by name", {"plan__lr": 5.0}, "corrupt plan file: its hash is"),
    ("by name", {"plan__hash": "x" * 9_000}, "corrupt plan file: its hash is 'xxx"),
    ("by name", {"plan__target": {"a\nb" * 900: 1}}, "corrupt plan file: Shape.__init__() got an"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "edit", "message"), CONTRADICTIONS, ids=lambda part: "" if callable(part) else None)
def test_a_contradiction_in_a_file_is_refused(tmp_path: Path, kind: str, edit: dict[str, Any], message: str) -> None:
    said = refusal(tmp_path, edited(kind, **edit))
    assert message in said
    assert said.startswith("corrupt ")


# -- kept results of the demo ------------------------------------------------------------------------------------------


def test_the_demo_makes_a_result_again_where_its_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "limit.json"
    whole = json.dumps(of_kind("limit") | {"demo": {"mssp": "0.1.0"}})
    path.write_text(whole, encoding="utf-8")
    assert demo._document(path) == json.loads(whole)
    for broken in (whole[: len(whole) // 2], "[" * 100_000, '{"demo": {"mssp": "0.1.0"}}', "[1]", "", '"\\ud800"'):
        path.write_text(broken, encoding="utf-8")
        assert demo._document(path) == {}
    assert demo._document(tmp_path / "none.json") == demo._document(tmp_path) == {}
