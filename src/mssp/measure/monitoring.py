"""Measures a model while it trains, every so many steps, and writes the sizes (root mean squares) down."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from mssp._constraints import a_module, a_plan, an_optimizer, claims, function, optional, positive_int, switch, takes
from mssp.apply.description import Claims, described_parameters
from mssp.apply.groups import inner_optimizer
from mssp.measure.alarms import Alarm
from mssp.measure.magnitudes import Sizes
from mssp.measure.modules import Call, Described, Entries, Loss, ModuleProbe, check_unsharded
from mssp.measure.quantities import FAITHFULNESS, GRADIENT
from mssp.measure.router_health import RouterHealth
from mssp.measure.trackers import Line, writers
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

# With so many random entries, the RMS of a role is within 10 % of its standard deviation (four standard errors).
_ENOUGH_ENTRIES = 1000
_TOLERANCE = 0.1


@takes(
    model=a_module,
    plan=a_plan,
    optimizer=optional(an_optimizer),
    every=positive_int,
    loss=optional(function),
    claims=optional(claims),
    health=switch,
)
def monitor(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: Optimizer | None = None,
    every: int = 100,
    to: Any = None,
    probe: Any = None,
    loss: Loss | None = None,
    claims: Claims | None = None,
    health: bool = False,
) -> Monitor:
    """Measure a model on a fixed batch while it trains, against the weights it starts from.

    >>> import mssp
    >>> from mssp.nn import GPT, GPTConfig
    >>> config = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=16, head=16)
    >>> model, plan = GPT(config), mssp.plan(config.shape, regime="III", lr=4e-3)
    >>> mssp.initialize(model, plan)
    >>> optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    >>> tokens = torch.arange(16).view(1, 16)
    >>> with monitor(model, plan, optimizer=optimizer, every=2) as watched:
    ...     for _ in range(3):
    ...         optimizer.zero_grad()
    ...         model(tokens, targets=tokens).loss.backward()
    ...         optimizer.step()
    >>> [line.step for line in watched.lines]
    [0, 2]
    >>> round(watched.lines[0].sizes["weights/readout"], 3), watched.lines[1].sizes["effective/readout"] > 0
    (0.0, True)

    Args:
        optimizer: its steps are counted, and its gradients measured: ``gradient/ROLE`` is then that of the training
            batch, and ``faithfulness/ROLE`` is eps over it. Without it, call ``step()`` after every step.
        every: steps between two measurements.
        to: a path, to which one JSON object per line is added; a TensorBoard writer; a wandb run; a function of the
            step and a dict; or a list of these. Lines are in ``lines`` in any case.
        probe: the batch to measure on. Without it, what the model is first called with in training is kept for that.
        loss: the mean loss ``loss(model, probe)``. Without it the ``loss`` of the model's output is taken, where there
            is one; otherwise only the forward pass is measured.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        health: watch routers on the training batches too, and single updates (:class:`mssp.measure.RouterHealth`).
            The numbers are in the lines, and alarms are in the lines and warned of.

    Where gradients are added up over several micro-batches, the first one of the run is the probe, gradients are those
    that the optimizer uses, and the numbers of routers are means over all micro-batches of the step.

    Step n is after n updates. Of several processes, only the first one writes.
    """
    return Monitor(model, plan, optimizer, every, to, probe, loss, claims, health)


class Monitor(AbstractContextManager["Monitor"]):
    """A run that is being measured; :func:`monitor` makes one."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizer | None,
        every: int,
        to: Any,
        probe: Any,
        loss: Loss | None,
        claims: Claims | None,
        health: bool = False,
    ) -> None:
        if loss is not None and probe is None:
            raise ValueError("a loss is taken on a probe batch: pass probe too")
        self.lines: list[Line] = []
        self._writers = writers(to) if _is_first_process() else []
        self._model, self._plan, self._claims = model, plan, claims
        self._optimizer = None if optimizer is None else inner_optimizer(optimizer)
        if self._optimizer is not None:
            _refuse_strangers(self._optimizer, model)
        self._every = every
        self._described = described_parameters(model, claims)
        check_unsharded(self._described)
        self._planned = plan.resolve(info for info, _ in self._described)
        self._steps = 0
        self._probe: ModuleProbe | None = None
        self._measured: tuple[Sizes, Tensor | None] = ({}, None)
        self._hooks: list[RemovableHandle] = []
        # Before the hooks below, which then run after those of the watch.
        self._health = RouterHealth(model, plan, self._optimizer, every, claims) if health else None
        if probe is not None:
            self._start(probe, loss)
        else:
            capture = torch.compiler.disable(self._capture)  # where the model is compiled, hooks are too
            self._first_call = model.register_forward_pre_hook(capture, with_kwargs=True)
            self._hooks.append(self._first_call)
        if self._optimizer is not None:
            self._hooks.append(self._optimizer.register_step_pre_hook(self._before_update))
            self._hooks.append(self._optimizer.register_step_post_hook(self._after_update))

    def step(self) -> None:
        """Count a step of an optimizer that was not passed."""
        if self._optimizer is not None:
            raise ValueError("the monitor counts the steps of the optimizer it was given: do not call step()")
        self._steps += 1
        of_training, alarms = self._watched()
        if self._due:
            self._measure()
            self._write(of_training, alarms)

    def go_on_from(self, steps: int) -> None:
        """Count on from a number of steps that were taken before, after the weights of a checkpoint were read.

        Sizes are still against the weights that the monitor was made with, which are to be the initial ones.
        """
        self._steps = steps

    def close(self) -> None:
        """Take all hooks off the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()
        if self._health is not None:
            self._health.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _due(self) -> bool:
        return self._steps % self._every == 0

    def _capture(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.training:
            self._first_call.remove()
            kept = tree_map_only(Tensor, lambda x: x.detach().clone(), (args, kwargs))
            self._start(Call(*kept), None)

    def _start(self, batch: Any, loss: Loss | None) -> None:
        self._probe = ModuleProbe(self._model, batch, loss, self._claims)
        self._check_weights()
        if self._optimizer is None:
            self._measure()
            self._write({})

    def _check_weights(self) -> None:
        """Warn if the weights are not those that the plan asks for, since they are what the run is measured against."""
        found, planned, drawn = Entries(), Entries(), defaultdict[str, float](float)
        for info, parameter in self._described:
            found.add(info.role, parameter)
            planned.add_size(info.role, self._planned[info.name].init_std, parameter.numel())
            drawn[info.role] += self._drawn(info, parameter)
        stds = {role: float(std) for role, std in planned.sizes().items()}
        off = [
            f"{role} has {float(size):.3g}, planned {stds[role]:.3g}"
            for role, size in found.sizes().items()
            if drawn[role] > _ENOUGH_ENTRIES and abs(float(size) - stds[role]) > _TOLERANCE * stds[role]
        ]
        if off:
            warnings.warn(
                f"the weights are not what the plan says: call mssp.initialize first ({'; '.join(off)})",
                PlanWarning,
                stacklevel=6,
            )

    def _drawn(self, info: ParamInfo, parameter: Tensor) -> float:
        """How many numbers were drawn for a parameter: tied experts share theirs."""
        return parameter.numel() / ((info.experts or 1) if self._planned[info.name].starts_equal else 1)

    def _measure(self) -> None:
        if self._probe is None:
            if not self.lines:
                warnings.warn(
                    "the model was not called in training mode, so that there is nothing to measure on: pass probe",
                    stacklevel=4,
                )
            return
        self._measured = self._probe.measure()

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._due:
            self._measure()

    def _after_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Gradients are read after the update: by then they are what it used, scaled, unscaled or made by a closure.
        of_training, alarms = self._watched()
        if self._due:
            self._write(of_training, alarms, _gradient_sizes(self._described, optimizer))
        self._steps += 1

    def _watched(self) -> tuple[Mapping[str, float], list[Alarm]]:
        """The numbers of the routers' health at this step, and its alarms."""
        numbers, alarms = ({}, []) if self._health is None else self._health.step(self._steps)
        for alarm in alarms:
            warnings.warn(str(alarm), PlanWarning, stacklevel=4)
        return numbers, alarms

    def _write(
        self,
        of_training: Mapping[str, float],
        alarms: Sequence[Alarm] = (),
        gradients: Mapping[str, Tensor] | None = None,
    ) -> None:
        sizes, loss = self._measured
        sizes = {**sizes, **(gradients or {})}
        numbers = torch.cat([size.detach().double().cpu() for size in sizes.values()]).tolist() if sizes else []
        line = Line(
            self._steps,
            {**dict(zip(sizes, numbers, strict=True)), **of_training},
            None if loss is None else float(loss),
            None if self.lines else self._plan.hash,
            tuple(alarms),
        )
        self.lines.append(line)
        for write in self._writers:
            write(line)


def _refuse_strangers(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer of another model, whose steps would be counted. It may hold a part of the model's parameters.

    Wrappers keep the parameters of what they wrap: compiled models, and those of DDP.
    """
    own = {id(parameter) for parameter in model.parameters()}
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(each not in own for each in held)
    if strangers:
        what = f"one of whose {len(held)} parameters {strangers} are not the model's"
        raise ValueError(f"optimizer must be an optimizer of the model, got {what}")


def _gradient_sizes(described: Described, optimizer: Optimizer) -> Sizes:
    """The RMS of the gradients of each role, and eps over it; a parameter without a gradient counts as zeros."""
    eps_of = {id(p): group.get("eps") for group in optimizer.param_groups for p in group["params"]}
    gradients, eps, without_eps = Entries(), Entries(), set()
    for info, parameter in described:
        if id(parameter) not in eps_of:
            continue
        gradients.add(info.role, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        own_eps = eps_of[id(parameter)]
        if own_eps is None:
            without_eps.add(info.role)
        else:
            eps.add_size(info.role, float(own_eps), parameter.numel())
    sizes: Sizes = {GRADIENT(role): size for role, size in gradients.sizes().items()}
    with_eps = {role: size for role, size in eps.sizes().items() if role not in without_eps}
    return sizes | {FAITHFULNESS(role): size / sizes[GRADIENT(role)] for role, size in with_eps.items()}


def _is_first_process() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
