"""Whether our Triton kernels can serve a tensor."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"  # Triton then runs on the CPU, step by step


def fused(x: Tensor) -> bool:
    """Whether kernels replace torch's operations here, to the same effect.

    Not under torch.compile, which fuses by itself, nor under torch.func, which differentiates and batches operations.
    """
    served = not torch.compiler.is_compiling() and runs_triton(x.device.type, x.dtype)
    return served and not torch._C._are_functorch_transforms_active()


def runs_triton(device: str, dtype: torch.dtype) -> bool:
    return HAS_TRITON and device == "cuda" and dtype != torch.float64


def readable(x: Tensor) -> bool:
    """Whether numbers can be looked at for free: a GPU would be waited for, and transforms have none to show."""
    return (
        x.device.type == "cpu"
        and x.numel() > 0
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def kernels() -> Any:
    """:mod:`mssp.nn.experts.triton`, imported when first needed: Triton is not everywhere, and slow to import."""
    return import_module("mssp.nn.experts.triton")
