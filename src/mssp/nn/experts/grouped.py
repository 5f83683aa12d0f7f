"""Products of rows sorted by expert with their expert's matrix, on ``torch.nn.functional.grouped_mm``.

grouped_mm takes no float64, no rows that begin between multiples of 16 bytes, no gradients with zero strides, and under
torch.compile no dtype but bfloat16. The products here are operators with gradients of their own, and take all of these.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rows_times_matrices(rows_RJ: Tensor, matrices: Tensor, offsets: Tensor, transposed: bool = False) -> Tensor:
    """[R, C]: each expert's rows times its matrix, [M, J, C]; or times the transpose of its matrix, [M, C, J].

    >>> rows, matrices = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[[10.0]], [[100.0]]])
    >>> rows_times_matrices(rows, matrices, torch.tensor([0, 2, 3], dtype=torch.int32)).flatten().tolist()
    [10.0, 20.0, 300.0]
    """
    out: Tensor = _product(rows_RJ, matrices, offsets, transposed)
    return out


@torch.library.custom_op("mssp::rows_times_matrices", mutates_args=())
def _product(rows_RJ: Tensor, matrices: Tensor, offsets: Tensor, transposed: bool) -> Tensor:
    matrices_MJC = matrices.mT if transposed else matrices
    if rows_RJ.dtype == torch.float64:
        parts = [part @ matrix for part, matrix in zip(_parts(rows_RJ, offsets), matrices_MJC, strict=True)]
        return torch.cat(parts)
    padded = _aligned(_aligned(matrices, -1), -2)
    out_RC = F.grouped_mm(_aligned(rows_RJ, -1), padded.mT if transposed else padded, offs=offsets[1:])
    return out_RC[:, : matrices_MJC.shape[2]].contiguous()


@torch.library.custom_op("mssp::matrices_gradient", mutates_args=())
def _matrices_gradient(left_RJ: Tensor, right_RC: Tensor, offsets: Tensor) -> Tensor:
    """[M, J, C]: the sum over each expert's rows of left[r]ᵀ right[r]."""
    if left_RJ.dtype == torch.float64:
        pairs = zip(_parts(left_RJ, offsets), _parts(right_RC, offsets), strict=True)
        return torch.stack([left.T @ right for left, right in pairs])
    out_MJC = F.grouped_mm(_aligned(left_RJ, -1).T, _aligned(right_RC, -1), offs=offsets[1:])
    return out_MJC[:, : left_RJ.shape[1], : right_RC.shape[1]].contiguous()


def _parts(rows: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = rows.split(offsets.diff().tolist())
    return parts


def _aligned(x: Tensor, axis: int) -> Tensor:
    """x with zeros at the end of an axis, so that rows begin at multiples of 16 bytes; they change no product."""
    missing = -x.shape[axis] % (16 // x.dtype.itemsize)
    if missing:
        x = F.pad(x, (0, missing) if axis == -1 else (0, 0, 0, missing))
    return x.contiguous()


@_product.register_fake
def _product_shape(rows_RJ: Tensor, matrices: Tensor, offsets: Tensor, transposed: bool) -> Tensor:
    return rows_RJ.new_empty(rows_RJ.shape[0], matrices.shape[1 if transposed else 2])


@_matrices_gradient.register_fake
def _matrices_gradient_shape(left_RJ: Tensor, right_RC: Tensor, offsets: Tensor) -> Tensor:
    return left_RJ.new_empty(offsets.shape[0] - 1, left_RJ.shape[1], right_RC.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows_RJ, matrices, offsets, ctx.transposed = inputs
    ctx.save_for_backward(rows_RJ, matrices, offsets)


def _gradients(ctx: Any, grad_RC: Tensor) -> tuple[Tensor | None, ...]:
    rows_RJ, matrices, offsets = ctx.saved_tensors
    grad_RC = grad_RC.contiguous()
    grad_rows = grad_matrices = None
    if ctx.needs_input_grad[0]:
        grad_rows = _product(grad_RC, matrices, offsets, not ctx.transposed)
    if ctx.needs_input_grad[1]:
        left, right = (grad_RC, rows_RJ) if ctx.transposed else (rows_RJ, grad_RC)
        grad_matrices = _matrices_gradient(left, right, offsets)
    return grad_rows, grad_matrices, None, None


def _keep_rows(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients_of_rows(ctx: Any, grad_MJC: Tensor) -> tuple[Tensor | None, ...]:
    left_RJ, right_RC, offsets = ctx.saved_tensors
    return _product(right_RC, grad_MJC, offsets, True), _product(left_RJ, grad_MJC, offsets, False), None


_product.register_autograd(_gradients, setup_context=_keep)
_matrices_gradient.register_autograd(_gradients_of_rows, setup_context=_keep_rows)
