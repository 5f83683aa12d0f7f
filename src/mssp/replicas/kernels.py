"""A Triton kernel that computes the gradient of a layer and applies it in one pass, without storing the gradient.

A matrix's gradient is a product over the batch, of rank B, and its two factors are far smaller than the matrix. Each
program of the kernel computes one tile of the gradient, and updates the same tile of the weights and of Adam's two
moments. Weights and moments are read once and written once, which is nearly all of the time at these sizes.

Shapes: R replicas, B batch, O outputs and I inputs of the layer, G groups of replicas that share columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64  # outputs, inputs and (at most) examples of one tile: the fastest of the sizes that were measured
_ADAM_TILES = 8  # tiles that one program updates under Adam, so that it loads one while it computes another


@triton.jit
def _update(
    weight_ROI, mean_ROI, square_ROI, rows_ROB, columns_GIB, step_size_R, eps_R, decay_factor_R, alive_R,
    root_correction_2, O, I, per_group, beta1, beta2,
    B: tl.constexpr, ADAM: tl.constexpr, DECAYS: tl.constexpr, PRECISION: tl.constexpr, TILES: tl.constexpr,
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
    step_size = tl.load(step_size_R + replica)
    for tile in range(TILES):
        i = first + tile * TILE + tl.arange(0, TILE)
        gradient = tl.zeros((TILE, TILE), tl.float32)
        for start in tl.static_range(0, B, TILE_B):
            b = start + tl.arange(0, TILE_B)
            rows = tl.load(rows_ROB + o[:, None] * B + b[None, :], mask=o[:, None] < O, other=0.0)
            columns = tl.load(columns_GIB + i[:, None] * B + b[None, :], mask=i[:, None] < I, other=0.0)
            gradient = tl.dot(rows, tl.trans(columns), gradient, input_precision=PRECISION)
        offsets = o[:, None] * I + i[None, :]
        inside = (o[:, None] < O) & (i[None, :] < I)
        weight = tl.load(weight_ROI + offsets, mask=inside, other=0.0)
        if DECAYS:
            weight *= tl.load(decay_factor_R + replica)
        if ADAM:
            mean = tl.load(mean_ROI + offsets, mask=inside, other=0.0)
            square = tl.load(square_ROI + offsets, mask=inside, other=0.0)
            mean += (gradient - mean) * (1 - beta1)
            square = square * beta2 + gradient * gradient * (1 - beta2)
            tl.store(mean_ROI + offsets, mean, mask=inside)
            tl.store(square_ROI + offsets, square, mask=inside)
            denominator = tl.sqrt(square) / tl.load(root_correction_2) + tl.load(eps_R + replica)
            weight -= step_size * mean / denominator
        else:
            weight -= step_size * gradient
        tl.store(weight_ROI + offsets, weight, mask=inside)


def update(
    weight: Tensor,
    mean: Tensor | None,
    square: Tensor | None,
    rows: Tensor,
    columns: Tensor,
    *,
    step_size: Tensor,
    eps: Tensor,
    decay_factor: Tensor | None,
    alive: Tensor,
    betas: tuple[float, float],
    root_correction_2: Tensor,
    tf32: bool,
) -> None:
    """Updates ``weight`` [R, ..., I] in place by the gradient rowsᵀ columns: by Adam if there are moments, else by SGD.

    ``rows`` are [R, B, O] and ``columns`` [G, B, I]. Without ``tf32``, the product is made of three products in TF32,
    which is as exact as float32, and hardly slower because the kernel waits for memory anyway.
    """
    R, B, O = rows.shape
    I = columns.shape[-1]
    assert weight.is_contiguous()
    assert weight.numel() == R * O * I
    tile_b = min(_TILE, max(16, triton.next_power_of_2(B)))
    padded = triton.cdiv(B, tile_b) * tile_b
    adam = mean is not None
    tiles = min(_ADAM_TILES if adam else 1, triton.cdiv(I, _TILE))
    # Stages overlap the loads of several tiles. Over several parts of a batch they would need more shared memory than
    # there is.
    stages = 3 if adam and padded == tile_b else 1
    grid = (triton.cdiv(O, _TILE) * triton.cdiv(I, _TILE * tiles), R)
    with torch.cuda.device_of(weight):
        _update[grid](
            weight, mean if adam else weight, square if adam else weight, _batch_last(rows, padded),
            _batch_last(columns, padded), step_size, eps, step_size if decay_factor is None else decay_factor, alive,
            root_correction_2, O, I, R // len(columns), betas[0], betas[1],
            B=padded, ADAM=adam, DECAYS=decay_factor is not None, PRECISION="tf32" if tf32 else "tf32x3", TILES=tiles,
            TILE=_TILE, TILE_B=tile_b, num_warps=4, num_stages=stages,
        )  # fmt: skip


def _batch_last(factor: Tensor, padded: int) -> Tensor:
    """[R, B, X] as [R, X, B], the batch filled up with zeros: tensor cores take TF32 along the summed axis only."""
    R, B, X = factor.shape
    transposed = factor.new_zeros(R, X, padded)
    transposed[..., :B] = factor.mT
    return transposed
