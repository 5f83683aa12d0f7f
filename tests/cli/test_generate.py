"""``mssp generate``: a trained model goes on with a text, and the same seed gives the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mssp.cli import main
from tests.train.runs import training_in


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    training_in(folder).run()
    return folder


def printed(capsys: pytest.CaptureFixture[str], run: Path, *flags: str) -> str:
    assert main(["generate", "--checkpoint", str(run), "--device", "cpu", *flags]) == 0
    return capsys.readouterr().out


def test_the_same_seed_gives_the_same_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [printed(capsys, run, "--prompt", "def ", "--length", "40", "--seed", seed) for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("def ")
    greedy = {printed(capsys, run, "--temperature", "0", "--length", "40", "--seed", seed) for seed in ("1", "2")}
    assert len(greedy) == 1
    assert printed(capsys, run, "--top-k", "1", "--length", "40") in greedy


def test_the_text_ends_where_a_document_does(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from mssp.nn import GPT

    added = torch.tensor([[*b"a = 1\n", 0, *b"another document"]])
    seen: list[list[int]] = []

    def generate(model: GPT, tokens: torch.Tensor, *arguments: Any) -> torch.Tensor:
        seen.append(tokens[0].tolist())
        return torch.cat([tokens, added], dim=1)

    monkeypatch.setattr(GPT, "generate", generate)
    assert printed(capsys, run, "--prompt", "x\n") == "x\na = 1\n\n"
    assert seen == [[0, *b"x\n"]]  # a document starts behind the end of another


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--top-k", "257"], "top_k is 257, the vocabulary has 256 tokens"),
        (["--temperature", "-1"], "--temperature must be a number of at least 0, got -1"),
        (["--length", "0"], "--length must be a positive whole number, got 0"),
        (["--checkpoint", "nowhere"], "nowhere holds no run: it has no settings.json"),
    ],
)
def test_mistakes_get_one_line(run: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = [] if "--checkpoint" in flags else ["--checkpoint", str(run)]
    assert main(["generate", *place, "--device", "cpu", *flags]) == 2
    assert capsys.readouterr().err == f"mssp: error: {message}\n"
