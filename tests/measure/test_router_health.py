"""The health of routers: planted failures raise their alarm, a healthy run none, and the numbers are right."""

from __future__ import annotations

import argparse
import inspect
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mssp
from mssp.measure import Alarm, RouterHealth
from mssp.measure.alarms import ALARMS, IN_A_ROW, KINDS, Finding, Judge, table
from mssp.measure.routers import RoutingSums
from mssp.nn import GPT, GPTConfig, MLPConfig, MLPMoE
from mssp.nn.router import route
from tests.hf.tiny_models import config_of
from tests.planted.routers import PLANTED, Run, built, watched, windows

CONFIG = GPTConfig(
    width=32, expert_width=16, experts=4, active=2, depth=2, vocabulary=64, context=8, head=16, checkpointing=False
)
SHAPE = mssp.Shape(width=32, expert_width=16, experts=4, active=2, depth=2)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def text() -> Tensor:
    return torch.tensor(list(inspect.getsource(argparse).encode()))


def run(config: GPTConfig = CONFIG, **options: Any) -> tuple[GPT, mssp.Plan, torch.optim.Optimizer]:
    plan = mssp.plan(config.shape, regime="III", lr=4e-3, **options)
    model = GPT(config)
    mssp.initialize(model, plan)
    return model, plan, torch.optim.AdamW(mssp.param_groups(model, plan))


def batch(rows: int = 4) -> Tensor:
    return torch.randint(64, (rows, 8))


def backward(model: nn.Module, tokens: Tensor, share: float = 1.0) -> None:
    (model(tokens, targets=tokens).loss * share).backward()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, health: RouterHealth, steps: int) -> list[Any]:
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, batch())
        optimizer.step()
        seen.append(health.step(step))
    return seen


# -- alarms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "cause"),
    [
        (
            "the router's rate is 30 times too high, in the plan itself",
            25,
            "the plan itself multiplies the router's learning rate by 30",
        ),
        ("expert_out's rate has the width once too often", 15, "its group has 0.0156 times the learning rate"),
        ("the router is frozen", 35, "no gradient reaches it"),
    ],
)
def test_a_planted_failure_raises_its_alarm(text: Tensor, name: str, steps: int, cause: str) -> None:
    planted = PLANTED[name]
    alarms, _ = watched(*built(planted, seed=0), planted, windows(text, 0, steps))
    raised = {alarm.kind for alarm in alarms}
    assert raised & planted.raises
    assert raised <= planted.raises
    assert cause in str(alarms[0])
    assert "\n" not in str(alarms[0])


@pytest.mark.slow
def test_a_healthy_run_raises_none(text: Tensor) -> None:
    alarms, losses = watched(*built(Run(), seed=0), Run(), windows(text, 0, 100))
    assert alarms == []
    assert losses[-1] < losses[0] - 2


def test_at_least_five_failures_are_planted() -> None:
    assert len(PLANTED) == 7
    assert all(planted.raises <= KINDS.keys() for planted in PLANTED.values())
    assert {kind for planted in PLANTED.values() for kind in planted.raises} == {
        "rate", "small updates", "weights", "logits", "z", "saturated", "uniform", "dead", "overfull", "experts alike"
    }  # fmt: skip


def test_an_alarm_is_raised_once_and_again_when_it_has_come_back() -> None:
    judge, kind = Judge(), KINDS["logits"]

    def judged(step: int, value: float) -> list[Alarm]:
        return judge.judge(step, [Finding("logits", kind, "a", value, kind.limit), Finding("logits", kind, "b", 1, 8)])

    values = [9, 9, 7, 9, 9, 9, 9, 7, 7, 9, 7, 7, 7, 9, 9, math.nan]
    raised = [step for step, value in enumerate(values) if judged(step, value)]
    assert (raised, IN_A_ROW) == ([5, 15], 3)


def test_the_worst_layer_is_named() -> None:
    judge, kind = Judge(), replace(KINDS["saturated"], after=0)
    findings = [Finding("saturated", kind, name, value, kind.limit) for name, value in (("a", 0.02), ("b", 0.01))]
    findings.append(Finding("saturated", kind, "c", 0.9, kind.limit))
    [alarm] = [alarm for step in range(3) for alarm in judge.judge(step, findings)]
    assert (alarm.layer, alarm.layers, alarm.value, alarm.step) == ("b", 2, 0.01, 2)
    assert str(alarm).startswith("step 2: saturated 0.01 (limit 0.05) in b and 1 more. Likely cause: the logits are")


def test_nothing_is_judged_before_its_time() -> None:
    kind = KINDS["dead"]
    judge = Judge()
    raised = [step for step in range(80) if judge.judge(step, [Finding("dead", kind, "a", 0.5, 0.0)])]
    assert raised == [kind.after + 2] == [62]


def test_the_table_says_what_everything_means() -> None:
    assert len(KINDS) == len(ALARMS) == 12
    assert all(kind.why and kind.cause and kind.remedy and kind.number for kind in ALARMS)
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page, "\n".join(["paste this into docs/monitoring.md:", *table()])


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "active"), [("sigmoid", 2), ("softmax", 2), ("sigmoid", None)])
def test_sums_are_those_of_a_routing(gate: str, active: int | None) -> None:
    logits = torch.randn(50, 4)
    routing = route(logits, active, gate=gate)
    sums = RoutingSums(4, active or 4, gate, "cpu")
    for part in (slice(0, 10), slice(10, 50)):
        sums.add(logits[part], None if routing.chosen is None else routing.chosen[part])
    totals = sums.totals().tolist()
    found, statistics = sums.means(totals), routing.statistics()
    assert found["z"] == pytest.approx(float(routing.z_loss()), rel=1e-5)
    assert found["entropy"] * math.log(4) == pytest.approx(float(statistics.entropy), rel=1e-5)
    assert found["logits"] == pytest.approx(float(logits.square().mean().sqrt()), rel=1e-5)
    assert found["tokens"] == 50
    if gate == "sigmoid":
        assert found["sensitivity"] == pytest.approx(float((4 * routing.gates * (1 - routing.gates)).mean()), rel=1e-4)
    if active is None:
        assert sums.loads(totals) == []
    else:
        assert sums.loads(totals) == pytest.approx(routing.loads().tolist())
    sums.clear()
    assert sums.means(sums.totals().tolist())["tokens"] == 0


@pytest.mark.parametrize("micro", [1, 4])
def test_micro_batches_are_one_step(micro: int) -> None:
    model, plan, optimizer = run()
    health = RouterHealth(model, plan, optimizer, every=1)
    tokens = batch(8)
    with torch.no_grad():
        routings = model(tokens).routings
    health.step(0)
    for part in tokens.chunk(micro):
        backward(model, part, 1 / micro)
    optimizer.step()
    numbers, alarms = health.step(1)
    assert alarms == []
    assert list(health.layers)[:2] == ["blocks.0.ffn", "blocks.1.ffn"]
    for name, routing in zip(health.layers, routings, strict=False):
        assert health.loads[name] == pytest.approx(routing.loads().tolist())
        assert health.layers[name]["z"] == pytest.approx(float(routing.z_loss()), rel=1e-5)
    assert numbers["routers/z"] == pytest.approx(float(torch.stack([each.z_loss() for each in routings]).mean()))
    assert numbers["step/readout"] == pytest.approx(1.0, rel=1e-3)  # Adam's first step moves by the learning rate


def test_steps_are_measured_without_decay_and_over_the_planned_rate() -> None:
    model, plan, optimizer = run(weight_decay=0.1)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * 0.5  # of a schedule
        if group["name"] == "expert_in":
            group["lr"] *= 3
    health = RouterHealth(model, plan, optimizer, every=1)
    [(first, _), *_, (_, raised)] = trained(model, optimizer, health, 3)
    assert first["step/readout"] == pytest.approx(1.0, rel=1e-3)
    [alarm] = raised
    assert (alarm.kind, alarm.layer, alarm.layers) == ("rate", "blocks.0.ffn.experts.w_in", 2)
    assert alarm.value == pytest.approx(3)
    assert alarm.cause == "its group has 3 times the learning rate that the plan says"


def test_schedules_may_change_rates_right_after_the_step() -> None:
    model, plan, optimizer = run()
    health = RouterHealth(model, plan, optimizer, every=1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 if step else 1.0)
    backward(model, batch())
    optimizer.step()
    schedule.step()
    numbers, _ = health.step(0)
    assert numbers["step/readout"] == pytest.approx(1.0, rel=1e-3)


def test_only_every_nth_step_is_observed() -> None:
    model, plan, optimizer = run()
    health = RouterHealth(model, plan, optimizer, every=3)
    seen = trained(model, optimizer, health, 7)
    assert [bool(numbers) for numbers, _ in seen] == [True, False, False, True, False, False, True]


def test_evaluation_and_passes_that_are_repeated_do_not_count() -> None:
    model, plan, optimizer = run(replace(CONFIG, checkpointing=True))
    health = RouterHealth(model, plan, optimizer, every=1)
    model.eval()
    model(batch())
    model.train()
    backward(model, batch())  # runs the blocks twice
    assert [router.sums.means(router.sums.totals().tolist())["tokens"] for router in health.routers] == [32, 32]


@pytest.mark.slow
def test_a_compiled_model_is_watched() -> None:
    seen = []
    for compiled in (False, True):
        torch.manual_seed(1)
        torch.compiler.reset()
        model, plan, optimizer = run()
        health = RouterHealth(model, plan, optimizer, every=2)
        whole: Any = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        seen.append(trained(whole, optimizer, health, 5))
    for (eager, _), (traced, _) in zip(*seen, strict=True):
        assert traced == pytest.approx(eager, rel=1e-4)


def test_watching_does_not_change_the_run() -> None:
    ends = []
    for watching in (False, True):
        torch.manual_seed(1)
        model, plan, optimizer = run()
        health = RouterHealth(model, plan, optimizer, every=2)
        if not watching:
            health.close()
        for step in range(3):
            optimizer.zero_grad()
            backward(model, batch())
            optimizer.step()
            if watching:
                health.step(step)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


def test_a_resumed_run_raises_the_same_alarms() -> None:
    def frozen() -> tuple[GPT, mssp.Plan, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model, plan, optimizer = run()
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.register_hook(torch.zeros_like)
        return model, plan, optimizer

    model, plan, optimizer = frozen()
    health = RouterHealth(model, plan, optimizer, every=4)
    whole = trained(model, optimizer, health, 30)
    assert [alarm.kind for _, alarms in whole for alarm in alarms] == ["small updates"]

    model, plan, optimizer = frozen()
    health = RouterHealth(model, plan, optimizer, every=4)
    start = trained(model, optimizer, health, 23)
    kept = json.loads(json.dumps(health.state_dict()))
    health.close()
    resumed = RouterHealth(model, plan, optimizer, every=4)
    resumed.load_state_dict(kept)
    for step in range(23, 30):
        optimizer.zero_grad()
        backward(model, batch())
        optimizer.step()
        start.append(resumed.step(step))
    assert start == whole
    with pytest.raises(ValueError, match="state must be that of 2 routers, got 1"):
        resumed.load_state_dict({**kept, "bounds": [0.0]})


# -- other models ------------------------------------------------------------------------------------------------------


def test_a_hugging_face_model() -> None:
    config = config_of("olmoe", SHAPE, output_router_logits=True)
    plan = mssp.hf.plan(config, config, lr=4e-3, regime="III", gates_sum_to_one=True)
    model = mssp.hf.from_config(config, plan, base=config)
    model.train()
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    health = RouterHealth(model, plan, optimizer, every=1)
    tokens = batch()
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    optimizer.step()
    numbers, alarms = health.step(0)
    assert alarms == []
    assert numbers["step/readout"] == pytest.approx(1.0, rel=1e-3)
    for (name, loads), logits in zip(health.loads.items(), output.router_logits, strict=True):
        counts = torch.bincount(logits.topk(2).indices.flatten(), minlength=4)
        assert loads == pytest.approx((counts / counts.sum()).tolist()), name
        wanted = float(logits.detach().logsumexp(-1).square().mean())
        assert health.layers[name]["z"] == pytest.approx(wanted, rel=1e-4)
    assert list(health.loads) == ["model.layers.0.mlp", "model.layers.1.mlp"]


def test_an_mlp() -> None:
    config = MLPConfig(inputs=12, outputs=3, width=32, expert_width=16, experts=4, active=2, blocks=2, residual=True)
    plan = mssp.plan(config.shape, regime="III", optimizer="sgd", lr=0.1)
    model = MLPMoE(config)
    mssp.initialize(model, plan)
    optimizer = torch.optim.SGD(mssp.param_groups(model, plan))
    health = RouterHealth(model, plan, optimizer, every=1)
    x = torch.randn(20, 12)
    logits = model.activations(x)["blocks.1.router"].detach()
    model.loss(x, torch.randint(3, (20,))).backward()
    optimizer.step()
    numbers, _ = health.step(0)
    assert health.layers["blocks.1"]["logits"] == pytest.approx(float(logits.square().mean().sqrt()), rel=1e-5)
    assert sum(health.loads["blocks.0"]) == pytest.approx(1)
    assert numbers["routers/load/worst"] >= numbers["routers/load"] >= 1


def test_a_model_without_routers_is_refused() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 64, bias=False))
    claims = {
        "0.weight": mssp.ParamInfo("hidden", layout="out in"),
        "1.weight": mssp.ParamInfo("readout", layout="out in"),
    }
    plan = mssp.plan(CONFIG.shape, regime="III", lr=4e-3)
    with pytest.raises(ValueError, match="model must be a model with routers that are known, got one without"):
        RouterHealth(model, plan, claims=claims)


def test_a_run_that_no_router_is_seen_in_is_warned_of() -> None:
    model, plan, optimizer = run()
    health = RouterHealth(model, plan, optimizer)
    with pytest.warns(UserWarning, match="no router was seen at work") as caught:
        health.step(0)
    assert caught[0].filename == __file__


def test_nothing_is_left_after_closing() -> None:
    model, plan, optimizer = run()
    health = RouterHealth(model, plan, optimizer)
    assert any(module._forward_hooks for module in model.modules())
    health.close()
    hooks: Any = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    assert [len(each) for each in hooks] == [0, 0]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# -- through the monitor -----------------------------------------------------------------------------------------------


def test_a_monitor_watches_over_micro_batches() -> None:
    model, plan, optimizer = run()
    tokens = batch(8)
    with mssp.monitor(model, plan, optimizer=optimizer, every=2, health=True) as monitored:
        for _ in range(3):
            optimizer.zero_grad()
            for part in tokens.chunk(4):
                backward(model, part, 0.25)
            optimizer.step()
    assert [line.step for line in monitored.lines] == [0, 2]
    other, _, of_other = run()
    for _ in range(3):
        of_other.zero_grad()
        output = other(tokens, targets=tokens)
        routings = output.routings
        output.loss.backward()
        of_other.step()
    sizes, readout = monitored.lines[1].sizes, other.readout
    assert readout is not None
    assert readout.weight.grad is not None
    # The gradient of all micro-batches, as if they had been one batch, and the means over all of their tokens.
    assert sizes["gradient/readout"] == pytest.approx(float(readout.weight.grad.square().mean().sqrt()), rel=1e-3)
    assert sizes["routers/z"] == pytest.approx(sum(each.z_loss().item() for each in routings) / 2, rel=1e-3)
    assert sizes["step/expert_in"] > 0
    assert not any(module._forward_hooks for module in model.modules())


def test_a_monitor_warns_of_alarms_and_writes_them_down() -> None:
    model, plan, optimizer = run()
    for group in optimizer.param_groups:
        if group["name"] == "router":
            group["lr"] *= 2
    monitored = mssp.monitor(model, plan, optimizer=optimizer, every=1, health=True)

    def one_step() -> None:
        optimizer.zero_grad()
        backward(model, batch())
        optimizer.step()

    one_step()
    one_step()
    with pytest.warns(mssp.PlanWarning, match="step 2: rate 2 .* Likely cause: its group has 2 times"):
        one_step()
    [line] = [line for line in monitored.lines if line.alarms]
    [written] = json.loads(line.json())["alarms"]
    assert {key: written[key] for key in ("step", "kind", "layer", "value", "limit", "layers")} == {
        "step": 2, "kind": "rate", "layer": "blocks.0.ffn.router.weight", "value": 2.0, "limit": 1.05, "layers": 2
    }  # fmt: skip
