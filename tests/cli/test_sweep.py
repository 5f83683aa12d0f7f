"""``mssp sweep`` and ``mssp tune`` as a person would call them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mssp
from mssp.cli import main
from mssp.data.generated import clusters
from mssp.data.images import save_npz
from mssp.ladders.mlp import family
from mssp.store.runs import Store

SMALL = ["--device", "cpu", "--steps", "8", "--batch", "10", "--validation", "50", "--seeds", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    flags = ["--widths", "32", "16", "--lr-points", "3", "--multipliers", "ones", "--optimizer", "adam", *SMALL]
    assert (
        main(["sweep", *flags, "--export", "runs.csv", "--plot", "transfer.html", "--plot-scaling", "scaling.html"])
        == 0
    )
    out = capsys.readouterr().out
    assert "Regime II · mssp · adam: top-5 training accuracy, end of training, 2 seeds" in out
    assert "Regime II · mup · adam" in out
    assert "wider is better, each at its own best lr: " in out
    assert [line.split()[0] for line in out.splitlines() if line[:2] in ("16", "32")] == ["16", "32"] * 2
    assert len((elsewhere / "runs.csv").read_text().splitlines()) == 1 + 2 * 2 * 3 * 2
    for figure in ("transfer.html", "scaling.html"):
        assert "<title>" in (elsewhere / figure).read_text()[:2000]
    with Store(elsewhere / "runs.sqlite", must_exist=True) as store:
        assert store.studies() == ["sweep clusters, 8 steps of 10, 50 held out, float32"]
    # Once more, from the store.
    assert main(["sweep", *flags, "--json", "--metric", "validation_loss"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert [setting["scheme"] for setting in settings] == ["mssp", "mup"]
    assert set(settings[0]["widths"]) == {"16", "32"}
    assert settings[0]["metric"] == "validation_loss"


def test_schemes_that_grow_from_one_plain_model(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    """At the smallest width they are one model, and score the same."""
    flags = ["--multipliers", "plain", "--widths", "16", "64", "--lr-points", "2", "--metric", "train_loss", *SMALL]
    flags += ["--scheme", "mup", "mssp", "sp"]
    assert main(["sweep", *flags, "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    narrow, wide = ([setting["widths"][width]["best"]["value"] for setting in settings] for width in ("16", "64"))
    assert len(set(narrow)) == 1
    assert len(set(wide)) == 3
    with Store(elsewhere / "runs.sqlite", must_exist=True) as store:
        runs = store.open_study(store.studies()[0]).runs()
    assert {run.parameters["base_width"] for run in runs} == {16}
    assert {run.parameters["lr"] for run in runs} == {1.0, 2.0}


def test_what_is_kept_of_a_plain_model_is_no_start_for_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--data", "spectra", "--multipliers", "tuned", *SMALL]) == 2
    assert capsys.readouterr().err == (
        "mssp: error: what is kept for spectra is a plain model, without multipliers: start from --multipliers ones\n"
    )


def test_regimes_end_at_widths_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--regime", "I", "III", "--scheme", "mssp", "--multipliers", "ones", "--lrs", "0.01", "0.1", *SMALL]
    assert main(["sweep", *flags, "--widths", "16", "32", "--largest", "III=16", "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    widths = {setting["regime"]: list(setting["widths"]) for setting in settings}
    assert widths == {"I": ["16", "32"], "III": ["16"]}


def test_tuning_writes_a_plan_that_a_sweep_takes(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    small = [*SMALL, "--width", "32", "--points", "2", "--broad-points", "1", "--confirm", "2"]
    assert main(["tune", *small, "--optimizer", "adam", "--plot", "pairs.html", "--export", "runs.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "Regime II · mssp · adam, N = 32: tuned by grid" in out
    assert "top-5 validation accuracy 0." in out
    assert "with 2 new seeds 0." in out
    plan = mssp.Plan.from_json((elsewhere / "tuned.json").read_text())
    assert (plan.target.width, plan.optimizer, plan.aggregation_mult) == (32, "adam", 8.0)
    assert (elsewhere / "pairs.html").exists()
    flags = ["--widths", "32", "--scheme", "mssp", "--optimizer", "adam", "--lr-points", "1", *SMALL]
    assert main(["sweep", *flags, "--multipliers", "tuned.json", "--json"]) == 0
    setting = json.loads(capsys.readouterr().out)["settings"][0]
    assert setting["widths"]["32"]["best_grid_lr"] == pytest.approx(plan.lr)


def test_tuning_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    small = [*SMALL, "--seeds", "1", "--width", "32", "--method", "random", "--budget", "10", "--confirm", "0"]
    assert main(["tune", *small, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["runs"] == 13 + 10
    assert summary["new_seeds"] is None
    assert set(summary["multipliers"]) == {"init", "embedding", "router", "expert_in", "expert_out", "readout"}


def test_data_from_a_file(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    save_npz(clusters(examples=200, validation=50, classes=10, superclasses=2), elsewhere / "mine.npz")
    flags = ["--data", "mine.npz", "--widths", "16", "--lr-points", "2", *SMALL]
    assert main(["sweep", *flags, "--multipliers", "ones"]) == 0
    assert main(["sweep", *flags, "--multipliers", "ones", "--steps", "30"]) == 2
    assert "30 steps of 10 need 300 examples in a single pass, clusters has 200" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--regime", "IV"], "--regime must be one of I, II, III, got 'IV'"),
        (["--scheme", "best"], "--scheme must be one of mssp, mup, mup-heuristic, sp, ntp, jiang, got 'best'"),
        (["--optimizer", "lion"], "--optimizer must be one of sgd, adam, adamw, got 'lion'"),
        (["--scheme", "ntp", "--optimizer", "adam"], "ntp"),
        (["--widths", "100"], "Regime II has an expert for every 16 of width: 100 is no multiple of it"),
        (["--widths", "0"], "--widths must be a positive whole number, got 0"),
        (["--seeds", "0"], "seeds must be"),
        (["--lr-points", "0"], "--lr-points must be"),
        (["--lr-ratio", "1"], "--lr-ratio must be a number of more than 1, got 1"),
        (["--lrs", "-1"], "--lrs must be a positive number, got -1"),
        (["--metric", "speed"], "--metric must be one of train_top5, train_accuracy"),
        (["--data", "mnist"], "mnist"),
        (["--data", "python"], "text"),
        (
            ["--multipliers", "none.json"],
            "spectra, or a file of mssp tune that is there, got 'none.json'",
        ),
        (["--device", "tpu9"], "--device must be auto, cpu, cuda or cuda:1, got 'tpu9'"),
        (["--precision", "fp8"], "--precision must be one of float32, tf32, got 'fp8'"),
        (["--backend", "slurm"], "--backend must be one of local, ray, got 'slurm'"),
        (["--largest", "III"], "--largest must be widths by regime, as III=1024, got 'III'"),
        (["--largest", "IV=3"], "--largest must be widths by regime, as III=1024, got 'IV=3'"),
        (
            ["--scheme"],
            "--scheme must be one or more, each one of mssp, mup, mup-heuristic, sp, ntp, jiang, got nothing",
        ),
        (["--validation", "99999"], "99999 validation examples were asked for, clusters has 5000"),
        (["--steps", "99999"], "99999 steps of 10 need 999990 examples in a single pass"),
        (
            ["--export", "runs.xls"],
            "--export must be a file to write that ends in .csv, .json, .jsonl or .parquet, in a folder",
        ),
        (
            ["--plot", "figure.gif"],
            "--plot must be a file to write that ends in .html, .svg, .pdf or .png, in a folder",
        ),
        (["--plot", "no/folder/figure.html"], "in a folder that is there, got 'no/folder/figure.html'"),
        (["--largest", "II=8"], "--largest II=8 leaves no width: 16 is the least"),
        (
            ["--store", "no/folder/runs.sqlite"],
            "--store must be a file to write in a folder that is there, got 'no/folder/runs.sqlite'",
        ),
        (["--readout", "one"], "readout"),
    ],
)
def test_mistakes_in_sweeps(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    base = ["sweep", "--widths", "16", "--lr-points", "2", "--multipliers", "ones", *SMALL]
    assert main([*base, *flags]) == 2
    check_one_line(capsys.readouterr().err, complaint, elsewhere)


def check_one_line(err: str, complaint: str, folder: Path) -> None:
    """A mistake is one line, and leaves nothing behind."""
    assert err.startswith("mssp: error: ")
    assert len(err.splitlines()) == 1
    assert complaint in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--method", "guess"], "--method must be one of grid, random, optuna, got 'guess'"),
        (["--points", "0"], "points must be"),
        (["--width", "100"], "Regime II has an expert for every 16 of width"),
        (["--lr", "0"], "lr must be a positive number"),
        (
            ["--output", "no/folder/tuned.json"],
            "--output must be a file to write in a folder that is there, got 'no/folder/tuned.json'",
        ),
        (["--regime", "II", "--scheme", "jiang"], "jiang"),
        (["--output", "."], "--output must be a file to write in a folder that is there, got '.'"),
        (["--budget", "5"], "--budget is for random and optuna"),
        (["--confirm", "-1"], "--confirm must be a whole number of at least 0, got -1"),
        (["--search-seed", "-1"], "--search-seed must be a whole number of at least 0"),
        (["--aggregation-mult", "0"], "--aggregation-mult must be a positive number"),
    ],
)
def test_mistakes_in_tuning(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["tune", "--width", "32", *SMALL, *flags]) == 2
    check_one_line(capsys.readouterr().err, complaint, elsewhere)


def test_plan_files_are_for_one_setting_each(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    for scheme in ("mssp", "mup"):
        plan = mssp.plan(family("II", 32, 64), regime="II", scheme=scheme, optimizer="adam", lr=0.02)
        (elsewhere / f"{scheme}.json").write_text(plan.json())
    flags = ["--widths", "32", "--optimizer", "adam", "--lr-points", "1", *SMALL, "--json"]
    assert main(["sweep", *flags, "--multipliers", "mssp.json"]) == 2
    complaint = "--multipliers has none for Regime II · mup · adam: mssp.json is for Regime II, mssp, adam"
    assert complaint in capsys.readouterr().err
    assert main(["sweep", *flags, "--multipliers", "mssp.json", "mup.json"]) == 0


def test_a_search_in_which_all_diverge_writes_nothing(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    tiny = ["--points", "1", "--broad-points", "1", "--lr-points", "1", "--lr", "1e38", "--width", "32", *SMALL]
    assert main(["tune", *tiny]) == 2
    assert "runs diverged: start from a smaller --lr" in capsys.readouterr().err
    assert not (elsewhere / "tuned.json").exists()


def test_top_5_of_few_classes_is_refused(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    save_npz(clusters(examples=200, validation=50, classes=4, superclasses=2), elsewhere / "few.npz")
    flags = ["--data", "few.npz", "--widths", "16", "--lr-points", "1", "--multipliers", "ones", *SMALL]
    assert main(["sweep", *flags]) == 2
    assert (
        "top-5 is always right with the 4 classes of clusters: use --metric train_accuracy" in capsys.readouterr().err
    )
    assert main(["sweep", *flags, "--metric", "train_accuracy"]) == 0


def test_stopping_loses_nothing(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    flags = ["--widths", "16", "--lr-points", "2", "--multipliers", "ones", *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr("mssp.sweep.execution.train_trials", stopped)
        assert main(["sweep", *flags]) == 130
    assert "stopped: what is finished is in runs.sqlite, the same command goes on" in capsys.readouterr().err
    assert main(["sweep", *flags]) == 0


def test_a_file_that_is_no_store_is_left_alone(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    (elsewhere / "thesis.sqlite").write_bytes(b"ten years of work")
    assert main(["sweep", "--widths", "16", "--multipliers", "ones", *SMALL, "--store", "thesis.sqlite"]) == 2
    assert "not a run store" in capsys.readouterr().err
    assert (elsewhere / "thesis.sqlite").read_bytes() == b"ten years of work"


def test_a_truncated_file_of_data_is_named(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    np.savez(elsewhere / "whole.npz", train_inputs=np.zeros((4, 3), np.float32))
    (elsewhere / "cut.npz").write_bytes((elsewhere / "whole.npz").read_bytes()[:100])
    assert main(["sweep", "--data", "cut.npz", "--widths", "16", "--multipliers", "ones", *SMALL]) == 2
    assert "cut.npz" in capsys.readouterr().err
