"""A Triton kernel in which the gradient of a layer meets the optimizer and is never written.

A matrix's gradient is a product over the batch, of rank B, and its two factors are far smaller than the matrix. So each
program computes its tile of the gradient and updates its tile of the weights and of Adam's two moments. Memory is read
once and written once, and at these sizes nothing else takes time.

Shapes: R replicas, B batch, O outputs and I inputs of the layer, G groups of replicas that share columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64  # outputs, inputs, and at most so many examples: the fastest of the sizes that were measured
_ADAM_TILES = 8  # tiles that one program updates, so that it loads one while it computes another


@triton.jit
def _update(
    weight_ROI, mean_ROI, square_ROI, rows_ROB, columns_GIB, step_R, eps_R, shrink_R, alive_R, root_correction, O, I,
    per_group, beta1, beta2,
    B: tl.constexpr, ADAM: tl.constexpr, SHRINKS: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr,
    TILE: tl.constexpr, TILE_B: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(1).to(tl.int64)
    if tl.load(alive_R + replica) == 0:
        return
    tiles_o = tl.cdiv(O, TILE)
    o = (tl.program_id(0) % tiles_o) * TILE + tl.arange(0, TILE)
    first = (tl.program_id(0) // tiles_o) * TILES * TILE
    rows_ROB += replica * O * B
    columns_GIB += (replica // per_group) * I * B
    weight_ROI += replica * O * I
    mean_ROI += replica * O * I
    square_ROI += replica * O * I
    step = tl.load(step_R + replica)
    for tile in range(TILES):
        i = first + tile * TILE + tl.arange(0, TILE)
        gradient = tl.zeros((TILE, TILE), tl.float32)
        for start in tl.static_range(0, B, TILE_B):
            b = start + tl.arange(0, TILE_B)
            rows = tl.load(rows_ROB + o[:, None] * B + b[None, :], mask=o[:, None] < O, other=0.0)
            columns = tl.load(columns_GIB + i[:, None] * B + b[None, :], mask=i[:, None] < I, other=0.0)
            gradient = tl.dot(rows, tl.trans(columns), gradient, input_precision=PRECISION)
        place = o[:, None] * I + i[None, :]
        inside = (o[:, None] < O) & (i[None, :] < I)
        weight = tl.load(weight_ROI + place, mask=inside, other=0.0)
        if SHRINKS:
            weight *= tl.load(shrink_R + replica)
        if ADAM:
            mean = tl.load(mean_ROI + place, mask=inside, other=0.0)
            square = tl.load(square_ROI + place, mask=inside, other=0.0)
            mean += (gradient - mean) * (1 - beta1)
            square = square * beta2 + gradient * gradient * (1 - beta2)
            tl.store(mean_ROI + place, mean, mask=inside)
            tl.store(square_ROI + place, square, mask=inside)
            weight -= step * mean / (tl.sqrt(square) / tl.load(root_correction) + tl.load(eps_R + replica))
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
    root_correction: Tensor,
    tf32: bool,
) -> None:
    """Update ``weight`` [R, ..., I] in place by the gradient rowsᵀ columns; Adam where moments are given.

    ``rows`` are [R, B, O] and ``columns`` [G, B, I]. In float32 the product is made of three products in TF32, which is
    as exact, and hardly slower because the kernel waits for memory anyway.
    """
    R, B, O = rows.shape
    I = columns.shape[-1]
    assert weight.is_contiguous()
    assert weight.numel() == R * O * I
    tile_b = min(_TILE, max(16, triton.next_power_of_2(B)))
    padded = triton.cdiv(B, tile_b) * tile_b
    adam = mean is not None
    tiles = min(_ADAM_TILES if adam else 1, triton.cdiv(I, _TILE))
    grid = (triton.cdiv(O, _TILE) * triton.cdiv(I, _TILE * tiles), R)
    with torch.cuda.device_of(weight):
        _update[grid](
            weight, mean if adam else weight, square if adam else weight, _batch_last(rows, padded),
            _batch_last(columns, padded), step_size, eps, step_size if shrink is None else shrink, alive,
            root_correction, O, I, R // len(columns), betas[0], betas[1],
            B=padded, ADAM=adam, SHRINKS=shrink is not None, PRECISION="tf32" if tf32 else "tf32x3", TILES=tiles,
            TILE=_TILE, TILE_B=tile_b, num_warps=4, num_stages=3 if adam else 1,
        )  # fmt: skip


def _batch_last(factor: Tensor, padded: int) -> Tensor:
    """[R, B, X] as [R, X, B], the batch filled up with zeros: tensor cores take TF32 along the summed axis only."""
    R, B, X = factor.shape
    turned = factor.new_zeros(R, X, padded)
    turned[..., :B] = factor.mT
    return turned
