"""Scores of replicas that classify: loss, accuracy and top-5 accuracy of each."""

from __future__ import annotations

import torch
from torch import Tensor

OF_CLASSES: tuple[str, ...] = ("loss", "accuracy", "top5")
_TOP = 5


def ranks(outputs: Tensor, targets: Tensor) -> Tensor:
    """The number of classes ranked before the right one, [...], from outputs [..., C] and targets [...].

    Classes with equal outputs are ranked by number. A model with equal outputs for all classes is then right as often
    as by chance, and not always.

    >>> ranks(torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([1, 1])
    """
    target_output = outputs.gather(-1, targets.unsqueeze(-1))
    has_smaller_number = torch.arange(outputs.shape[-1], device=outputs.device) < targets.unsqueeze(-1)
    return ((outputs > target_output) | ((outputs == target_output) & has_smaller_number)).sum(-1)


def scores_of_classes(losses: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
    """The scores that :data:`OF_CLASSES` names, [R, 3], from losses [R], outputs [R, ..., C] and targets [R, ...].

    If targets are numbers instead of classes, only the loss is defined, and the other scores are NaN.
    """
    loss = losses.detach().float()
    if targets.is_floating_point():
        return torch.stack([loss, *[torch.full_like(loss, torch.nan)] * 2], dim=-1)
    target_ranks = ranks(outputs.detach(), targets.expand(outputs.shape[:-1])).flatten(1)
    accuracies = ((target_ranks < top).float().mean(-1) for top in (1, _TOP))
    return torch.stack([loss, *accuracies], dim=-1)
