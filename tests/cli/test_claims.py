"""``mssp claims``: the draft for a model of a file or a package, and the mistakes that people make with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import mssp
from mssp.cli import main
from nanogpt_moe import GPT

MODEL = """
import torch
from torch import nn
from sizes import WIDTH

print("building")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)


class Model(nn.Module):
    def __init__(self, own=False):
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head, self.own = nn.Linear(WIDTH, 50, bias=False), nn.Parameter(torch.ones(3, 7)) if own else None


def with_its_own():
    return Model(own=True)


def on_meta():
    with torch.device("meta"):
        return Model()


def of_width(width, *, depth):
    return Model()


def failing():
    raise RuntimeError("no weights\\nanywhere")


def leaving():
    raise SystemExit(3)


def no_module():
    return {"model": Model()}


ready = Model()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model in a file and in a package; the working folder is beside it."""
    (tmp_path / "work").mkdir()
    package = tmp_path / "work" / "package_of_a_model"
    package.mkdir()
    (package / "model.py").write_text(MODEL.replace("from sizes import WIDTH", "WIDTH = 16"), encoding="utf-8")
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "sizes.py").write_text("WIDTH = 16\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "work")
    for name in ("sizes", "package_of_a_model", "package_of_a_model.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["claims", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


EXPECTED = """import mssp

claims: dict[str, mssp.ParamInfo | str] = {
    "embed.weight": mssp.ParamInfo("embedding", layout="vocab out"),  # nn.Embedding: a lookup of 50 rows
    "blocks.*.norm.weight": "norm",  # gain of nn.RMSNorm in a block, of the width
    "blocks.*.mix.weight": mssp.ParamInfo("hidden", layout="out in"),  # nn.Linear in a block
    "head.weight": mssp.ParamInfo("readout", layout="out in"),  # nn.Linear after all blocks: the readout
}
"""


@pytest.mark.parametrize("name", ["Model", "on_meta", "ready"])
def test_a_file_beside_what_it_imports(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.path)
    assert said(capsys, f"../model.py:{name}") == (0, EXPECTED, "building\n")
    assert sys.path == before
    assert "model" not in sys.modules


def test_a_package_in_the_working_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "package_of_a_model.model:Model") == (0, EXPECTED, "building\n")


def test_what_is_left_to_decide_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "../model.py:with_its_own")
    assert (code, err) == (0, "building\nmssp: 1 line needs a decision, of 5: marked DECIDE\n")
    assert out.count("DECIDE") == 1


def test_the_text_describes_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "from nanogpt_moe import GPT\n\ndef build():\n    return GPT(32, 16, 4, 2, 2)\n"
    (tmp_path / "nano.py").write_text(text, encoding="utf-8")
    code, out, _ = said(capsys, str(tmp_path / "nano.py:build"))
    names: dict[str, mssp.ParamInfo] = {}
    exec(out, names)
    model = GPT(32, 16, 4, 2, 2)
    described = mssp.describe(model, names["claims"])  # type: ignore[arg-type]
    assert (code, len(described)) == (0, len(list(model.parameters())))


WHAT = "a function or a class that is called without arguments and gives a torch.nn.Module"


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        (
            "model.py",
            "MODULE:BUILDER must be a file or a module and a function in it, as model.py:build, got 'model.py'",
        ),
        ("../none.py:build", "../none.py: there is no such file"),
        ("none.model:build", "there is no module 'none.model' on Python's path or in this folder; a file ends in .py"),
        ("../sizes.py:build", f"../sizes.py has no 'build': name {WHAT}"),
        (
            "../model.py:build",
            f"../model.py has no 'build': name {WHAT}; it has Block, Model, with_its_own, on_meta, of_width, failing, "
            "leaving, no_module, ready",
        ),
        ("../model.py:of_width", f"of_width of ../model.py needs width, depth: name {WHAT}"),
        ("../model.py:number", f"number of ../model.py is no function: name {WHAT}"),
        ("../model.py:no_module", f"no_module() of ../model.py gave a dict: name {WHAT}"),
        ("../model.py:failing", "../model.py, line 37: failing() raised RuntimeError: no weights anywhere"),
        ("../model.py:leaving", "../model.py, line 41: leaving() raised SystemExit: 3"),
        (
            "package_of_a_model.model:failing",
            "package_of_a_model.model, line 37: failing() raised RuntimeError: no weights anywhere",
        ),
        (
            "../broken.py:build",
            "../broken.py, line 2: importing it raised SyntaxError: '(' was never closed (broken.py, line 2)",
        ),
        (
            "../lonely.py:build",
            "../lonely.py, line 1: importing it raised ModuleNotFoundError: No module named 'nowhere'",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(
    builder: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("a = 1\nb = (\n", encoding="utf-8")
    (folder / "lonely.py").write_text("import nowhere\n", encoding="utf-8")
    code, out, err = said(capsys, builder)
    assert (code, out, err.replace("building\n", "")) == (2, "", f"mssp: error: {message}\n")
