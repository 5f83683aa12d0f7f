"""Whether a tensor is sharded. The module of torch for that is slow to import, and is asked only where it is in use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_sharded(tensor: Any) -> TypeIs[DTensor]:
    """Whether it is a ``DTensor``: nobody can have made one before its module was imported.

    >>> import torch
    >>> is_sharded(torch.zeros(2))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
