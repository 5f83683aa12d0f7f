"""Weights that the Trainer of ``transformers`` reads back from its own checkpoints: all of them, or none.

On disk every matrix of every expert has a name of its own, in memory experts are stacks. ``from_pretrained`` knows the
way from one to the other; the Trainer does not take it when it resumes or goes back to the best checkpoint: whatever
has another name there keeps the weights it had, which is logged and no more (seen in 5.22). So a checkpoint notes a
few numbers of every parameter, by which it is seen whether they came back.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from mssp.apply.description import name_cleaner

Samples = dict[str, list[float]]
_COUNT = 4  # entries of each parameter: training moves nearly all of them at every step


def samples_of(model: nn.Module) -> Samples:
    """A few entries of every parameter, from its first to its last; of sharded ones none, which are read by shards.

    >>> samples_of(nn.Embedding.from_pretrained(torch.arange(7.0).view(7, 1), freeze=False))
    {'weight': [0.0, 2.0, 4.0, 6.0]}
    """
    clean = name_cleaner(model)
    found = {}
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            last = parameter.numel() - 1
            places = torch.tensor([index * last // (_COUNT - 1) for index in range(_COUNT)], device=parameter.device)
            found[clean(name)] = parameter.detach().flatten()[places].float().tolist()
    return found


def differing(model: nn.Module, noted: Samples) -> list[str]:
    """The parameters that are not as they were noted."""
    return [name for name, found in samples_of(model).items() if name in noted and noted[name] != found]


def read_again(model: nn.Module, folder: Path) -> None:
    """Every weight of a checkpoint, in place: the parameters stay those that an optimizer holds."""
    kept = type(model).from_pretrained(folder, dtype="auto")  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept.get_parameter(name))
