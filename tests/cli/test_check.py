"""``mssp check`` as a person would call it."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mssp.cli import main

SCHEMA = json.loads(resources.files("mssp.coordcheck").joinpath("check.schema.json").read_text(encoding="utf-8"))
TINY = ["--widths", "32", "48", "64", "--steps", "3", "--seeds", "2", "--batch", "32", "--device", "cpu"]
RIGHT = ["--widths", "32", "64", "128", "256", "--steps", "6", "--device", "cpu"]
DEEP = ["--depths", "1", "2", "4", "--widths", "64", "--lr", "10", "--steps", "4", "--device", "cpu"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", *arguments, "--json"])
    check = json.loads(capsys.readouterr().out)
    jsonschema.validate(check, SCHEMA)
    return code, check


@pytest.mark.parametrize("regime", ["I", "II"])
def test_a_check_that_passes(regime: str, capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    assert main(["check", "--regime", regime, *RIGHT, "--require-stable"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == f"MSSP · Regime {regime} · SGD"
    assert lines[1].startswith("widths 32 64 128 256, 6 updates, 3 seeds; ")
    assert any(line.startswith("weights/expert_out ") and line.endswith(" ok") for line in lines)
    assert any(line.startswith("pass: all ") for line in lines)
    assert lines[-1] == "stable: the desiderata of maximal scale stability hold"
    assert "Traceback" not in printed.err
    assert list(elsewhere.iterdir()) == []


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, check = as_json(["--optimizer", "adam", *RIGHT], capsys)
    assert (code, check["verdict"], check["stable"], check["causes"]) == (0, "pass", True, [])
    assert (check["scheme"], check["optimizer"], check["regime"]) == ("mssp", "adam", "II")
    assert (check["widths"], check["steps"], check["seeds"]) == ([32, 64, 128, 256], 6, 3)
    assert (check["readout"], check["axis"]) == ("zero", "width")
    assert "numerics" not in check
    weights = check["quantities"]["weights/expert_out"]
    assert (weights["predicted"], weights["verdict"], weights["source"]) == ([0.5] * 7, "ok", "rules")
    assert weights["judged"]["exponent"] == pytest.approx(0.5, abs=0.15)
    moving = check["quantities"]["effective/expert_in"]
    # Of order 1, less what the random part of a sum over so few neurons falls by.
    first, second, *later = moving["predicted"]
    assert (first, second, len(later), len(set(later))) == (None, None, 5, 1)
    assert -0.5 < later[0] < 0
    assert moving["values"]["64"][:2] == [0.0, 0.0]
    assert moving["values"]["64"][2] > 0
    assert moving["exponents"][:2] == [None, None]
    assert {size: len(losses) for size, losses in check["loss"].items()} == dict.fromkeys(["32", "64", "128", "256"], 6)


def test_a_check_that_passes_may_be_asked_to_be_stable(capsys: pytest.CaptureFixture[str]) -> None:
    mup = ["--scheme", "mup", "--widths", "64", "128", "256", "512", "--steps", "6", "--device", "cpu"]
    code, check = as_json([*mup, "--require-stable"], capsys)
    assert (code, check["verdict"], check["stable"]) == (1, "pass", False)
    assert not check["quantities"]["aggregate/init"]["stable"]
    assert check["quantities"]["activation/aggregate"]["source"] == "simulated"


def test_over_depths(capsys: pytest.CaptureFixture[str]) -> None:
    code, check = as_json(DEEP, capsys)
    assert (code, check["verdict"], check["axis"], check["depths"]) == (0, "pass", "depth", [1, 2, 4])
    assert "widths" not in check
    assert check["quantities"]["rate/expert_in"]["judged"]["exponent"] == pytest.approx(1.0, abs=0.05)


def test_the_table_as_printed_fails_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *DEEP, "--as-printed"]) == 1
    out = capsys.readouterr().out
    assert "FAIL: " in out
    for role in ("router", "expert_in", "expert_out"):
        assert f"  likely cause: the learning rate of {role} is divided by L once too often" in out


def test_numerics(capsys: pytest.CaptureFixture[str]) -> None:
    _, check = as_json([*TINY, "--numerics"], capsys)
    assert set(check["numerics"]) == {"embedding", "router", "expert_in", "expert_out", "readout"}
    assert (check["numerics"]["expert_out"]["exponent"], check["numerics"]["expert_out"]["eps"]) == (-2.0, None)
    assert check["numerics"]["readout"]["leaves"]["fp16"] is None
    assert check["numerics"]["expert_out"]["leaves"]["fp16"] > 64
    main(["check", *TINY, "--numerics"])
    assert "gradients of layers drift apart as N^2" in capsys.readouterr().out


def test_figures(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    names = ["exponents.html", "sizes.html", "evaluation.html"]
    flags = ["--plot", names[0], "--plot-sizes", names[1], "--plot-evaluation", names[2]]
    assert main(["check", *TINY, *flags]) in (0, 1)
    err = capsys.readouterr().err
    for name in names:
        assert "<title>" in (elsewhere / name).read_text(encoding="utf-8")[:2000]
        assert f"figure in {name}" in err
    assert sorted(path.name for path in elsewhere.iterdir()) == sorted(names)


def test_everything(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", *TINY])
    some = capsys.readouterr().out.splitlines()
    main(["check", *TINY, "--all"])
    every = capsys.readouterr().out.splitlines()
    assert len(every) > len(some) + 20
    assert any(line.startswith("alignment/p/router ") for line in every)


def test_a_divergence_has_a_size_and_an_update(capsys: pytest.CaptureFixture[str]) -> None:
    code, check = as_json([*TINY, "--lr", "1e30"], capsys)
    assert (code, check["verdict"], check["stable"]) == (1, "fail", False)
    assert [cause["setting"] for cause in check["causes"]] == ["divergence"]
    assert check["causes"][0]["text"] == "training diverged at width 32 after 1 update: lower the learning rate"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regime", "IV"], "--regime must be one of I, II, III, got 'IV'"),
        (["--scheme", "best"], "--scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'best'"),
        (["--optimizer", "lion"], "--optimizer must be one of sgd, adam, adamw, got 'lion'"),
        (["--scheme", "jiang"], "scheme 'jiang' is defined for adam and adamw in regime III, not sgd in II"),
        (["--widths", "64"], "an exponent needs at least 2 different widths, got 64"),
        (["--widths", "64", "64"], "an exponent needs at least 2 different widths, got 64 64"),
        (["--widths", "32", "0"], "--widths must be a positive whole number, got 0"),
        (["--widths", "40", "64"], "Regime II has an expert for every 16 of width: 40 is no multiple of it"),
        (["--depths", "1", "2", "--widths", "32", "64"], "depths are checked at one width, got 32 64"),
        (["--depths", "3"], "an exponent needs at least 2 different depths, got 3"),
        (["--data", "nowhere"], "--data must be one of clusters, spectra, tinyimagenet, cifar10"),
        (["--steps", "501"], "501 steps of 100 need 50100 examples in a single pass, clusters has 50000"),
        (["--steps", "0"], "--steps must be a positive whole number, got 0"),
        (["--seeds", "-1"], "--seeds must be a positive whole number, got -1"),
        (["--batch", "0"], "--batch must be a positive whole number, got 0"),
        (["--lr", "-0.1"], "--lr must be a positive number, got -0.1"),
        (["--lr", "fast"], "--lr must be a positive number, got 'fast'"),
        (["--plot", "figure.gif"], "--plot must be a file to write that ends in .html, .svg, .pdf or .png"),
        (["--plot-sizes", "nowhere/x.html"], "--plot-sizes must be a file to write that ends in .html, .svg"),
        (["--multipliers", "nowhere"], "--multipliers must be one of tuned, ones, plain, tinyimagenet, "),
        (["--device", "abacus"], "--device must be auto, cpu, cuda or cuda:1, got 'abacus'"),
        (["--active", "2"], "no multipliers were tuned on clusters for sgd, Regime II, mssp, 2 of 8 experts"),
        (["--readout", "open"], "--readout must be one of zero, mup, scheme, got 'open'"),
    ],
)  # fmt: skip
def test_mistakes_get_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["check", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"mssp: error: {message}")
    assert list(elsewhere.iterdir()) == []


def test_nobody_is_warned_of_plans_that_are_made_for_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    """muP's router is random. What MSSP's would be tells how large gradients are, and nobody trains by it."""
    top_k = ["--active", "4", "--regime", "I", "--scheme", "mup", "--multipliers", "ones"]
    assert main(["check", *top_k, *TINY]) in (0, 1)
    assert capsys.readouterr().err == ""
