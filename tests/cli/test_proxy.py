"""``mssp proxy``: what it prints and writes, and the mistakes that people make with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mssp.cli import main

PAIRS = Path(__file__).parent.parent / "hf" / "pairs"
QWEN = str(PAIRS / "qwen3-235b" / "target.json")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["proxy", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


EXPECTED = """\
Proxies of width 1024 for a model of N 4096  N_e 1536  M 128  K 8  L 94: 235 B parameters, 22.2 B active

   N     N_e   M    K  L   regime  κ     parameters  active  cost   stability
─  ────  ────  ───  ─  ──  ──────  ────  ──────────  ──────  ─────  ────────────────────
   1024  384   128  8  94  I       1     14.9 B      1.63 B  7.3%   stable
   1024  1536  32   2  94  II      1     14.9 B      1.62 B  7.3%   stable
   1024  384   32   2  94  III     4     4.28 B      955 M   4.3%   stable: tied
→  1024  384   32   8  94  any     1     4.28 B      1.62 B  7.3%   stable
   1024  1536  128  8  94  any     0.25  57.5 B      4.29 B  19.3%  unstable: κ^-1/2 = 2
"""


def test_alternatives_are_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = said(capsys, QWEN, "--width", "1024", "--output", str(tmp_path / "small"))
    assert (code, out) == (0, EXPECTED)
    assert err == f"config in {tmp_path}/small/config.json\n"


def test_the_proxy_is_written_and_plans_to_its_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = tmp_path / "small"
    assert said(capsys, QWEN, "--width", "1024", "--depth", "4", "--output", str(small))[0] == 0
    text = (small / "config.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "small"]
    line = ["plan", "--base-config", str(small), "--target-config", QWEN, "--lr", "4e-3", "--json", "--by-name"]
    assert main(line) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["base"]["width"], plan["base"]["expert_width"], plan["base"]["depth"]) == (1024, 384, 4)
    assert plan["roles"]["expert_out"]["lr"] == 0.001


def test_rungs_have_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = said(capsys, QWEN, "--width", "512", "--rungs", "3", "--output", str(tmp_path))
    assert code == 0
    files = [tmp_path / f"width-{width}" / "config.json" for width in (512, 1024, 2048)]
    assert err == "".join(f"config in {file}\n" for file in files)
    assert [json.loads(file.read_text(encoding="utf-8"))["hidden_size"] for file in files] == [512, 1024, 2048]
    assert out.count("→") == 2


def test_a_config_that_is_there_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also that of the large model, and where one of several files is there none is written."""
    (tmp_path / "width-1024").mkdir()
    file = tmp_path / "width-1024" / "config.json"
    file.write_text("kept", encoding="utf-8")
    code, out, err = said(capsys, QWEN, "--width", "512", "--rungs", "3", "--output", str(tmp_path))
    assert (code, out) == (2, "")
    assert err == f"mssp: error: {file} is there already: remove it, or choose another --output\n"
    assert file.read_text(encoding="utf-8") == "kept"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "width-1024"]


def test_a_name_on_the_hub_is_one_where_there_is_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "somebody/some-model", "--width", "512")
    assert (code, out) == (2, "")
    assert err.startswith("mssp: error: somebody/some-model is no path here, and the Hub does not give its config.json")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([QWEN], "--width is missing: say how wide the small model is"),
        (["no/config.json", "--width", "8"], "CONFIG must be a config.json that is there, its folder, or a model on"),
        ([QWEN, "--width", "8192"], "width must be at most that of the large model, 4096, got 8192"),
        ([str(PAIRS), "--width", "8"], f"{PAIRS}/config.json: there is no such file"),
        ([QWEN, "--width", "512", "--rungs", "0"], "--rungs must be a positive whole number, got 0"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], line: list[str], message: str) -> None:
    code, out, err = said(capsys, *line)
    assert (code, out, err.startswith(f"mssp: error: {message}")) == (2, "", True)
