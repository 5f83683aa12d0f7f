"""The loop: steps that a plain loop would take, logs, signals, and what stops a run."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import mssp
from mssp.data import TokenOrder, python_tokens
from mssp.nn import GPT, GPTConfig
from mssp.train import Step
from mssp.train.schedule import lr_factor
from tests.train.runs import assert_same_runs, tensors_in, tiny, training_in


def lines_of(folder: Path, name: str = "run.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    training_in(folder).run()
    return folder


def test_a_step_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    settings = tiny(model={"noise": 0.0}, training={"micro_batch": 1, "clip": 0.5, "z": 0.001})
    training_in(tmp_path / "run", settings).run()
    model = GPT(GPTConfig(**settings.model, context=16))
    plan = mssp.plan(model.config.shape, lr=0.01, regime="III")
    mssp.initialize(model, plan)
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    order = TokenOrder(python_tokens(), "train", sequence=16)
    losses, norms = [], []
    for step in range(6):
        rows = torch.from_numpy(order.rows(4 * step, 4))
        mean = torch.zeros(())
        for row in rows:
            output = model(row[None, :-1], targets=row[None, 1:])
            mean = mean + (output.loss + 0.01 * output.load_balancing_loss() + 0.001 * output.z_loss()) / 4
        optimizer.zero_grad()
        mean.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lr_factor(step, 6, warmup=2)
        optimizer.step()
        losses.append(mean.item())
    steps = [line for line in lines_of(tmp_path / "run") if line["kind"] == "step"]
    assert [line["loss"] for line in steps] == pytest.approx(losses, rel=1e-6)
    assert [line["norm"] for line in steps] == pytest.approx(norms, rel=1e-5)
    assert steps[-1]["clipped"] == sum(norm > 0.5 for norm in norms) / 6
    assert steps[0]["lr"]["router"] == pytest.approx(0.01 / 32 / 2)
    held = tensors_in(tmp_path / "run/checkpoints/step-00000006")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(held[f"model.{name}"], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_the_log(whole_run: Path) -> None:
    lines = lines_of(whole_run)
    assert [line["kind"] for line in lines] == [
        "start", "step", "monitor", "step", "step", "validation", "step", "monitor", "step", "step", "validation"
    ]  # fmt: skip
    assert [line["step"] for line in lines if line["kind"] == "monitor"] == [0, 3]  # after so many updates
    assert lines[2]["sizes"].keys() >= {"effective/router", "gradient/expert_out"}
    assert [line["step"] for line in lines if "routers" in line] == [1, 3, 5]
    assert [sum(loads) for loads in lines[1]["loads"].values()] == pytest.approx([1.0, 1.0])
    assert lines[0]["plan"] == mssp.Plan.from_json((whole_run / "plan.json").read_text()).hash
    assert lines[1]["cross_entropy"] == pytest.approx(math.log(256))  # the readout starts at zero
    assert {*lines[1]["lr"]} >= {"router", "expert_in", "expert_out", "hidden", "embedding", "readout"}
    machine = lines_of(whole_run, "machine.jsonl")
    assert [line["kind"] for line in machine].count("speed") == 6
    assert machine[1].keys() >= {"seconds", "tokens_per_second", "mfu", "memory"}


def test_an_alarm_is_in_the_log_by_the_step_that_raised_it(tmp_path: Path) -> None:
    """The router starts a hundred times too large. An alarm needs three observations in a row."""
    settings = tiny(plan={"init_mult": {"router": 100.0}}, training={"steps": 3}, watch={"routers_every": 1})
    raised: list[Step] = []
    training_in(tmp_path / "run", settings, watch=raised.append).run()
    lines = {line["alarm"]: line for line in lines_of(tmp_path / "run") if line["kind"] == "alarm"}
    logits = lines["logits"]
    assert (logits["step"], logits["limit"], logits["layers"], logits["value"] > 8) == (3, 8.0, 2, True)
    assert logits["text"].startswith("step 3: logits ")
    assert logits["remedy"] == "lower lr_mult of the router, decay its weights, or add a z-loss of 1e-3"
    assert [alarm.step for alarm in raised[-1].alarms] == [3] * len(lines)


@pytest.mark.parametrize("stop_at", [1, 4, 5])
def test_a_stopped_run_goes_on_exactly(whole_run: Path, tmp_path: Path, stop_at: int) -> None:
    """Noise in the routing is drawn from the random state, which goes on too."""

    class StoppedError(Exception):
        pass

    def stop(step: Step) -> None:
        if step.step == stop_at:
            raise StoppedError

    folder = tmp_path / "stopped"
    with pytest.raises(StoppedError):
        training_in(folder, watch=stop).run()
    training_in(folder, resume=True).run()
    assert_same_runs(whole_run, folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(whole_run: Path, tmp_path: Path, number: int) -> None:
    def stop(step: Step) -> None:
        if step.step == 3:
            os.kill(os.getpid(), number)

    def as_the_commands_do(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, as_the_commands_do)
    try:
        with pytest.raises(KeyboardInterrupt) as stopped:
            training_in(tmp_path / "run", watch=stop).run()
    finally:
        signal.signal(number, before)
    assert stopped.value.__notes__ == ["saved after step 3: go on with --resume"]
    assert (tmp_path / "run/checkpoints/step-00000003").is_dir()
    training_in(tmp_path / "run", resume=True).run()
    assert_same_runs(whole_run, tmp_path / "run")


def test_a_loss_that_is_nan_ends_the_run(tmp_path: Path) -> None:
    def poison(step: Step) -> None:
        if step.step == 4:
            with torch.no_grad():
                next(training.module.parameters()).fill_(math.nan)

    training = training_in(tmp_path / "run", watch=poison)
    with pytest.raises(
        ValueError, match=r"the loss of step 5 is nan: nothing is saved, and the last good .*step-00000004"
    ):
        training.run()
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["step-00000002", "step-00000004"]


def test_a_run_that_is_there_is_not_overwritten(whole_run: Path) -> None:
    with pytest.raises(ValueError, match="holds a run: go on with --resume, or choose another folder with --out"):
        training_in(whole_run)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"steps": 10**9}}, "steps must be at most "),
        ({"model": {"vocabulary": 128}}, "the model's vocabulary must be at least 256, got 128"),
        (
            {"data": {"sequence": 32}, "model": {"context": 16}},
            "at most the model's context of 16, got 32",
        ),
        ({"training": {"layout": "fsdp"}}, "layout must be for 1 processes, got fsdp"),
        ({"model": {"widht": 3}}, r"\[model\] has no entry widht: it has width, "),
        ({"plan": {"lr": 0.01, "regmie": "III"}}, r"\[plan\]: "),
    ],
)
def test_what_cannot_be_trained(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_in(tmp_path / "run", tiny(**sections))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"plan": {"lr": 0.02}}, "holds another run: plan.lr is 0.02 here, 0.01 there"),
        ({"model": {"experts": 8}}, "holds another run: model.experts is 8 here, 4 there"),
        ({"training": {"steps": 8}}, "training.steps is 8 here, 6 there"),
        ({"data": {"sequence": 8}}, "data.sequence is 8 here, 16 there"),
    ],
)
def test_another_run_does_not_go_on(whole_run: Path, sections: dict[str, Any], message: str) -> None:
    before = (whole_run / "run.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        training_in(whole_run, tiny(**sections), resume=True)
    assert (whole_run / "run.jsonl").read_bytes() == before
