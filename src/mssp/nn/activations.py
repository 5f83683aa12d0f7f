"""The activation functions of experts and layers, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mssp._constraints import one_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function of that name.

    >>> activation("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if name not in ACTIVATIONS:
        one_of(list(ACTIVATIONS))("activation", name)  # which refuses it
    return ACTIVATIONS[name]
