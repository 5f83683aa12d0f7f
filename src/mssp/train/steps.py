"""One step of training, on one device and under a layout: its batch, its loss, its parts, and what is seen of it.

A batch is a tensor of rows [B, S + 1], of which all tokens but the first are predicted, or a tuple or a mapping of
tensors with the rows in front. Targets of -100 are not predicted, as in ``torch.nn.functional.cross_entropy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from mssp._constraints import kind_of, mapping, optional, takes
from mssp.apply.description import name_cleaner, unwrapped
from mssp.apply.sharding import is_sharded
from mssp.nn.gpt import GPT
from mssp.train.layouts import NEAR_ZERO, accumulating, clip_

if TYPE_CHECKING:
    from torch.optim import Optimizer

Loss = Callable[[nn.Module, Any], Tensor | Mapping[str, Tensor]]
Step = Callable[[nn.Module, "Optimizer", Any], Any]
Part = tuple[slice, ...]  # the part of a whole tensor that a process holds
_NOT_PREDICTED = -100
_a_number = optional(kind_of(float, int, Tensor, what="a number or a tensor"))


@takes(loss=_a_number, norm=_a_number, gradients=optional(mapping), weights=optional(mapping))
@dataclass(frozen=True)
class StepReport:
    """What a step says of itself, where it says more than the norm of its gradients.

    >>> StepReport(loss=4.2, norm=0.5).norm
    0.5

    Args:
        loss: the loss that the run would log.
        norm: the norm of all gradients before clipping, by which they are clipped.
        gradients: whole gradients before clipping, by the names of the parameters of ``build()``; for optimizers that
            are not the one that the step was given.
        weights: whole weights after the step, by the same names; for models whose parameters have other names.
    """

    loss: float | Tensor | None = None
    norm: float | Tensor | None = None
    gradients: Mapping[str, Tensor] | None = None
    weights: Mapping[str, Tensor] | None = None


# -- batches -----------------------------------------------------------------------------------------------------------


def rows_in(batch: Any) -> int:
    """How many rows a batch has; what is no batch is refused."""
    counts = {len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else 0 for leaf in tree_leaves(batch)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError("batch must be tensors with the same number of rows in front, which all its tensors have")
    return counts.pop()


def rows_of(batch: Any, rows: slice) -> Any:
    """Some rows of a batch."""
    return tree_map_only(Tensor, lambda tensor: tensor[rows], batch)


def predicted(batch: Any) -> int:
    """How many tokens of a batch are predicted.

    >>> predicted(torch.zeros(2, 5)), predicted((torch.zeros(2, 4), torch.tensor([[1, 2, 3, -100]] * 2)))
    (8, 6)
    """
    if isinstance(batch, Tensor):
        return len(batch) * (batch.shape[1] - 1) if batch.dim() == 2 else len(batch)
    if isinstance(batch, Mapping) and "labels" in batch:  # Hugging Face shifts them
        return int((batch["labels"][..., 1:] != _NOT_PREDICTED).sum())
    return int((tree_leaves(batch)[-1] != _NOT_PREDICTED).sum())


def divided(rows: int, processes: int, accumulation: int) -> list[list[slice]]:
    """The rows of each process's micro-batches.

    >>> divided(5, 2, 2)
    [[slice(0, 2, None), slice(2, 3, None)], [slice(3, 4, None), slice(4, 5, None)]]
    """
    if rows < processes * accumulation:
        raise ValueError(
            f"a batch of {rows} rows has none for some of {processes} × {accumulation} parts: take more rows"
        )
    return [
        [slice(first + a, first + b) for a, b in _cuts(last - first, accumulation)]
        for first, last in _cuts(rows, processes)
    ]


def _cuts(rows: int, parts: int) -> list[tuple[int, int]]:
    """Equal parts, of which the first are longer by one where rows do not divide."""
    bounds = [part * (rows // parts) + min(part, rows % parts) for part in range(parts + 1)]
    return list(pairwise(bounds))


# -- losses ------------------------------------------------------------------------------------------------------------


def own_loss(model: nn.Module, batch: Any) -> Tensor:
    """The mean loss of a batch by what the model itself computes: of a ``mssp.nn.GPT``, or of Hugging Face."""
    if isinstance(unwrapped(model), GPT):
        tokens, targets = (batch[:, :-1], batch[:, 1:].contiguous()) if isinstance(batch, Tensor) else batch
        loss = model(tokens, targets).loss
    elif isinstance(batch, Mapping):
        loss = model(**batch).loss
    elif hasattr(unwrapped(model), "config"):
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
    else:
        raise ValueError(f"loss must be a function of the model and a batch for a {type(unwrapped(model)).__name__}")
    assert isinstance(loss, Tensor)
    return loss


def terms(loss: Loss, model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """The terms of a loss by their names: first the mean over tokens, then auxiliary losses."""
    computed = loss(model, batch)
    named = dict(computed) if isinstance(computed, Mapping) else {"loss": computed}
    if not named or not all(isinstance(term, Tensor) and term.numel() == 1 for term in named.values()):
        raise ValueError("loss must return one number as a tensor, or several that are added, by their names")
    return named


# -- steps -------------------------------------------------------------------------------------------------------------


def shared_step(loss: Loss, parts: list[slice], clip: float | None, *, alone: bool = False) -> Step:
    """A step of a process that has these parts of the batch, each with its share of the mean over the whole batch.

    ``alone``: no other process has a part.
    """

    def step(model: nn.Module, optimizer: Optimizer, batch: Any) -> StepReport:
        optimizer.zero_grad()
        every, shares = predicted(batch), []
        for number, rows in enumerate(parts, 1):
            part = rows_of(batch, rows)
            with accumulating(model, more=number < len(parts)):
                share = torch.stack(list(terms(loss, model, part).values())).sum() * (predicted(part) / every)
                share.backward()
            shares.append(share.detach())
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = clip_(parameters, torch.inf if clip is None else clip)
        optimizer.step()
        total = torch.stack(shares).sum()
        if dist.is_initialized() and not alone:
            dist.all_reduce(total)
        return StepReport(total, norm)

    return step


@dataclass(frozen=True)
class Seen:
    """What was seen of a step in this process.

    Args:
        gradients: whole gradients, or this process's part of them, before clipping; zeros where there are none.
        given: the same as they were given to the optimizer.
        weights: whole weights after the step, or this process's part of them.
        parts: which part of each whole tensor that is.
        local_squares: of each gradient, the sum of squares of what lies in this process.
    """

    loss: float | None
    norm: float | None
    gradients: Mapping[str, Tensor]
    given: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    parts: Mapping[str, Part]
    local_squares: Mapping[str, float]


def seen(
    step: Step,
    model: nn.Module,
    optimizer: Optimizer,
    batch: Any,
    whole: Mapping[str, Tensor],
    clip: float | None,
    norm_if_not_said: float | None = None,
) -> Seen:
    """Take a step and see what it does. ``whole`` has the weights of all parameters in question, by their names.

    Gradients are what the optimizer gets. What they were before clipping follows from the norm that is reported.
    """
    caught: list[dict[str, Tensor]] = []
    hook = optimizer.register_step_pre_hook(lambda *_: caught.append(_gradients(model, whole)))
    try:
        report = step(model, optimizer, batch)
    finally:
        hook.remove()
    if not isinstance(report, StepReport):
        report = StepReport(norm=report)
    if len(caught) > 1:
        raise ValueError(f"layout must take one step of the optimizer, and took {len(caught)}")
    loss, norm = _as_float(report.loss), _as_float(report.norm)
    clipped_by = norm_if_not_said if norm is None else norm
    scale = 1.0 if clip is None or clipped_by is None else min(clip / (clipped_by + NEAR_ZERO), 1.0)
    if report.gradients is not None:
        raw = {name: tensor.detach() for name, tensor in report.gradients.items()}
        given = {name: tensor * scale for name, tensor in raw.items()}
    else:
        given = caught[0] if caught else _gradients(model, whole)
        raw = {name: tensor / scale for name, tensor in given.items()}
    if not given:
        raise ValueError(
            "the step left no gradients to compare: step the optimizer that it is given, or return a StepReport"
        )
    held = _named(model) if report.weights is None else report.weights
    _refuse_missing(held, whole)
    squares = {name: float(_local(raw[name]).double().square().sum()) if name in raw else 0.0 for name in whole}
    weights = {name: _gathered(held[name].detach()) for name in whole}
    parts = {name: _part(name, weights[name], tensor) for name, tensor in whole.items()}
    return Seen(loss, norm, _filled(raw, weights), _filled(given, weights), weights, parts, squares)


def _as_float(number: float | Tensor | None) -> float | None:
    if isinstance(number, Tensor):
        number = _gathered(number.detach())
    return None if number is None else float(number)


def _named(model: nn.Module) -> dict[str, Tensor]:
    clean = name_cleaner(model)
    return {clean(name): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}


def _gradients(model: nn.Module, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of all gradients. Sharded ones that are missing are zeros: all processes gather them together."""
    named = {name: parameter for name, parameter in _named(model).items() if name in whole}
    there = {name: parameter.grad for name, parameter in named.items()}
    if all(gradient is None for gradient in there.values()):
        return {}
    there |= {
        name: torch.zeros_like(parameter)
        for name, parameter in named.items()
        if there[name] is None and is_sharded(parameter)
    }
    return {name: gradient.detach().clone() for name, gradient in there.items() if gradient is not None}


def _refuse_missing(held: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> None:
    missing = [name for name in whole if name not in held]
    if missing:
        raise ValueError(
            f"the model has no parameter {missing[0]} any more ({len(missing)} such): return a StepReport with "
            "gradients and weights by the names of build()"
        )


def _filled(gradients: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole gradients, gathered in the same order in all processes; zeros where nothing arrived."""
    gathered = {name: _gathered(gradients[name]) for name in weights if name in gradients}
    return {name: gathered.get(name, torch.zeros_like(weight)) for name, weight in weights.items()}


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_sharded(tensor) else tensor.clone()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor


def _part(name: str, here: Tensor, whole: Tensor) -> Part:
    """Where a plain tensor lies in the whole one: as a rule consecutive processes hold consecutive parts."""
    pairs = list(zip(here.shape, whole.shape, strict=False))
    differing = [axis for axis, (own, all_) in enumerate(pairs) if own != all_]
    fits = here.dim() == whole.dim() and len(differing) <= 1 and all(own and all_ % own == 0 for own, all_ in pairs)
    if not fits:
        raise ValueError(
            f"{name} is {tuple(here.shape)} here and {tuple(whole.shape)} on one device: return them whole"
        )
    number = dist.get_rank() if dist.is_initialized() else 0

    def along(axis: int, own: int, all_: int) -> slice:
        first = (number % (all_ // own)) * own if axis in differing else 0
        return slice(first, first + own)

    return tuple(along(axis, own, all_) for axis, (own, all_) in enumerate(pairs))
