"""A Triton kernel in which the gradient of a layer meets the optimizer and is never written.

A matrix's gradient is a product over the batch, of rank B: both factors together are far smaller than the matrix. So
each program multiplies its tile of the gradient, updates its tile of weights (and Adam's two moments), and is done:
memory is passed over once to read and once to write, which at these sizes is all that takes time.

Shapes: R replicas, B batch, O outputs and I inputs of the layer, G groups of replicas that share columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _update(
    weight_ROI, mean_ROI, square_ROI, rows_RBO, columns_GBI, step_R, eps_R, shrink_R, alive_R,
    O, I, B, per_group, rows_r, rows_b, rows_o, columns_g, columns_b,
    beta1, beta2, root_correction,
    ADAM: tl.constexpr, SHRINKS: tl.constexpr, PRECISION: tl.constexpr,
    TILE_O: tl.constexpr, TILE_I: tl.constexpr, TILE_B: tl.constexpr,
):  # fmt: skip
    # Programs that run together share columns (the inputs), the larger of the two factors.
    replica = tl.program_id(1).to(tl.int64)
    tiles_o = tl.cdiv(O, TILE_O)
    o = (tl.program_id(0) % tiles_o) * TILE_O + tl.arange(0, TILE_O)
    i = (tl.program_id(0) // tiles_o) * TILE_I + tl.arange(0, TILE_I)
    if tl.load(alive_R + replica) == 0:
        return
    rows_RBO += replica * rows_r
    columns_GBI += (replica // per_group) * columns_g
    gradient = tl.zeros((TILE_O, TILE_I), tl.float32)
    for start in range(0, B, TILE_B):
        b = start + tl.arange(0, TILE_B)
        rows = tl.load(
            rows_RBO + o[:, None] * rows_o + b[None, :] * rows_b, mask=(o[:, None] < O) & (b[None, :] < B), other=0.0
        )
        columns = tl.load(
            columns_GBI + b[:, None] * columns_b + i[None, :], mask=(b[:, None] < B) & (i[None, :] < I), other=0.0
        )
        gradient = tl.dot(rows, columns, gradient, input_precision=PRECISION)
    place = replica * O * I + o[:, None].to(tl.int64) * I + i[None, :]
    inside = (o[:, None] < O) & (i[None, :] < I)
    weight = tl.load(weight_ROI + place, mask=inside, other=0.0)
    if SHRINKS:
        weight *= tl.load(shrink_R + replica)
    step = tl.load(step_R + replica)
    if ADAM:
        mean = tl.load(mean_ROI + place, mask=inside, other=0.0)
        square = tl.load(square_ROI + place, mask=inside, other=0.0)
        mean += (gradient - mean) * (1 - beta1)
        square = square * beta2 + gradient * gradient * (1 - beta2)
        tl.store(mean_ROI + place, mean, mask=inside)
        tl.store(square_ROI + place, square, mask=inside)
        weight -= step * mean / (tl.sqrt(square) / root_correction + tl.load(eps_R + replica))
    else:
        weight -= step * gradient
    tl.store(weight_ROI + place, weight, mask=inside)


def update(
    weight: Tensor,
    mean: Tensor | None,
    square: Tensor | None,
    rows: Tensor,
    columns: Tensor,
    *,
    step_size: Tensor,
    eps: Tensor,
    shrink: Tensor | None,
    alive: Tensor,
    betas: tuple[float, float],
    root_correction: float,
    tf32: bool,
) -> None:
    """Update ``weight`` [R, ..., I] in place by the gradient rowsᵀ columns; Adam where moments are given."""
    R, B, O = rows.shape
    I = columns.shape[-1]
    assert weight.is_contiguous() and weight.numel() == R * O * I
    columns = columns if columns.stride(-1) == 1 else columns.contiguous()
    adam = mean is not None
    tile_o, tile_i = (32, 64) if adam else (64, 64)
    tile_b = min(64, max(16, triton.next_power_of_2(B)))
    grid = (triton.cdiv(O, tile_o) * triton.cdiv(I, tile_i), R)
    with torch.cuda.device_of(weight):
        _update[grid](
            weight, mean if adam else weight, square if adam else weight, rows, columns, step_size, eps,
            step_size if shrink is None else shrink, alive, O, I, B, R // len(columns), *rows.stride(),
            columns.stride(0), columns.stride(1), betas[0], betas[1], root_correction,
            ADAM=adam, SHRINKS=shrink is not None, PRECISION="tf32" if tf32 else "ieee",
            TILE_O=tile_o, TILE_I=tile_i, TILE_B=tile_b, num_warps=4, num_stages=2,
        )  # fmt: skip
