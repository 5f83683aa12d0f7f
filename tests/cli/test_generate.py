"""``mssp generate``: a trained model goes on with a text, and the same seed gives the same text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mssp.cli import main
from mssp.data import prepare
from mssp.planning.recipe import without_plan_warnings
from mssp.train import RunSettings
from tests.hf.tiny_models import BASE, config_of
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


def test_a_hugging_face_model_goes_on_by_its_own_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("olmoe", BASE, vocab_size=256, eos_token_id=0)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    settings = {
        "model": {"config": str(tmp_path / "config.json")},
        "plan": {"lr": 4e-3, "regime": "III", "init_std": 0.02},
        "data": {"sequence": 16, "validation": 2},
        "training": {"steps": 1, "tokens_per_step": 32},
        "watch": {"routers_every": None},
    }
    with without_plan_warnings():
        training_in(tmp_path / "run", RunSettings.of(settings)).run()
    texts = [
        printed(capsys, tmp_path / "run", "--prompt", "def ", "--length", "8", "--seed", seed, "--top-k", "50")
        for seed in ("1", "1", "2")
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("def ")
    assert printed(capsys, tmp_path / "run", "--prompt", "def ", "--length", "8", "--temperature", "0")


def test_a_tokenizer_is_read_from_the_token_file_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = json.loads((run / "settings.json").read_text())
    settings["data"]["tokenizer"] = "gpt2"
    other = shutil.copytree(run, tmp_path / "run")
    (other / "settings.json").write_text(json.dumps(settings))
    assert main(["generate", "--checkpoint", str(other), "--data", str(tmp_path / "gone.bin")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mssp: error: the run's tokenizer is in its token file (")
    assert said.endswith("): say where it is, as --data\n")
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be\n" * 50)
    prepare([text], tmp_path / "tokens.bin")
    assert main(["generate", "--checkpoint", str(other), "--data", str(tmp_path / "tokens.bin")]) == 2
    assert capsys.readouterr().err.endswith("tokens.bin must have the run's tokenizer, gpt2, got one of bytes\n")
