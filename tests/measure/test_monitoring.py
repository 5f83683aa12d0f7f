"""A training run that writes down its sizes."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mssp
from mssp import ParamInfo, PlanWarning
from mssp.measure.modules import ModuleProbe, own_loss
from mssp.nn import GPT, GPTConfig, MoE

CONFIG = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=8, head=16)
Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def run(**options: Any) -> tuple[GPT, mssp.Plan, torch.optim.Optimizer]:
    plan = mssp.plan(CONFIG.shape, regime="III", lr=4e-3, eps=1e-6, **options)
    model = GPT(CONFIG)
    mssp.initialize(model, plan)
    return model, plan, torch.optim.AdamW(mssp.param_groups(model, plan))


def batch() -> Batch:
    return torch.randint(64, (2, 8)), torch.randint(64, (2, 8))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch], after: Any = None) -> None:
    for tokens, targets in batches:
        optimizer.zero_grad()
        model(tokens, targets=targets).loss.backward()
        optimizer.step()
        if after is not None:
            after()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_json_object_per_line(tmp_path: Path) -> None:
    model, plan, optimizer = run()
    path = tmp_path / "run.jsonl"
    probe = batch()
    with mssp.monitor(model, plan, optimizer=optimizer, every=2, to=path, probe=probe) as watched:
        train(model, optimizer, [batch() for _ in range(5)])
    lines = lines_of(path)
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert [line.get("plan") for line in lines] == [plan.hash, None, None]
    assert lines[0]["loss"] == pytest.approx(math.log(64), abs=1e-5)  # the readout starts at zero
    assert lines[0]["sizes"]["effective/hidden"] == 0
    assert lines[1]["sizes"]["effective/hidden"] > 0
    assert lines[0]["sizes"]["weights/hidden"] == pytest.approx(plan.roles["hidden"].init_std, rel=0.05)
    assert [line.step for line in watched.lines] == [0, 2, 4]
    assert watched.lines[2].sizes == lines[2]["sizes"]
    assert path.read_text(encoding="utf-8").endswith("}\n")


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    model, plan, optimizer = run()
    path = tmp_path / "run.jsonl"
    with mssp.monitor(model, plan, optimizer=optimizer, to=path, probe=batch()):
        train(model, optimizer, [batch()])
    sizes = lines_of(path)[0]["sizes"]
    assert sizes["gradient/embedding"] == 0  # nothing comes back through a readout of zeros
    assert sizes["faithfulness/embedding"] is None


def test_lines_are_written_as_they_come(tmp_path: Path) -> None:
    model, plan, optimizer = run()
    path, seen = tmp_path / "run.jsonl", []
    with mssp.monitor(model, plan, optimizer=optimizer, every=1, to=str(path)):
        train(model, optimizer, [batch() for _ in range(3)], lambda: seen.append(len(lines_of(path))))
    assert seen == [1, 2, 3]


def test_the_first_batch_is_the_probe() -> None:
    model, plan, optimizer = run()
    first, second = batch(), batch()
    reference = ModuleProbe(model, (first[0].clone(), first[1].clone()))
    with mssp.monitor(model, plan, optimizer=optimizer, every=1) as watched:
        model.eval()
        model(*second)  # an evaluation is not training
        model.train()
        train(model, optimizer, [first])
        first[0].zero_()  # as a loader does that uses its memory again
        with torch.no_grad():  # which is no obstacle
            wanted = reference()
        train(model, optimizer, [second])
    sizes = watched.lines[1].sizes
    of_training = {name for name in sizes if name.startswith(("gradient/", "faithfulness/"))}
    assert {name: sizes[name] for name in sizes.keys() - of_training} == {
        name: float(size) for name, size in wanted.items() if name not in of_training
    }


def test_it_measures_what_a_probe_measures() -> None:
    model, plan, optimizer = run()
    probe = batch()
    reference = ModuleProbe(model, probe, own_loss)
    watched = mssp.monitor(model, plan, every=2, probe=probe)
    found = []

    def after_a_step() -> None:
        watched.step()
        found.append(reference())

    train(model, optimizer, [batch(), batch()], after_a_step)
    assert [line.step for line in watched.lines] == [0, 2]
    assert watched.lines[1].sizes == {name: float(size) for name, size in found[-1].items()}
    assert "gradient/readout" in watched.lines[1].sizes
    assert not any(name.startswith("faithfulness") for name in watched.lines[1].sizes)


def test_without_an_optimizer_the_start_is_before_the_first_step() -> None:
    model, plan, optimizer = run()
    watched = mssp.monitor(model, plan, every=1)
    assert watched.lines == []
    train(model, optimizer, [batch()], watched.step)
    assert [line.step for line in watched.lines] == [0, 1]
    assert watched.lines[0].sizes["update/hidden"] == 0
    assert watched.lines[1].sizes["update/readout"] > 0


def test_gradients_and_faithfulness_are_those_of_the_training_batch() -> None:
    model, plan, optimizer = run()
    with mssp.monitor(model, plan, optimizer=optimizer, every=1, probe=batch()) as watched:
        train(model, optimizer, [batch(), batch()])
    sizes = watched.lines[1].sizes  # by when the readout sends something back
    by_role: dict[str, list[Tensor]] = {}
    for info in mssp.describe(model):
        grad = model.get_parameter(info.name).grad
        assert grad is not None
        by_role.setdefault(info.role, []).append(grad.flatten().double())
    for role, grads in by_role.items():
        size = float(torch.cat(grads).square().mean().sqrt())
        eps = plan.roles[role].eps
        assert eps is not None
        assert sizes[f"gradient/{role}"] == pytest.approx(size, rel=1e-6)
        assert sizes[f"faithfulness/{role}"] == pytest.approx(eps / size, rel=1e-6)


def test_faithfulness_is_of_the_gradients_that_the_optimizer_used() -> None:
    model, plan, optimizer = run(grad_scale=True)
    watched = mssp.monitor(model, plan, optimizer=optimizer, probe=batch())
    mssp.scale_gradients(optimizer)  # after the monitor, and still before the update
    train(model, optimizer, [batch()])
    scaled = model.readout.weight.grad if model.readout is not None else None
    assert scaled is not None
    assert watched.lines[0].sizes["gradient/readout"] == pytest.approx(float(scaled.square().mean().sqrt()), rel=1e-5)


def test_sgd_has_no_eps() -> None:
    plan = mssp.plan(CONFIG.shape, regime="III", lr=0.1, optimizer="sgd")
    model = GPT(CONFIG)
    mssp.initialize(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mssp.monitor(model, plan, optimizer=optimizer) as watched:
        train(model, optimizer, [batch()])
    assert "gradient/readout" in watched.lines[0].sizes
    assert not any(name.startswith("faithfulness") for name in watched.lines[0].sizes)


class Board:
    """As TensorBoard's writer."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen.setdefault(step, {})[name] = value


class Run:
    """As wandb's."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[str, float]] = {}

    def log(self, values: dict[str, float], step: int) -> None:
        self.seen[step] = values


def test_several_places_at_once(tmp_path: Path) -> None:
    model, plan, optimizer = run()
    board, wandb_run = Board(), Run()
    called: dict[int, dict[str, float]] = {}
    places = [board, wandb_run, called.__setitem__, tmp_path / "run.jsonl"]
    with mssp.monitor(model, plan, optimizer=optimizer, every=1, to=places, probe=batch()) as watched:
        train(model, optimizer, [batch(), batch()])
    assert board.seen == wandb_run.seen == called
    assert list(called) == [0, 1]
    assert called[1] == {"probe/loss": watched.lines[1].loss, **watched.lines[1].sizes}
    assert len(lines_of(tmp_path / "run.jsonl")) == 2


def test_a_model_without_a_loss_of_its_own() -> None:
    model, plan, optimizer = run()
    watched = mssp.monitor(model, plan, optimizer=optimizer, every=1)
    optimizer.zero_grad()
    tokens, targets = batch()
    nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()).backward()
    optimizer.step()
    sizes = watched.lines[0].sizes
    assert watched.lines[0].loss is None
    assert {"effective/readout", "aggregate/init", "gradient/readout"} <= sizes.keys()
    assert not any(name.startswith("backward") for name in sizes)


def test_a_loss_of_ones_own() -> None:
    model, plan, _ = run()
    tokens, _ = batch()
    watched = mssp.monitor(model, plan, probe=tokens, loss=lambda model, x: model(x).logits.square().mean())
    assert watched.lines[0].loss == 0


def test_a_compiled_model_is_measured_too() -> None:
    model, plan, optimizer = run()
    compiled: Any = torch.compile(model, backend="eager")
    with mssp.monitor(compiled, plan, optimizer=optimizer, every=1) as watched:
        train(compiled, optimizer, [batch() for _ in range(3)])
    assert watched.lines[2].sizes["effective/expert_in"] > 0
    mssp.initialize(model, plan)
    with mssp.monitor(model, plan, optimizer=optimizer, every=1) as watched:  # compiled around the hook
        train(compiled, optimizer, [batch()])
    assert watched.lines[0].sizes["activation/expert_in"] > 0


def test_monitoring_does_not_change_the_run() -> None:
    ends = []
    for watching in (False, True):
        torch.manual_seed(1)
        model, plan, optimizer = run()
        if watching:
            mssp.monitor(model, plan, optimizer=optimizer, every=1)
        train(model, optimizer, [batch() for _ in range(3)])
        ends.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*ends)


def test_weights_that_the_plan_did_not_give_are_warned_about() -> None:
    plan = mssp.plan(CONFIG.shape, regime="III", lr=4e-3)
    model = GPT(CONFIG)
    with pytest.warns(
        PlanWarning, match="the weights are not what the plan says: call mssp.initialize first"
    ) as caught:
        mssp.monitor(model, plan, probe=batch()).step()
    (warning,) = caught
    assert "readout has 0.1" in str(warning.message)
    assert "planned 0" in str(warning.message)
    assert warning.filename == __file__
    mssp.initialize(model, plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mssp.monitor(model, plan, probe=batch())


def test_few_tied_entries_are_not_judged() -> None:
    """1,024 entries of expert_in, but 64 numbers drawn: their RMS is anywhere."""
    shape = mssp.Shape(width=16, expert_width=4, experts=16, active=16, depth=1)
    plan = mssp.plan(shape, regime="III", lr=0.1)
    moe = MoE(shape.width, shape.expert_width, shape.experts)
    mssp.initialize(moe, plan, seed=3)
    with torch.no_grad():
        moe.experts.w_in.mul_(1.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mssp.monitor(moe, plan, probe=torch.randn(2, 16))


def test_a_run_in_which_the_model_is_never_called() -> None:
    model, plan, optimizer = run()
    watched = mssp.monitor(model, plan, optimizer=optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.warns(UserWarning, match="the model was not called in training mode, .* pass probe"):
        optimizer.step()
    assert watched.lines[0].sizes["gradient/hidden"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be"),
        ({"to": 3}, "to must be a path, a TensorBoard writer .* or a list of these, got 3"),
        ({"to": "nowhere/run.jsonl"}, "cannot write nowhere.run.jsonl: its folder does not exist"),
        ({"to": "."}, "cannot write .: it is a folder"),
        ({"loss": own_loss}, "a loss is taken on a probe batch: pass probe too"),
        ({"optimizer": "adam"}, "optimizer must be a torch.optim.Optimizer, got 'adam'"),
        ({"plan": None}, "plan must be what mssp.plan returns, got None"),
        ({"claims": {"readout.weight": ParamInfo("readout", layout="out in")}}, "claimed more than once"),
    ],
)
def test_mistakes_get_one_line(options: dict[str, Any], message: str) -> None:
    model, plan, _ = run()
    with pytest.raises(ValueError, match=message) as caught:
        mssp.monitor(model, **{"plan": plan, **options})
    assert "\n" not in str(caught.value)
    assert not model._forward_pre_hooks


def test_steps_are_counted_once() -> None:
    model, plan, optimizer = run()
    watched = mssp.monitor(model, plan, optimizer=optimizer)
    with pytest.raises(ValueError, match="counts the steps of the optimizer it was given"):
        watched.step()


def test_nothing_is_left_after_closing() -> None:
    model, plan, optimizer = run()
    hooks: Any = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    before = [len(each) for each in hooks]
    watched = mssp.monitor(model, plan, optimizer=optimizer, every=1)
    assert [len(each) for each in hooks] != before
    watched.close()
    watched.close()
    assert [len(each) for each in hooks] == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    train(model, optimizer, [batch()])
    assert watched.lines == []


def test_an_optimizer_of_another_model_is_refused() -> None:
    (model, plan, _), (_, _, of_another) = run(), run()
    count = len(list(model.parameters()))
    message = f"must be an optimizer of the model, got one of whose {count} parameters {count} are not the model's"
    with pytest.raises(ValueError, match=message):
        mssp.monitor(model, plan, optimizer=of_another)
    of_another.param_groups[0]["params"] = [next(model.parameters())]
    with pytest.raises(ValueError, match="are not the model's"):
        mssp.monitor(model, plan, optimizer=of_another)


def test_an_optimizer_of_a_part_of_the_model_is_measured_where_it_is() -> None:
    model, plan, _ = run()
    optimizer = torch.optim.AdamW([parameter for name, parameter in model.named_parameters() if "router" in name])
    with mssp.monitor(model, plan, optimizer=optimizer, every=1) as watched:
        train(model, optimizer, [batch()])
    assert [name for name in watched.lines[0].sizes if name.startswith("faithfulness/")] == ["faithfulness/router"]


@pytest.mark.parametrize("to", [nn.Linear(1, 1), nn.Linear, torch.ones(1), object()])
def test_what_lines_cannot_be_written_to(to: Any) -> None:
    model, plan, _ = run()
    with pytest.raises(ValueError, match=r"to must be a path, .*, got [^\n]+$"):
        mssp.monitor(model, plan, to=to)
