"""``mssp train`` on the command line: recipes, flags over them, runs that go on, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mssp
from mssp.cli import main

RECIPE = """
about = "a tiny model"
[model]
width = 32
expert_width = 16
experts = 4
active = 2
depth = 2
head = 16
vocabulary = 256
[plan]
lr = 0.01
regime = "III"
[data]
sequence = 16
validation = 2
[training]
steps = 2
tokens_per_step = 32
warmup = 1
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE)


def settings_in(folder: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(folder, "settings.json").read_text())["settings"]
    return document


def train(line: str) -> int:
    return main(["train", *line.split(), "--device", "cpu"])


def refused(capsys: pytest.CaptureFixture[str], line: str) -> str:
    assert train(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("mssp: error: ").rstrip("\n")


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--recipe tiny.toml --out a") == 0
    out, err = capsys.readouterr()
    assert out.startswith("a: 2 steps, validation loss 5.")
    assert "steps of 32 tokens" in err
    assert "step 2/2  loss " in err
    assert train("--out a --resume") == 0
    assert "on from step 2" in capsys.readouterr().err
    assert "holds a run: go on with --resume" in refused(capsys, "--recipe tiny.toml --out a")


def test_flags_stand_for_entries_of_the_recipe() -> None:
    said_by_flags = "--warmup 0 --seed 3 --lr-mult router=2 --gpt.experts 8 --z-loss 0 --clip 3"
    assert train(f"--recipe tiny.toml --out a {said_by_flags}") == 0
    said = settings_in("a")
    assert (said["training"]["warmup"], said["training"]["seed"], said["training"]["z"]) == (0, 3, 0)
    assert (said["training"]["clip"], said["plan"]["lr_mult"], said["model"]["experts"]) == (3, {"router": 2}, 8)
    assert said["training"]["steps"] == 2


def test_a_plan_file_stands_in_place_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = mssp.plan(mssp.Shape(32, 16, 4, 2, 2), regime="III", lr=0.02)
    Path("plan.json").write_text(plan.json())
    assert train("--recipe tiny.toml --out a --plan plan.json") == 0
    assert mssp.Plan.from_json(Path("a/plan.json").read_text()) == plan
    capsys.readouterr()
    assert refused(capsys, "--recipe tiny.toml --out b --plan plan.json --lr 0.1") == (
        "--lr does not go with --plan: the plan file says it"
    )
    assert "the plan is for" in refused(capsys, "--recipe tiny.toml --out b --plan plan.json --gpt.experts 8")
    assert not Path("b").exists()


def test_another_run_is_refused_with_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--recipe tiny.toml --out a") == 0
    capsys.readouterr()
    assert refused(capsys, "--out a --resume --lr 0.02") == "a holds another run: plan.lr is 0.02 here, 0.01 there"


def test_the_recipes_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--recipe list") == 0
    assert "\nbytes " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--recipe tiny.toml --model llama.json",
            "--model must be gpt or a config.json that is there, got 'llama.json'",
        ),
        ("--recipe tiny.toml --data text.bin", "text.bin"),
        ("--recipe tinny", "recipe must be one of"),
        ("--out nowhere --resume", "nowhere holds no run: it has no settings.json"),
        ("--recipe tiny.toml --track wandb", "--track wandb needs the package wandb: pip install wandb"),
        ("--recipe tiny.toml --layout fsdp", "layout must be for 1 processes, got fsdp"),
        ("--recipe tiny.toml --gpt.vocabulary 100", "the model's vocabulary must be at least 256, got 100"),
    ],
)
def test_what_is_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, line)
    assert not Path("run").exists()
