"""Pages of training runs: which files are runs, a row for each, alarms, notes, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mssp.cli import main
from mssp.report import read, report
from mssp.report.page.document import Cell, Table, Words, charts
from mssp.report.sections import sections, summary
from tests.report.training_logs import LINES, START, kept, step, text
from tests.train.runs import training_in


def test_a_page_of_two_runs(tmp_path: Path) -> None:
    other = {**START, "settings": {**START["settings"], "plan": {"lr": 0.064}}}
    first = kept(tmp_path / "first")
    second = kept(tmp_path / "second", [other, step(1, 5.0), step(2, None)], ())
    contents = read([first, second / "run.jsonl"])
    assert contents.sources == ["first", "second"]
    note, table = summary(contents)
    assert note == Words("Not finished: second is at step 2 of 4.")
    assert isinstance(table, Table)
    model = "N 128, N_e 64, M 16, K 2, L 2 · 0.726 M parameters"
    assert [row.cells for row in table.rows] == [
        ["first", model, "c01bfda4", "4", "3.5000", "3.2500", "50%", "200", Cell("1", "bad")],
        ["second", model, "c01bfda4", "2 of 4", "not finite", "—", "50%", "—", Cell("none", "good")],
    ]
    shown = {section.name: section.blocks for section in sections(contents)}
    assert list(shown) == ["training", "alarms", "health", "sizes", "speed", "environment"]
    tables = {block.name: block for blocks in shown.values() for block in blocks if isinstance(block, Table)}
    assert [row.cells for row in tables["differences"].rows] == [["plan.lr", "0.016", "0.064"]]
    assert [row.cells for row in tables["alarms-table"].rows] == [
        ["first", "3", "blocks.1.ffn and 1 more", "logits", "12.3", "8", "nothing holds the logits",
         "add a z-loss of 1e-3"]
    ]  # fmt: skip
    assert [row.cells[:2] for row in tables["environments"].rows] == [["first", "cpu"], ["first, from step 2", "cuda"]]
    assert [chart.name for chart in charts(block for blocks in shown.values() for block in blocks)] == [
        "loss", "gradients", "rates", "routers-health", "loads-1", "updates", "sizes-single", "sizes-1", "sizes-2",
        "speed-chart",
    ]  # fmt: skip
    page = report(contents, "Runs")
    assert report(contents, "Runs") == page
    assert '<section id="alarms"' in page


def test_a_page_of_what_train_writes(tmp_path: Path) -> None:
    """The log of a real run, with all that is watched."""
    training_in(tmp_path / "real").run()
    shown = {section.name for section in sections(read([tmp_path / "real"]))}
    assert shown == {"training", "health", "sizes", "speed", "environment"}


def test_a_run_that_goes_on_is_shown_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(text(LINES)[:-10])
    notes = [block.text for block in summary(read([path])) if isinstance(block, Words)]
    assert notes == ["mine.jsonl: The last line of mine.jsonl is cut short, and is left out."]


def test_runs_of_the_same_name_have_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    folders = [kept(tmp_path / "a/run"), kept(tmp_path / "b/run")]
    assert list(read(folders).runs) == [str(folder) for folder in folders]


def test_the_command_takes_folders_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = kept(tmp_path / "run"), tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(target)]) == 0
    assert "<title>Report of run</title>" in target.read_text(encoding="utf-8")
    assert main(["report", str(folder / "run.jsonl"), "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_bytes() == target.read_bytes()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["{}"], "FILE must be a file that is there, or the folder of a run, got '{}'"),
        (["{}/run", "{}/run/run.jsonl"], "{}/run/run.jsonl is named twice"),
        (["{}/run/machine.jsonl"], "{}/run/machine.jsonl: line 1: it must be the start of a run, as"),
        (["{}/bad.jsonl"], "{}/bad.jsonl: line 2: loss must be a number or null, got 'low'"),
    ],
)
def test_what_is_no_run_gets_one_line(
    files: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path / "run")
    (tmp_path / "bad.jsonl").write_text(text([START, {**step(1, 1.0), "loss": "low"}, *LINES[1:]]))
    arguments = [file.replace("{}", str(tmp_path)) for file in files]
    assert main(["report", *arguments, "-o", str(tmp_path / "page.html")]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"mssp: error: {message.replace('{}', str(tmp_path))}")
    assert err.count("\n") == 1
    assert not (tmp_path / "page.html").exists()
