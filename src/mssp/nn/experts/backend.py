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
    """Whether to use our fused kernels for this tensor, in place of several operations of torch.

    Not under torch.compile, which fuses operations itself, nor under torch.func, which has to trace each operation.
    """
    return runs_triton(x.device.type, x.dtype) and not _transformed()


def runs_triton(device: str, dtype: torch.dtype) -> bool:
    return HAS_TRITON and device == "cuda" and dtype != torch.float64


def readable(x: Tensor) -> bool:
    """Whether a tensor's values can be read at no cost, not on a GPU, which would synchronize, nor under transforms."""
    return x.device.type == "cpu" and x.numel() > 0 and not _transformed()


def _transformed() -> bool:
    """Whether torch.compile or torch.func is tracing."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def kernels() -> Any:
    """:mod:`mssp.nn.experts.triton`, imported when first needed: Triton is slow to import, and not always installed."""
    return import_module("mssp.nn.experts.triton")
