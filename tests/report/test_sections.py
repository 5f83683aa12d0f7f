"""What a report is made of, and what it says: stores and files in, sentences and charts out."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mssp
from mssp._estimates import Estimate
from mssp.dmft import compare, document, example, solve
from mssp.dmft.document import Overlay
from mssp.measure.quantities import EFFECTIVE
from mssp.planning.setting import Setting
from mssp.report.contents import Contents, read
from mssp.report.findings import Finding, findings_of, implemented, lr_at_the_widest, stable
from mssp.report.page.document import Cell, Chart, charts
from mssp.report.sections import report, sections, summary
from mssp.store.runs import NewRun, Result, Store
from mssp.sweep import transfer_text
from mssp.sweep.metrics import METRICS
from mssp.sweep.transfer import Contender, Score, Transfer
from mssp.sweep.trial import Trial
from mssp.theory.propagation import Exponent
from tests.report.figures.test_checks import check_of, quantity
from tests.report.reading import series_of

SCHEMES = ("mup", "mssp")
NOISE = (-0.004, 0.001, 0.003)


def score(scheme: str, width: int, k: int, seed: int) -> float:
    """muP's best rate doubles with the width, and nothing is gained by it; MSSP's stays, and wider is better."""
    doublings = int(np.log2(width / 64))
    drift, gain = (1.0, -0.02) if scheme == "mup" else (0.0, 0.1)
    return 0.3 + gain * doublings - 0.02 * (k - drift * doublings) ** 2 + NOISE[seed]


def trials(readout: str = "zero", **more: Any) -> list[Trial]:
    kinds = product(("mup", "mssp"), (64, 128, 256), range(-2, 5), range(3))
    return [
        Trial(Setting.of(scheme, "II", "sgd", readout), width, seed, 2.0**k, **more) for scheme, width, k, seed in kinds
    ]


def result(trial: Trial) -> Result:
    value = score(trial.setting.scheme.name, trial.width, round(np.log2(trial.lr)), trial.seed)
    metrics = dict.fromkeys(METRICS, value) | {"first_loss": 5.0}
    return Result(trial.key, metrics)


def filled(path: Path, asked: list[Trial], done: int | None = None, name: str = "sweep spectra, 10 steps of 5") -> Path:
    """A store in which the first ``done`` chunks of one width each are finished."""
    with Store(path, device="a test") as store:
        study = store.study(name, {"data": "spectra"})
        by_width: dict[int, list[NewRun]] = {}
        for trial in asked:
            by_width.setdefault(trial.width, []).append(NewRun(trial.key, trial.parameters, trial.json()))
        study.add(list(by_width.values()))
        for _ in range(len(by_width) if done is None else done):
            chunk = study.claim()
            assert chunk is not None
            study.finish(chunk, [result(Trial.from_json(run.spec)) for run in chunk.runs])
    return path


def check_file(path: Path, **more: Any) -> Path:
    check = check_of(quantity("aggregate/init", 0.0, expected=Exponent(Fraction(0))), quantity("router/load", 0.0))
    path.write_text(json.dumps(check.json() | {"data": "spectra"} | more), encoding="utf-8")
    return path


def words(contents: Contents) -> str:
    return " ".join(str(block) for block in summary(contents))


@pytest.fixture(scope="module")
def limit() -> dict[str, Any]:
    solution = solve(example("II", "mssp", inputs=2, steps=3), samples=400, solves=2)
    found = compare(solution, [16, 32], seeds=2)
    return document.as_json(solution, found) | {"overlay": Overlay.of(solution, found).json()}


def test_a_reader_of_the_summary_alone_knows_all_that_matters(tmp_path: Path) -> None:
    """Scheme, regime, widths, implemented right, stable, and the lr at the largest width with how sure it is."""
    contents = read([filled(tmp_path / "runs.sqlite", trials()), check_file(tmp_path / "check.json")])
    mup, mssp_ = findings_of(contents)
    assert (mup.name, mssp_.name) == ("μP · Regime II · SGD · spectra", "MSSP · Regime II · SGD · spectra")
    assert "The best learning rate drifts up (1.00 ± 0.00 doublings per doubling of N)" in mup.sentence
    assert "Wider is better: no, 0.300 ± 0.009 at N = 64 and 0.260 ± 0.009 at N = 256" in mup.sentence
    assert "At N = 256 use lr 4 (95 %: 4 to 4); the best one of N = 64 loses 0.080 ± 0.000." in mup.sentence
    assert "The best learning rate stays (0.00 ± 0.00 doublings" in mssp_.sentence
    assert "Wider is better: yes" in mssp_.sentence
    assert (mup.check, mssp_.check is not None) == (None, True)  # the check is of MSSP
    cells = [cell if isinstance(cell, str) else f"{cell.text}/{cell.verdict}" for cell in mssp_.row.cells]
    assert cells == [
        "MSSP · Regime II · SGD · spectra · N = 64 to 256", "yes/good", "yes/good", "stays 0.00 ± 0.00/good",
        "yes/good", "1 (1 to 1)/",
    ]  # fmt: skip
    assert mssp_.row.tags == {"regime": "II", "optimizer": "SGD", "data": "spectra"}


def test_a_check_is_shown_with_the_sweep_of_the_same_models_only(tmp_path: Path) -> None:
    store = filled(tmp_path / "runs.sqlite", trials(base_width=64))
    for more in ({}, {"base_width": 64, "active": 2}, {"base_width": 64, "data": "clusters"}):
        found = findings_of(read([store, check_file(tmp_path / "check.json", **more)]))
        assert [each.check is not None for each in found] == [False, False, True]  # the check in a row of its own
        assert found[2].outcome is None
    found = findings_of(read([store, check_file(tmp_path / "check.json", base_width=64)]))
    assert [each.check is not None for each in found] == [False, True]


def test_what_is_hardly_known_is_not_called_right() -> None:
    known = quantity("effective/router", 0.0, expected=Exponent(Fraction(0)))
    vague = [replace(known, name=EFFECTIVE(n), judged=Estimate(0.0, 2.0)) for n in ("readout", "expert_in")]
    assert implemented(check_of(known)) == Cell("yes", "good")
    assert implemented(check_of(known, *vague)) == Cell("2 of 3 unclear", "unsure")
    assert stable(check_of(known, *vague)) == Cell("unclear", "unsure")
    assert implemented(check_of(quantity("router/load", 0.0))) == stable(check_of()) == Cell("—")
    of = Finding(Setting.of("mssp", "II", "sgd"), "", check=check_of(known, *vague))
    assert "all 3 predicted quantities scale as the theory says of it, of which 2 are known to no better" in of.sentence


def test_more_settings_than_a_figure_holds_make_several(tmp_path: Path) -> None:
    many = [trial for k in range(7) for trial in trials(init_mult=2.0**k)]
    contents = read([filled(tmp_path / "runs.sqlite", many)])
    names = [chart.name for chart in charts(sections(contents)[0].blocks)]
    assert names == ["transfer-1-regime-ii-sgd", "transfer-1-regime-ii-sgd-2"]
    assert "transfer-1-regime-ii-sgd-2" in report(contents, "Many")


def test_how_sure_the_learning_rate_is() -> None:
    metric = METRICS["train_top5"]
    rising = Transfer(metric, [Score(64, 2.0**k, seed, 0.1 * k) for k in (0, 1) for seed in (0, 1)])
    assert lr_at_the_widest(rising) == "2, at the end of the grid: the best may lie beyond"
    one = Transfer(metric, [Score(64, 2.0**k, 0, -0.1 * k**2) for k in (-1, 0, 1)])
    assert lr_at_the_widest(one) == "1, by one seed"
    lost = Transfer(metric, [Score(64, 1.0, 0, float("nan"))])
    assert lr_at_the_widest(lost) == "none: all runs diverged"


def test_every_part_has_its_section_and_its_charts(tmp_path: Path, limit: dict[str, Any]) -> None:
    tried = [Trial(Setting.of("mssp", "II", "sgd"), 128, 0, 1.0, lr_mult={"router": 4.0**k, "readout": 4.0**j})
             for k, j in product((-1, 0, 1), repeat=2)]  # fmt: skip
    filled(tmp_path / "runs.sqlite", trials(base_width=64))
    filled(tmp_path / "tuned.sqlite", tried, name="tune spectra, 10 steps of 5")
    check_file(tmp_path / "check.json", made_with={"mssp": "0.1.0", "device": "a test"})
    (tmp_path / "limit.json").write_text(json.dumps(limit), encoding="utf-8")
    plan = mssp.plan(mssp.Shape(64, 16, 4, 4, 1), regime="II", lr=1.0)
    (tmp_path / "plan.json").write_text(plan.json(), encoding="utf-8")
    table = {"header": ["parameter", "lr"], "rows": [["model.embed_tokens.weight", "1"]]}
    by_name = {"plan": json.loads(plan.json()), "parameters": table, "factors": ["× 0.5  experts"]}
    (tmp_path / "parameters.json").write_text(json.dumps(by_name), encoding="utf-8")
    settings = transfer_text.as_json({Contender(Setting.of("mup", "II", "sgd")): Transfer(METRICS["train_top5"], [
        Score(w, 2.0**k, s, 0.1) for w in (64, 128) for k in (0, 1) for s in (0, 1)])})  # fmt: skip
    (tmp_path / "transfer.json").write_text(json.dumps({"experiment": "images, 3 steps", "settings": settings}))
    contents = read(sorted(tmp_path.glob("*.json")) + sorted(tmp_path.glob("*.sqlite")))
    found = {section.name: section for section in sections(contents)}
    assert {name: [chart.name for chart in charts(section.blocks)] for name, section in found.items()} == {
        "transfer": ["transfer-1-regime-ii-sgd"],
        "scaling": ["scaling-1-regime-ii-sgd"],
        "recorded": ["recorded-1-regime-ii-sgd"],
        "check": ["agreement-1", "exponents-1"],
        "experts": ["aggregation-1"],
        "router": ["router-1"],
        "multipliers": ["multipliers-1"],
        "limit": ["limit-1"],
        "plan": [],
        "environment": [],
    }
    assert "All schemes grow from one plain model of N = 64" in str(found["transfer"].blocks)
    assert "A sweep of which the outcome alone was kept: images, 3 steps." in str(found["recorded"].blocks)
    assert "model.embed_tokens.weight" in str(found["plan"].blocks)
    assert "a test" in str(found["environment"].blocks)
    page = report(contents, "Everything")
    assert "<h1>Everything</h1>" in page
    assert page == report(contents, "Everything")


def test_the_transfer_chart_has_a_line_and_a_star_for_every_width(tmp_path: Path) -> None:
    contents = read([filled(tmp_path / "runs.sqlite", trials())])
    chart: Chart = charts(sections(contents)[0].blocks)[0]
    lines = series_of(chart.figure, mode="lines+markers")
    stars = series_of(chart.figure, mode="markers")
    assert len(lines) == len(stars) == 6
    assert chart.tags == {"regime": "II", "optimizer": "SGD", "data": "spectra"}


def test_runs_with_other_multipliers_are_another_experiment(tmp_path: Path) -> None:
    filled(tmp_path / "runs.sqlite", [*trials(), *trials(init_mult=2.0)])
    contents = read([tmp_path / "runs.sqlite"])
    names = [f"Regime II · {scheme} · sgd · {words}" for words in ("all multipliers 1", "init 2") for scheme in SCHEMES]
    assert [str(each.contender) for each in contents.sweeps[0].swept] == names
    assert [each.more for each in findings_of(contents)] == [
        "all multipliers 1",
        "all multipliers 1",
        "init 2",
        "init 2",
    ]


def test_few_classes_are_judged_by_accuracy(tmp_path: Path) -> None:
    with Store(tmp_path / "runs.sqlite") as store:
        study = store.study("sweep cifar10", {"data": "cifar10"})
        some = trials()[:21]
        study.add([[NewRun(trial.key, trial.parameters, trial.json()) for trial in some]])
        chunk = study.claim()
        assert chunk is not None
        metrics = dict.fromkeys(METRICS, 0.5) | {"train_top5": 1.0, "first_loss": 5.0}
        study.finish(chunk, [Result(run.key, metrics) for run in chunk.runs])
    (usual,) = read([tmp_path / "runs.sqlite"]).sweeps[0].swept
    assert usual.outcome.metric.name == "train_accuracy"
    (asked,) = read([tmp_path / "runs.sqlite"], "validation_loss").sweeps[0].swept
    assert asked.outcome.metric.name == "validation_loss"


def test_an_empty_store_makes_a_page_that_says_what_to_do(tmp_path: Path) -> None:
    Store(tmp_path / "runs.sqlite").close()
    contents = read([tmp_path / "runs.sqlite"])
    assert contents.is_empty
    assert sections(contents) == []
    page = report(contents, "Empty")
    assert "There is nothing here yet" in page
    assert "mssp sweep --data spectra" in page


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_half_finished_study_shows_what_there_is_and_says_what_is_missing(tmp_path: Path, done: int) -> None:
    contents = read([filled(tmp_path / "runs.sqlite", trials(), done)])
    missing = 42 * (3 - done)
    assert f"Not finished: {missing} of 126 runs of spectra, 10 steps of 5 are missing" in words(contents)
    assert len(findings_of(contents)) == (2 if done else 0)
    assert "Not finished" in report(contents, "Half")
    if done == 1:
        assert "may or may not stay (it takes two widths and two seeds)" in words(contents)


def test_a_failed_chunk_is_said(tmp_path: Path) -> None:
    filled(tmp_path / "runs.sqlite", trials(), 1)
    with Store(tmp_path / "runs.sqlite") as store:
        study = store.open_study(store.studies()[0])
        chunk = study.claim()
        assert chunk is not None
        study.fail(chunk, "out of luck")
    assert "84 of 126 runs of spectra, 10 steps of 5 are missing, 42 of which failed" in words(
        read([tmp_path / "runs.sqlite"])
    )


def test_a_study_in_which_all_runs_diverged(tmp_path: Path) -> None:
    some = trials()[:21]
    with Store(tmp_path / "runs.sqlite") as store:
        study = store.study("sweep spectra", {"data": "spectra"})
        study.add([[NewRun(trial.key, trial.parameters, trial.json()) for trial in some]])
        chunk = study.claim()
        assert chunk is not None
        lost = dict.fromkeys(METRICS, float("nan")) | {"first_loss": 5.0}
        study.finish(chunk, [Result(run.key, lost, diverged_at=3) for run in chunk.runs])
    contents = read([tmp_path / "runs.sqlite"])
    assert "At N = 64 all runs diverged: use smaller learning rates." in words(contents)
    assert "diverged" in report(contents, "Lost")


def test_stores_of_others_and_damaged_ones_are_named(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as database:
        database.execute("CREATE TABLE song (name TEXT)")
    with pytest.raises(ValueError, match=r"foreign\.sqlite: it is another application's SQLite file, no run store"):
        read([foreign])
    words_ = tmp_path / "words.sqlite"
    words_.write_text("not a database at all, but long enough to look like one" * 20, encoding="utf-8")
    with pytest.raises(ValueError, match=r"words\.sqlite: it is not a run store, not even a SQLite file"):
        read([words_])
    torn = filled(tmp_path / "torn.sqlite", trials())
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"torn\.sqlite: it is damaged") as caught:
        read([torn])
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("torn.sqlite") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON: Expecting"),
        ("[1, 2]", "it is no result that a report shows"),
        ('{"song": 1}', "it is no result that a report shows: those of mssp sweep, check, dmft and plan, with --json"),
        ('{"quantities": {}}', "x.json: corrupt check file: no 'scheme'"),
        ('{"overlay": {}}', "x.json: corrupt limit file: no 'regime'"),
        ('{"settings": []}', "x.json: corrupt sweep file: no 'experiment'"),
        ('{"parameters": {}}', "x.json: corrupt plan file by name: no 'plan'"),
        ('{"roles": {}}', "x.json: "),
    ],
)
def test_files_of_others_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read([path])
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"runs\.sqlite: there is no such file"):
        read([tmp_path / "runs.sqlite"])
    with pytest.raises(ValueError, match=r"is a folder without run.jsonl: name the run store or the files in it"):
        read([tmp_path])
    check = check_file(tmp_path / "check.json")
    with pytest.raises(ValueError, match=r"check\.json is named twice"):
        read([check, tmp_path / ".." / tmp_path.name / "check.json"])
    with pytest.raises(ValueError, match=r"metric must be one of train_top5, .*, got 'luck'"):
        read([], "luck")
