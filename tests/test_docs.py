"""The pages for people: what they show runs and is what happens, what they say agrees with the code and the records."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mssp
from mssp.cli.commands import _parse, main
from mssp.planning.configs import _SIZES
from mssp.planning.explanation import explain
from mssp.planning.growth import infer
from mssp.planning.rules import ROLES
from mssp.planning.setting import READOUTS, Setting
from mssp.planning.shape import FANS, SYMBOLS
from mssp.theory.propagation import tabulated
from own_transformer import CLAIMS, Transformer
from tests.words import OPTIMIZERS, REGIMES, SCHEMES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
RUN = (
    "tutorial",
    "faq",
    "regime-one",
    "regime-two",
    "regime-three",
    "report",
    "coming-from-mup",
    "proxy",
)  # from the first block to the last, in one folder
SLOW = ("tutorial", "report")
REGIME_PAGES = {"I": "regime-one", "II": "regime-two", "III": "regime-three"}
# What a command is given beside what is shown, so that it takes a second: of a flag said twice the last one counts.
SMALL = {
    "check": "--widths 32 64 --steps 3 --seeds 2 --batch 20 --device cpu --multipliers ones",
    "tune": "--width 16 --points 1 --broad-points 2 --lr-points 2 --steps 5 --validation 50 --confirm 2 --device cpu",
    "dmft": "--steps 3 --samples 400 --solves 2 --seeds 2 --device cpu",
    "sweep": "--widths 16 32 --lr-points 2 --steps 5 --validation 50 --seeds 2 --device cpu",
    "train": "--steps 3 --warmup 1 --tokens-per-step 256 --validation 2 --device cpu",
}
FAILS = ("check",)  # commands whose exit code is a verdict, of which such sizes make nothing


def read(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of every block of code, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def commands(block: str) -> Iterator[list[str]]:
    """The ``mssp`` commands of a block as words; ``...`` stands for flags that are left out."""
    for line in block.replace("\\\n", " ").splitlines():
        if re.match(r"(\$ )?mssp \w", line):
            yield [word for word in shlex.split(line.removeprefix("$ "), comments=True)[1:] if word != "..."]


def run(words: list[str], *, shown: bool = False) -> str:
    """What a command prints, to the file that it is redirected to or to us; a page may show one that is refused."""
    words, target = (words[:-2], words[-1]) if ">" in words else (words, "")
    if "--figures" in words and not shutil.which("chromium") and not os.environ.get("CI"):
        words = words[: words.index("--figures")]  # images need a browser, which a test's machine may lack
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, *SMALL.get(words[0], "").split()])
    if target:
        Path(target).write_text(out.getvalue(), encoding="utf-8")
    assert code == 0 or words[0] in FAILS or shown, err.getvalue()
    return out.getvalue() or err.getvalue()


def agrees(shown: str, printed: str) -> bool:
    """Whether what is shown was printed: all of it, or, where ``...`` stands for lines left out, its parts in order."""
    parts = [part.strip("\n") for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    place = 0
    for part in parts:
        place = printed.find(part, place)
        if place < 0:
            return False
    return len(parts) > 1 or shown == printed


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RUN])
def test_a_page_runs_from_top_to_bottom(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and commands in the order of the page, in one folder; outputs that are shown are those that come."""
    monkeypatch.chdir(tmp_path)
    small, large = ({"expert_width": 512, "experts": m, "active": m // 8} for m in (32, 256))
    plan = mssp.plan(mssp.Shape(4096, depth=18, **large), mssp.Shape(512, depth=10, **small), lr=2e-3)
    Path("plan.json").write_text(plan.json(), encoding="utf-8")
    for folder, (width, experts) in {"small": (32, 4), "large": (64, 8)}.items():
        sizes = {
            "hidden_size": width,
            "intermediate_size": 16,
            "num_experts": experts,
            "num_experts_per_tok": experts // 2,
        }
        more = {"model_type": "olmoe", "num_hidden_layers": 1, "vocab_size": 32, "num_attention_heads": 4}
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(json.dumps(sizes | more), encoding="utf-8")
    names: dict[str, Any] = {}
    printed = ""
    for language, block in blocks(read(name)):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(block, names)
            printed = out.getvalue()
        elif block.startswith("$ "):
            command, _, shown = block.replace("\\\n", " ").partition("\n")
            [words] = commands(command)
            assert agrees(shown, run(words, shown=True)), block
        elif block.startswith("mssp "):
            for words in commands(block):
                run(words)
        else:
            assert block == printed
    if name == "report":
        assert "model.embed_tokens.weight" in Path("parameters.json").read_text(encoding="utf-8")
        assert Path("report.html").stat().st_size > 1_000_000
    if name == "tutorial":
        assert names["report"].passed
        assert names["report"].stable
        assert Path("planned.py").exists()
        assert Path("run.jsonl").read_text(encoding="utf-8").count("\n") == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_shown_are_commands(page: Path) -> None:
    """Every ``mssp`` command of every page parses; those of the pages above run as well."""
    for language, block in blocks(page.read_text(encoding="utf-8")):
        for words in commands(block) if not language else ():
            _parse(words[:-2] if ">" in words else words)


def rows(text: str) -> list[list[str]]:
    """The rows of all tables of a text, without what marks code."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("regime", "name"), REGIME_PAGES.items())
def test_the_rules_of_a_regime_are_those_of_the_code(regime: str, name: str) -> None:
    found = {row[0]: row[1:] for row in rows(read(name)) if row[0] in ROLES}
    assert list(found) == list(ROLES)
    for role, cells in found.items():
        explained = dict(explain(role, regime).rows)
        assert cells == [explained[what] for what in ("init std", "Adam lr", "Adam eps", "SGD lr")], role


@pytest.mark.parametrize("regime", ["II", "III"])
def test_the_exponents_of_a_regime_are_those_of_the_theory(regime: str) -> None:
    found = [row for row in rows(read(REGIME_PAGES[regime])) if re.match(r"(aggregate|backward)/", row[0])]
    assert len(found) == 9
    for term, _, *cells in found:
        for (scheme, readout), cell in zip((("mup", "mup"), ("mssp", "zero")), cells, strict=True):
            predicted = tabulated(term, 2, Setting.of(scheme, regime, "sgd", readout))
            assert predicted is not None
            assert str(predicted.power).replace("-", "−") == cell, (term, scheme)


@pytest.mark.parametrize(("regime", "name"), REGIME_PAGES.items())
def test_families_grow_as_the_page_says(regime: str, name: str) -> None:
    found = [row for row in rows(read(name)) if "→" in row[-1]]
    assert found
    for family, *cells in found:
        before, after = (
            mssp.Shape(*(int(cell.split(" → ")[end]) for cell in cells)) for end in (0, 1)
        )  # N, N_e, M, K, L: the order of Shape
        is_none = family.startswith(("DeepSeek", "Mixtral"))  # the page says by how much they miss it
        assert infer(before, after).name == ("any" if is_none else regime), family


@pytest.mark.parametrize("name", [*RUN, "comparison", "glossary"])
def test_measured_numbers_are_in_the_records(name: str) -> None:
    """Every number with its uncertainty stands in a record, or in the pages that hold measurements."""
    kept = "\n".join(path.read_text(encoding="utf-8") for path in [*ROOT.glob("records/*.md"), DOCS / "errata.md"])
    kept = " ".join(kept.replace("−", "-").split())
    found = re.findall(r"[−-]?\d[\d.]* ± \d[\d.]*\d", " ".join(read(name).split()))
    assert found or name in ("comparison", "glossary", "report", "coming-from-mup", "proxy")
    for number in found:
        assert number.replace("−", "-") in kept, number


def test_the_sizes_of_the_tutorial_are_counted() -> None:
    """The table rounds what the first block prints."""
    text = read("tutorial")
    counts = re.findall(r"^([\d,]+) parameters, ([\d,]+) active$", text, flags=re.MULTILINE)
    table = [row[-2:] for row in rows(text) if row[0] in ("base", "target")]
    assert len(counts) == 2
    for (total, active), cells in zip(counts, table, strict=True):
        billions = [int(number.replace(",", "")) / 1e9 for number in (total, active)]
        assert [f"{cell:.2f} B" if cell < 1 else f"{cell:.1f} B" for cell in billions] == cells


def test_the_glossary_has_every_name() -> None:
    text = read("glossary")
    by_first = {row[0]: row[1:] for row in rows(text)}
    for symbol, name in SYMBOLS.items():
        assert by_first[symbol][:2] == [name, f"--target.{name.replace('_', '-')}"]
        for key in _SIZES.get(name, ()):
            assert f"`{key}`" in text
    assert set(ROLES) <= by_first.keys()
    assert set(SCHEMES) <= by_first.keys()
    for word in (*FANS, *OPTIMIZERS, *REGIMES, *READOUTS, "table", "erratum", "derived"):
        assert f"`{word}`" in text


def test_the_glossary_has_every_verdict() -> None:
    text = read("glossary")
    schema = (ROOT / "src" / "mssp" / "coordcheck" / "check.schema.json").read_text(encoding="utf-8")
    verdicts = [word for listed in re.findall(r'"verdict": \{"enum": \[(.*?)\]', schema) for word in listed.split(", ")]
    assert len(verdicts) == 6
    sweep = ["stays", "drifts up", "drifts down", "unclear", "yes", "no", "stalls"]
    for word in [*(each.strip('"') for each in verdicts), *sweep, "converges", "slow", "stable"]:
        assert f"`{word}`" in text


def test_the_glossary_names_the_keys_that_there_are() -> None:
    """Of a plan file, and of parameter groups."""
    plan = mssp.plan(mssp.Shape(32, 16, 8, 8, 1), regime="III", lr=1e-3)
    groups = mssp.param_groups(Transformer(plan), plan, CLAIMS)
    document = json.loads(plan.json())
    text = read("glossary")
    elsewhere = {"params", "scheme", "optimizer", "regime", "roles", "warnings", "version"}
    for key in {*groups[0], *document, *document["roles"]["router"]} - elsewhere:
        assert f"`{key}`" in text or f"`roles.ROLE.{key}`" in text, key


def test_the_index_has_every_page() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", read("README"))
    assert linked[0] == "tutorial.md"
    assert len(linked) == len(set(linked))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= set(linked)


def test_the_walks_through_the_package_name_what_is_there() -> None:
    """Every row of the tables names a file of the package, and a function in it."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \| ", read("architecture"), flags=re.MULTILINE)
    assert len(rows) > 30
    for file, function in rows:
        scope: Any = ast.parse((Path(mssp.__file__).parent / file).read_text(encoding="utf-8"))
        for name in function.split("."):
            scope = next((node for node in scope.body if getattr(node, "name", None) == name), None)
            assert scope is not None, f"{file} has no {function}"
