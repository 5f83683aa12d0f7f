"""Settings of runs: recipe files, what they refuse, and what may differ when a run goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mssp.train import RunSettings, listed_recipes, read_recipe
from mssp.train.settings import FREE


@pytest.mark.parametrize("name", listed_recipes())
def test_every_recipe_of_the_package_is_read_whole(name: str) -> None:
    settings = RunSettings.of(read_recipe(name))
    assert RunSettings.of(settings.json()) == settings
    assert settings.sequences_per_step >= 1


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"trainig": {}}, "a recipe has no entry trainig; perhaps you meant training"),
        (
            {"training": {"tokens_a_step": 1}},
            "[training] has no entry tokens_a_step; perhaps you meant tokens_per_step",
        ),
        ({"training": 3}, "[training] must be a table of entries, as [training] in TOML"),
        ({"training": {"steps": 0}}, "steps must be a positive whole number, got 0"),
        ({"training": {"schedule": "linear"}}, "schedule must be one of constant, cosine, wsd, got 'linear'"),
        ({"training": {"steps": 5, "warmup": 6}}, "warmup must be at most the 5 steps of the run, got 6"),
        ({"data": {"sequence": "long"}}, "sequence must be a positive whole number, got 'long'"),
        ({"watch": {"routers_every": 0}}, "routers_every must be a positive whole number, got 0"),
    ],
)
def test_what_a_recipe_may_not_say(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RunSettings.of(document)


def test_tokens_of_a_step_are_whole_sequences() -> None:
    settings = RunSettings.of({"training": {"tokens_per_step": 100}, "data": {"sequence": 64}})
    with pytest.raises(ValueError, match="tokens_per_step must be a multiple of the sequence of 64 tokens, got 100"):
        _ = settings.sequences_per_step


def test_differences_are_of_what_is_computed() -> None:
    one = RunSettings.of({"about": "one", "training": {"steps": 10, "save_every": 5}, "plan": {"lr": 0.1}})
    other = RunSettings.of({"about": "other", "training": {"steps": 20, "save_every": 7}, "plan": {"lr": 0.2}})
    assert one.differences(other) == ["plan.lr is 0.1 here, 0.2 there", "training.steps is 10 here, 20 there"]
    assert one.differences(one) == []
    known = {
        "about",
        *(f"training.{name}" for name in vars(one.training)),
        *(f"watch.{name}" for name in vars(one.watch)),
    }
    assert known >= FREE


def test_recipes_by_path(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('about = "mine"\n[training]\nsteps = 3\n')
    assert RunSettings.of(read_recipe(file)).training.steps == 3
    file.write_text("steps = ")
    with pytest.raises(ValueError, match=r"own\.toml is not a recipe: "):
        read_recipe(file)
    with pytest.raises(ValueError, match=r"recipe must be one of .*bytes.*, got 'byts'; perhaps you meant"):
        read_recipe("byts")
