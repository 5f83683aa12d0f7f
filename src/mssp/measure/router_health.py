"""The health of routers over a long run, with alarms that say the likely cause and what to try.

Forward hooks add up what routers do with the training batches, over all micro-batches of a step; hooks of the optimizer
measure the step itself, which is compared with what the plan says. Every n-th step is observed, and costs one
synchronisation. Limits and causes are in ``alarms.py``.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mssp._constraints import a_module, a_plan, an_optimizer, claims, optional, positive_int, takes
from mssp.apply.description import Claims, planned_parameters, unwrapped
from mssp.apply.groups import inner_optimizer
from mssp.apply.sharding import is_sharded
from mssp.measure.alarms import (
    ENOUGH_TOKENS,
    FULLEST,
    KINDS,
    SETTLED,
    STARVED,
    WINDOW,
    Alarm,
    Finding,
    Judge,
)
from mssp.measure.routers import WatchedRouter, repeated_in_backward, watched_routers
from mssp.measure.update_sizes import UpdateSize, UpdateSizes, by_role
from mssp.planning.parameter import ParamInfo
from mssp.planning.plans import Plan, Values
from mssp.planning.rules import BIASES

# Of the numbers of layers, which of them is the worst: the largest or the smallest.
_WORST = {
    "weights": max, "weights over bound": max, "logits": max, "spread": min, "z": max, "entropy": min,
    "sensitivity": min,
    "load": max, "starved": max, "apart": min,
}  # fmt: skip
_ENTRIES = 4096  # of each expert, by which distances are measured
_EQUAL = 1e-6  # experts that differ by less, as a share of their size, started equal
_LARGE_EPS = 0.3  # over the gradient: from here on it is eps that makes updates small
_PREFIX = "routers"


@takes(model=a_module, plan=a_plan, optimizer=optional(an_optimizer), every=positive_int, claims=optional(claims))
class RouterHealth:
    """Watches the routers of a run, and how large the updates of all parameters are.

    >>> import mssp
    >>> from mssp.nn import GPT, GPTConfig
    >>> config = GPTConfig(width=32, expert_width=16, experts=4, active=2, depth=2, vocabulary=64, context=16, head=16)
    >>> model, plan = GPT(config), mssp.plan(config.shape, regime="III", lr=4e-3)
    >>> mssp.initialize(model, plan)
    >>> optimizer = torch.optim.AdamW(mssp.param_groups(model, plan))
    >>> health = RouterHealth(model, plan, optimizer, every=1)
    >>> tokens = torch.arange(16).view(1, 16)
    >>> for step in range(2):
    ...     optimizer.zero_grad()
    ...     model(tokens, targets=tokens).loss.backward()
    ...     optimizer.step()
    ...     numbers, alarms = health.step(step)
    >>> round(numbers["step/readout"], 2), alarms, sorted(health.loads)
    (1.0, [], ['blocks.0.ffn', 'blocks.1.ffn'])

    Args:
        optimizer: that of the run, with the plan's groups. Without it updates are not measured.
        every: steps between two that are observed.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).

    Call :meth:`step` after every step of the optimizer. Under ``torch.compile`` make this before the model's first
    call: hooks become a part of what is compiled. Of several processes each watches its own tokens and its own shards.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        optimizer: Optimizer | None = None,
        every: int = 10,
        claims: Claims | None = None,
    ) -> None:
        inner = unwrapped(model)
        planned = planned_parameters(model, plan, claims)
        self.routers = watched_routers(inner, plan.target.active)
        if not self.routers:
            raise ValueError("model must be a model with routers that are known, got one without")
        self._plan, self._every, self._judge = plan, every, Judge()
        self._all_stacks = list(_stacks_of_experts(planned))
        self._stacks = [stack for stack in self._all_stacks if stack.starts_equal()]
        self._rate_of = {id(parameter): values for _, parameter, values in planned}
        self._role_of = {id(parameter): info for info, parameter, _ in planned}
        self._updates: UpdateSizes | None = None
        self._armed, self._warned = True, False
        self.layers: dict[str, dict[str, float]] = {}
        self.loads: dict[str, list[float]] = {}
        # What a resumed run takes up again, in plain numbers.
        self._bounds = [float(_rms(router.weight)) for router in self.routers]
        self._reach = [0.0 for _ in self.routers]
        self._moved, self._factor = [0.0 for _ in self._stacks], 1.0
        self._seen = [deque[tuple[float, list[float]]](maxlen=WINDOW) for _ in self.routers]
        self._hooks: list[RemovableHandle] = []
        for router in self.routers:
            self._hooks += router.attach(self._wanted)
        if optimizer is not None:
            stepping = inner_optimizer(optimizer)
            self._updates = UpdateSizes(planned, plan, stepping)
            self._hooks.append(stepping.register_step_pre_hook(self._before_update))
            self._hooks.append(stepping.register_step_post_hook(self._after_update))

    def close(self) -> None:
        """Take all hooks off the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _wanted(self) -> bool:
        if torch.compiler.is_compiling():  # one graph for all steps: what is not observed is thrown away
            return True
        return self._armed and not repeated_in_backward()

    def _before_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._updates is None:
            return
        factor = self._updates.factor_now()
        self._factor = max(1.0, self._factor) if factor is None else factor
        if self._armed:
            self._updates.before()

    def _after_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._armed and self._updates is not None:
            self._updates.after()

    def step(self, step: int) -> tuple[dict[str, float], list[Alarm]]:
        """The numbers of a step for the log, and the alarms that are raised at it; nothing at most steps.

        Every number is that of all layers in the mean; with ``/worst`` it is that of the worst layer.
        """
        observed = step % self._every == 0
        numbers, alarms = self._observed(step) if observed else ({}, [])
        self._count()
        self._armed = (step + 1) % self._every == 0
        if self._armed:
            for router in self.routers:
                router.sums.clear()
        return numbers, alarms

    def _count(self) -> None:
        """Count what the planned rates of a step let weights move by."""
        for index, router in enumerate(self.routers):
            values = self._rate_of.get(id(router.weight))
            if values is not None:
                rate, decay = values.lr * self._factor, values.weight_decay
                self._bounds[index] = self._bounds[index] * max(0.0, 1 - rate * decay) + rate
                # Rates of SGD say nothing of how far it moves.
                follows = self._plan.setting.optimizer_of("router").follows_gradients
                self._reach[index] += 1.0 if follows else rate * router.weight.shape[-1]
        for index, stack in enumerate(self._stacks):
            self._moved[index] += stack.values.lr * self._factor

    def _observed(self, step: int) -> tuple[dict[str, float], list[Alarm]]:
        with torch.no_grad():
            return self._read(step)

    def _read(self, step: int) -> tuple[dict[str, float], list[Alarm]]:
        pending = None if self._updates is None else self._updates.pending
        parts = [router.sums.totals().double() for router in self.routers]
        parts += [_rms(router.weight).double().reshape(1) for router in self.routers]
        parts += [stack.distance_and_size() for stack in self._stacks]
        parts += [] if pending is None else [pending]
        device = parts[0].device
        numbers = iter(torch.cat([part.to(device) for part in parts]).tolist())  # the one synchronisation
        totals = [_next(numbers, len(part)) for part in parts[: len(self.routers)]]
        weights = [next(numbers) for _ in self.routers]
        apart = [(next(numbers), next(numbers)) for _ in self._stacks]
        updates: list[UpdateSize] = []
        if self._updates is not None and pending is not None:
            updates = self._updates.read(list(numbers))
        self._read_layers(step, totals, weights)
        findings = [
            *self._of_updates(updates),
            *self._of_routers({each.name: each for each in updates}),
            *self._of_stacks(apart),
        ]
        return self._summary(updates), self._judge.judge(step, findings)

    def _read_layers(self, step: int, totals: Sequence[Sequence[float]], weights: Sequence[float]) -> None:
        seen_any = False
        for index, (router, of_router, weight) in enumerate(zip(self.routers, totals, weights, strict=True)):
            layer = router.sums.means(of_router)
            tokens, loads = layer.pop("tokens"), router.sums.loads(of_router)
            if not tokens:
                continue
            seen_any = True
            layer["weights"] = weight
            if self._updates is not None:
                layer["weights over bound"] = weight / max(self._bounds_after(index), 1e-30)
            if loads:
                if self._reach[index] >= SETTLED and step >= KINDS["dead"].after:
                    self._seen[index].append((tokens * router.sums.active, loads))
                layer["load"] = max(loads) * len(loads)
                layer["starved"] = self._starved(index)
                self.loads[router.name] = loads
            self.layers[router.name] = layer
        if not seen_any and not self._warned:
            self._warned = True
            message = (
                "no router was seen at work: make RouterHealth before a compiled model's first call, and call step() "
                "after steps in training mode"
            )
            warnings.warn(message, stacklevel=5)

    def _bounds_after(self, index: int) -> float:
        """The bound with the step that is being observed, which is not counted yet."""
        values = self._rate_of.get(id(self.routers[index].weight))
        return self._bounds[index] + (0.0 if values is None else values.lr * self._factor)

    def _starved(self, index: int) -> float:
        """The share of experts that got nearly nothing of the tokens of the last observed steps."""
        seen = self._seen[index]
        if len(seen) < WINDOW:
            return 0.0
        pairs = sum(count for count, _ in seen)
        got = [sum(count * loads[expert] for count, loads in seen) for expert in range(len(seen[0][1]))]
        fair = pairs / len(got)
        return sum(each < STARVED * fair for each in got) / len(got) if fair >= ENOUGH_TOKENS else 0.0

    # -- findings -----------------------------------------------------------------------------------------------------

    def _of_updates(self, updates: Sequence[UpdateSize]) -> Iterator[Finding]:
        for role, of_role in by_role(updates).items():
            follows = self._updates is not None and role in self._updates.follows_rates
            for each in of_role:
                off = max(each.rate, 1 / each.rate) if each.rate > 0 else math.inf
                yield Finding(f"rate {role}", KINDS["rate"], each.name, off, KINDS["rate"].limit, _of_rate(each))
                if role in BIASES:  # of some, as those of keys, the gradient is zero
                    continue
                if follows:
                    yield self._size(each, "large updates")
                if follows and role != "embedding":  # most tokens are in no batch
                    yield self._size(each, "small updates")

    def _size(self, update: UpdateSize, kind: str) -> Finding:
        cause, remedy = None, None
        if max(update.rate, 1 / max(update.rate, 1e-30)) > KINDS["rate"].limit:
            cause, remedy = _of_rate(update), KINDS["rate"].remedy
        elif kind == "small updates":
            cause, remedy = _of_small(update)
        limit = KINDS[kind].limit
        return Finding(f"{kind} {update.role}", KINDS[kind], update.name, update.size, limit, cause, remedy)

    def _of_routers(self, updates: Mapping[str, UpdateSize]) -> Iterator[Finding]:
        for index, router in enumerate(self.routers):
            layer = self.layers.get(router.name)
            if layer is None:
                continue
            active, count = router.sums.active, router.sums.experts
            cause, remedy = self._cause_in_weights(router, layer, updates)
            values = {
                "logits": layer["logits"],
                "z": math.sqrt(layer["z"]) - math.log(count) if layer["z"] >= 0 else math.nan,
                "saturated": layer["sensitivity"],
            }
            if "weights over bound" in layer:
                values["weights"] = layer["weights over bound"]
            if active > 1:
                values["collapsed"] = math.exp(layer["entropy"] * math.log(max(count, 2))) - 1
            for kind, value in values.items():
                if self._reach[index] >= SETTLED or not KINDS[kind].settled:
                    yield Finding(kind, KINDS[kind], router.name, value, KINDS[kind].limit, cause, remedy)
            if self._reach[index] >= SETTLED:
                limit = KINDS["uniform"].limit
                yield Finding("uniform", KINDS["uniform"], router.name, layer["spread"], limit)
            if "load" in layer and self._reach[index] >= SETTLED:
                yield Finding("dead", KINDS["dead"], router.name, layer["starved"], KINDS["dead"].limit)
                limit = min(max(1 + KINDS["overfull"].limit * (count / active - 1), FULLEST[0]), FULLEST[1])
                yield Finding("overfull", KINDS["overfull"], router.name, layer["load"], limit)

    def _cause_in_weights(
        self, router: WatchedRouter, layer: Mapping[str, float], updates: Mapping[str, UpdateSize]
    ) -> tuple[str | None, str | None]:
        """What the run itself shows of why a router's logits are large."""
        info = self._role_of.get(id(router.weight))
        update = None if info is None else updates.get(info.name)
        if update is not None and update.rate > KINDS["rate"].limit:
            return _of_rate(update), KINDS["rate"].remedy
        if update is not None and update.decay < 0:
            return "the decay of the router's weights is negative", "set weight_decay as the plan has it"
        if layer.get("weights over bound", 0.0) > KINDS["weights"].limit:
            return KINDS["weights"].cause, KINDS["weights"].remedy
        multiplier = self._plan.lr_mult.get("router", 1.0)
        if multiplier > 1:
            return f"the plan itself multiplies the router's learning rate by {multiplier:.3g}", None
        return None, None

    def _of_stacks(self, apart: Sequence[tuple[float, float]]) -> Iterator[Finding]:
        kind = KINDS["experts alike"]
        for stack, (distance, size), moved in zip(self._stacks, apart, self._moved, strict=True):
            if not moved:
                continue
            share = distance / min(moved, size)  # in a long run updates add up to more than weights are
            self.layers.setdefault(stack.name, {})["apart"] = share
            if moved * stack.fan_in >= SETTLED:
                yield Finding(kind.kind, kind, stack.name, share, kind.limit)

    def _summary(self, updates: Sequence[UpdateSize]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, worst in _WORST.items():
            values = [layer[name] for layer in self.layers.values() if name in layer]
            if values:
                numbers[f"{_PREFIX}/{name}"] = sum(values) / len(values)
                numbers[f"{_PREFIX}/{name}/worst"] = worst(values)
        for role, of_role in by_role(updates).items():
            numbers[f"step/{role}"] = math.sqrt(sum(each.size**2 for each in of_role) / len(of_role))
        return numbers

    # -- a run that is resumed ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to raise the same alarms at the same steps, as plain numbers and lists (JSON)."""
        return {
            "armed": self._armed,
            "bounds": list(self._bounds),
            "reach": list(self._reach),
            "moved": list(self._moved),
            "factor": self._factor,
            "equal": [stack.name for stack in self._stacks],
            "seen": [[[count, loads] for count, loads in seen] for seen in self._seen],
            "alarms": self._judge.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another run of the same model was."""
        if len(state["bounds"]) != len(self.routers):
            raise ValueError(f"state must be that of {len(self.routers)} routers, got {len(state['bounds'])}")
        self._armed, self._factor = bool(state["armed"]), float(state["factor"])
        self._bounds, self._reach, self._moved = list(state["bounds"]), list(state["reach"]), list(state["moved"])
        self._stacks = [stack for stack in self._all_stacks if stack.name in state["equal"]]
        self._seen = [deque(((count, loads) for count, loads in seen), maxlen=WINDOW) for seen in state["seen"]]
        self._judge.load(state["alarms"])


# -- experts -----------------------------------------------------------------------------------------------------------


class _Stack:
    """The weights of one layer's experts: a stacked tensor, or a tensor for each expert."""

    def __init__(self, name: str, values: Values, tensors: Sequence[Tensor], info: ParamInfo) -> None:
        self.name, self.values, self.fan_in = name, values, info.fan_in or 1
        self._tensors, self._info = tensors, info

    @torch.no_grad()
    def distance_and_size(self) -> Tensor:
        """The RMS over entries of how far experts are from their mean, and that of the experts themselves, [2]."""
        rows = self._rows()
        return torch.stack([(rows - rows.mean(0)).square().mean(), rows.square().mean()]).sqrt()

    def starts_equal(self) -> bool:
        """Whether there are several experts, and they are equal now."""
        distance, size = self.distance_and_size().tolist()
        return len(self._rows()) > 1 and distance <= _EQUAL * size

    def _rows(self) -> Tensor:
        """Some entries of each expert, the same of all: [M, entries]. Of a sharded stack, this process's experts."""
        if len(self._tensors) > 1:
            rows = torch.stack([_whole(tensor).flatten() for tensor in self._tensors])
        else:
            stack, axis = _whole(self._tensors[0]), self._info.expert_axis or 0
            flat = self._info.is_flat(stack.dim())
            rows = (stack.unflatten(axis, (self._info.experts or 1, -1)) if flat else stack).movedim(axis, 0).flatten(1)
        return rows[:, :: max(1, rows.shape[1] // _ENTRIES)].double()


def _stacks_of_experts(planned: Sequence[tuple[ParamInfo, Tensor, Values]]) -> Iterator[_Stack]:
    separate: dict[str, list[tuple[ParamInfo, Tensor, Values]]] = {}
    for info, parameter, values in planned:
        if info.role in ("expert_in", "expert_out") and info.expert_axis is not None:
            yield _Stack(info.name, values, [parameter], info)
        elif info.role in ("expert_in", "expert_out") and info.tied_as:
            separate.setdefault(info.tied_as, []).append((info, parameter, values))
    for name, of_layer in separate.items():
        yield _Stack(name, of_layer[0][2], [parameter for _, parameter, _ in of_layer], of_layer[0][0])


def _whole(parameter: Tensor) -> Tensor:
    return (parameter.to_local() if is_sharded(parameter) else parameter).detach()


def _rms(parameter: Tensor) -> Tensor:
    whole = _whole(parameter)
    return whole.double().square().mean().sqrt() if whole.numel() else torch.zeros((), device=whole.device)


def _next(numbers: Iterator[float], count: int) -> list[float]:
    return [next(numbers) for _ in range(count)]


def _of_rate(update: UpdateSize) -> str:
    return f"its group has {update.rate:.3g} times the learning rate that the plan says"


def _of_small(update: UpdateSize) -> tuple[str, str | None]:
    """Why an update is small that has the planned rate."""
    if update.eps is None:
        return "no gradient reaches it", "look for a detach, a frozen part, or gates that are all equal"
    if update.eps >= _LARGE_EPS:
        return f"eps is {update.eps:.2g} times the gradient", None
    if update.coarse:
        return "its precision rounds small steps away", "keep parameters in float32, with autocast for the products"
    return (
        "its gradients are far smaller than they were: gates are saturated, or tokens go elsewhere",
        "see the other alarms of this layer; without one, eps and beta2",
    )
