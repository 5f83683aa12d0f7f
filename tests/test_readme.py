"""What the README and the pages beside it show is what happens."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import mssp
from mssp.cli import main
from own_transformer import CLAIMS, Transformer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def snippets(text: str, language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [code for kind, code in blocks if kind == language]


def test_the_plan_shown_is_the_plan_printed(capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = [block for block in snippets(README, "") if block.startswith("$ mssp plan")]
    command, _, output = shown.removeprefix("$ mssp ").replace("\\\n", " ").partition("\n")
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output


def test_the_first_snippet_runs() -> None:
    """With the example's model and claims, at a size that fits a test."""
    code = snippets(README, "python")[0]
    for shown, used in (
        ("width=256,  experts=8,  active=4,  expert_width=128,", "width=32, experts=8, active=4, expert_width=16,"),
        ("width=2048, experts=64, active=32, expert_width=1024,", "width=64, experts=16, active=8, expert_width=32,"),
    ):
        assert shown in code
        code = code.replace(shown, used)
    plan = mssp.plan(
        mssp.Shape(width=64, experts=16, active=8, expert_width=32, depth=8),
        mssp.Shape(width=32, experts=8, active=4, expert_width=16, depth=8),
        lr=4e-3,
        weight_decay=0.1,
    )
    names: dict[str, object] = {"model": Transformer(plan), "claims": CLAIMS}
    exec(code, names)
    assert names["plan"] == plan
    assert isinstance(names["optimizer"], torch.optim.AdamW)


def test_the_claims_shown_are_claims() -> None:
    names: dict[str, object] = {"mssp": mssp}
    exec(snippets(README, "python")[1], names)
    assert isinstance(names["claims"], dict)


def test_the_snippets_about_one_s_own_model_run() -> None:
    """What was tuned, modules that describe themselves, and schedules, as shown."""
    tuned, described, cosine, loop = snippets((ROOT / "docs" / "own-model.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {
        "mssp": mssp, "torch": torch, "nn": torch.nn, "math": math, "steps": 10, "step": 3, "factor": lambda step: 0.5,
        "base": mssp.Shape(width=32, experts=8, active=8, expert_width=16, depth=2),
        "target": mssp.Shape(width=64, experts=16, active=16, expert_width=32, depth=2),
    }  # fmt: skip
    exec(tuned, names)
    plan = names["plan"]
    assert plan.recipe.warmup == 700
    exec(described, names)
    assert names["Router"](4, 2, bias=False).param_infos()["weight"].role == "router"
    names["optimizer"] = torch.optim.AdamW(mssp.param_groups(Transformer(plan), plan, CLAIMS))
    exec(f"schedule = {cosine}", names)
    for _ in range(10):
        names["optimizer"].step()
        names["schedule"].step()
    assert mssp.check_schedule(names["optimizer"], plan) == pytest.approx(0.1)
    exec(loop, names)
    assert mssp.check_schedule(names["optimizer"], plan) == pytest.approx(0.5)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_benchmarks_named_in_the_pages_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\./dev bench ([a-z_]+)", page.read_text(encoding="utf-8"))}
    assert named
    assert all((ROOT / "benchmarks" / f"bench_{name}.py").exists() for name in named)
