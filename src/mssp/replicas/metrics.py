"""How well replicas tell classes apart, each by itself: loss, accuracy, top-5."""

from __future__ import annotations

import torch
from torch import Tensor

OF_CLASSES: tuple[str, ...] = ("loss", "accuracy", "top5")
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


def scores_of_classes(losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
    """[R, 3], as :data:`OF_CLASSES` names them, of losses [R], outputs [R, ..., C] and targets [R, ...].

    Targets that are numbers, not classes, have a loss alone.
    """
    loss = losses.detach().float()
    if targets.is_floating_point():
        return torch.stack([loss, *[torch.full_like(loss, torch.nan)] * 2], dim=-1)
    places = ranks(outputs.detach(), targets.expand(outputs.shape[:-1])).flatten(1)
    return torch.stack([loss, _share(places < 1), _share(places < _TOP)], dim=-1)


def _share(right: Tensor) -> Tensor:
    return right.float().mean(-1)
