"""The demo from end to end, small: it goes on where it was stopped, and its second run is short."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mssp.cli import demo, main
from mssp.report.contents import read
from mssp.report.findings import findings_of
from mssp.sweep.execution import Local

SMALL = ["--widths", "32", "64", "--steps", "6", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_SAMPLES", 1200)
    monkeypatch.setattr(demo, "_SOLVES", 2)
    monkeypatch.setattr(demo, "_NETWORKS", (16, 32))
    monkeypatch.setattr(demo, "_SEEDS", 4)
    monkeypatch.setattr(demo, "_UPDATES", 3)
    monkeypatch.setattr(demo, "_CHECK_STEPS", 3)


def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["demo", "--folder", str(folder), *SMALL])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_from_end_to_end_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    code, out, err = run(folder, capsys)
    assert code == 0
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["1/6", "2/6", "3/6", "4/6", "5/6", "6/6"]
    assert "expert_out       0.03125 N_e⁻¹ᐟ²" in out  # the plan
    closing = out[out.index("Found:") :].splitlines()
    assert len(closing) == 10
    assert [line.split()[0] for line in closing] == [
        "Found:", "μP", "best", "MSSP", "best", "limit", "model", "recorded", "Open", "Next:",
    ]  # fmt: skip
    assert "μP 0.268 ± 0.007 to 0.228 ± 0.011, MSSP 0.287 ± 0.005 to 0.308 ± 0.006" in closing[7]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Recorded: Regime II · SGD, tinyimagenet" in page
    assert "model.layers.*.mlp.experts.down_proj" in page

    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    code, again, err = run(folder, capsys)
    assert (code, again) == (0, out)
    assert re.findall(r"\((\w+)\)", err) == ["kept", "kept", "kept", "kept"]
    assert {path.name: path.read_bytes() for path in folder.glob("*.json")} == before
    assert (folder / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.slow
def test_every_number_of_the_closing_is_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    _, out, _ = run(folder, capsys)
    kept = read([folder / "runs.sqlite", folder / "check-mup.json", folder / "check-mssp.json", folder / "limit.json"])
    assert kept.limits[0].verdict in out
    findings = [finding for finding in findings_of(kept) if finding.outcome is not None and finding.check is not None]
    assert len(findings) == 2
    for finding in findings:
        assert finding.outcome is not None
        for summary in (finding.outcome.summaries[0], finding.outcome.summaries[-1]):
            assert f"{summary.best.text(3)} at N = {summary.width}" in out
    document = json.loads((folder / "hugging-face.json").read_text(encoding="utf-8"))
    assert f"{document['verified']} parameters verified, loss {document['loss'][0]:.2f}" in out


@pytest.mark.slow
def test_another_demo_in_the_same_folder_is_another_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of other widths or steps: the store keeps both, the report is of the last."""
    folder = tmp_path / "demo"
    run(folder, capsys)
    for more in (["--steps", "7"], ["--widths", "48", "64"]):
        code = main(["demo", "--folder", str(folder), *SMALL, *more])
        out = capsys.readouterr().out
        assert code == 0
        assert len(out[out.index("Found:") :].splitlines()) == 10
    assert "at N = 48" in out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.count('id="transfer-1-regime-ii-sgd"') == 1
    assert "transfer-2" not in page


@pytest.mark.slow
def test_an_interrupted_demo_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    with monkeypatch.context() as patched:

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(Local, "run", interrupted)
        code, _, err = run(folder, capsys)
    assert code == 130
    assert f"stopped: what is finished is in {folder}, the same command goes on" in err
    assert not (folder / "report.html").exists()
    code, _, err = run(folder, capsys)
    assert code == 0
    assert err.count("(kept)") == 2
    assert (folder / "report.html").exists()


@pytest.mark.slow
def test_a_torn_file_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    run(folder, capsys)
    whole = (folder / "limit.json").read_text(encoding="utf-8")
    (folder / "limit.json").write_text(whole[:100], encoding="utf-8")
    code, _, err = run(folder, capsys)
    assert (code, err.count("(kept)")) == (0, 3)
    assert json.loads((folder / "limit.json").read_text(encoding="utf-8"))["overlay"] == json.loads(whole)["overlay"]


@pytest.mark.slow
def test_without_transformers_there_is_one_stage_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    code, out, err = run(tmp_path / "demo", capsys)
    assert code == 0
    assert "5/5 report" in err
    assert "without a Hugging Face model: pip install 'mssp[hf]' for that" in err
    assert "Hugging Face" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--folder", "{}/file"],
            "--folder must be a folder, or a name for one in a folder that is there, got '{}/file'",
        ),
        (
            ["--folder", "{}/no/where"],
            "--folder must be a folder, or a name for one in a folder that is there, got '{}/no/where'",
        ),
        (["--seeds", "0"], "--seeds must be a positive whole number, got 0"),
        (["--widths", "100", "200"], "Regime II has an expert for every 16 of width: 100 is no multiple of it"),
        (["--widths", "64", "64"], "--widths must be 2 or more different ones, got 1"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("here", encoding="utf-8")
    flags = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    code = main(["demo", "--folder", str(tmp_path / "demo"), *flags])
    err = capsys.readouterr().err
    assert code == 2
    assert err == f"mssp: error: {message.replace('{}', str(tmp_path))}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
