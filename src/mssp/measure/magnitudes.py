"""Sizes (root mean squares) of tensors and of one linear layer's terms, for R replicas at once.

Every tensor here has a leading axis of replicas, and every size is [R]. A linear map h = W x is compared with its
start:

    ΔW x_t     effective: felt by this layer's input, made by this layer's update
    W_0 Δx     propagating: made upstream, passed on by the initial weights
    W_0ᵀ δ, ΔWᵀ δ     the same two, backward

Shapes: R replicas, T tokens, a outputs, b inputs; δ is the gradient of a token's loss at the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mssp.measure.quantities import (
    BACKWARD_EFFECTIVE,
    BACKWARD_PROPAGATING,
    EFFECTIVE,
    GRADIENT,
    INPUT,
    INPUT_CHANGE,
    PROPAGATING,
    UPDATE,
    WEIGHTS,
)

Sizes = dict[str, Tensor]
_SMALL = 1e-15


def rms(x: Tensor) -> Tensor:
    """Root mean square over all entries of each replica.

    >>> rms(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([3.5355, 0.0000], dtype=torch.float64)
    """
    rows, norm = x.flatten(1), torch.linalg.vector_norm
    # On a GPU float64 costs nothing, since reading the numbers takes longer.
    as_it_is = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    size: Tensor = norm(rows, dim=1, dtype=None if as_it_is else torch.float64).double()
    if x.device.type == "cpu" and rows.dtype == torch.float32 and bool((size < _SMALL).any()):
        # The squares may be too small for float32, or the size is indeed zero.
        size = norm(rows, dim=1, dtype=torch.float64)
    mean: Tensor = size / rows.shape[1] ** 0.5
    return mean


def rms_of_products(rows: Tensor, columns: Tensor) -> Tensor:
    """The RMS of rowsᵀ columns, which is a weight's gradient, without the matrix where few tokens make it cheaper.

    >>> rows, columns = torch.randn(1, 5, 7), torch.randn(1, 5, 30)
    >>> bool(torch.isclose(rms_of_products(rows, columns), rms(rows.mT @ columns)))
    True

    Args:
        rows: [R, ..., T, a], the gradients at the outputs.
        columns: [R, ..., T, b], the inputs; axes between R and T are layers of their own.
    """
    T, a, b = rows.shape[-2], rows.shape[-1], columns.shape[-1]
    if a * b <= T * (a + b):
        return rms(rows.mT @ columns)
    # The sum of squares of a product is the sum, over pairs of tokens, of their inner products on both sides.
    squares = ((rows @ rows.mT).double() * (columns @ columns.mT).double()).flatten(1).sum(1)
    layers = rows[0].numel() // (T * a)
    return (squares.clamp_min(0) / (layers * a * b)).sqrt()


def total(parts: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors."""
    first, *rest = parts
    return sum(rest, first)


class Pool:
    """Sizes by name. Those of one name, such as the layers of one role, are pooled as a root mean square."""

    def __init__(self) -> None:
        self._squares: dict[str, list[Tensor]] = {}

    def add(self, name: str, size: Tensor) -> None:
        self._squares.setdefault(name, []).append(size.detach().double().square())

    def add_all(self, sizes: Mapping[str, Tensor]) -> None:
        for name, size in sizes.items():
            self.add(name, size)

    def sizes(self) -> Sizes:
        return {name: torch.stack(squares).mean(0).sqrt() for name, squares in self._squares.items()}


@dataclass(frozen=True)
class Layer:
    """A linear map at one moment: its weight [R, a, b] and what entered it [R, T, b]."""

    weight: Tensor
    x: Tensor


def layer_sizes(role: str, start: Layer, now: Layer, back: Tensor | None) -> Sizes:
    """Every size of one layer, by name; without ``back`` [R, T, a], those of the forward pass only."""
    update, change = now.weight - start.weight, now.x - start.x
    sizes: Sizes = {
        EFFECTIVE(role): rms(now.x @ update.mT),
        PROPAGATING(role): rms(change @ start.weight.mT),
        WEIGHTS(role): rms(start.weight),
        UPDATE(role): rms(update),
        INPUT(role): rms(now.x),
        INPUT_CHANGE(role): rms(change),
    }
    if back is not None:
        sizes[BACKWARD_PROPAGATING(role)] = rms(back @ start.weight)
        sizes[BACKWARD_EFFECTIVE(role)] = rms(back @ update)
        # A batch's loss is the mean over its tokens.
        sizes[GRADIENT(role)] = rms_of_products(back, now.x) / back.shape[-2]
    return sizes
