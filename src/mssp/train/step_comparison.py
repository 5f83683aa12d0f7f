"""The same step under any layout: gradients, clip norm, update and decay of one step against the one-device run's.

Every process takes the step of one device by itself, then its part of the step under the layout, from the same weights.
Weights are drawn for the plan and then disturbed, so that no gradient is zero and no two experts are alike.

What the optimizer does is judged by itself. The plan's optimizer is applied to the gradients that the layout's step
ended with, and what the step did is split into a multiple of that update, and a multiple of the plan's decay. So wrong
gradients do not accuse the optimizer, and Adam, whose updates hardly depend on the size of gradients, does not hide
them.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from mssp._constraints import (
    Constraint,
    a_plan,
    claims,
    function,
    one_of,
    optional,
    positive,
    positive_int,
    takes,
    whole,
)
from mssp.apply.description import Claims, described_parameters
from mssp.apply.groups import optimizer_class, optimizer_for
from mssp.apply.initial_weights import draw_normals, initialize
from mssp.planning.recipe import PlanWarning
from mssp.planning.rules import BIASES, GAINS
from mssp.train.layouts import LAYOUTS, spread
from mssp.train.step_causes import Findings, RowWeights, causes
from mssp.train.step_result import Compared, ParameterStep, Reported, RoleStep, SameStep, Verdict
from mssp.train.steps import (
    Loss,
    Seen,
    Step,
    divided,
    own_loss,
    predicted,
    rows_in,
    rows_of,
    seen,
    shared_step,
    terms,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from mssp.planning.parameter import ParamInfo
    from mssp.planning.plans import Plan

# Distances relative to what is compared. Layouts add the same numbers in another order: in float32 that made 6e-7 of a
# gradient in all models tried, and 2e-15 in float64. The least of the known accidents makes a hundred times as much.
_TOLERANCE, _OF_HALF_PRECISION = 1e-4, 0.03
_OF_UPDATES, _OF_DECAY = 1e-3, 1e-2
_COARSE = 0.1  # of an update: where rounding makes more of it, little is compared
_NOTHING = 1e-7  # of all gradients together: a role with so little has no gradient but rounding
_DISTURBED, _DISTURBED_VECTORS = 0.5, 0.1
_COLUMNS = 64  # rows, or groups of rows, of which a wrong gradient is looked for as a weighted sum


def _layout(value: Any) -> Any:
    if callable(value) and not isinstance(value, type | nn.Module):
        return value
    return one_of(LAYOUTS).take(value)


@takes(
    build=function,
    plan=a_plan,
    layout=Constraint(f"one of {', '.join(LAYOUTS)}, or a function that takes the step", _layout),
    claims=optional(claims),
    loss=optional(function),
    spread_by=optional(function),
    clip=optional(positive),
    accumulation=positive_int,
    parts=optional(positive_int),
    seed=whole,
)
def same_step(
    build: Callable[[], nn.Module],
    batch: Any,
    plan: Plan,
    *,
    layout: str | Step,
    claims: Claims | None = None,
    loss: Loss | None = None,
    spread_by: Callable[[nn.Module], nn.Module] | None = None,
    clip: float | None = None,
    accumulation: int = 1,
    parts: int | None = None,
    seed: int = 0,
) -> SameStep:
    """Compare one training step under a layout with the same step on one device, role by role.

    >>> import mssp
    >>> from mssp.nn import GPT, GPTConfig
    >>> config = GPTConfig(width=32, expert_width=16, experts=4, depth=2, vocabulary=64, context=16, head=16)
    >>> rows = torch.randint(64, (6, 17), generator=torch.Generator().manual_seed(0))
    >>> plan = mssp.plan(config.shape, regime="III", lr=4e-3)
    >>> same_step(lambda: GPT(config).double(), rows, plan, layout="one", accumulation=3).passed
    True

    All processes of the group call it, with the same arguments.

    Args:
        build: makes the model, with whatever weights.
        batch: the rows of the whole step: a tensor [B, S + 1] of tokens, or a tuple or mapping of tensors.
        layout: ``one``, ``ddp``, ``fsdp`` or ``ep``, carried out as ``mssp train`` does; or a function of yours,
            ``step(model, optimizer, batch)``. It takes this process's rows of the batch, makes gradients, clips them,
            steps the optimizer once, and returns the norm before clipping, a :class:`mssp.train.StepReport`, or None.
        claims: what the parameters are, where the modules do not say so themselves (see :func:`mssp.describe`).
        loss: the mean loss of a batch, ``loss(model, batch)``, as a tensor, or as a mapping of names to terms: first
            the mean over predicted tokens, then auxiliary losses with their coefficients. By default the model's own.
        spread_by: lays the model on the processes before the optimizer is made, for a function ``layout``.
        clip: the norm from which the step clips gradients; None if it does not.
        accumulation: micro-batches of each process, for a named layout.
        parts: for a function ``layout`` and a loss that is no mean over tokens, such as load balancing: in how many
            parts, processes times micro-batches, it computes the loss.
        seed: of the weights.
    """
    processes = dist.get_world_size() if dist.is_initialized() else 1
    named = isinstance(layout, str)
    if named and (spread_by is not None or parts is not None):
        raise ValueError("spread_by and parts are for a layout that is a function: a named one brings them along")
    if not named and accumulation > 1:
        raise ValueError("accumulation is for a named layout: a function accumulates by itself")
    loss = loss or own_loss
    rows = rows_in(batch)
    shares = divided(rows, processes if named else parts or 1, accumulation)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(seed)
        model = build()
        described = _prepared(model, plan, claims, seed)
        _refuse_random(model, batch, loss)
        other = copy.deepcopy(model)
    device_step = _Step(model, plan, claims, described)
    pieces = [part for share in shares for part in share]
    one_device = device_step.taken(shared_step(loss, pieces, clip, alone=True), batch, clip)
    if isinstance(layout, str):
        own = divided(rows, processes, accumulation)[dist.get_rank() if dist.is_initialized() else 0]
        other, step = spread(other, layout), shared_step(loss, own, clip)
    else:
        other, step = other if spread_by is None else spread_by(other), layout
    optimizer = optimizer_for(other, plan, claims)
    observed = seen(step, other, optimizer, batch, device_step.weights, clip, one_device.norm)
    comparison = _Comparison(device_step, one_device, observed, _gathered_everywhere)
    if comparison.gradients_are_off:
        comparison.row_weights = _row_weights(device_step, observed, batch, loss, pieces)
    return comparison.result(
        layout=layout if isinstance(layout, str) else getattr(layout, "__name__", type(layout).__name__),
        processes=processes,
        rows=rows,
        tokens=predicted(batch),
        optimizer=plan.setting.optimizer.name,
        clip=clip,
    )


def _prepared(model: nn.Module, plan: Plan, claims: Claims | None, seed: int) -> list[tuple[ParamInfo, nn.Parameter]]:
    """Gives a model weights that leave no gradient at zero. A plan's own may be zero, or the same for all experts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanWarning)  # of how experts and gates start, which here they do not
        initialize(model, plan, claims, seed=seed)
    described = described_parameters(model, claims)
    with torch.no_grad():
        for info, parameter in described:
            is_vector = info.role in GAINS | BIASES
            std = _DISTURBED_VECTORS if is_vector else _DISTURBED * (info.fan_in or 1) ** -0.5
            shape = tuple(parameter.shape)
            noise = draw_normals(shape, tuple(slice(0, size) for size in shape), f"{info.name} (disturbed)", seed)
            parameter.add_(noise.to(parameter.device, parameter.dtype), alpha=std)
    return described


def _refuse_random(model: nn.Module, batch: Any, loss: Loss) -> None:
    with torch.no_grad():
        first, second = (torch.stack(list(terms(loss, model, batch).values())) for _ in range(2))
    if not torch.equal(first, second):
        raise ValueError("build must make a model without dropout and noise: its loss is another one each time")


class _Step:
    """The step of one device: its model, its optimizer, and what the plan's optimizer makes of gradients."""

    def __init__(
        self, model: nn.Module, plan: Plan, claims: Claims | None, described: list[tuple[ParamInfo, nn.Parameter]]
    ) -> None:
        self.model, self.plan = model, plan
        self.optimizer = optimizer_for(model, plan, claims)
        self.roles = {info.name: info.role for info, _ in described}
        self.parameters = {info.name: parameter for info, parameter in described}
        self.weights = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        groups = {id(parameter): group for group in self.optimizer.param_groups for parameter in group["params"]}
        self.groups = {name: groups[id(parameter)] for name, parameter in self.parameters.items()}

    def taken(self, step: Step, batch: Any, clip: float | None) -> Seen:
        return seen(step, self.model, self.optimizer, batch, self.weights, clip)

    def update(self, name: str, start: Tensor, gradient: Tensor) -> Tensor:
        """What the plan's optimizer adds to a parameter, without decay."""
        parameter = nn.Parameter(start.clone())
        parameter.grad = gradient.to(start.dtype)
        settings = {key: value for key, value in self.groups[name].items() if key != "params"}
        make: Callable[..., Optimizer] = optimizer_class(self.plan)
        optimizer = make([{**settings, "params": [parameter], "weight_decay": 0.0}], lr=self.plan.lr)
        optimizer.step()
        return (parameter.detach().double() - start.double()).flatten()

    def decay(self, name: str, start: Tensor) -> Tensor:
        """What the plan's decay adds to a parameter; where it has none, what a decay of 1 would add."""
        group = self.groups[name]
        return -float(group["lr"]) * (float(group["weight_decay"] or 0.0) or 1.0) * start.double().flatten()

    def is_decayed(self, name: str) -> bool:
        return bool(self.groups[name]["weight_decay"])

    @property
    def precision(self) -> float:
        return max(torch.finfo(weight.dtype).eps for weight in self.weights.values())


@dataclass(frozen=True)
class _Moments:
    """Inner products of a parameter's tensors, of which those of a role are the sums. ``KEYS`` are their order.

    g, h: gradient here and on one device. d, u, w, v: the change of the weights here, the update that the plan's
    optimizer makes of the gradient here, the plan's decay, the update of one device. p: the weights.
    """

    KEYS = ("gh", "hh", "gg", "off", "dd", "du", "dw", "uu", "uw", "ww", "dv", "wv", "vv", "pp", "local")

    @staticmethod
    def of(step: _Step, one: Seen, here: Seen, name: str) -> list[float]:
        part = here.parts[name]
        g, h = here.gradients[name].double().flatten(), one.gradients[name][part].double().flatten()
        start = step.weights[name][part]
        d = here.weights[name].double().flatten() - start.double().flatten()
        u = step.update(name, start, here.given[name])
        v = step.update(name, start, one.given[name][part])
        w = step.decay(name, start)
        off = g - h
        pairs = [(g, h), (h, h), (g, g), (off, off), (d, d), (d, u), (d, w), (u, u), (u, w), (w, w), (d, v), (w, v)]
        pairs += [(v, v), (start.double().flatten(),) * 2]
        return [*(float(a @ b) for a, b in pairs), here.local_squares[name]]


Numbers = Mapping[str, float]


class _Comparison:
    """All numbers of all processes, and the verdicts on them."""

    def __init__(self, step: _Step, one: Seen, here: Seen, gathered: Callable[[Tensor], Tensor]) -> None:
        self.step, self.one, self.row_weights = step, one, None
        table = torch.tensor([_Moments.of(step, one, here, name) for name in step.roles], dtype=torch.float64)
        tables = gathered(table).numpy()  # [process, parameter, moment]
        said = torch.tensor([math.nan if x is None else x for x in (here.loss, here.norm)], dtype=torch.float64)
        self.losses, self.norms = gathered(said).T.tolist()
        self.of_parameters = {name: _as_numbers(tables[:, row]) for row, name in enumerate(step.roles)}
        by_role: dict[str, list[str]] = defaultdict(list)
        for name, role in step.roles.items():
            by_role[role].append(name)
        self.by_role = dict(by_role)
        rows = {name: row for row, name in enumerate(step.roles)}
        self.of_roles = {
            role: _as_numbers(tables[:, [rows[name] for name in names]].sum(1)) for role, names in by_role.items()
        }
        half = step.precision > 1e-5
        self.tolerance = _OF_HALF_PRECISION if half else _TOLERANCE
        self.total = math.sqrt(sum(numbers[0]["hh"] for numbers in self.of_roles.values()))

    row_weights: RowWeights | None

    # -- gradients -----------------------------------------------------------------------------------------------------

    def gradient(self, numbers: list[Numbers]) -> Compared:
        floor = (_NOTHING * self.total) ** 2
        values, verdict = [], "same"
        for each in numbers:
            size = max(each["hh"], floor) or 1.0
            values.append(each["gh"] / each["hh"] if each["hh"] > floor else 1.0 if each["gg"] <= floor else math.inf)
            if not math.sqrt(each["off"] / size) <= self.tolerance:  # NaN is off
                verdict = "off"
        return Compared(tuple(values), _verdict(verdict))

    @property
    def gradients_are_off(self) -> bool:
        return any(self.gradient(numbers).verdict == "off" for numbers in self.of_roles.values())

    # -- what the optimizer did ----------------------------------------------------------------------------------------

    def update_and_decay(self, role: str) -> tuple[Compared, Compared | None]:
        numbers = self.of_roles[role]
        planned = self.step.is_decayed(self.by_role[role][0])
        fits = [_fitted(each) for each in numbers]
        follows, decays, updates = True, [], []
        decay_is_off = False
        for each, (rate, decay, rest) in zip(numbers, fits, strict=True):
            follows &= math.isnan(rate) or abs(rate - 1) <= _OF_UPDATES + self._rounding(each, "uu")
            follows &= rest <= _OF_UPDATES + self._rounding(each, "dd")
            updates.append((each["dv"] - decay * each["wv"]) / each["vv"] if each["vv"] else 1.0)
            # By so much rounding may be taken for decay: as much as weights are rounded, over what decay is of them.
            unit = math.sqrt(each["ww"] / each["pp"]) if each["pp"] else 1.0
            slack = _OF_DECAY * (1.0 if planned else 0.1) + (self.step.precision / unit if unit else 0.0)
            decays.append(decay if planned or abs(decay) > slack else 0.0)
            decay_is_off |= not abs(decay - planned) <= slack
        gradient = self.gradient(numbers).verdict
        verdict = "off" if not follows else "same" if gradient == "same" else "follows"
        update = Compared(tuple(updates), _verdict(verdict))
        if not planned and not decay_is_off:
            return update, None
        return update, Compared(tuple(decays), _verdict("off" if decay_is_off else "same"))

    def _rounding(self, each: Numbers, of: str) -> float:
        """By how much the rounding of weights may change an update, relative to its size."""
        return 2 * self.step.precision * math.sqrt(each["pp"] / each[of]) if each[of] else 0.0

    # -- what was reported ---------------------------------------------------------------------------------------------

    def reported_norm(self) -> Reported:
        expected = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in self.one.gradients.values()))
        if any(map(math.isnan, self.norms)):
            return Reported(None, expected, "same")
        if all(self._near(norm, expected) for norm in self.norms):
            return Reported(tuple(self.norms), expected, "same")
        own = [self._near(norm, whole) for norm, whole in zip(self.norms, self.whole_norms, strict=True)]
        return Reported(tuple(self.norms), expected, "follows" if all(own) else "off")

    @property
    def whole_norms(self) -> list[float]:
        """The norm of the gradients as they are, whatever the step reports, in each process."""
        count = len(self.norms)
        return [math.sqrt(sum(numbers[rank]["gg"] for numbers in self.of_roles.values())) for rank in range(count)]

    def reported_loss(self) -> Reported:
        expected = self.one.loss
        assert expected is not None
        losses = self.losses
        if any(map(math.isnan, losses)):
            return Reported(None, expected, "same")
        # That of the batch, the process's own, of which the mean is meant, or its share.
        meant = [losses, [sum(losses) / len(losses)], [sum(losses)]]
        same = any(all(self._near(loss, expected) for loss in each) for each in meant)
        return Reported(tuple(losses), expected, "same" if same else "off")

    def _near(self, value: float, expected: float) -> bool:
        return abs(value - expected) <= self.tolerance * abs(expected)

    # -- all of it -----------------------------------------------------------------------------------------------------

    def result(self, *, clip: float | None, **settings: Any) -> SameStep:
        roles = {}
        for role, numbers in self.of_roles.items():
            update, decay = self.update_and_decay(role)
            names = self.by_role[role]
            is_decayed = self.step.is_decayed(names[0])
            roles[role] = RoleStep(len(names), self.gradient(numbers), update, decay, is_decayed)
        parameters = {
            name: ParameterStep(self.step.roles[name], self.gradient(numbers))
            for name, numbers in self.of_parameters.items()
        }
        loss, norm = self.reported_loss(), self.reported_norm()
        found = Findings(
            roles=roles,
            loss=loss,
            norm=norm,
            processes=settings["processes"],
            clip=clip,
            row_weights=self.row_weights,
            squares={role: tuple(each["gg"] for each in numbers) for role, numbers in self.of_roles.items()},
            local_squares={role: tuple(each["local"] for each in numbers) for role, numbers in self.of_roles.items()},
            tolerance=self.tolerance,
        )
        notes = tuple(self._notes(clip, norm))
        return SameStep(
            clip=clip, loss=loss, norm=norm, roles=roles, parameters=parameters, causes=causes(found), notes=notes,
            **settings,
        )  # fmt: skip

    def _notes(self, clip: float | None, norm: Reported) -> Iterator[str]:
        if clip is not None and norm.one_device < clip:
            yield f"clipping at {clip:g} does nothing to a norm of {norm.one_device:.4g}: a smaller one would be tested"
        if clip is not None and norm.values is None:
            yield "the norm is not reported: gradients are compared as if it were right"
        coarse = [role for role, numbers in self.of_roles.items() if self._rounding(numbers[0], "vv") > _COARSE]
        if coarse:
            yield f"updates of {', '.join(coarse)} are hardly more than the rounding of weights: compare in float64"


def _verdict(word: str) -> Verdict:
    verdicts: dict[str, Verdict] = {"same": "same", "follows": "follows", "off": "off"}
    return verdicts[word]


def _as_numbers(table: np.ndarray) -> list[Numbers]:
    return [dict(zip(_Moments.KEYS, row.tolist(), strict=True)) for row in table]


def _fitted(each: Numbers) -> tuple[float, float, float]:
    """The change of the weights as multiples of update and decay; and what is left of it, relative to the change."""
    matrix = np.array([[each["uu"], each["uw"]], [each["uw"], each["ww"]]])
    if not np.isfinite(matrix).all() or not math.isfinite(each["dd"]):
        return math.nan, math.nan, math.inf
    used = [index for index in (0, 1) if matrix[index, index] > 0]
    rate, decay = math.nan, 0.0
    found = dict.fromkeys((0, 1), 0.0)
    if used:
        scale = np.sqrt(np.diag(matrix))[used]
        right = np.array([each["du"], each["dw"]])[used] / scale
        solved = np.linalg.lstsq(matrix[np.ix_(used, used)] / np.outer(scale, scale), right, rcond=1e-12)[0] / scale
        found |= dict(zip(used, solved.tolist(), strict=True))
    if 0 in used:
        rate = found[0]
    decay = found[1]
    explained = found[0] * each["du"] + decay * each["dw"]
    rest = math.sqrt(max(each["dd"] - explained, 0.0) / each["dd"]) if each["dd"] else 0.0
    return rate, decay, rest if each["dd"] else 0.0


def _gathered_everywhere(tensor: Tensor) -> Tensor:
    """The same tensor of all processes, [process, ...]."""
    if not dist.is_initialized():
        return tensor.unsqueeze(0)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mine = tensor.to(device)
    everywhere = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, mine)
    return torch.stack(everywhere).cpu()


def _row_weights(step: _Step, here: Seen, batch: Any, loss: Loss, pieces: list[slice]) -> RowWeights:
    """Which weighted sum of the gradients of rows and of auxiliary losses a process's gradient is.

    It is found by least squares on the gradients of one role, the largest that they explain, and held against others.
    """
    with torch.no_grad():
        for name, parameter in step.parameters.items():
            parameter.copy_(step.weights[name])
    rows = rows_in(batch)
    groups = [group for [group] in divided(rows, min(rows, _COLUMNS), 1)]
    groups = [group for group in groups if predicted(rows_of(batch, group))]
    every = predicted(batch)
    columns, names, shares = [], [], []

    def add_column(name: str, part: slice, place: int) -> None:
        step.model.zero_grad()
        piece = rows_of(batch, part)
        term = list(terms(loss, step.model, piece).values())[place]
        if term.requires_grad:
            shares.append(predicted(piece) / every)
            (term * shares[-1]).backward()
            columns.append({name: _flat_gradient(parameter) for name, parameter in step.parameters.items()})
            names.append(name)

    for group in groups:
        add_column("", group, 0)
    with torch.no_grad():
        auxiliary = list(terms(loss, step.model, batch))[1:]
    for place, name in enumerate(auxiliary, 1):
        for part in pieces:
            add_column(name, part, place)
    own = {name: tensor.double().cpu().flatten() for name, tensor in here.gradients.items()}

    def matrix(role: str) -> tuple[np.ndarray, np.ndarray]:
        of_role = [name for name, its in step.roles.items() if its == role]
        at = {name: here.parts[name] for name in of_role}
        cut = [
            torch.cat([each[name].view(step.weights[name].shape)[at[name]].flatten() for name in of_role])
            for each in columns
        ]
        return torch.stack(cut, dim=1).numpy(), torch.cat([own[name] for name in of_role]).numpy()

    matrices = {role: matrix(role) for role in dict.fromkeys(step.roles.values())}
    found = RowWeights.found(matrices, tuple(names), tuple(groups), tuple(shares))
    return found.everywhere(_gathered_everywhere)


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return (torch.zeros_like(parameter) if gradient is None else gradient).detach().double().cpu().flatten()
