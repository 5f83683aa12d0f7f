"""The sizes of a model while it trains, written down every so many steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from mssp._constraints import positive_int
from mssp.apply.description import Claims, described_parameters
from mssp.apply.groups import inner_optimizer
from mssp.measure.magnitudes import Sizes
from mssp.measure.modules import Call, Described, Entries, Loss, ModuleProbe, check_whole
from mssp.measure.quantities import FAITHFULNESS, GRADIENT
from mssp.measure.trackers import Line, Writer, writers
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan
from mssp.planning.recipe import PlanWarning

# Of a role with that many random entries the RMS is within 10 % of its standard deviation, by four of its errors.
_ENOUGH_ENTRIES = 1000
_TOLERANCE = 0.1


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

    Step n is after n updates. Of several processes, the first one writes.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"plan must be what mssp.plan returns, got a {type(plan).__name__}")
    if loss is not None and probe is None:
        raise ValueError("a loss is taken on a probe batch: pass probe too")
    writing = writers(to) if _first_process() else []
    return Monitor(
        model,
        plan,
        None if optimizer is None else inner_optimizer(optimizer),
        positive_int("every", every),
        writing,
        probe,
        loss,
        claims,
    )


class Monitor:
    """A run that is being measured; :func:`monitor` makes one."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizer | None,
        every: int,
        writing: list[Writer],
        probe: Any,
        loss: Loss | None,
        claims: Claims | None,
    ) -> None:
        self.lines: list[Line] = []
        self._model, self._plan, self._optimizer, self._every = model, plan, optimizer, every
        self._writing, self._claims = writing, claims
        self._described = described_parameters(model, claims)
        check_whole(self._described)
        self._planned = plan.resolve(info for info, _ in self._described)
        self._steps = 0
        self._probe: ModuleProbe | None = None
        self._measured: tuple[Sizes, Tensor | None] = ({}, None)
        self._hooks: list[RemovableHandle] = []
        if probe is not None:
            self._start(probe, loss)
        else:
            capture = torch.compiler.disable(self._capture)  # where the model is compiled, hooks are too
            self._first_call = model.register_forward_pre_hook(capture, with_kwargs=True)
            self._hooks.append(self._first_call)
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
            self._hooks.append(optimizer.register_step_post_hook(self._after_update))

    def step(self) -> None:
        """Count a step of an optimizer that was not passed."""
        if self._optimizer is not None:
            raise ValueError("the monitor counts the steps of the optimizer it was given: do not call step()")
        self._steps += 1
        if self._due:
            self._measure()
            self._write({})

    def close(self) -> None:
        """Take all hooks off the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """A model that was not initialized by its plan is measured against weights that nobody meant."""
        off = []
        for role in dict.fromkeys(info.role for info, _ in self._described):
            members = [(info, parameter) for info, parameter in self._described if info.role == role]
            if sum(self._drawn(info, parameter) for info, parameter in members) <= _ENOUGH_ENTRIES:
                continue
            entries = Entries()
            for info, parameter in members:
                entries.add("found", parameter)
                entries.add_size("planned", self._planned[info.name].init_std, parameter.numel())
            found, planned = (float(size) for size in entries.sizes().values())
            if abs(found - planned) > _TOLERANCE * planned:
                off.append(f"{role} has {found:.3g}, planned {planned:.3g}")
        if off:
            warnings.warn(
                f"the weights are not what the plan says: call mssp.initialize first ({'; '.join(off)})",
                PlanWarning,
                stacklevel=5,
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
        if self._due:
            self._write(_gradient_sizes(self._described, optimizer))
        self._steps += 1

    def _write(self, of_training: Mapping[str, Tensor]) -> None:
        sizes, loss = self._measured
        sizes = {**sizes, **of_training}
        numbers = torch.cat([size.detach().double().cpu() for size in sizes.values()]).tolist() if sizes else []
        line = Line(
            self._steps,
            dict(zip(sizes, numbers, strict=True)),
            None if loss is None else float(loss),
            None if self.lines else self._plan.hash,
        )
        self.lines.append(line)
        for write in self._writing:
            write(line)


def _gradient_sizes(described: Described, optimizer: Optimizer) -> Sizes:
    """The RMS of the gradients of each role, and eps over it; a parameter without a gradient counts as zeros."""
    eps_of = {id(p): group.get("eps") for group in optimizer.param_groups for p in group["params"]}
    gradients, eps, without = Entries(), Entries(), set()
    for info, parameter in described:
        if id(parameter) not in eps_of:
            continue
        gradients.add(info.role, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        used = eps_of[id(parameter)]
        if used is None:
            without.add(info.role)
        else:
            eps.add_size(info.role, float(used), parameter.numel())
    sizes: Sizes = {GRADIENT(role): size for role, size in gradients.sizes().items()}
    ratios = {role: size / sizes[GRADIENT(role)] for role, size in eps.sizes().items() if role not in without}
    return sizes | {FAITHFULNESS(role): ratio for role, ratio in ratios.items()}


def _first_process() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
