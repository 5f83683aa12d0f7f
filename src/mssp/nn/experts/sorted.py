"""Experts on rows sorted by expert, by Triton kernels that read each row from its token.

The kernels are registered as operators of torch, so that torch.compile takes them as they are. Nothing of size R x N is
kept for the backward pass. Shapes are those of :mod:`mssp.nn.experts.paths`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mssp.nn.experts import backend
from mssp.nn.experts.pairs import Pairs


def sorted_experts(
    x_TN: Tensor,
    gate_R: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    b_in: Tensor | None,
    pairs: Pairs,
    act: str,
    gated: bool,
) -> Tensor:
    """[T, N]: the sum over each token's pairs of gate times expert output, without output biases."""
    bias = None if b_in is None else b_in.contiguous()
    outputs: tuple[Tensor, ...] = _forward(
        x_TN.contiguous(), gate_R, w_in, w_out, bias, pairs.token, pairs.position, pairs.offsets, act, gated
    )
    return outputs[0]


@torch.library.custom_op("mssp::sorted_experts", mutates_args=())
def _forward(
    x_TN: Tensor,
    gate_R: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    b_in: Tensor | None,
    token: Tensor,
    position: Tensor,
    offsets: Tensor,
    act: str,
    gated: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and what the backward pass needs: the pre-activations and gated hidden units of every row."""
    kernels = backend.kernels()
    pre_RF = kernels.rows_times_matrices(x_TN, w_in.mT, offsets, rows=token.shape[0], from_row=token, bias_MC=b_in)
    hidden_RE = kernels.gate_rows(pre_RF, gate_R, act, gated)
    y_RN = kernels.rows_times_matrices(hidden_RE, w_out, offsets, rows=token.shape[0])
    return kernels.collect_rows(y_RN, position), pre_RF, hidden_RE


@torch.library.custom_op("mssp::sorted_experts_backward", mutates_args=())
def _backward(
    grad_TN: Tensor,
    x_TN: Tensor,
    gate_R: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    token: Tensor,
    position: Tensor,
    offsets: Tensor,
    pre_RF: Tensor,
    hidden_RE: Tensor,
    act: str,
    gated: bool,
    wants_x: bool,
    wants_w_in: bool,
    wants_w_out: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by x, gate, w_in, w_out and the pre-activations; empty where not wanted."""
    kernels, rows = backend.kernels(), token.shape[0]
    grad_hidden_RE = kernels.rows_times_matrices(grad_TN, w_out.mT, offsets, rows=rows, from_row=token)
    grad_pre_RF, grad_gate_R = kernels.gate_rows_backward(pre_RF, gate_R, grad_hidden_RE, act, gated)
    grad_x, grad_w_in, grad_w_out = (x_TN.new_empty(0) for _ in range(3))
    if wants_x:
        grad_x = kernels.collect_rows(kernels.rows_times_matrices(grad_pre_RF, w_in, offsets, rows=rows), position)
    if wants_w_in:
        grad_w_in = kernels.matrices_gradient(grad_pre_RF, x_TN, token, offsets)
    if wants_w_out:
        grad_w_out = kernels.matrices_gradient(hidden_RE, grad_TN, token, offsets)
    return grad_x, grad_gate_R, grad_w_in, grad_w_out, grad_pre_RF


@_forward.register_fake
def _forward_shapes(
    x_TN: Tensor, gate_R: Tensor, w_in: Tensor, w_out: Tensor, b_in: Tensor | None, token: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    pre_RF, hidden_RE = (x_TN.new_empty(token.shape[0], weight.shape[1]) for weight in (w_in, w_out))
    return torch.empty_like(x_TN), pre_RF, hidden_RE


@_backward.register_fake
def _backward_shapes(
    grad_TN: Tensor, x_TN: Tensor, gate_R: Tensor, w_in: Tensor, w_out: Tensor, token: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    grad_x, grad_w_in, grad_w_out = (
        x_TN.new_empty(tensor.shape if wanted else 0)
        for tensor, wanted in zip((x_TN, w_in, w_out), rest[-3:], strict=True)
    )
    return grad_x, torch.empty_like(gate_R), grad_w_in, grad_w_out, x_TN.new_empty(token.shape[0], w_in.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_TN, gate_R, w_in, w_out, b_in, token, position, offsets, ctx.act, ctx.gated = inputs
    ctx.biased = b_in is not None
    ctx.set_materialize_grads(False)  # the other outputs have no gradients, and need no zeros in their place
    ctx.save_for_backward(x_TN, gate_R, w_in, w_out, token, position, offsets, *output[1:])


def _gradients(ctx: Any, grad_TN: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad_TN is None:
        return (None,) * 10
    offsets = ctx.saved_tensors[6]
    wants_x, _, *wants_weights = ctx.needs_input_grad[:4]
    grad_x, grad_gate_R, grad_w_in, grad_w_out, grad_pre_RF = _backward(
        grad_TN.contiguous(), *ctx.saved_tensors, ctx.act, ctx.gated, wants_x, *wants_weights
    )
    wanted = zip(ctx.needs_input_grad, (grad_x, grad_gate_R, grad_w_in, grad_w_out), strict=False)
    grads = [grad if wants else None for wants, grad in wanted]
    grad_b_in = None
    if ctx.biased:
        wide = torch.promote_types(grad_pre_RF.dtype, torch.float32)
        sums = torch.segment_reduce(grad_pre_RF.to(wide), "sum", lengths=offsets.diff(), axis=0)
        grad_b_in = sums.to(grad_pre_RF.dtype)
    return *grads, grad_b_in, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
