"""How well replicas predict, each by itself: loss, accuracy, top-5."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAMES = ("loss", "accuracy", "top5")
_TOP = 5


def ranks(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many classes come before the right one: [..., C] and [...] to [...].

    Equal outputs rank by class, so that a model which says the same of all classes is right as often as chance, not
    always.

    >>> ranks(torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([1, 1])
    """
    right = outputs.gather(-1, targets.unsqueeze(-1))
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets.unsqueeze(-1)
    return ((outputs > right) | ((outputs == right) & earlier)).sum(-1)


def measured(losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
    """[R, 3]: loss, accuracy and top-5 of outputs [R, ..., C]; NaN where the loss is not a finite number.

    Targets that are numbers, not classes, have a loss alone.
    """
    loss = losses.detach().float()
    if targets.is_floating_point():
        found = torch.stack([loss, *[torch.full_like(loss, torch.nan)] * 2], dim=-1)
    else:
        places = ranks(outputs.detach(), targets.expand(outputs.shape[:-1])).flatten(1)
        found = torch.stack([loss, _share(places < 1), _share(places < _TOP)], dim=-1)
    return torch.where(losses.isfinite().unsqueeze(-1), found, torch.nan)


def _share(right: Tensor) -> Tensor:
    return right.float().mean(-1)


def mean_over(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The mean of measurements [R, 3] over batches of several sizes."""
    weights = torch.tensor(sizes, dtype=parts[0].dtype, device=parts[0].device) / sum(sizes)
    return (torch.stack(list(parts)) * weights.view(-1, 1, 1)).sum(0)
