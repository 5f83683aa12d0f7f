"""How well replicas tell classes apart, each by itself: loss, accuracy, top-5."""

from __future__ import annotations

import torch
from torch import Tensor

OF_CLASSES: tuple[str, ...] = ("loss", "accuracy", "top5")
_TOP = 5


def ranks(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many classes come before the right one: [..., C] and [...] to [...].

    Equal outputs rank by class, so that a model with equal outputs for all classes is right as often as by chance, and
    not always.

    >>> ranks(torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([1, 1])
    """
    right = outputs.gather(-1, targets.unsqueeze(-1))
    earlier = torch.arange(outputs.shape[-1], device=outputs.device) < targets.unsqueeze(-1)
    return ((outputs > right) | ((outputs == right) & earlier)).sum(-1)


def scores_of_classes(losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
    """The scores that :data:`OF_CLASSES` names, [R, 3], from losses [R], outputs [R, ..., C] and targets [R, ...].

    Targets that are numbers and not classes have a loss alone; their other scores are NaN.
    """
    loss = losses.detach().float()
    if targets.is_floating_point():
        return torch.stack([loss, *[torch.full_like(loss, torch.nan)] * 2], dim=-1)
    places = ranks(outputs.detach(), targets.expand(outputs.shape[:-1])).flatten(1)
    shares = ((places < top).float().mean(-1) for top in (1, _TOP))
    return torch.stack([loss, *shares], dim=-1)
