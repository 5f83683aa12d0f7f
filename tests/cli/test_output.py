"""What commands print, and the codes that they exit with, whatever stands behind the output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mssp
from mssp.cli import commands, main
from mssp.cli.explain import ExplainCommand

PLAN = "plan --target.width 2048 --target.experts 64 --target.active 64 --target.expert-width 1024 --target.depth 8"
PLAN = f"{PLAN} --base.width 256 --base.experts 8 --base.active 8 --base.expert-width 128 --base.depth 8 --lr 4e-3"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: str) -> str:
    """What a command prints on a stream of an encoding that refuses what it lacks."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        assert main(arguments.split()) == 0
    assert stream.errors == "strict"
    stream.seek(0)
    return stream.read()


def test_an_encoding_without_our_characters_spells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, "ascii", PLAN).splitlines()
    row = next(line for line in lines if line.startswith("expert_out "))
    assert row.split() == ["expert_out", "0.03125", "N_e^-1/2", "0.0005", "N_e^-1", "1.563e-10", "M^-1N^-1L^-1", "tied"]
    assert "N_e^-\u00b9/\u00b2" in printed(monkeypatch, "latin-1", PLAN)
    assert "N_e\u207b\u00b9\u141f\u00b2" in printed(monkeypatch, "utf-8", PLAN)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_stays_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = printed(monkeypatch, encoding, f"{PLAN} --scheme mup --json")
    assert mssp.Plan.from_json(document) == mssp.Plan.from_json(
        printed(monkeypatch, "utf-8", f"{PLAN} --scheme mup --json")
    )
    text = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", text)
    monkeypatch.setattr(ExplainCommand, "run", lambda self: print(json.dumps("\u2603 \u03bc", ensure_ascii=False)) or 0)
    assert main(["explain", "router"]) == 0
    text.seek(0)
    assert json.load(text) == "\u2603 mu"


def test_a_mistake_of_ours_exits_with_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object) -> int:
        raise KeyError("lost")

    monkeypatch.setattr(ExplainCommand, "run", broken)
    assert main(["explain", "router"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == (
        "mssp: internal error: KeyError. This is a mistake of mssp, not yours: please report it with the lines above "
        "and your command"
    )


def test_exit_codes_are_those_of_the_help_page() -> None:
    assert main(["explain", "router"]) == 0
    assert main(["explain", "rooter"]) == 2
    assert commands.__doc__ is not None
    assert all(f"{code} for" in commands.__doc__ for code in range(4))


@pytest.mark.parametrize("redirection", ["| true", "| head -1", ">&-", ">&- 2>&-"])
def test_output_that_nobody_reads_is_no_mistake(redirection: str) -> None:
    command = f"{sys.executable} -m mssp explain router {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_output_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(sys, "stdout", os.fdopen(descriptor, "w", closefd=False))
    assert main(["explain", "router"]) == 2
    assert capsys.readouterr().err == "mssp: error: the output: No space left on device\n"
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # takes what is not written yet


@pytest.mark.parametrize(
    "arguments",
    ["demo --folder {}", "report {}", "sweep --store {}", "tune --output {}", "sweep --data {}", "sweep --plot {}.svg"],
)
def test_names_that_are_not_utf8_are_refused_at_once(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = "bad\udcff"  # as Python hands over a byte that is no UTF-8
    Path(name).mkdir()
    assert main([word.format(name) for word in arguments.split()]) == 2
    error = capsys.readouterr().err
    assert "must be a name in UTF-8, got 'bad\\udcff" in error
    assert sorted(Path.cwd().iterdir()) == [Path.cwd() / name]


def test_two_documents_do_not_go_to_one_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--json", "--output", "-"]) == 2
    message = "--json and --output - would print two documents: leave out one of them"
    assert capsys.readouterr().err == f"mssp: error: {message}\n"


def test_tuning_prints_the_plan_alone(capsys: pytest.CaptureFixture[str]) -> None:
    small = "--device cpu --steps 8 --batch 10 --validation 50 --width 32 --optimizer adam --points 1 --broad-points 1"
    assert main(["tune", *small.split(), "--lr-points", "2", "--confirm", "0", "--output", "-"]) == 0
    out, err = capsys.readouterr()
    assert mssp.Plan.from_json(out).target.width == 32
    assert "tuned by grid" in err


def test_a_report_for_the_standard_output(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "plan.json").write_text(printed_plan(capsys))
    assert main(["report", "plan.json", "-o", "-"]) == 0
    out, err = capsys.readouterr()
    assert out.lstrip().startswith("<!DOCTYPE html>")
    assert out.rstrip().endswith("</html>")
    assert err == "report in -\n"


def printed_plan(capsys: pytest.CaptureFixture[str]) -> str:
    assert main([*PLAN.split(), "--scheme", "mup", "--json"]) == 0
    return capsys.readouterr().out


def test_a_store_is_kept_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--store", "-"]) == 2
    assert "--store must be a file to write in a folder that is there, got '-'" in capsys.readouterr().err
