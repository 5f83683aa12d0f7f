"""``mssp check --layout`` as a person would call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import mssp
from mssp.cli import layout_check, main


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check's process runs here, in a group of its own: real ones are slow to start."""

    def here(layout: str, processes: int, planned: mssp.Plan, folder: Path) -> None:
        layout_check._process(0, 1, layout, planned.json(), str(folder))

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(layout_check, "_start", here)


@pytest.mark.slow
def test_a_step_on_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--layout", "ep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ep on 2 processes · 9 rows, 90 predicted tokens · adamw, clipped at 0.05"
    assert lines[-1] == "pass: the step is that of one device"
    assert [line.split() for line in lines if line.startswith("expert_in")] == [
        ["expert_in", "2", "1.00", "1.00", "1.00"]
    ]


@pytest.mark.usefixtures("one_process")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--layout", "fsdp", "--regime", "III", "--optimizer", "sgd", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["layout"], document["optimizer"], document["verdict"]) == ("fsdp", "sgd", "pass")
    assert document["made_with"]["mssp"]
    assert not dist.is_initialized()


@pytest.mark.usefixtures("one_process")
def test_a_layout_that_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Auxiliary losses that are other ones under the layout."""
    factors = iter(
        [1.0, 1.0, 1.0, 2.0]
    )  # twice to see that nothing is drawn, once on one device, once under the layout
    losses = layout_check._losses

    def changing(model: Any, batch: Any) -> Any:
        named = losses(model, batch)
        return named | {"balance": named["balance"] * next(factors, 1.0)}

    monkeypatch.setattr(layout_check, "_losses", changing)
    monkeypatch.setattr(layout_check, "_ACCUMULATION", 1)
    assert main(["check", "--layout", "ddp"]) == 1
    out = capsys.readouterr().out
    assert "FAIL: the step is not that of one device\n" in out
    assert "the auxiliary loss 'balance' counts 2.00 times beside the loss" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layout", "tp"], "--layout must be one of ddp, fsdp, ep, got 'tp'"),
        (["--processes", "3"], "--processes is for --layout: say ddp, fsdp or ep"),
        (["--layout", "ddp", "--processes", "1"], "--processes must be a whole number from 2 to 16, got 1"),
        (
            ["--layout", "ddp", "--widths", "64"],
            "--widths has no effect with --layout, "
            "which takes --processes, --regime, --scheme, --optimizer, --readout, --json",
        ),
    ],
)
def test_refusals(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *flags]) == 2
    assert capsys.readouterr().err == f"mssp: error: {message}\n"
