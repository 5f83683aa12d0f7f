"""What the README and the pages beside it show is what happens."""

from __future__ import annotations

import math
import re
import shlex
import tempfile
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
    exec(snippets(README, "python")[2], names)
    assert isinstance(names["claims"], dict)


@pytest.mark.filterwarnings(
    "ignore:experts start alike:mssp.PlanWarning", "ignore:gates are renormalised:mssp.PlanWarning"
)
def test_the_snippets_about_hugging_face_run() -> None:
    page = snippets((ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8"), "python")
    whole, _, trainer, check = page
    sizes = {
        "hidden_size=256, intermediate_size=128": "vocab_size=64, hidden_size=32, intermediate_size=16",
        "hidden_size=1024, intermediate_size=512": "vocab_size=64, hidden_size=128, intermediate_size=64",
    }
    for shown, used in sizes.items():
        assert shown in whole
        whole = whole.replace(shown, used)
    names: dict[str, Any] = {}
    exec(whole, names)
    assert names["plan"].regime == "III"
    mssp.verify(names["model"], names["optimizer"], names["plan"])

    tokens = torch.arange(8).view(1, 8)
    row = {"input_ids": tokens[0], "labels": tokens[0]}
    quiet = {
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        names |= {"data": [row] * 8, "args": names["transformers"].TrainingArguments(folder, max_steps=1, **quiet)}
        exec(trainer, names)
        names["trainer"].train()
    assert any(name.startswith("lr/expert_in") for entry in names["trainer"].state.log_history for name in entry)

    exec(check.partition("\nreport")[0], names)
    shapes = [mssp.Shape(width, 16, width // 8, width // 16, 1) for width in (32, 64)]
    plan = mssp.plan(shapes[0], regime="II", lr=1e-3)
    names |= {"shapes": shapes, "batches": [(tokens, tokens)] * 2, "plan": plan}
    exec("report = mssp.check(build, shapes, batches, plan, seeds=2)", names)
    assert names["report"].quantities["effective/expert_in"].verdict == "ok"

    small, large = names["small"], names["large"]
    names = {"mssp": mssp, "torch": torch, "model": names["model"], "small_config": small, "large_config": large}
    exec(snippets(README, "python")[1], names)
    assert names["optimizer"].param_groups[0]["lr_scale"] > 0


@pytest.mark.parametrize("page", ["README.md", "docs/own-model.md"])
def test_the_probe_shown_runs(page: str) -> None:
    [code] = [code for code in snippets((ROOT / page).read_text(encoding="utf-8"), "python") if "probe=" in code]
    base, target = (mssp.Shape(n, n // 2, n // 8, n // 16, depth) for n, depth in ((32, 1), (64, 2)))
    plan = mssp.plan(target, base, lr=4e-3)
    model = Transformer(plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan, CLAIMS))
    names: dict[str, Any] = {"mssp": mssp, "model": model, "optimizer": optimizer, "plan": plan, "claims": CLAIMS}
    names |= {"tokens": torch.arange(8).view(1, 8), "build": Transformer}
    exec(code, names)
    vars(model.blocks[0])["residual"] = 1.0
    with pytest.raises(ValueError, match=r"blocks\.0\.moe: its output reaches the stream times 1, .* it is missing"):
        exec(code, names)


def test_the_snippets_about_one_s_own_model_run() -> None:
    """What was tuned, modules that describe themselves, and schedules, as shown. The draft has a test of its own."""
    tuned, _, described, _, cosine, loop = snippets(
        (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8"), "python"
    )
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


def test_the_layer_shown_runs() -> None:
    code = snippets(README, "python")[4]
    names: dict[str, Any] = {"x": torch.randn(3, 2048)}
    exec(code.replace("experts=256", "experts=16"), names)
    assert names["y"].shape == (3, 2048)


def test_the_models_shown_run() -> None:
    gpt, authors, replicas = snippets((ROOT / "docs" / "models.md").read_text(encoding="utf-8"), "python")
    tokens = torch.randint(256, (2, 64))
    names: dict[str, Any] = {"mssp": mssp, "torch": torch, "tokens": tokens, "following": tokens}
    exec(gpt, names)
    assert names["plan"].regime == "III"
    names["loss"].backward()
    names["optimizer"].step()
    exec(authors, names)
    attention_in = names["theirs"].parts["attention_in"]
    assert (round(attention_in.lr, 4), round(attention_in.weight_decay, 9)) == (0.0039, 0.2)
    names = {"torch": torch, "x": torch.randn(7, 12), "labels": torch.randint(3, (7,))}
    exec(replicas, names)
    assert names["acts"]["blocks.0.router"].shape == (5, 7, 4)
    assert names["losses"].shape == (5,)


def test_the_speeds_shown_are_those_of_the_record() -> None:
    """Every number of the table, and the ranges in the README."""
    ways = ("every expert", "HF grouped_mm", "auto")
    measured: list[dict[str, tuple[float, float, float]]] = []  # by shape and way: ms, times auto, GiB
    record = (ROOT / "records" / "2026-11-16-experts-nvidia-h200.md").read_text(encoding="utf-8")
    for section in record.split("### ")[1:]:
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if "%" in line]
        measured.append({way: (float(ms), float(ratio), float(gib)) for way, ms, ratio, gib, *_ in lines})
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    shown = [re.findall(r"([\d.]+) / ([\d.]+)", line) for line in page.splitlines() if line.endswith("% |")]
    for cells, by_way in zip(shown, measured, strict=True):
        for (ms, gib), way in zip(cells, ways, strict=True):
            assert float(ms) == pytest.approx(by_way[way][0], rel=0.03)
            assert float(gib) == pytest.approx(by_way[way][2], abs=0.051)
    naive, theirs = ([by_way[way][1] for by_way in measured] for way in ways[:2])
    text = " ".join(README.split())
    assert f"{min(theirs):.1f} to {max(theirs):.0f} times as fast as Hugging Face's grouped experts" in text
    assert f"{min(naive):.0f} to {max(naive):.0f} times as fast as running every expert on every token" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_benchmarks_named_in_the_pages_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"\./dev bench ([a-z_]+)", page.read_text(encoding="utf-8"))}
    assert named
    assert all((ROOT / "benchmarks" / f"bench_{name}.py").exists() for name in named)


def test_the_snippets_about_tuning_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    store, replicas = snippets(page, "python")
    monkeypatch.chdir(tmp_path)
    sweep = next(block for block in snippets(page, "") if block.startswith("mssp sweep"))
    small = "--widths 16 32 --steps 10 --validation 50 --seeds 2 --device cpu --multipliers ones"
    assert main([*shlex.split(sweep)[1:], *shlex.split(small)]) == 0
    assert (tmp_path / "transfer.html").exists()
    names: dict[str, Any] = {}
    exec(store, names)
    assert len(names["table"]) == 2 * 2 * 8 * 2
    assert set(names["curves"]) == {"loss", "accuracy", "top5"}
    assert (tmp_path / "runs.parquet").exists()
    exec(replicas, names)
    assert len(names["outcomes"]) == 6
    assert names["outcomes"][1].validation["top5"] > 0.1
    assert "(0." in capsys.readouterr().out


def test_the_snippet_about_limits_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "dmft.md").read_text(encoding="utf-8")
    [code] = snippets(page, "python")
    names: dict[str, Any] = {}
    exec(code.replace("solve(experiment)", "solve(experiment, samples=2000, solves=2)"), names)
    assert names["limit"].mean["f"].shape == (11, 3)
    assert capsys.readouterr().out.startswith("(")
    monkeypatch.chdir(tmp_path)
    sizes = "--target.width 64 --target.experts 32 --target.active 32 --target.expert-width 4 --target.depth 1"
    plan = f"plan {sizes} --target.inputs 8 --regime II --optimizer sgd --lr 0.1 --json"
    assert main(plan.split()) == 0
    Path("plan.json").write_text(capsys.readouterr().out, encoding="utf-8")
    shown = [line for block in snippets(page, "") for line in block.splitlines() if line.startswith("mssp dmft")]
    shown += [line for block in snippets(README, "") for line in block.splitlines() if line.startswith("mssp dmft")]
    assert len(shown) == 4
    for line in shown:
        words = [word for word in shlex.split(line, comments=True)[1:] if not word.isdecimal() or int(word) < 64]
        small = "--steps 3 --samples 400 --solves 2 --device cpu --seeds 2"
        assert main([*words, *small.split()]) == 0
    assert Path("limit.html").exists()


def test_the_snippets_of_the_check_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in snippets(page, "python"):
        exec(code, names)
    assert names["report"].quantities["weights/expert_out"].verdict == "ok"
    assert [line.step for line in names["watched"].lines] == [0, 2, 4]
