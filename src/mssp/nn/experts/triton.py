"""Triton kernels for experts, and their launchers.

Gated activation and its gradient, row by row; the sum over each token's rows; and two matrix products over rows
sorted by expert: rows times their expert's matrix, and the gradient of the matrices. The products gather tokens
themselves, so that no sorted copy of the tokens is ever written.

Shapes: T tokens, N width, M experts, K active, E expert width, F rows of w_in (E, or 2E for gated experts: first the
gate, then the up projection), R = T*K pairs of a token and one of its experts, sorted by expert.

``TRITON_INTERPRET=1``, set before this module is imported, runs all of it on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_SQRT_HALF = tl.constexpr(0.7071067811865476)
_DENSITY_AT_ZERO = tl.constexpr(0.3989422804014327)  # of the normal distribution
_ELEMENTS = 2048  # per program of the row-by-row kernels


@triton.jit
def _normal_cdf(x, bell, EXACT: tl.constexpr):
    """The normal distribution's cdf at x, with ``bell`` = exp(-x²/2).

    The rational form (Abramowitz and Stegun 7.1.26, error below 1e-7) shares its exponential with the density; erf
    itself would make these kernels wait for arithmetic instead of memory.
    """
    if EXACT:
        cdf = 0.5 * (1 + tl.erf(x * _SQRT_HALF))
    else:
        t = 1 / (1 + 0.3275911 * _SQRT_HALF * tl.abs(x))
        poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
        tail = 0.5 * poly * bell
        cdf = tl.where(x > 0, 1 - tail, tail)
    return cdf


@triton.jit
def _activated_and_slope(x, ACTIVATION: tl.constexpr, EXACT: tl.constexpr):
    if ACTIVATION == "gelu":
        bell = tl.exp(-0.5 * x * x)
        cdf = _normal_cdf(x, bell, EXACT)
        y = x * cdf
        slope = cdf + x * _DENSITY_AT_ZERO * bell
    elif ACTIVATION == "relu":
        y = tl.where(x > 0, x, 0.0)
        slope = tl.where(x > 0, 1.0, 0.0)
    elif ACTIVATION == "silu":
        s = tl.sigmoid(x)
        y = x * s
        slope = s * (1 + x * (1 - s))
    elif ACTIVATION == "tanh":
        # The difference loses small numbers, the series large ones.
        s = x * x
        near = x * (1 - s * (1 / 3 - s * (2 / 15 - s * (17 / 315 - s * (62 / 2835)))))
        y = tl.where(s < 0.01, near, 2 * tl.sigmoid(2 * x) - 1)
        slope = 1 - y * y
    else:
        tl.static_assert(ACTIVATION == "identity")
        y = x
        slope = tl.full(x.shape, 1.0, x.dtype)
    return y, slope


@triton.jit
def _gate_rows(
    pre_RF, gate_R, hidden_RE, R, E,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    F = 2 * E if GATED else E
    pre_RF += first * F
    hidden_RE += first * E
    r = tl.arange(0, ROWS)
    live = r < R - first
    gate = tl.load(gate_R + first + r, mask=live, other=0).to(WIDE)[:, None]
    for start in range(0, E, COLUMNS):
        e = start + tl.arange(0, COLUMNS)
        inside = live[:, None] & (e < E)[None, :]
        at = r[:, None] * F + e[None, :]
        hidden, _ = _activated_and_slope(tl.load(pre_RF + at, mask=inside, other=0).to(WIDE), ACTIVATION, EXACT)
        if GATED:
            hidden *= tl.load(pre_RF + at + E, mask=inside, other=0).to(WIDE)
        tl.store(hidden_RE + r[:, None] * E + e[None, :], hidden * gate, mask=inside)


@triton.jit
def _gate_rows_backward(
    pre_RF, gate_R, grad_hidden_RE, grad_pre_RF, grad_gate_R, R, E,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    F = 2 * E if GATED else E
    pre_RF += first * F
    grad_pre_RF += first * F
    grad_hidden_RE += first * E
    r = tl.arange(0, ROWS)
    live = r < R - first
    gate = tl.load(gate_R + first + r, mask=live, other=0).to(WIDE)[:, None]
    grad_gate = tl.zeros([ROWS], WIDE)
    for start in range(0, E, COLUMNS):
        e = start + tl.arange(0, COLUMNS)
        inside = live[:, None] & (e < E)[None, :]
        at = r[:, None] * F + e[None, :]
        grad = tl.load(grad_hidden_RE + r[:, None] * E + e[None, :], mask=inside, other=0).to(WIDE)
        pre = tl.load(pre_RF + at, mask=inside, other=0).to(WIDE)
        activated, slope = _activated_and_slope(pre, ACTIVATION, EXACT)
        if GATED:
            up = tl.load(pre_RF + at + E, mask=inside, other=0).to(WIDE)
            tl.store(grad_pre_RF + at + E, grad * gate * activated, mask=inside)
            grad *= up
        grad_gate += tl.sum(grad * activated, axis=1)
        tl.store(grad_pre_RF + at, grad * gate * slope, mask=inside)
    tl.store(grad_gate_R + first + r, grad_gate, mask=live)


@triton.jit
def _collect_rows(
    rows_RN, position_TK, out_TN, N, K,
    WIDE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[t] = the sum over k of rows[position[t, k]]."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], WIDE)
    for k in range(K):
        r = tl.load(position_TK + t * K + k).to(tl.int64)
        total += tl.load(rows_RN + r * N + n, mask=n < N, other=0).to(WIDE)
    tl.store(out_TN + t * N + n, total, mask=n < N)


@triton.jit
def _rows_times_matrices(
    source, weights, out, bias, from_row, offsets, block_ends, M, C, J, stride_m, stride_j, stride_c,
    EXPERTS: tl.constexpr, GATHER: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out[r] = source[from_row[r]] @ weights[m] (+ bias[m]) for the rows r of each expert m."""
    column_blocks = tl.cdiv(C, COLUMNS)
    block = tl.program_id(0) // column_blocks
    experts = tl.arange(0, EXPERTS)
    ends = tl.load(block_ends + experts, mask=experts < M, other=2**30)
    m = tl.sum((ends <= block).to(tl.int32))
    if m >= M:  # as many programs are launched as blocks are possible, not as there are
        return
    first_block = tl.where(m > 0, tl.load(block_ends + tl.maximum(m - 1, 0)), 0)
    r = tl.load(offsets + m) + (block - first_block) * ROWS + tl.arange(0, ROWS)
    live = r < tl.load(offsets + m + 1)
    c = (tl.program_id(0) % column_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    j = tl.arange(0, INNER)
    row = tl.load(from_row + r, mask=live, other=0) if GATHER else r
    left = source + row.to(tl.int64)[:, None] * J + j[None, :]
    right = weights + m.to(tl.int64) * stride_m + j[:, None] * stride_j + c[None, :] * stride_c
    total = tl.zeros([ROWS, COLUMNS], WIDE)
    for start in range(0, J, INNER):
        if EVEN:
            a = tl.load(left, mask=live[:, None], other=0)
            b = tl.load(right)
        else:
            within = j < J - start
            a = tl.load(left, mask=live[:, None] & within[None, :], other=0)
            b = tl.load(right, mask=within[:, None] & (c < C)[None, :], other=0)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=WIDE)
        left += INNER
        right += INNER * stride_j
    if BIAS:
        total += tl.load(bias + m * C + c, mask=c < C, other=0).to(WIDE)[None, :]
    tl.store(out + r.to(tl.int64)[:, None] * C + c[None, :], total, mask=live[:, None] & (c < C)[None, :])


@triton.jit
def _matrices_gradient(
    left, right, out, from_row, offsets, F, N,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TALL: tl.constexpr, COLUMNS: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """out[m] = sum over the rows r of expert m of left[r]ᵀ right[from_row[r]]."""
    m = tl.program_id(1)
    column_blocks = tl.cdiv(N, COLUMNS)
    f = (tl.program_id(0) // column_blocks) * TALL + tl.arange(0, TALL)
    n = (tl.program_id(0) % column_blocks) * COLUMNS + tl.arange(0, COLUMNS)
    end = tl.load(offsets + m + 1)
    total = tl.zeros([TALL, COLUMNS], WIDE)
    for start in range(tl.load(offsets + m), end, ROWS):
        r = start + tl.arange(0, ROWS)
        live = (r < end)[:, None]
        row = tl.load(from_row + r, mask=r < end, other=0).to(tl.int64)[:, None]
        at = r.to(tl.int64)[:, None] * F + f[None, :]
        if EVEN:
            a = tl.load(left + at, mask=live, other=0)
            b = tl.load(right + row * N + n[None, :], mask=live, other=0)
        else:
            a = tl.load(left + at, mask=live & (f < F)[None, :], other=0)
            b = tl.load(right + row * N + n[None, :], mask=live & (n < N)[None, :], other=0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION, out_dtype=WIDE)
    at = m.to(tl.int64) * F * N + f.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out + at, total, mask=(f < F)[:, None] & (n < N)[None, :])


def gate_rows(pre_RF: Tensor, gate_R: Tensor, activation: str, gated: bool) -> Tensor:
    """The hidden units of every row, times its gate."""
    R, F = pre_RF.shape
    E = F // 2 if gated else F
    hidden_RE = pre_RF.new_empty(R, E)
    blocks = _row_blocks(pre_RF, E)
    _gate_rows[(triton.cdiv(R, blocks["ROWS"]),)](pre_RF, gate_R, hidden_RE, R, E, activation, gated, **blocks)
    return hidden_RE


def gate_rows_backward(
    pre_RF: Tensor, gate_R: Tensor, grad_hidden_RE: Tensor, activation: str, gated: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`gate_rows` by its first two arguments."""
    R, E = grad_hidden_RE.shape
    grad_pre_RF, grad_gate_R = torch.empty_like(pre_RF), torch.empty_like(gate_R)
    blocks = _row_blocks(pre_RF, E)
    _gate_rows_backward[(triton.cdiv(R, blocks["ROWS"]),)](
        pre_RF, gate_R, grad_hidden_RE, grad_pre_RF, grad_gate_R, R, E, activation, gated, **blocks
    )
    return grad_pre_RF, grad_gate_R


def rows_times_matrices(
    source: Tensor,
    weights_MJC: Tensor,
    offsets: Tensor,
    *,
    rows: int,
    from_row: Tensor | None = None,
    bias_MC: Tensor | None = None,
) -> Tensor:
    """Every sorted row times the matrix of its expert; rows are read from where ``from_row`` says.

    ``offsets`` [M + 1] says where the rows of each expert begin. The matrices may be transposed views.
    """
    M, J, C = weights_MJC.shape
    tiles = _product_tiles(C, J, source.dtype, from_row is not None)
    counts = offsets.diff()
    block_ends = ((counts + (tiles["ROWS"] - 1)) // tiles["ROWS"]).cumsum(0, dtype=torch.int32)
    blocks = triton.cdiv(rows, tiles["ROWS"]) + min(M, rows)  # at least as many as there can be
    out = source.new_empty(rows, C)
    _rows_times_matrices[(blocks * triton.cdiv(C, tiles["COLUMNS"]),)](
        source, weights_MJC, out, bias_MC, from_row, offsets, block_ends, M, C, J, *weights_MJC.stride(),
        EXPERTS=max(256, triton.next_power_of_2(M)), GATHER=from_row is not None,
        BIAS=bias_MC is not None, EVEN=C % tiles["COLUMNS"] == 0 and J % tiles["INNER"] == 0,
        **_precision(source), **tiles,
    )  # fmt: skip
    return out


def matrices_gradient(left_RF: Tensor, right: Tensor, from_row: Tensor, offsets: Tensor) -> Tensor:
    """The gradient of every expert's matrix: the sum over its rows of ``left[r]ᵀ right[from_row[r]]``."""
    F, N, M = left_RF.shape[1], right.shape[1], len(offsets) - 1
    tiles = _gradient_tiles(F, N, left_RF.dtype)
    out = left_RF.new_empty(M, F, N)
    _matrices_gradient[(triton.cdiv(F, tiles["TALL"]) * triton.cdiv(N, tiles["COLUMNS"]), M)](
        left_RF, right, out, from_row, offsets, F, N,
        EVEN=F % tiles["TALL"] == 0 and N % tiles["COLUMNS"] == 0, **_precision(left_RF), **tiles,
    )  # fmt: skip
    return out


def collect_rows(rows_RN: Tensor, position_TK: Tensor) -> Tensor:
    """The sum over each token's K rows, which lie where ``position`` says."""
    T, K = position_TK.shape
    N = rows_RN.shape[1]
    out_TN = rows_RN.new_empty(T, N)
    columns = min(triton.next_power_of_2(N), 1024)
    grid = (T, triton.cdiv(N, columns))
    _collect_rows[grid](rows_RN, position_TK, out_TN, N, K, _wide(rows_RN), columns, num_warps=4)
    return out_TN


def _row_blocks(pre: Tensor, E: int) -> dict[str, Any]:
    columns = min(triton.next_power_of_2(E), 1024)
    exact = pre.dtype.itemsize > 2  # half precision cannot tell the difference
    return {"EXACT": exact, "WIDE": _wide(pre), "ROWS": max(1, _ELEMENTS // columns), "COLUMNS": columns}


def _product_tiles(C: int, J: int, dtype: torch.dtype, gathered: bool) -> dict[str, int]:
    """Block sizes that were the fastest of a dozen on an H200, at the shapes of the expert benchmark."""
    inner = min(_block(J), 64 if dtype.itemsize <= 2 else 32)
    if C <= 64:
        rows, columns, warps, stages = 128, _block(C), 4, 3
    elif J <= 64:
        rows, columns, warps, stages = 64, 128, 4, 2
    elif C % 256 == 0 and dtype.itemsize <= 2 and not gathered:
        rows, columns, warps, stages = 128, 256, 8, 4
    else:
        rows, columns, warps, stages = 128, 128, 8, 3
    return {"ROWS": rows, "COLUMNS": columns, "INNER": inner, "num_warps": warps, "num_stages": stages}


def _gradient_tiles(F: int, N: int, dtype: torch.dtype) -> dict[str, int]:
    tall = min(_block(F), 128)
    return {
        "ROWS": 64 if dtype.itemsize <= 2 else 32,
        "TALL": tall,
        "COLUMNS": min(_block(N), 128),
        "num_warps": 4 if tall <= 64 else 8,
        "num_stages": 3,
    }


def _block(size: int) -> int:
    return max(16, triton.next_power_of_2(size))  # tensor cores take no less than 16


def _wide(x: Tensor) -> Any:
    """The type that sums are kept in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _precision(x: Tensor) -> dict[str, Any]:
    tf32 = x.is_cuda and x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {"WIDE": _wide(x), "PRECISION": "tf32" if tf32 else "ieee"}
