"""``mssp data``: token files from the command line, and one line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from mssp.cli.commands import main
from mssp.data import token_file


def said(capsys: pytest.CaptureFixture[str], line: str, code: int = 0) -> tuple[str, str]:
    assert main(["data", *line.split()]) == code
    out, err = capsys.readouterr()
    return out, err


def test_a_file_is_prepared_checked_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("yes,never,,maybe")
    out, err = said(capsys, "prepare --split-on , a.txt --validation 0.5 -o tokens.bin")
    assert out.splitlines() == [
        "file        part        documents  tokens  vocabulary  tokenizer  checksum          source",
        "──────────  ──────────  ─────────  ──────  ──────────  ─────────  ────────────────  ──────",
        "tokens.bin  train       2          10      256         bytes      6c01cc415b9d208a  a.txt",
        "            validation  1          6",
    ]
    assert err == "mssp: warning: documents without text were left out: 1\n"
    assert said(capsys, "show tokens.bin") == (out, "")
    assert said(capsys, "check tokens.bin tokens.bin") == (
        2 * "tokens.bin is whole: 16 tokens, 3 documents, 6c01cc415b9d208a\n", ""
    )  # fmt: skip
    out, err = said(capsys, "prepare a.txt -o one.bin")
    assert err == "mssp: warning: no document is for validation: there is one, cut it by --split-on\n"
    assert token_file("one.bin").documents == 1


def test_mistakes_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("words")
    Path("bad.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    for line, message in {
        "check": "no file given: mssp data check tokens.bin",
        "show a.txt": "a.txt is a text and no token file: mssp data prepare makes a token file of text",
        "check a.txt --split-on x": "--split-on does not go with check: it is for prepare",
        "prepare a.txt": "--output is missing: name the token file to write, as -o tokens.bin",
        "prepare a.txt -o a.txt": "a.txt is there already: remove it, or choose another name",
        "prepare bad.jsonl -o b.bin": "bad.jsonl, line 2: text must be a text, got 2",
        "prepare -o b.bin": "the dataset allenai/dolma3_mix-150B-1025 is read by the library datasets, which is "
        "missing: mssp[data]; or give files",
        "prepare a.txt -o b.bin --tokenizer gpt5": "--tokenizer must be bytes, gpt2 or a tokenizer.json that is there, "
        "got 'gpt5'",
        "tell a.txt": "ACTION must be one of prepare, check, show, got 'tell'",
    }.items():
        assert said(capsys, line, 2) == ("", f"mssp: error: {message}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "bad.jsonl"]


def test_a_stopped_preparation_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("words")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mssp.cli.progress.Progress.advance", stop)
        assert said(capsys, "prepare a.txt -o b.bin", 130)[1] == (
            "mssp: stopped: run the same command again, which goes on from here\n"
        )
    assert said(capsys, "prepare a.txt -o b.bin")[1].startswith("mssp: warning: no document is for validation")
