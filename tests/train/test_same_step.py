"""The same step in one process: its words, its refusals, and accidents that need no second process."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import mssp
from mssp.nn import GPT, GPTConfig
from mssp.train import SameStep, StepReport, clip_, same_step, spread
from mssp.train.steps import divided, predicted, rows_in

CONFIG = GPTConfig(width=32, expert_width=16, experts=4, active=2, depth=1, vocabulary=64, context=16, head=16)
PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
PLAN = mssp.plan(CONFIG.shape, regime="III", lr=1e-2, weight_decay=0.1)
ROWS = torch.randint(64, (7, 17), generator=torch.Generator().manual_seed(0))


def build() -> nn.Module:
    return GPT(CONFIG).double()


def build_in_float32() -> nn.Module:
    return GPT(CONFIG)


def of(step: Any, **options: Any) -> SameStep:
    return same_step(build, ROWS, PLAN, layout=step, **options)


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = model(rows[:, :-1], rows[:, 1:].contiguous()).loss
    return loss


def usual(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> Tensor:
    loss_of(model, rows).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    return norm


def test_accumulation_changes_nothing() -> None:
    for accumulation in (1, 4):
        for made in (build, build_in_float32):
            result = same_step(made, ROWS, PLAN, layout="one", accumulation=accumulation, clip=0.05)
            assert result.passed, result
            assert (result.rows, result.tokens, result.processes) == (7, 112, 1)
    assert of(usual, clip=0.05).passed


def test_the_table() -> None:
    result = of(usual, clip=0.05)
    lines = str(result).splitlines()
    assert lines[0] == "usual on 1 process · 7 rows, 112 predicted tokens · adamw, clipped at 0.05"
    assert lines[2].split() == ["role", "parameters", "gradient", "update", "decay"]
    assert [line.split() for line in lines[4:13]] == [
        ["embedding", "1", "1.00", "1.00", "1.00"],
        ["norm", "2", "1.00", "1.00", "–"],
        ["hidden", "2", "1.00", "1.00", "1.00"],
        ["qk_norm", "2", "1.00", "1.00", "–"],
        ["router", "1", "1.00", "1.00", "1.00"],
        ["expert_in", "1", "1.00", "1.00", "1.00"],
        ["expert_out", "1", "1.00", "1.00", "1.00"],
        ["final_norm", "1", "1.00", "1.00", "–"],
        ["readout", "1", "1.00", "1.00", "1.00"],
    ]
    assert lines[-1] == "pass: the step is that of one device"


def test_the_page_shows_what_is_printed() -> None:
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[:2]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert out.getvalue() == shown


def test_the_document() -> None:
    document = of(usual, clip=0.05).json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert " ".join(document) == (
        "layout processes rows tokens optimizer clip loss norm roles parameters causes notes verdict"
    )
    assert " ".join(document["norm"]) == "values one_device verdict"
    assert " ".join(document["roles"]["router"]) == "parameters gradient update decay is_decayed"
    assert document["roles"]["norm"]["decay"] is None
    assert " ".join(document["roles"]["router"]["gradient"]) == "values verdict"
    assert document["parameters"]["blocks.0.ffn.router.weight"]["role"] == "router"
    assert document["verdict"] == "pass"


def test_what_a_step_reports() -> None:
    """Loss and norm are compared if they are reported, and a wrong one is off."""

    def said(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> StepReport:
        norm = usual(model, optimizer, rows)
        return StepReport(loss=2 * loss_of(model, rows), norm=norm)

    result = of(said, clip=0.05)
    assert (result.loss.verdict, result.norm.verdict) == ("off", "same")
    assert result.causes == ("the reported loss is not the mean over the predicted tokens of the whole batch",)

    def silent(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> None:
        usual(model, optimizer, rows)

    result = of(silent, clip=0.05)
    assert result.passed
    assert result.notes == ("the norm is not reported: gradients are compared as if it were right",)


def test_an_optimizer_of_its_own() -> None:
    """A step may keep its own weights and gradients, as engines do that flatten them, and hand them over whole."""

    def engine(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> StepReport:
        loss_of(model, rows).backward()
        named = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            for name in (names[id(parameter)] for parameter in group["params"]):
                decayed = named[name] * (1 - group["lr"] * group["weight_decay"])
                named[name] = decayed - group["lr"] * gradients[name] / (gradients[name].abs() + group["eps"])
        return StepReport(gradients=gradients, weights=named)

    result = of(engine)
    assert result.passed, result


def test_learning_rates_and_decay() -> None:
    def scheduled(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] / 10
        return usual(model, optimizer, rows)

    result = of(scheduled, clip=0.05)
    assert (
        result.causes[0] == "all updates are 0.10 times what the plan's optimizer makes of these gradients: a schedule?"
    )

    def one_rate(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> Tensor:
        for group in optimizer.param_groups:
            if group["name"] == "readout":
                group["lr"] *= 4
                group["weight_decay"] /= 4
        return usual(model, optimizer, rows)

    result = of(one_rate, clip=0.05)
    assert [role for role, step in result.roles.items() if not step.same] == ["readout"]
    assert result.causes == (
        "readout moves 4.00 times as far as planned: the optimizer or its groups are not those of the plan",
    )


def test_sgd_shows_the_gradient_in_the_update() -> None:
    plan = mssp.plan(CONFIG.shape, regime="III", lr=0.1, optimizer="sgd")

    def twice(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> None:
        for part in (rows, rows):
            loss_of(model, part).backward()
        optimizer.step()

    result = same_step(build, ROWS, plan, layout=twice)
    assert result.causes == (
        "all gradients are 2.00 times the one-device ones: they are summed over 2 micro-batches, each of which gives a "
        "mean, and not divided by their number",
    )
    assert [round(step.update.values[0], 6) for step in result.roles.values()] == [2.0] * 9
    assert {step.update.verdict for step in result.roles.values()} == {"follows"}


def test_rows_that_are_left_out() -> None:
    def without_the_last(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> Tensor:
        return usual(model, optimizer, rows[:6])

    assert of(without_the_last, clip=0.05).causes == (
        "rows 6 of the batch do not count: they are left out, or their part of the step is",
    )


def test_rounding_is_no_accident() -> None:
    """One active expert with a renormalised gate: the router's gradient is rounding, and so is what it moves by."""
    config = GPTConfig(**{**vars(CONFIG), "active": 1, "normalise": True})
    for lr, notes in ((1e-2, ()), (1e-8, ("updates of",))):
        plan = mssp.plan(config.shape, regime="II", scheme="mup", lr=lr, weight_decay=1.0)
        result = same_step(partial(GPT, config), ROWS, plan, layout="one", accumulation=4, clip=0.01)
        assert result.passed, result
        assert [note.startswith(start) for note, start in zip(result.notes, notes, strict=False)] == [True] * len(notes)


def test_what_nothing_explains() -> None:
    """Two experts that have changed places compute another loss, and no weighting of rows is said to explain it."""

    def mixed_up(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> Tensor:
        stack = model.get_parameter("blocks.0.ffn.experts.w_in")
        with torch.no_grad():
            stack.copy_(stack[[1, 0, 2, 3]])
        return usual(model, optimizer, rows)

    result = of(mixed_up, clip=0.05)
    assert not result.passed
    assert "are no weighted sum of the gradients of rows" in result.causes[0]


def test_clipping_that_does_nothing_is_said() -> None:
    assert of("one", clip=100.0).notes[0].startswith("clipping at 100 does nothing to a norm of")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "zero"}, "layout must be one of one, ddp, fsdp, ep, or a function that takes the step, got 'zero'"),
        ({"layout": "one", "parts": 2}, "spread_by and parts are for a layout that is a function"),
        ({"layout": usual, "accumulation": 2}, "accumulation is for a named layout: a function accumulates by itself"),
        ({"layout": "ddp"}, "layout ddp needs a process group: start with torchrun, and init_process_group first"),
        ({"layout": lambda model, optimizer, rows: None}, "the step left no gradients to compare"),
        ({"layout": "one", "loss": lambda model, rows: 1.0}, "loss must return one number as a tensor"),
        ({"layout": "one", "batch": "text"}, "batch must be tensors with the same number of rows in front"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    batch = options.pop("batch", ROWS)
    with pytest.raises(ValueError, match=message):
        same_step(build, batch, PLAN, **options)


def test_a_model_that_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="build must make a model without dropout and noise"):
        same_step(lambda: GPT(GPTConfig(**{**vars(CONFIG), "noise": 1.0})), ROWS, PLAN, layout="one")


def test_more_than_one_step_is_refused() -> None:
    def each_part(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> None:
        for part in rows.split(4):
            usual(model, optimizer, part)

    with pytest.raises(ValueError, match="layout must take one step of the optimizer, and took 2"):
        of(each_part)


def test_batches() -> None:
    assert rows_in({"labels": ROWS, "input_ids": ROWS}) == 7
    assert predicted(ROWS) == 112
    assert predicted({"input_ids": ROWS, "labels": ROWS.masked_fill(ROWS < 32, -100)}) == int((ROWS[:, 1:] >= 32).sum())
    assert divided(7, 2, 2) == [[slice(0, 2), slice(2, 4)], [slice(4, 6), slice(6, 7)]]


def test_a_layout_of_one_process_is_the_model() -> None:
    model = build()
    assert spread(model, "one") is model
    with pytest.raises(ValueError, match="needs a process group"):
        spread(model, "fsdp")


def test_without_a_limit_nothing_is_clipped() -> None:
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert float(clip_([weight], math.inf)) == 5.0
    assert weight.grad.tolist() == [3.0, 4.0]
    assert float(clip_([nn.Parameter(torch.zeros(2))], 1.0)) == 0.0
