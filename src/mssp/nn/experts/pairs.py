"""Pairs of a token and one of its experts, sorted by expert, and how rows go from tokens to pairs and back.

Shapes: T tokens, N width, M experts, K active, R = T*K pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mssp.nn.experts import backend


@dataclass(frozen=True)
class Pairs:
    """Pairs sorted by expert; those of one expert keep the order of their tokens.

    Args:
        token: the token of each pair.
        position: the index of each token's pairs among the sorted pairs, [T, K].
        order: the index of each pair before sorting.
        offsets: the index of the first pair of each expert, followed by the number of pairs.
    """

    token: Tensor
    position: Tensor
    order: Tensor
    offsets: Tensor


def sort_by_expert(chosen_TK: Tensor, experts: int) -> Pairs:
    """The pairs of all tokens and their experts, sorted by expert.

    >>> pairs = sort_by_expert(torch.tensor([[2, 0], [0, 1]]), experts=4)
    >>> pairs.token.tolist(), pairs.offsets.tolist()
    ([0, 1, 1, 0], [0, 2, 3, 4, 4])
    >>> pairs.position.tolist()
    [[3, 0], [1, 2]]
    """
    T, K = chosen_TK.shape
    # A GPU sorts by digits: the fewer bits, the faster.
    keys = chosen_TK.flatten().to(torch.int16 if experts < 2**15 else torch.int32)
    sorted_keys, order = keys.sort(stable=True)
    # Unlike bincount, a search does not wait for the device.
    offsets = torch.searchsorted(sorted_keys, torch.arange(experts + 1, dtype=keys.dtype, device=keys.device))
    position = torch.empty_like(order).scatter_(0, order, torch.arange(T * K, device=order.device))
    return Pairs(order // K, position.view(T, K), order, offsets.to(torch.int32))


def spread(x_TN: Tensor, pairs: Pairs) -> Tensor:
    """A row for every pair: the row of its token."""
    rows: Tensor = _spread(x_TN, pairs.token, pairs.position)
    return rows


def collect(rows_RN: Tensor, pairs: Pairs) -> Tensor:
    """A row for every token: the sum of its pairs' rows, in float32 or wider and in a fixed order."""
    sums: Tensor = _collect(rows_RN, pairs.token, pairs.position)
    return sums


# Spreading and collecting are each other's transposes, and so each other's gradients. Autograd's own gradients would
# add by atomics, in an order that changes from run to run. Both are operators of torch, which torch.compile takes.


@torch.library.custom_op("mssp::spread", mutates_args=())
def _spread(x_TN: Tensor, token: Tensor, position: Tensor) -> Tensor:
    return x_TN.index_select(0, token)


@torch.library.custom_op("mssp::collect", mutates_args=())
def _collect(rows_RN: Tensor, token: Tensor, position: Tensor) -> Tensor:
    if backend.runs_triton(rows_RN.device.type, rows_RN.dtype):
        sums: Tensor = backend.kernels().collect_rows(rows_RN.contiguous(), position)
        return sums
    wide = torch.promote_types(rows_RN.dtype, torch.float32)
    return rows_RN[position].sum(1, dtype=wide).to(rows_RN.dtype)


# Shapes for torch.compile; `len` instead of `shape[0]` would make the size of a batch a constant.
@_spread.register_fake
def _spread_shape(x_TN: Tensor, token: Tensor, position: Tensor) -> Tensor:
    return x_TN.new_empty(token.shape[0], x_TN.shape[1])


@_collect.register_fake
def _collect_shape(rows_RN: Tensor, token: Tensor, position: Tensor) -> Tensor:
    return rows_RN.new_empty(position.shape[0], rows_RN.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _spread_gradient(ctx: Any, grad_RN: Tensor) -> tuple[Tensor | None, ...]:
    return _collect(grad_RN, *ctx.saved_tensors), None, None


def _collect_gradient(ctx: Any, grad_TN: Tensor) -> tuple[Tensor | None, ...]:
    return _spread(grad_TN, *ctx.saved_tensors), None, None


_spread.register_autograd(_spread_gradient, setup_context=_keep)
_collect.register_autograd(_collect_gradient, setup_context=_keep)
