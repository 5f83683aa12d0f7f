"""Routers that fail in a known way, in small runs on bytes, and the alarms that have to say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import mssp
from mssp.measure import Alarm, RouterHealth
from mssp.nn import GPT, GPTConfig, Router
from mssp.planning.plans import Plan

CONTEXT, BATCH, WARMUP = 64, 8, 20
BALANCE = 0.01  # the coefficient of a load-balancing loss that is 1 at uniform routing
RATE = 0.008


@dataclass(frozen=True)
class Run:
    """A small run.

    Args:
        sizes: of the model, where they are not the usual ones.
        plan: settings of the plan, where they are not the usual ones.
        start: changes the model before the first step.
        groups: changes the optimizer's groups before the first step.
        raises: the alarms of which at least one must be raised; none for a healthy run.
    """

    sizes: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    balance: float = BALANCE
    start: Callable[[GPT], None] | None = None
    groups: Callable[[Optimizer], None] | None = None
    raises: frozenset[str] = frozenset()


def _routers(model: nn.Module) -> list[Router]:
    return [module for module in model.modules() if isinstance(module, Router)]


def _zero_routers(model: GPT) -> None:
    for router in _routers(model):
        nn.init.zeros_(router.weight)


def _frozen_routers(model: GPT) -> None:
    for router in _routers(model):
        router.weight.register_hook(torch.zeros_like)


def _two_favourites(model: GPT) -> None:
    for router in _routers(model):
        assert router.random_bias is not None
        router.random_bias.zero_()
        router.random_bias[:2] = 100.0


def _set(role: str, **values: Callable[[dict[str, Any]], float]) -> Callable[[Optimizer], None]:
    """Sets numbers of the groups of a role, from what the plan says."""

    def change(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if group["name"].partition(" ")[0] == role:
                group.update({name: value(dict(group)) for name, value in values.items()})

    return change


PLANTED = {
    "the router's rate is 30 times too high, in the plan itself": Run(
        plan={"lr_mult": {"router": 30.0}}, raises=frozenset({"logits", "z", "saturated"})
    ),
    "two favourites, and nothing balances": Run(
        sizes={"random_bias": 1.0}, balance=0.0, start=_two_favourites, raises=frozenset({"dead", "overfull"})
    ),
    "the router's decay is negative": Run(
        groups=_set("router", weight_decay=lambda group: -0.04 / group["initial_lr"]),
        raises=frozenset({"weights", "z", "logits"}),
    ),
    "equal experts under gates that sum to one, and a router of zeros": Run(
        sizes={"active": None, "normalise": True},
        plan={"gates_sum_to_one": True},
        start=_zero_routers,
        raises=frozenset({"uniform", "experts alike"}),
    ),
    "expert_out's rate has the width once too often": Run(
        groups=_set("expert_out", initial_lr=lambda group: group["initial_lr"] / 64),
        raises=frozenset({"rate", "small updates"}),
    ),
    "the router's eps is 1": Run(groups=_set("router", eps=lambda group: 1.0), raises=frozenset({"small updates"})),
    "the router is frozen": Run(
        start=_frozen_routers,
        raises=frozenset({"small updates"}),
    ),
}


def built(run: Run, seed: int, rate: float = RATE) -> tuple[GPT, Plan]:
    sizes = {"width": 64, "expert_width": 32, "experts": 8, "active": 2, "depth": 2, "head": 32, **run.sizes}
    config = GPTConfig(vocabulary=256, context=CONTEXT, **sizes)
    plan = mssp.plan(config.shape, config.shape, regime="III", lr=rate, **run.plan)
    model = GPT(config)
    mssp.initialize(model, plan, seed=seed)
    if run.start is not None:
        run.start(model)
    return model, plan


def windows(text: Tensor, seed: int, steps: int) -> list[Tensor]:
    """Random windows of a text of bytes, [steps][BATCH, CONTEXT + 1]."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT, (steps, BATCH), generator=generator)
    return [text[each[:, None] + torch.arange(CONTEXT + 1)].long() for each in starts]


def watched(
    model: nn.Module, plan: Plan, run: Run, batches: list[Tensor], every: int = 5
) -> tuple[list[Alarm], list[float]]:
    """Train, and return the alarms and the losses."""
    optimizer = torch.optim.AdamW(mssp.param_groups(model, plan), betas=(0.9, 0.99))
    if run.groups is not None:
        run.groups(optimizer)
    health = RouterHealth(model, plan, optimizer, every=every)
    alarms, losses = list[Alarm](), list[float]()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, (step + 1) / WARMUP)
        optimizer.zero_grad()
        loss, total = _losses(model, batch, run.balance)
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        alarms += health.step(step)[1]
        losses.append(float(loss))
    health.close()
    return alarms, losses


def _losses(model: nn.Module, batch: Tensor, balance: float) -> tuple[Tensor, Tensor]:
    """The loss of predictions and the whole loss."""
    if isinstance(model, GPT):
        output = model(batch[:, :-1].contiguous(), targets=batch[:, 1:].contiguous())
        assert output.loss is not None
        return output.loss.detach(), output.loss + balance * output.load_balancing_loss()
    loss: Tensor = model(input_ids=batch[:, :-1], labels=batch[:, :-1]).loss
    return loss.detach(), loss
