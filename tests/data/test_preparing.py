"""Preparing token files: parts by a hash of the text, and what was stopped ends as if nobody had stopped it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mssp.data import TokenFile, prepare, python_tokens
from mssp.data import preparing as module
from tests.data.test_text import ROWS, streaming
from tests.data.test_tokens import made

TEXTS = [f"document {i} — " * (1 + i % 7) for i in range(200)]


def documents(file: TokenFile) -> list[str]:
    return [bytes(file.document(i).astype(np.uint8)).decode() for i in range(file.documents)]


def of_part(file: TokenFile, part: str) -> set[str]:
    bounds = file.stretches(part)
    texts = [bytes(file.array[start:stop].astype(np.uint8)) for start, stop in bounds]
    return {text.decode() for text in b"".join(texts).split(b"\0")[:-1]}


def test_the_text_of_a_document_decides_for_which_part_it_is(tmp_path: Path) -> None:
    file = made(tmp_path, TEXTS, validation_share=0.1)
    assert documents(file) == TEXTS
    validation = of_part(file, "validation")
    assert 8 < len(validation) < 35
    assert of_part(file, "train") == set(TEXTS) - validation
    # In another order, and among other documents.
    others = made(tmp_path, [*TEXTS[::-2], *(f"more {i}" for i in range(50))], "others.bin", validation_share=0.1)
    assert of_part(others, "validation") & set(TEXTS) == validation & set(TEXTS[::-2])
    assert validation <= of_part(made(tmp_path, TEXTS, "larger.bin", validation_share=0.2), "validation")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DOCUMENTS", 7)


@pytest.mark.usefixtures("small_batches")
def test_batches_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(tmp_path, TEXTS).path.read_bytes()
    monkeypatch.setattr(module, "_MOST_DOCUMENTS", 64)
    (tmp_path / "tokens.bin").unlink()
    assert made(tmp_path, TEXTS).path.read_bytes() == first


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("tokens", [None, 8000])
def test_a_stopped_preparation_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int | None
) -> None:
    whole = made(tmp_path, TEXTS, tokens=tokens).path.read_bytes()
    rows, output = tmp_path / "tokens.bin.jsonl", tmp_path / "tokens.bin"
    output.unlink()
    for stop_at in (3, 5, 6):
        with pytest.raises(KeyboardInterrupt):
            prepare([rows], output, tokens=tokens, advance=stopping_after(stop_at))
        assert not output.exists()
        killed(tmp_path / "tokens.bin.part")
    state = json.loads((tmp_path / "tokens.bin.part" / "state.json").read_text())
    assert state["documents"] == 7 * (2 + 4 + 5)
    assert prepare([rows], output, tokens=tokens).path.read_bytes() == whole
    assert not (tmp_path / "tokens.bin.part").exists()
    monkeypatch.setattr(module, "_COMMIT_SECONDS", -1.0)
    output.unlink()
    assert prepare([rows], output, tokens=tokens).path.read_bytes() == whole


def stopping_after(calls: int) -> Callable[[int], None]:
    """Stops a preparation at a call of what is told of progress, the first of which comes before any document."""
    left = [calls]

    def advance(amount: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    return advance


def killed(part: Path) -> None:
    """What a process that is killed may leave: more in the files than the state says."""
    for name in ("tokens", "ends"):
        with (part / name).open("ab") as file:
            file.write(b"more" * 100_000)


def test_what_stops_between_the_last_byte_and_the_name_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(tmp_path, TEXTS).path.read_bytes()
    rows, output = tmp_path / "tokens.bin.jsonl", tmp_path / "tokens.bin"
    output.unlink()
    replace = os.replace

    def stopping(source: Path, target: Path) -> None:
        if target == output:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stopping)
        with pytest.raises(KeyboardInterrupt):
            prepare([rows], output)
    assert not output.exists()
    assert prepare([rows], output).path.read_bytes() == whole


def test_another_preparation_does_not_go_on_with_this_one(tmp_path: Path) -> None:
    rows, output = tmp_path / "a.jsonl", tmp_path / "tokens.bin"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    with pytest.raises(KeyboardInterrupt):
        prepare([rows], output, advance=stopping_after(2))
    for other in ({"validation_share": 0.5}, {"tokens": 100}, {"text_field": "body"}):
        with pytest.raises(ValueError, match=r"tokens\.bin\.part must be of a preparation with the same settings, got"):
            prepare([rows], output, **other)
    (output.with_name("tokens.bin.part") / "tokens").write_bytes(b"")
    with pytest.raises(ValueError, match=r"part is damaged: .*tokens is too short; remove it, and prepare again"):
        prepare([rows], output)
    (output.with_name("tokens.bin.part") / "state.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"state\.json is damaged \(it is not JSON: .*\): remove .*tokens\.bin\.part, and"
    ):
        prepare([rows], output)


def test_two_do_not_prepare_the_same_file(tmp_path: Path) -> None:
    rows, output = tmp_path / "a.jsonl", tmp_path / "tokens.bin"
    rows.write_text('{"text": "one"}')
    said: list[str] = []

    def advance(amount: int) -> None:
        if not said:
            with pytest.raises(
                ValueError, match=r"tokens.bin is being prepared by another process: wait for it"
            ) as error:
                prepare([rows], output)
            said.append(str(error.value))

    assert prepare([rows], output, advance=advance).documents == 1
    assert len(said) == 1


@pytest.mark.usefixtures("small_batches")
def test_a_dataset_over_a_line_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    streaming(monkeypatch, rows)
    whole = prepare([], tmp_path / "whole.bin", dataset="owner/name").path.read_bytes()
    streaming(monkeypatch, rows, breaks_at=100)
    with pytest.raises(ValueError, match="The same command goes on where this one stopped"):
        prepare([], tmp_path / "tokens.bin", dataset="owner/name")
    # 14 batches of 7 rows are kept; the rows before them are not asked for again.
    streaming(monkeypatch, [{}] * 98 + rows[98:])
    assert prepare([], tmp_path / "tokens.bin", dataset="owner/name").path.read_bytes() == whole


def test_a_number_of_tokens_is_kept_to_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streaming(monkeypatch, ROWS)  # six tokens each, with the end
    for tokens, count in ((1, 1), (6, 1), (7, 2), (12, 2), (100, 5)):
        file = prepare([], tmp_path / f"{tokens}.bin", dataset="owner/name", tokens=tokens)
        assert documents(file) == [row["text"] for row in ROWS[:count]]


def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, words = tmp_path / "rows.jsonl", tmp_path / "words.txt"
    rows.write_text('{"text": ""}')
    words.write_text("words")
    before = set(tmp_path.iterdir())
    output = tmp_path / "tokens.bin"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"files": [rows]}, "rows.jsonl has no text: at least one document with text is needed"),
        ({"files": [words], "output": words}, "words.txt is there already: remove it, or choose another name"),
        ({"files": [words], "output": tmp_path / "none" / "a"}, "cannot be written: there is no folder"),
        ({"files": [words], "dataset": "owner/name"}, "files must be left out where a dataset is named, got both"),
        ({"files": [], "split_on": "x"}, "split_on must be left out for a dataset, whose rows are documents"),
        ({"files": [words], "tokenizer": "gpt3"}, "gpt3 does not exist: a file is needed"),
        ({"files": [words], "tokens": 0}, "tokens must be a positive whole number, got 0"),
        ({"files": ["none.txt"]}, "none.txt does not exist: a file is needed"),
    ]
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            prepare(**{"output": output, **arguments})
        assert set(tmp_path.iterdir()) == before, message
    (tmp_path / "tokens.bin.part").write_text("")
    with pytest.raises(ValueError, match="part must be the folder of an unfinished token file, got a file: remove it"):
        prepare([words], output)


def test_a_full_disk_is_named_and_what_was_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made(tmp_path, TEXTS).path.read_bytes()
    rows, output = tmp_path / "tokens.bin.jsonl", tmp_path / "tokens.bin"
    output.unlink()

    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module, "sha256_of", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            prepare([rows], output)
    assert error.value.filename == str(output)
    assert prepare([rows], output).path.read_bytes() == whole


def test_the_standard_library_is_prepared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSSP_DATA", str(tmp_path / "cache"))
    file = python_tokens()
    assert (file.vocabulary, file.tokenizer) == (256, "bytes")
    assert file.source.startswith("the standard library of Python 3.")
    assert file.tokens > 5_000_000
    assert 0.001 < file.validation_documents / file.documents < 0.1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [file.path.name]
    made_at = file.path.stat().st_mtime_ns
    assert python_tokens().path.stat().st_mtime_ns == made_at
    file.path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"is an empty file and no token file: .*; delete it and try again"):
        python_tokens()
