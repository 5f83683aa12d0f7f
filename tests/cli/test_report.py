"""``mssp report``: a page and figures, and one line for what cannot be."""

from __future__ import annotations

import csv
from contextlib import nullcontext
from pathlib import Path

import pytest

from mssp.cli import main
from mssp.report import saving
from tests.report.test_sections import check_file, filled, trials


def test_a_page_of_a_store_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, check = filled(tmp_path / "runs.sqlite", trials()), check_file(tmp_path / "check.json")
    target = tmp_path / "page.html"
    before = store.read_bytes()
    assert main(["report", str(store), str(check), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"report in {target}\n"
    page = target.read_text(encoding="utf-8")
    assert "<title>Report of runs.sqlite, check.json</title>" in page
    assert store.read_bytes() == before
    assert main(["report", str(store), "--output", str(target), "--title", "Mine"]) == 0
    assert "<h1>Mine</h1>" in target.read_text(encoding="utf-8")


def test_figures_for_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images come from kaleido, which tests of saving stand in for."""
    monkeypatch.setattr(saving, "find_spec", lambda name: True)
    monkeypatch.setattr(saving, "one_browser", nullcontext)
    monkeypatch.setattr(saving, "_image", lambda figure, kind, scale=1: b"<svg></svg>")
    store, folder = filled(tmp_path / "runs.sqlite", trials()), tmp_path / "figures"
    target = tmp_path / "page.html"
    assert main(["report", str(store), "-o", str(target), "--figures", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"2 figures in {folder}\n")
    names = ["scaling-1-regime-ii-sgd", "transfer-1-regime-ii-sgd"]
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{n}.{kind}" for n in names for kind in ("csv", "pdf", "svg")
    ]
    rows = list(csv.DictReader((folder / f"{names[0]}.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["series"].partition(" ·")[0] for row in rows} >= {"μP", "MSSP"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no file given: mssp report runs.sqlite check.json -o report.html"),
        (["{}/none.sqlite"], "FILE must be a file that is there, or the folder of a run, got '{}/none.sqlite'"),
        (
            ["{}/runs.sqlite", "-o", "{}/a.svg"],
            "--output must be a file to write that ends in .html, in a folder that is there, got '{}/a.svg'",
        ),
        (
            ["{}/runs.sqlite", "-o", "{}/no/a.html"],
            "--output must be a file to write that ends in .html, in a folder that is there",
        ),
        (
            ["{}/runs.sqlite", "-o", "{}/a.html", "--figures", "{}/runs.sqlite"],
            "--figures must be a folder, or a name for one in a folder that is there",
        ),
        (["{}/runs.sqlite", "-o", "{}/a.html", "--metric", "luck"], "--metric must be one of train_top5"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "runs.sqlite", trials(), 0)
    here = sorted(path.name for path in tmp_path.iterdir())
    code = main(["report", *(argument.replace("{}", str(tmp_path)) for argument in arguments)])
    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith(f"mssp: error: {message.replace('{}', str(tmp_path))}")
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == here
